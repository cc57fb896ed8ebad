"""Grids of dot products: prices against the steps of the programs they become, memory, slices."""

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_compiler.planners import dot_grids
from hloipu_compiler.planners.dot_grids import DEPTH, DotGrid, DotWork, dot_grid
from hloipu_compiler.planners.tuning import DEFAULT_TUNING, Tuning
from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.dense.convolution import Convolution
from hloipu_runtime.codelets.dense.dot import Dot
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.costs.exchange_price import CodePrice
from hloipu_runtime.kernels.core.storage import user_dtype
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.steps import ComputeSet, Sequence, Step
from tests.support.tile_runs import run_on_tiles, same_on_tiles
from tools.fidelity.elsewhere import brought_from_elsewhere

RNG = np.random.default_rng(4)
PLAIN = ((), (), (1,), (0,))


def _text(m: int, k: int, n: int, kind: str = "f32") -> str:
    return f"""HloModule product
    ENTRY e {{
      a = {kind}[{m},{k}] parameter(0)
      b = {kind}[{k},{n}] parameter(1)
      ROOT c = {kind}[{m},{n}] dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
    }}"""


def _grid(
    target: str, m: int, k: int, n: int, kind: str = "f32", tuning: Tuning = DEFAULT_TUNING
) -> DotGrid:
    a, b, c = (Tensor(kind, shape) for shape in ((m, k), (k, n), (m, n)))
    return dot_grid(DotWork(load_machine(target), Dot(*PLAIN, kind), a, b, c, tuning))


@pytest.mark.parametrize("partials", ["f32", "f16"])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(1024, 1024, 256), (2048, 2048, 4), (300, 5000, 70), (4096, 64, 4096)]
)
def test_prices_are_the_programs_cycles(m: int, k: int, n: int, partials: Any) -> None:
    """The planner takes parts of operands to be received; what is born in place costs less."""
    plan = _grid("bow", m, k, n, "f16", Tuning(partials))
    program = hloipu.compile(
        _text(m, k, n, "f16"), target="bow", partials_type=partials, cache=False
    )
    brought = brought_from_elsewhere(program.program)
    received = replace(program, program=brought, known_memory=None)
    assert _cycles(received) == pytest.approx(plan.cycles, rel=0.12)
    assert _cycles(program) <= _cycles(received)


def _cycles(program: CompiledProgram) -> int:
    steps = [step for step in program.costs.steps if step.kind in ("exchange", "compute")]
    return sum(step.spent.total.cycles for step in steps)


@pytest.mark.parametrize(
    ("m", "k", "n"), [(64, 64, 64), (7, 4000, 3), (1, 512, 200), (13, 5, 4000), (512, 512, 512)]
)
def test_no_plain_grid_is_cheaper(m: int, k: int, n: int) -> None:
    """Rows alone, columns alone or squares over all tiles, every operand received in full."""
    machine = load_machine("gc200")
    plan = _grid("gc200", m, k, n)
    tiles = machine.chip.tiles_per_ipu
    assert plan.placement.tiles.count <= tiles
    for down, across in ((tiles, 1), (1, tiles), (38, 38)):
        rows, columns = -(-m // down), -(-n // across)
        parts = [Tensor("f32", (rows, k)), Tensor("f32", (k, columns))]
        work = Dot(*PLAIN, "f32").work(machine, parts, [Tensor("f32", (rows, columns))])
        fixed = 9 + 74 + 126 + 3 * (min(rows, across) + min(k, down))
        assert plan.cycles <= rows * k + k * columns + work.cycles + fixed


@pytest.mark.parametrize(("m", "k", "n"), [(64, 64, 64), (7, 4000, 3), (512, 768, 3072)])
def test_the_cheapest_of_all_that_fit_is_taken(m: int, k: int, n: int) -> None:
    """By all shares of memory, against a look at every candidate."""
    machine = load_machine("gc200")
    sides = dot_grids._Sides((), (m,), (n,), k, 1)
    types = dot_grids._Types("f16", "f16", "f16", "f32")
    prices = dot_grids._all_priced(machine, sides, types).prices
    sizes, cycles = prices.bytes_per_tile, prices.cycles
    for budget in sorted({0, *sizes.tolist()[::97], int(sizes.min()), int(sizes.max())}):
        grid, fits = dot_grids._cheapest(machine, sides, types, budget)
        allowed = cycles[sizes <= budget]
        assert fits == (0 if not len(allowed) else 2 if allowed.min() == cycles.min() else 1)
        if len(allowed):
            assert (grid.cycles, grid.bytes_per_tile <= budget) == (allowed.min(), True)
        else:
            assert grid.bytes_per_tile == sizes.min()


def test_less_memory_means_slices() -> None:
    wide = _grid("bow", 4096, 4096, 2048, tuning=Tuning(memory_percent=100))
    narrow = _grid("bow", 4096, 4096, 2048, tuning=Tuning(memory_percent=20))
    assert narrow.slices > wide.slices
    assert narrow.bytes_per_tile <= load_machine("bow").memory.bytes_per_tile // 5
    assert narrow.cycles > wide.cycles


def test_half_partials_are_cheaper() -> None:
    """Half of the bytes to bring together, and no cast."""
    whole = _grid("bow", 2048, 2048, 2048, "f16")
    half = _grid("bow", 2048, 2048, 2048, "f16", Tuning("f16"))
    assert half.part
    assert half.cycles < whole.cycles


def test_large_square_products_reach_the_share_of_peak_that_is_asked_for() -> None:
    """4096^3 products of f16, of which a tile does 64 in a cycle (`bow`, AMP)."""
    program = hloipu.compile(_text(4096, 4096, 4096, "f16"), target="bow", cache=False)
    assert program.fits
    assert 4096**3 / (64 * 1472 * _cycles(program)) >= 0.60


@pytest.mark.parametrize("sizes", [(96, 40, 33), (40, 64, 200), (5, 700, 90), (200, 40, 5)])
@pytest.mark.parametrize("percent", [2, 5, 10])
def test_slices_compute_the_product(sizes: tuple[int, int, int], percent: int) -> None:
    """Whole numbers add up exactly, in whatever order."""
    m, k, n = sizes
    a = RNG.integers(-3, 4, (m, k)).astype(np.float32)
    b = RNG.integers(-3, 4, (k, n)).astype(np.float32)
    run = same_on_tiles(_text(m, k, n), load_machine("tiny"), [a, b], Tuning("f32", percent))
    np.testing.assert_array_equal(run.functional[0], a @ b)


def test_small_memory_is_sliced_in_a_program() -> None:
    """The programs of the test above have slices: more than one product."""
    machine = load_machine("tiny")
    a, b = np.ones((200, 40), np.float32), np.ones((40, 5), np.float32)
    program = run_on_tiles(_text(200, 40, 5), machine, [a, b], Tuning("f32", 5)).program
    products = [
        group
        for step in program.body.steps
        for group in getattr(step, "groups", ())
        if group.codelet.name in ("dot", "added_dot")
    ]
    assert len(products) > 1


def test_slices_are_put_together_at_once() -> None:
    """One exchange takes all of them, with nothing to begin with and each element once.

    41, the depth, has no equal slices.
    """
    machine = load_machine("tiny")
    a, b = np.ones((200, 41), np.float32), np.ones((41, 5), np.float32)
    program = run_on_tiles(_text(200, 41, 5), machine, [a, b], Tuning("f32", 5)).program
    made = [
        definition
        for step in program.body.steps
        for definition in getattr(step, "definitions", ())
        if len(definition.pieces) > 1
    ]
    assert len(made) == 1
    assert made[0].base is None
    assert sum(prod(high - low for low, high in piece.box) for piece in made[0].pieces) == 200 * 5


def test_slices_are_put_together_where_they_are_wished() -> None:
    """What is added to a sliced product meets it where it lies: nothing else is exchanged."""
    text = """HloModule sum
    ENTRY e {
      a = f16[4096,4096] parameter(0)
      b = f16[4096,4096] parameter(1)
      c = f16[4096,4096] parameter(2)
      product = f16[4096,4096] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
      ROOT sum = f16[4096,4096] add(product, c)
    }"""
    program = hloipu.compile(text, target="bow", cache=False)
    last = [step for step in program.costs.steps if step.kind in ("exchange", "compute")][-1]
    assert last.kind == "compute"
    assert {name for name, _ in last.shares} == {"sum"}
    exchanges = [step for step in program.costs.steps if step.kind == "exchange"]
    assert {name for name, _ in exchanges[-1].shares} == {"product"}


@pytest.mark.parametrize(
    ("lhs", "rhs", "result", "batch"),
    [
        ("f32[3,8,16]", "f32[3,16,20]", "f32[3,8,20]", 1),
        ("f32[0,16]", "f32[16,4]", "f32[0,4]", 0),
        ("f32[4,0]", "f32[0,6]", "f32[4,6]", 0),
        ("f32[16]", "f32[16]", "f32[]", 0),
    ],
)
def test_corners(lhs: str, rhs: str, result: str, batch: int) -> None:
    arrays = [
        RNG.integers(-3, 4, [int(n) for n in x[4:-1].split(",")]).astype(np.float32)
        for x in (lhs, rhs)
    ]
    left, right = arrays[0].ndim - 1, batch
    dims = f"lhs_contracting_dims={{{left}}}, rhs_contracting_dims={{{right}}}"
    if batch:
        dims += ", lhs_batch_dims={0}, rhs_batch_dims={0}"
    text = f"""HloModule product
    ENTRY e {{
      a = {lhs} parameter(0)
      b = {rhs} parameter(1)
      ROOT c = {result} dot(a, b), {dims}
    }}"""
    for target in ("tiny", "gc200"):
        same_on_tiles(text, load_machine(target), arrays)


@pytest.mark.parametrize("target", ["tiny", "gc200"])
def test_half_partials_add_up(target: str) -> None:
    """Small whole numbers are exact in f16, pieces and sums of them too."""
    a = RNG.integers(-2, 3, (6, 640)).astype(np.float16)
    b = RNG.integers(-2, 3, (640, 5)).astype(np.float16)
    run = same_on_tiles(_text(6, 640, 5, "f16"), load_machine(target), [a, b], Tuning("f16"))
    kinds = {x.element_type for x in run.program.variables if x.shape}
    assert kinds == {"f16"}
    np.testing.assert_array_equal(
        run.functional[0].astype(np.float32), a.astype(np.float32) @ b.astype(np.float32)
    )


@pytest.mark.parametrize("kind", [Dot, Convolution])
@pytest.mark.parametrize("target", ["tiny", "gc200"])
def test_half_partials_are_rounded_each(target: str, kind: type[Dot | Convolution]) -> None:
    """2048 + 1 is 2048 in f16: pieces that are rounded add up to less than the whole depth."""
    machine, depth, half = load_machine(target), 640, Tuning("f16")
    a, b = np.ones((6, depth), np.float16), np.zeros((depth, 5), np.float16)
    text, shape = _text(6, depth, 5, "f16"), tuple[int, ...]((depth, 5))
    if kind is Convolution:
        text, a, shape = CONVOLVED, a[None], (1, depth, 5)
    plan = run_on_tiles(text, machine, [a, b.reshape(shape)], half)
    (cut,) = (x for x in _codelets(plan.program.body) if isinstance(x, kind))
    part = cut.part if isinstance(cut, Dot) else cut.cuts[0][1]
    end = min(depth, 8 * part)  # more would add up to more than f16 has
    b[:end:part], b[1:end:part] = 2048, 1
    b[1] = 2
    sums = np.add.reduceat(b.astype(np.float64), range(0, depth, part))
    rounded = sums.astype(np.float16).astype(np.float64).sum(axis=0).astype(np.float16)
    assert (rounded != sums.sum(axis=0).astype(np.float16)).all()
    run = run_on_tiles(text, machine, [a, b.reshape(shape)], half)
    for (found,) in (run.functional, run.exact):
        np.testing.assert_array_equal(
            found.astype(np.float16).reshape(6, 5), np.tile(rounded, (6, 1))
        )


CONVOLVED = """HloModule convolved
ENTRY e {
  a = f16[1,6,640] parameter(0)
  b = f16[1,640,5] parameter(1)
  ROOT c = f16[1,6,5] convolution(a, b), window={size=1}, dim_labels=b0f_0io->b0f
}"""


def _codelets(step: Step) -> Iterator[Codelet]:
    if isinstance(step, ComputeSet):
        yield from (group.codelet for group in step.groups)
    elif isinstance(step, Sequence):
        for inner in step.steps:
            yield from _codelets(inner)


@pytest.mark.parametrize("depth", [(8, 128), (1, 1024), (128, 8)])
def test_any_contracted_dimension_may_be_cut(depth: tuple[int, int]) -> None:
    """The depth of a weight gradient is batch times positions: costs what a single one does."""
    tuning = replace(DEFAULT_TUNING, partials_type="f16", memory_percent=20)
    lhs, rhs = Tensor("f16", (*depth, 1024)), Tensor("f16", (*depth, 4096))
    gradient = Dot((), (), (0, 1), (0, 1), "f16")
    result = Tensor("f16", (1024, 4096))
    both = dot_grid(DotWork(load_machine("gc200"), gradient, lhs, rhs, result, tuning))
    single = _grid("gc200", 1024, 1024, 4096, "f16", tuning)
    assert both.part > 0
    assert both.slices == single.slices
    assert both.cycles == pytest.approx(single.cycles, rel=0.02)


GRADIENT = """HloModule gradient
ENTRY e {{
  a = {kind}[{batch},{depth},24] parameter(0)
  b = {kind}[{batch},{depth},40] parameter(1)
  ROOT c = {kind}[24,40] dot(a, b), lhs_contracting_dims={{0,1}}, rhs_contracting_dims={{0,1}}
}}"""


@pytest.mark.parametrize(
    ("kind", "batch", "depth", "percent", "sliced"),
    [("f32", 8, 97, 20, 0), ("f32", 1, 96, 5, 1), ("f16", 16, 90, 11, 0), ("bf16", 16, 90, 13, 0)],
)
def test_slices_of_the_depth_add_up_in_place(
    kind: str, batch: int, depth: int, percent: int, sliced: int
) -> None:
    """Whole numbers add up exactly; all sums of a product lie in one variable."""
    machine, tuning = load_machine("tiny"), Tuning("f16", percent)
    codelet = Dot((), (), (0, 1), (0, 1), kind)
    shapes = (batch, depth, 24), (batch, depth, 40), (24, 40)
    lhs, rhs, result = (Tensor(kind, shape) for shape in shapes)
    plan = dot_grid(DotWork(machine, codelet, lhs, rhs, result, tuning))
    assert (plan.sliced, plan.sliced_depth) == (DEPTH, sliced)
    a, b = (RNG.integers(-1, 2, shape).astype(user_dtype(kind)) for shape in shapes[:2])
    text = GRADIENT.format(kind=kind, batch=batch, depth=depth)
    run = same_on_tiles(text, machine, [a, b], tuning)
    wanted = np.einsum("ijm,ijn->mn", a.astype(np.float32), b.astype(np.float32))
    np.testing.assert_array_equal(run.functional[0].astype(np.float32), wanted)
    groups = [x for step in run.program.body.steps for x in getattr(step, "groups", ())]
    added = [x for x in groups if x.codelet.name == "added_dot"]
    assert len(added) == plan.slices - 1
    assert len({(x.inputs[2].variable, x.outputs[0].variable) for x in added}) == 1


def test_products_cut_along_a_later_contracted_dimension_are_right() -> None:
    text = """HloModule gradient
    ENTRY e {
      a = f32[3,96,5] parameter(0)
      b = f32[3,96,7] parameter(1)
      ROOT c = f32[5,7] dot(a, b), lhs_contracting_dims={0,1}, rhs_contracting_dims={0,1}
    }"""
    program = hloipu.compile(text, target="tiny", cache=False)
    groups = [
        group
        for step in program.program.body.steps
        if isinstance(step, ComputeSet)
        for group in step.groups
    ]
    cut = [x.codelet for x in groups if isinstance(x.codelet, Dot)]
    assert [(x.lhs_contracting, x.part > 0) for x in cut] == [((1, 0), True)]
    a, b = (RNG.standard_normal((3, 96, n), np.float32) for n in (5, 7))
    wanted = np.einsum("ijm,ijn->mn", a.astype(np.float64), b)
    for mode in ("exact", "functional"):
        (found,) = program.run(a, b, mode=mode).outputs
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_slices_of_rows_are_cut_where_they_end() -> None:
    """Pieces that do not go into a slice of the depth would take a run of each row."""
    tuning = replace(DEFAULT_TUNING, partials_type="f16", memory_percent=15)
    tuning = replace(tuning, code_price=CodePrice(64, 64))
    plan = _grid("bow", 1024, 4096, 1024, "f16", tuning)
    assert plan.sliced == DEPTH
    assert 4096 // plan.slices % plan.part == 0
