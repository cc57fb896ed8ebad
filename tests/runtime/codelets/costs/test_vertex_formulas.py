"""Costs of vertices against the published formulas, written down a second time."""

import numpy as np
import pytest

from hloipu_runtime.codelets.core.expression import Expression, Node
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.costs.amp import Product, product_work
from hloipu_runtime.codelets.costs.convolution import ConvolutionShape, convolution_work
from hloipu_runtime.codelets.costs.elementwise import scaled_add_cycles
from hloipu_runtime.codelets.costs.matrices import cholesky_work, matrix_work, solve_work
from hloipu_runtime.codelets.costs.moving import (
    fill_slots,
    multi_slice_slots,
    repeats_work,
    runs_work,
    transpose_work,
)
from hloipu_runtime.codelets.costs.reduce import Reducing, reduce_work
from hloipu_runtime.codelets.costs.sort import SortShape, sort_work
from hloipu_runtime.codelets.costs.windows import Pooled, pooling_work, running_work
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.load import load_machine
from tests.support import vertex_formulas as source
from tests.support.vertex_formulas import cd

GC200 = load_machine("gc200")
KINDS = pytest.mark.parametrize("kind", ["f32", "f16"])


def draws(seed: int, *most: int, count: int = 60) -> list[tuple[int, ...]]:
    """Draw sizes from 1 to each of `most`, small ones as often as large ones."""
    rng = np.random.default_rng(seed)
    columns = [np.exp(rng.uniform(0, np.log(limit + 0.99), count)).astype(int) for limit in most]
    return [tuple(map(int, row)) for row in np.stack(columns, 1)]


@KINDS
def test_products(kind: str) -> None:
    half = kind == "f16"
    for groups, rows, depth, columns in draws(1, 3, 400, 300, 100):
        size = Product(groups, rows, depth, columns)
        cycles = source.product(groups, rows, depth, columns, half)
        results = groups * rows * columns
        assert product_work(GC200, size, (kind, kind), "f32") == TileWork(cycles)
        cast = source.half_cast(results)
        assert product_work(GC200, size, (kind, kind), "f16") == TileWork(cycles + cast)
        if half:
            alone = source.product(groups, rows, depth, columns, half, half_partials=True)
            work = product_work(GC200, size, (kind, kind), "f16", half_partials=True)
            assert work == TileWork(alone)


def test_a_product_of_no_depth_zeroes_its_sums() -> None:
    work = product_work(GC200, Product(2, 50, 0, 30), ("f32", "f32"), "f32")
    assert work == TileWork(source.zero_partials(2 * 50 * 30))
    small = product_work(GC200, Product(1, 1, 0, 1), ("f16", "f16"), "f32")
    assert small == TileWork(source.zero_partials(1))


@pytest.mark.parametrize(
    ("kind", "slots"), [("s32", 4), ("u8", 4), ("s64", 8), ("f64", 40), ("c64", 4), ("c128", 160)]
)
def test_products_outside_of_the_unit(kind: str, slots: int) -> None:
    """Integers load twice, multiply and add; the other factors are the machine's, assumed."""
    work = product_work(GC200, Product(2, 9, 30, 7), (kind, kind), kind)
    worker = 20 + cd(2 * 9 * 7, 6) * (7 + 30 * slots)
    assert work == TileWork(11 + 6 * worker, 11 + 6 * worker)


@pytest.mark.parametrize(
    ("kind", "slots"), [("bf16", 1), ("f8e4m3fn", 4), ("f8e5m2", 4), ("f4e2m1fn", 4)]
)
def test_narrow_operands_are_converted_first(kind: str, slots: int) -> None:
    groups, rows, depth, columns = 2, 30, 40, 50
    half = kind != "bf16"
    cycles = source.product(groups, rows, depth, columns, half)
    counts = groups * rows * depth, groups * depth * columns, groups * rows * columns
    prices = [6 * (26 + cd(count, 6) * slots) for count in counts]
    size = Product(groups, rows, depth, columns)
    into_f32 = product_work(GC200, size, (kind, kind), "f32")
    assert into_f32 == TileWork(cycles + prices[0] + prices[1], prices[0] + prices[1])
    assert product_work(GC200, size, (kind, kind), kind) == TileWork(
        cycles + sum(prices), sum(prices)
    )


@KINDS
@pytest.mark.parametrize("most", [40, 4, 1])
def test_convolutions(kind: str, most: int) -> None:
    drawn = draws(most, 5, 12, 12, most, most, 5, 7, 3, count=80)
    for groups, rows, row, inputs, outputs, high, wide, stride in drawn:
        shape = ConvolutionShape(groups, rows, row, inputs, outputs, (high, wide), stride)
        half = kind == "f16"
        sizes = groups, rows, row, inputs, outputs
        cycles = source.convolution(*sizes, (high, wide), stride, half)
        assert convolution_work(GC200, shape, (kind, kind), "f32") == TileWork(cycles)


@KINDS
@pytest.mark.parametrize("monoid", ["add", "maximum"])
def test_reductions(kind: str, monoid: str) -> None:
    half, add = kind == "f16", monoid == "add"
    for outer, reduced in draws(3, 300, 400):
        for contiguous in (False, True):
            if contiguous:
                shape, dimension = (outer, reduced), 1
            else:
                shape, dimension = (reduced, outer), 0
            cycles = source.reduction(outer, reduced, half, add, contiguous)
            if outer == 1:  # both vertices can do it
                cycles = min(source.reduction(1, reduced, half, add, x) for x in (False, True))
            work = reduce_work(Reducing(
                GC200, [Tensor(kind, shape)], [Tensor(kind, (outer,))], (dimension,),
                monoid=monoid, body=None))  # fmt: skip
            if not (outer == 1 and contiguous):
                assert work == TileWork(cycles)


def test_reductions_that_skip_a_dimension_go_stretch_by_stretch() -> None:
    """Partials of [a, kept, b, kept] lie in `a` stretches of `b`, each begun anew in 3 slots."""
    a, b, kept = 5, 7, 18
    work = reduce_work(Reducing(
        GC200, [Tensor("f32", (a, 3, b, 6))], [Tensor("f32", (3, 6))], (0, 2),
        monoid="add", body=None))  # fmt: skip
    worker = 16 + cd(cd(kept, 6), 4) * (3 + 5 + a * (3 + b - 1))
    assert work == TileWork(11 + 6 * worker)


@pytest.mark.parametrize(("kind", "grain"), [("f32", 2), ("f16", 4), ("s32", 2)])
def test_transposes(kind: str, grain: int) -> None:
    for matrices, rows, columns in draws(5, 40, 12, 12):
        shape = matrices, rows * grain, columns * grain
        cycles = source.transposed_grains(matrices, rows, columns, kind == "f16")
        assert transpose_work(GC200, kind, shape, (0, 2, 1)) == TileWork(cycles)
        # Dimensions of one element, and such as stay neighbours, change nothing.
        wide = (matrices, grain, rows, 1, columns * grain)
        assert transpose_work(GC200, kind, wide, (0, 4, 3, 1, 2)) == TileWork(cycles)


def test_transposes_of_sizes_that_grains_do_not_divide() -> None:
    """Padded, or with the rest moved one by one in 6 cycles each: assumed, the cheaper one."""
    for matrices, rows, columns in draws(6, 20, 30, 30):
        if rows % 2 == columns % 2 == 0:
            continue
        if rows == 1 or columns == 1:  # no transpose at all
            continue
        ways = []
        for down in (rows // 2, cd(rows, 2)):
            for across in (columns // 2, cd(columns, 2)):
                grains = source.transposed_grains(matrices, down, across, False)
                rest = rows * columns - min(rows, 2 * down) * min(columns, 2 * across)
                ways.append((grains if down * across else 0) + 6 * matrices * rest)
        found = transpose_work(GC200, "f32", (matrices, rows, columns), (0, 2, 1))
        assert found == TileWork(min(ways), min(ways))


def test_transposes_without_grains() -> None:
    """Of bytes each is moved by itself; of 64 bits each is a run of its own."""
    bytes_moved = transpose_work(GC200, "u8", (5, 7), (1, 0))
    assert bytes_moved == TileWork(288 + 35 * 6, 288 + 35 * 6)
    assert transpose_work(GC200, "f64", (50, 7), (1, 0)) == runs_work(GC200, "f64", 350, 1)
    # The last dimension stays: runs of it; nothing moves: one copy of 8 bytes a cycle.
    assert transpose_work(GC200, "f32", (5, 7, 3), (1, 0, 2)) == runs_work(GC200, "f32", 105, 3)
    assert transpose_work(GC200, "f32", (5, 1, 3), (1, 0, 2)) == TileWork(288 + cd(60, 8))
    assert transpose_work(GC200, "f32", (5, 0, 3), (1, 0, 2)) == TileWork(0)


@pytest.mark.parametrize(
    ("kind", "elements", "run", "millicycles"),
    [("f16", 1001, 1, 5148), ("f16", 1001, 2, 3125), ("f32", 1001, 1, 3125), ("f32", 1001, 2, 440)],
)
def test_runs(kind: str, elements: int, run: int, millicycles: int) -> None:
    """Regression over short runs (lib/poplin/ConvTransformsBytesToCycles.hpp), or a copy each."""
    size = elements * (2 if kind == "f16" else 4)
    assert runs_work(GC200, kind, elements, run) == TileWork(587 + cd(size * millicycles, 1000))
    # Two long runs: two calls of the copy are cheaper.
    assert runs_work(GC200, "f32", 20_000, 10_000) == TileWork(2 * (288 + 5000))


def test_runs_of_less_than_a_byte_are_unpacked_and_packed() -> None:
    plain = 587 + cd(50 * 5148, 1000)
    unpacked = 4 * 2 * 99
    assert runs_work(GC200, "s4", 99, 3) == TileWork(plain + unpacked, unpacked)
    assert runs_work(GC200, "s4", 98, 2).assumed_cycles == 0
    assert runs_work(GC200, "s4", 0, 3) == TileWork(0)


@pytest.mark.parametrize(("kind", "bits"), [("s8", 8), ("f16", 16), ("f32", 32), ("f64", 64)])
def test_fills(kind: str, bits: int) -> None:
    for elements in (1, 3, 63, 64, 65, 1000):
        assert fill_slots(GC200, kind, elements) == source.fill_slots(bits, elements)


def test_rows_of_repeats_are_dealt_to_workers() -> None:
    # Two rows, six workers: three to each row; nine rows: two rounds of whole rows.
    assert repeats_work(GC200, "f32", 2, 100) == TileWork(6 * source.fill_slots(32, 34))
    assert repeats_work(GC200, "f32", 9, 100) == TileWork(6 * 2 * source.fill_slots(32, 100))
    assert repeats_work(GC200, "f32", 2, 2) == TileWork(6 * source.fill_slots(32, 1))
    assert repeats_work(GC200, "f32", 0, 9) == repeats_work(GC200, "f32", 9, 0) == TileWork(0)


@pytest.mark.parametrize(
    ("kind", "slots"),
    [
        ("f32", 19 + 2 * 4), ("f16", 19 + 2 * 4), ("f64", 19 + 2 * 7), ("s8", 19 + 3 * 2),
        ("s4", 19 + 3 * 2 + 2 * 4 * 7),
    ],
)  # fmt: skip
def test_slices_of_seven(kind: str, slots: int) -> None:
    """MultiSlice (lib/popops/PerformanceEstimation.cpp): 2 slots for 2 words, 3 for 4 bytes."""
    assert multi_slice_slots(GC200, kind, 7) == slots


@pytest.mark.parametrize("operands", [1, 2, 3])
@pytest.mark.parametrize("key", ["f32", "s32", "u32"])
@pytest.mark.parametrize("merge", [False, True])
def test_sorts(operands: int, key: str, merge: bool) -> None:
    for rows, length in draws(7, 30, 300, count=20):
        for keys in {1, min(2, operands)}:
            shape = SortShape(rows, length, operands, (key,) * keys, 0, merge)
            work = sort_work(GC200, shape)
            if length < 2:
                assert work == TileWork(0)
                continue
            plain = source.bitonic_sort(rows, length, key == "f32", min(operands, 2), keys, merge)
            if operands < 3:
                assert work == TileWork(plain)
            else:  # two loads and two stores more for each pair
                levels = (length - 1).bit_length()
                stages = levels if merge else levels * (levels + 1) // 2
                more = stages * 6 * cd(rows * cd(length, 2), 6) * 4
                assert work == TileWork(plain + more, plain + more)


def test_sorts_by_what_the_chip_lacks() -> None:
    """Both elements of a pair are brought to the type that is compared; comparators go op by op."""

    def pair_slots(key: str, nodes: int = 0) -> float:
        shape = SortShape(6, 64, 1, (key,), nodes, True)
        work = sort_work(GC200, shape)
        assert work.assumed_cycles == (work.cycles if (key, nodes) != ("f32", 0) else 0)
        plain = source.bitonic_sort(6, 64, key not in ("s8", "s64", "s4"), 1, 1, True)
        return (work.cycles - plain) / (6 * 6 * 32)

    assert [pair_slots(x) for x in ("f32", "bf16", "f8e5m2", "s4")] == [0, 2 * 1, 2 * 4, 2 * 4]
    assert [pair_slots(x) for x in ("s64", "f64", "s8", "f16")] == [2 * 5, 2 * 5, 0, 0]
    assert pair_slots("f32", 3) == 3 * 5
    two = SortShape(6, 64, 2, ("f32", "f32", "f32"), 0, True)
    assert sort_work(GC200, two).cycles == source.bitonic_sort(6, 64, True, 2, 2, True) + (
        6 * 6 * 32 * 4
    )


def test_scaled_additions() -> None:
    for kind in ("f32", "f16"):
        for op in ("add", "subtract"):
            nodes = (Node("multiply", (1, 2), kind), Node(op, (0, 3), kind))
            expression = Expression((kind,) * 3, nodes, (4,))
            for elements in (1, 2, 12, 13, 1000):
                found = scaled_add_cycles(GC200, expression, nodes, frozenset({2}), elements)
                assert found == source.scaled_add(elements, kind == "f16", op == "subtract")


@pytest.mark.parametrize(
    ("nodes", "kinds", "results", "scalars"),
    [
        ([("multiply", (1, 2)), ("subtract", (3, 0))], "f32", (4,), {2}),  # s*y - x
        ([("multiply", (1, 2)), ("add", (0, 3))], "f32", (4,), set()),  # no scale
        ([("multiply", (1, 2)), ("add", (0, 3))], "f32", (4,), {0, 2}),
        ([("multiply", (1, 2)), ("add", (0, 3))], "f32", (4,), {1, 2}),
        ([("multiply", (1, 2)), ("add", (0, 3))], "s32", (4,), {2}),
        ([("multiply", (1, 2)), ("add", (0, 3))], "f32", (3, 4), {2}),
        ([("multiply", (1, 1)), ("add", (0, 3))], "f32", (4,), {1}),
        ([("multiply", (1, 2)), ("add", (3, 3))], "f32", (4,), {2}),
        ([("multiply", (1, 2)), ("multiply", (0, 3))], "f32", (4,), {2}),
        ([("add", (1, 2)), ("add", (0, 3))], "f32", (4,), {2}),
    ],
)
def test_what_is_no_scaled_addition(
    nodes: list[tuple[str, tuple[int, int]]],
    kinds: str,
    results: tuple[int, ...],
    scalars: set[int],
) -> None:
    made = tuple(Node(op, arguments, kinds) for op, arguments in nodes)
    expression = Expression((kinds,) * 3, made, results)
    assert scaled_add_cycles(GC200, expression, made, frozenset(scalars), 60) is None


@KINDS
@pytest.mark.parametrize(
    ("monoid", "name"), [("maximum", "max"), ("minimum", "sum"), ("add", "sum"), ("add", "back")]
)
def test_pooling(kind: str, monoid: str, name: str) -> None:
    for items, channels, row, high, wide in draws(8, 60, 40, 9, 8, 8, count=30):
        back = name == "back"
        cycles = source.pooling((items, channels, row), (high, wide), name, kind == "f16")
        there, part = Pooled(items, channels, row), Tensor(kind, (items, channels))
        work = pooling_work(GC200, [part], there, (high, wide), monoid, None, backward=back)
        assert work.cycles == cycles
        assert work.assumed_cycles in (0, cycles)


def test_long_windows_are_reduced_by_doubling() -> None:
    """A window of 9 to 15 takes 2 * 4 steps, one of 16 to 31 2 * 5, and rests on no source."""
    there, part = Pooled(6, 2, 1), [Tensor("f32", (6, 2))]
    for size, steps in ((8, 8), (9, 8), (15, 8), (16, 10), (31, 10), (100, 14)):
        work = pooling_work(GC200, part, there, (1, size), "add", None)
        assert work.cycles == 7 + 6 * (46 + 20 + 3 + 5 + 3 * steps) + 6
    both = pooling_work(GC200, part, there, (3, 9), "add", None)
    assert both.cycles == 7 + 6 * (46 + 20 + 3 + 5 + 3 * (3 + 8)) + 6


def test_running_totals() -> None:
    """Moved by vectors, added one by one; few rows are shared, a piece each, its total first."""

    def cycles(rows: int, length: int, kind: str = "f32", inner: int = 1) -> int:
        part = [Tensor(kind, (rows, length))] * 2
        work = running_work(GC200, part, rows, length, "add", None, inner)
        assert work.cycles == work.assumed_cycles
        return work.cycles

    assert cycles(12, 50) == 11 + 6 * 2 * (20 + 50)
    assert cycles(7, 50) == 11 + 6 * 2 * (20 + 50)
    assert cycles(12, 51) == 11 + 6 * 2 * (20 + 52)  # 26 vectors, twice
    assert cycles(12, 50, "f16") == 11 + 6 * 2 * (20 + 50)  # one addition each, 26 moves
    assert cycles(12, 50, inner=4) == cycles(12, 50)
    assert cycles(12, 50, inner=3) == 11 + 6 * 2 * (20 + 100)
    assert cycles(12, 50, "s32") == 11 + 6 * 2 * (20 + 50 + 50 * 7)
    assert cycles(3, 400) == 11 + 6 * (2 * 20 + 12 + 100 + 2 * 2 + 200)
    assert cycles(1, 1000) == 11 + 6 * (2 * 20 + 12 + 84 + 6 * 2 + 168)
    assert cycles(1, 2) == 11 + 6 * (20 + 2)
    assert cycles(5, 100) == 11 + 6 * (20 + 100)
    assert running_work(GC200, [Tensor("f32", (0, 9))], 0, 9, "add", None) == TileWork(0)
    short = running_work(GC200, [Tensor("bf16", (12, 50))] * 2, 12, 50, "add", None)
    assert short.cycles == cycles(12, 50) + 2 * 6 * (26 + 100)


@KINDS
def test_small_matrices(kind: str) -> None:
    """Cholesky and TriangularSolve of lib/poplin/poplinCycleEstimators.cpp; a worker each."""
    half = kind == "f16"
    for n in (1, 4, 10, 32):
        slots = source.cholesky(n, half)
        found = cholesky_work(GC200, 7, n, kind)
        assert abs(found.cycles - 2 * 6 * slots) <= 2 * 6 * 2  # halves are cut off term by term
        assert found.assumed_cycles == 0
    assert cholesky_work(GC200, 7, 0, kind) == solve_work(GC200, 7, 0, kind, forward=True)
    exact = {
        ("f32", True): 150 + 1800 - 126,
        ("f32", False): 675 + 1635 + 54,
        ("f16", True): 75 + 3180 - 150,
        ("f16", False): 843 + 2722 + 12,
    }
    for forward in (False, True):
        work = solve_work(GC200, 6, 10, kind, forward=forward)
        assert work == TileWork(6 * exact[kind, forward])


@pytest.mark.parametrize(
    ("kind", "factor", "convert"),
    [
        ("f64", 40, 0),
        ("c64", 4, 0),
        ("c128", 160, 0),
        ("bf16", 1, 1),
        ("f8e5m2", 1, 4),
        ("s4", 1, 4),
    ],
)
def test_matrices_of_other_types(kind: str, factor: int, convert: int) -> None:
    cycles = 6 * (1000 * factor + 2 * convert * 50)
    assert matrix_work(GC200, 6, 1000, 50, kind) == TileWork(cycles, cycles)
    assert matrix_work(GC200, 6, 1000, 50, "f32", sourced=False) == TileWork(6000, 6000)
    assert matrix_work(GC200, 0, 1000, 50, "f32") == TileWork(0)
