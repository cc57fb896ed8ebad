"""Reduce-window and select-and-scatter: the law, values by plain loops, cycles by hand."""

from itertools import product

import numpy as np
import pytest

from hloipu_runtime.codelets.core.expression import Expression, Node
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.indexed.select_scatter import SelectAndScatter
from hloipu_runtime.codelets.ops.windows import ReduceWindow, Window, dimensions_of
from hloipu_runtime.kernels.windows_geometry import output_shape
from hloipu_runtime.machine.load import load_machine
from tests.support.codelet_law import Given, check_every_split, close_values

RNG = np.random.default_rng(5)
TINY = load_machine("tiny")
ONE = (1, 1, 0, 0, 1, 1)

WINDOWS: list[tuple[tuple[int, ...], Window]] = [
    ((11,), ((3, 2, 1, 1, 1, 1),)),
    ((11,), ((2, 3, 0, 0, 1, 1),)),
    ((12,), ((3, 1, 2, 4, 1, 2),)),
    ((9,), ((2, 2, -1, -2, 1, 1),)),
    ((6,), ((3, 1, 5, 7, 1, 1),)),
    ((7,), ((7, 1, 6, 0, 1, 1),)),
    ((5,), ((3, 2, 1, 0, 2, 1),)),
    ((2, 8, 7, 3), (ONE, (3, 2, 1, 1, 1, 1), (2, 2, 0, 1, 1, 1), ONE)),
    ((4, 6), ((2, 1, 0, 0, 1, 1), (2, 2, 1, 1, 3, 1))),
]


def _windows(
    shape: tuple[int, ...], window: Window
) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    """Return the places of the real elements of each window, by the definition."""
    found = {}
    for at in product(*map(range, output_shape(shape, dimensions_of(window)))):
        places = []
        for k in product(*(range(w[0]) for w in window)):
            dilated = [a * w[1] + i * w[5] - w[2] for a, i, w in zip(at, k, window, strict=True)]
            whole = [(p // w[4], p % w[4]) for p, w in zip(dilated, window, strict=True)]
            if all(0 <= q < n and r == 0 for (q, r), n in zip(whole, shape, strict=True)):
                places.append(tuple(q for q, _ in whole))
        found[at] = places
    return found


@pytest.mark.parametrize(("shape", "window"), WINDOWS)
@pytest.mark.parametrize("monoid", ["add", "maximum"])
def test_reduced_windows(shape: tuple[int, ...], window: Window, monoid: str) -> None:
    x = Given("s32", RNG.integers(-99, 99, shape).astype(np.int32))
    out = output_shape(shape, dimensions_of(window))
    whole = check_every_split(
        ReduceWindow(window, monoid, None, ("s32",)),
        [x, Given("s32", np.asarray(-40, np.int32))],
        [Tensor("s32", out)],
    )
    for at, places in _windows(shape, window).items():
        values = [-40, *(int(x.array[p]) for p in places)]
        assert whole[0][at] == (sum(values) if monoid == "add" else max(values))


ADD_AND_MAXIMUM = Expression(
    ("f32", "f32", "f32", "f32"),
    (Node("add", (0, 2), "f32"), Node("maximum", (1, 3), "f32")),
    (4, 5),
)


@pytest.mark.parametrize(("shape", "window"), WINDOWS)
def test_regions_on_two_operands(shape: tuple[int, ...], window: Window) -> None:
    operands = [Given("f32", RNG.standard_normal(shape).astype(np.float32)) for _ in range(2)]
    inits = [Given("f32", np.asarray(v, np.float32)) for v in (0.5, -9)]
    out = Tensor("f32", output_shape(shape, dimensions_of(window)))
    codelet = ReduceWindow(window, "", ADD_AND_MAXIMUM, ("f32", "f32"))
    whole = check_every_split(
        codelet, [*operands, *inits], [out, out], same=close_values(1e-5, 1e-6)
    )
    for at, places in _windows(shape, window).items():
        assert whole[0][at] == pytest.approx(
            0.5 + sum(operands[0].array[p] for p in places), 1e-5, 1e-5
        )
        assert whole[1][at] == max([-9, *(operands[1].array[p] for p in places)])


NO_HOLES = [case for case in WINDOWS if all(w[4] == 1 for w in case[1])]


@pytest.mark.parametrize(("shape", "window"), NO_HOLES)
@pytest.mark.parametrize("ties", [False, True])
def test_selected_and_scattered(shape: tuple[int, ...], window: Window, ties: bool) -> None:
    size = int(np.prod(shape))
    values = RNG.integers(0, 3, size) if ties else RNG.permutation(size)
    x = Given("f32", values.reshape(shape).astype(np.float32))
    out = output_shape(shape, dimensions_of(window))
    source = Given("f32", RNG.integers(1, 99, out).astype(np.float32))
    codelet = SelectAndScatter(window, "ge", None, "add", None, "f32")
    whole = check_every_split(
        codelet, [x, source, Given("f32", np.asarray(3, np.float32))], [Tensor("f32", shape)]
    )
    if ties:
        assert whole[0].sum() <= 3 * size + source.array.sum()
        return
    expected = np.full(shape, 3.0)
    for at, places in _windows(shape, window).items():
        if places:
            expected[max(places, key=lambda p: x.array[p])] += source.array[at]
    np.testing.assert_array_equal(whole[0], expected)


def test_selecting_by_a_region() -> None:
    window = ((3, 2, 1, 1, 1, 1), ONE)
    stays = Expression(
        ("f32", "f32"), (Node("compare", (0, 1), "pred", (("direction", "LE"),)),), (2,)
    )
    largest = Expression(("f32", "f32"), (Node("maximum", (0, 1), "f32"),), (2,))
    x = Given("f32", RNG.permutation(27).reshape(9, 3).astype(np.float32))
    source = Given("f32", RNG.integers(1, 99, (5, 3)).astype(np.float32))
    operands = [x, source, Given("f32", np.asarray(0, np.float32))]
    results = [Tensor("f32", (9, 3))]
    by_region = check_every_split(
        SelectAndScatter(window, "", stays, "", largest, "f32"), operands, results
    )
    by_name = check_every_split(
        SelectAndScatter(window, "le", None, "maximum", None, "f32"), operands, results
    )
    np.testing.assert_array_equal(by_region[0], by_name[0])


def test_pooling_cycles_by_hand() -> None:
    # 12 windows of 2 x 2 with 8 channels: 2 windows and 2 * 2 vectors of 4 halves a worker.
    window = (ONE, (2, 2, 0, 0, 1, 1), (2, 2, 0, 0, 1, 1), ONE)
    operands = [Tensor("f16", (1, 6, 8, 8)), Tensor("f16", ())]
    results = [Tensor("f16", (1, 3, 4, 8))]
    for monoid, vector in (("maximum", 3 + 4 + 3 * 4), ("add", 3 + 5 + 3 * 4)):
        work = ReduceWindow(window, monoid, None, ("f16",)).work(TINY, operands, results)
        assert work.cycles == 7 + 6 * (46 + 2 * 20 + 4 * vector) + 6
        assert work.assumed_cycles == work.cycles  # two positions are no row
    backward = SelectAndScatter(window, "ge", None, "add", None, "f16")
    cycles = backward.work(TINY, [operands[0], results[0], operands[1]], [operands[0]]).cycles
    assert cycles == 7 + 6 * (56 + 2 * 20 + 4 * (3 + 7 + 5 * 4)) + 6


def test_larger_parts_never_cost_less() -> None:
    last = 0
    for size in range(60):
        shape = (1, size, size, 5)
        window = (ONE, (3, 1, 1, 1, 1, 1), (3, 1, 1, 1, 1, 1), ONE)
        codelet = ReduceWindow(window, "maximum", None, ("f32",))
        cycles = codelet.work(TINY, [Tensor("f32", shape)] * 2, [Tensor("f32", shape)]).cycles
        assert cycles >= last
        last = cycles


def test_running_totals_by_hand() -> None:
    # 12 rows of 100, 2 for each worker: 50 loads and stores, and beside them 100 sums.
    window = (ONE, (100, 1, 99, 0, 1, 1))
    operands = [Tensor("f32", (12, 100)), Tensor("f32", ())]
    work = ReduceWindow(window, "add", None, ("f32",)).work(TINY, operands, operands[:1])
    assert work.cycles == 10 + 6 * 2 * (20 + 100)
    assert work.assumed_cycles == work.cycles
    # The same backwards; not so of windows that are shorter than the row.
    back = (ONE, (100, 1, 0, 99, 1, 1))
    again = ReduceWindow(back, "add", None, ("f32",)).work(TINY, operands, operands[:1])
    assert again == work
    short = (ONE, (50, 1, 49, 0, 1, 1))
    pooled = ReduceWindow(short, "add", None, ("f32",)).work(TINY, operands, operands[:1])
    assert pooled.cycles > work.cycles
    # One row: six pieces of 17, whose totals are found first, by vectors.
    operands = [Tensor("f32", (1, 100)), Tensor("f32", ())]
    work = ReduceWindow(window, "add", None, ("f32",)).work(TINY, operands, operands[:1])
    assert work.cycles == 10 + 6 * (2 * 20 + (12 + 9) + 6 * 2 + 2 * 9)
