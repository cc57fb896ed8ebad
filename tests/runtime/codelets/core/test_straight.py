"""Codelets as calls: run one after another, they give what the codelet itself gives."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.expression import Expression, Node
from hloipu_runtime.codelets.core.straight import Call, Straight, calls_on_arrays
from hloipu_runtime.codelets.core.tensors import Block
from hloipu_runtime.codelets.dense.dot import Dot
from hloipu_runtime.codelets.indexed.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from hloipu_runtime.codelets.indexed.gather import Gather
from hloipu_runtime.codelets.indexed.scatter import Scatter
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.fused_reduce import FusedReduce
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.codelets.ops.row_region import RowRegion
from hloipu_runtime.kernels.core.quiet import warnings_off
from hloipu_runtime.kernels.gather import GatherDimensions
from hloipu_runtime.kernels.scatter import ScatterDimensions
from tests.support.arrays import Array

DRAWN = np.random.default_rng(3)
F = "f32"


def floats(*shape: int) -> Array:
    return DRAWN.standard_normal(shape).astype(np.float32)


def block(x: Array) -> Block:
    return Block(x, (), x.shape, (0,) * x.ndim, x.shape)


def called(codelet: Codelet, operands: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> Any:
    """Run the calls; each that may write somewhere is given a place, and must not share memory."""
    places = [Block(None, (), shape, (0,) * len(shape), shape) for shape in shapes]
    straight = codelet.straight([block(x) for x in operands], places)
    assert straight is not None
    values: dict[int, Any] = {**dict(enumerate(operands)), **straight.constants}
    for call in straight.calls:
        arguments = [values[x] for x in call.arguments]
        if call.takes_out:
            assert call.dtype is not None
            place = np.full(call.shape, 3, call.dtype)
            made = call.function(*arguments, out=place)
            np.testing.assert_array_equal(made, call.function(*arguments))
        else:
            made = call.function(*arguments)
        arrays = [x for x in arguments if isinstance(x, np.ndarray)]
        for array in made if isinstance(made, list) else [made]:
            assert isinstance(array, np.ndarray)
            assert array.shape == call.shape
            assert not call.is_fresh or not any(np.may_share_memory(array, x) for x in arrays)
        values[call.number] = made
    return [values[x] for x in straight.results]


def agrees(
    codelet: Codelet,
    operands: Sequence[Array],
    shapes: Sequence[tuple[int, ...]] | None = None,
) -> None:
    """Compare with `bound`, bit for bit."""
    with warnings_off():
        blocks = [block(x) for x in operands]
        shapes = results_of(codelet, operands) if shapes is None else shapes
        places = [Block(None, (), shape, (0,) * len(shape), shape) for shape in shapes]
        wanted = codelet.bound(blocks, places)(operands, [None] * len(shapes))
        found = called(codelet, operands, shapes)
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()


def results_of(codelet: Codelet, operands: Sequence[Array]) -> list[tuple[int, ...]]:
    if isinstance(codelet, Elementwise):
        sizes = dict[int, int]()
        for labels, x in zip(codelet.labels, operands, strict=True):
            sizes.update(zip(labels, x.shape, strict=True))
        shape = tuple(sizes.get(d, 4) for d in range(codelet.rank))
        return [shape] * len(codelet.expression.results)
    if isinstance(codelet, Reduce):
        x = operands[0]
        return [tuple(n for d, n in enumerate(x.shape) if d not in codelet.dimensions)]
    places = [Block(None, (), (), (), ())]
    return [codelet.run([block(x) for x in operands], places)[0].shape]


def constant(value: float, kind: str = "f32") -> Node:
    return Node("constant", (), kind, (("value", float(value).hex()),))


def elementwise(labels: Any, rank: int, *nodes: Node, results: Any = None) -> Elementwise:
    count = len(labels)
    results = (count + len(nodes) - 1,) if results is None else results
    return Elementwise(Expression(("f32",) * count, nodes, results), labels, rank)


CASES = {
    "one op": (elementwise(((0, 1), (0, 1)), 2, Node("add", (0, 1), F)), ((4, 5), (4, 5))),
    "along the last dimension": (
        elementwise(((0, 1), (1,)), 2, Node("add", (0, 1), F)), ((4, 5), (5,))),
    "along the first": (
        elementwise(((0, 1), (0,)), 2, Node("subtract", (0, 1), F)), ((4, 5), (4,))),
    "transposed": (
        elementwise(((0, 1), (1, 0)), 2, Node("multiply", (0, 1), F)), ((4, 5), (5, 4))),
    "a number": (elementwise(((), ()), 0, Node("divide", (0, 1), F), Node("negate", (2,), F)),
                 ((), ())),
    "constants alone": (elementwise((), 2, constant(2.5)), ()),
    "spread": (elementwise(((1,),), 2, Node("sine", (0,), F)), ((5,),)),
    "an operand is a result": (
        elementwise(((0,), (0,)), 1, Node("add", (0, 1), F), results=(0, 2)), ((6,), (6,))),
    "two results, one of them read on": (
        elementwise(((0,), (0,)), 1, Node("add", (0, 1), F), Node("multiply", (2, 0), F),
                    results=(2, 3)), ((6,), (6,))),
    "one result twice": (
        elementwise(((0,),), 1, Node("negate", (0,), F), results=(1, 1)), ((6,),)),
    "a copy": (elementwise(((0, 1),), 2, Node("copy", (0,), F)), ((3, 4),)),
    "rectified": (
        elementwise(((0,),), 1, constant(0.0), Node("maximum", (0, 1), F)), ((70,),)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_elementwise(name: str) -> None:
    codelet, shapes = CASES[name]
    agrees(codelet, [floats(*shape) for shape in shapes])


@pytest.mark.parametrize("zero_first", [False, True])
@pytest.mark.parametrize("size", [60, 9000])
def test_choices_with_zero_keep_infinities_nan_and_signs(zero_first: bool, size: int) -> None:
    x = floats(size)
    x[:4] = [np.inf, -np.inf, np.nan, -0.0]
    y = floats(size)
    nodes = (
        constant(0.0),
        Node("compare", (0, 2), "pred", (("direction", "GT"),)),
        Node("select", (3, 2, 1) if zero_first else (3, 1, 2), F),
    )
    codelet = elementwise(((0,), (0,)), 1, *nodes)
    agrees(codelet, [y, x])
    with warnings_off():
        (found,) = called(codelet, [y, x], [(size,)])
    chosen = np.where(y > 0, np.float32(0), x) if zero_first else np.where(y > 0, x, np.float32(0))
    np.testing.assert_array_equal(found.view(np.int32), chosen.view(np.int32))


@pytest.mark.parametrize("dimensions", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("monoid", ["add", "maximum", "minimum"])
@pytest.mark.parametrize("init", [0.0, -np.inf, np.nan])
def test_reductions(dimensions: tuple[int, ...], monoid: str, init: float) -> None:
    codelet = Reduce(dimensions, monoid, None, ("f32",))
    x = floats(12, 10)
    x[3, 4], x[:, 2], x[7] = 0.0, -0.0, np.where(np.arange(10) % 2, 0.0, -0.0)
    for layout in (x, np.asfortranarray(x)):
        agrees(codelet, [layout, np.array(init, np.float32)])


def rows_of(dimensions: tuple[int, ...]) -> RowRegion:
    """Return (x - max x) * y and the sum of its exponentials over rows, y along columns."""
    less = Expression((F, F, F), (Node("subtract", (0, 1), F), Node("multiply", (3, 2), F)), (4,))
    exp = Expression((F,), (Node("exponential", (0,), F),), (1,))
    return RowRegion(
        labels=((0, 1), (1,)),
        rank=2,
        dimensions=dimensions,
        operand_types=(F, F),
        expressions=(Expression((F,), (), (0,)), less, exp),
        sources=((0,), (0, 3, 1), (4,)),
        reductions=((0, 2, "maximum", "-inf"), (2, 5, "add", "0x0.0p+0")),
        results=(4, 6),
    )


@pytest.mark.parametrize("dimensions", [(0,), (1,), (0, 1)])
def test_regions_of_rows(dimensions: tuple[int, ...]) -> None:
    x = floats(12, 10)
    x[:, 3] = x[4] = -0.0
    kept = tuple(n for d, n in enumerate(x.shape) if d not in dimensions)
    for layout in (x, np.asfortranarray(x)):
        agrees(rows_of(dimensions), [layout, floats(10)], [(12, 10), kept])


def read_again() -> RowRegion:
    """Return x * y, and the sum of that and x over rows: x is read after the first result."""
    nodes = (Node("multiply", (0, 1), F), Node("add", (2, 0), F))
    return RowRegion(
        labels=((0, 1), (1,)),
        rank=2,
        dimensions=(1,),
        operand_types=(F, F),
        expressions=(Expression((F, F), nodes, (2, 3)),),
        sources=((0, 1),),
        reductions=((0, 3, "add", "0x0.0p+0"),),
        results=(2, 4),
    )


@pytest.mark.parametrize("codelet", [rows_of((1,)), read_again()])
@pytest.mark.parametrize("place", ["none", "fresh", "operand"])
def test_many_rows_are_computed_as_few_are(codelet: RowRegion, place: str) -> None:
    x, y = floats(701, 301), floats(301)
    x[5] = x[:, 7] = -0.0
    few = [called(codelet, [x[k : k + 50], y], [(len(x[k : k + 50]), 301), (len(x[k : k + 50]),)])
           for k in range(0, 701, 50)]  # fmt: skip
    assert codelet.may_overwrite(0)
    results = [block(x)._replace(array=None), block(x[:, 0])._replace(array=None)]
    run = codelet.bound([block(x), block(y)], results)
    for _ in range(2):
        given = x.copy()
        out = {"none": None, "fresh": np.empty_like(x), "operand": given}[place]
        with warnings_off():
            made = run([given, y], [out, None])
        assert out is None or made[0] is out
        for found, wanted in zip(made, zip(*few, strict=True), strict=True):
            np.testing.assert_array_equal(found, np.concatenate(wanted))


@pytest.mark.parametrize("dimensions", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("monoid", ["add", "minimum", "multiply"])
def test_reductions_of_expressions(dimensions: tuple[int, ...], monoid: str) -> None:
    times = Expression((F, F), (Node("multiply", (0, 1), F),), (2,))
    codelet = FusedReduce(times, ((0, 1), (1, 0)), 2, dimensions, monoid, (F,))
    kept = tuple(n for d, n in enumerate((12, 10)) if d not in dimensions)
    init = np.array(np.inf if monoid == "minimum" else 1, np.float32)
    agrees(codelet, [floats(12, 10), floats(10, 12), init], [kept])


def test_large_arrays_are_not_computed_by_calls() -> None:
    wide = Block(None, (), (200, 300), (0, 0), (200, 300))
    column = Block(None, (), (300,), (0,), (300,))
    rows = Block(None, (), (200,), (0,), (200,))
    assert rows_of((1,)).straight([wide, column], [wide, rows]) is None


def test_products() -> None:
    agrees(Dot((), (), (1,), (0,), "f32"), [floats(3, 4), floats(4, 5)])
    agrees(Dot((0,), (0,), (2,), (1,), "f32"), [floats(2, 3, 4), floats(2, 4, 5)])


def test_gathers_and_scatters() -> None:
    rows = DRAWN.integers(-3, 9, (11, 1)).astype(np.int32)
    agrees(Gather(GatherDimensions((1,), (0,), (0,), 1), (1, 5)), [floats(7, 5), rows])
    whole = GatherDimensions((1, 2), (), (0,), 1)
    agrees(Gather(whole, (7, 5)), [floats(7, 5), rows])
    agrees(Gather(whole, (3, 5)), [floats(7, 5), rows])
    codelet = Scatter(ScatterDimensions((1,), (0,), (0,), 1), "add", None, ("f32",))
    agrees(codelet, [floats(7, 5), rows, floats(11, 5)])


STARTS = [(0, 0), (2, 3), (-4, 9), (100, -100)]


@pytest.mark.parametrize("starts", STARTS)
@pytest.mark.parametrize("kind", ["int8", "uint64", "int64"])
def test_windows_are_taken_and_written_where_they_fit(starts: tuple[int, int], kind: str) -> None:
    data, window = floats(5, 8), floats(3, 8)
    at = [np.array(start % 256 if kind == "uint64" else start, kind) for start in starts]
    first = min(max(int(at[0]), 0), 2)
    (found,) = called(DynamicSlice(), [data, *at], [(3, 8)])
    np.testing.assert_array_equal(found, data[first : first + 3])

    wanted = data.copy()
    wanted[first : first + 3] = window
    blocks = [block(x) for x in (data, window, *at)]
    run = DynamicUpdateSlice().bound(blocks, [block(data)._replace(array=None)])
    before = data.copy()
    (apart,) = run([data, window, *at], [None])
    np.testing.assert_array_equal(data, before)
    (inside,) = run([data, window, *at], [data])
    assert inside is data
    for made in (apart, inside):
        np.testing.assert_array_equal(made, wanted)


@pytest.mark.parametrize("results", [(2, 1, 2, 1), (2, 3), (3, 2, 2), (1, 3), (2,)])
@pytest.mark.parametrize("seen", [False, True])
def test_each_result_goes_to_each_of_its_places(results: tuple[int, ...], seen: bool) -> None:
    """What is seen through one place is written there, and copied to the others."""
    x = floats(3, 4)
    back = np.transpose if seen else None
    double = Call(np.add, (0, 0), 1, (3, 4), x.dtype, is_fresh=True, takes_out=True, in_place=True)
    turned, turned_too = (
        Call(
            np.transpose, (1,), number, (4, 3), None, is_fresh=False, takes_out=False,
            in_place=False, is_view=True, back=back,
        )
        for number in (2, 3)
    )  # fmt: skip
    expected = {1: 2 * x, 2: (2 * x).T, 3: (2 * x).T}
    straight = Straight({}, (double, turned, turned_too), results)
    places = [np.full(expected[number].shape, np.nan, x.dtype) for number in results]
    for call in calls_on_arrays(straight, [x], places, np.empty):
        call()
    for place, number in zip(places, results, strict=True):
        np.testing.assert_array_equal(place, expected[number])
