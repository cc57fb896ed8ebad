"""Dynamic slices and updates, gathers and scatters on tiles: values in both modes."""

from typing import Any

import numpy as np
import pytest

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.indexed.dynamic_slice import DynamicUpdateSlice
from hloipu_runtime.codelets.indexed.scatter import Scatter
from hloipu_runtime.codelets.ops.move import Copy
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import ComputeSet, Exchange, Repeat, RepeatWhile, VertexGroup
from hloipu_runtime.program.uses import steps_within
from tests.support.tile_runs import same_on_tiles

MACHINES = {
    "tiny": load_machine("tiny"),
    "seven": load_machine("tiny", {"tiles_per_ipu": "7"}),
    "gc200": load_machine("gc200"),
}


def drawn(*shape: int) -> Any:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


def numbers(low: int, high: int, *shape: int) -> Any:
    return np.random.default_rng(6).integers(low, high, shape, dtype=np.int32)


def groups(program: Program) -> list[VertexGroup]:
    """Return the vertex groups of the outermost level."""
    found = [step.groups for step in program.body.steps if isinstance(step, ComputeSet)]
    return [group for each in found for group in each]


def codelets(program: Program) -> list[Codelet]:
    return [group.codelet for group in groups(program)]


SLICES = [
    ("60,40,3", "1,40,3", (17, 0, 0)),
    ("60,40,3", "7,5,3", (17, 38, 0)),
    ("3000", "5", (2997,)),
    ("500,9", "1,1", (499, 8)),
    ("4,1000", "4,1000", (1, 1)),
    ("64", "64", (3,)),
    ("50,40", "0,40", (3, 3)),
    ("", "", ()),
]


def sizes(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def starts_text(count: int, first: int) -> str:
    return "".join(f"  s{d} = s32[] parameter({first + d})\n" for d in range(count))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("shape", "window", "at"), SLICES)
def test_a_dynamic_slice(machine: str, shape: str, window: str, at: tuple[int, ...]) -> None:
    names = "".join(f", s{d}" for d in range(len(at)))
    text = f"""
HloModule m
ENTRY e {{
  x = f32[{shape}] parameter(0)
{starts_text(len(at), 1)}
  ROOT r = f32[{window}] dynamic-slice(x{names}), dynamic_slice_sizes={{{window}}}
}}
"""
    x = drawn(*sizes(shape))
    run = same_on_tiles(text, MACHINES[machine], [x, *map(np.int32, at)])
    expected = x
    for axis, (start, n) in enumerate(zip(at, sizes(window), strict=True)):
        begin = min(max(start, 0), x.shape[axis] - n)
        expected = np.take(expected, range(begin, begin + n), axis)
    np.testing.assert_array_equal(run.exact[0], expected)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("shape", "window", "at"), SLICES)
@pytest.mark.parametrize("needed", [False, True])
def test_a_dynamic_update(
    machine: str, shape: str, window: str, at: tuple[int, ...], needed: bool
) -> None:
    names = "".join(f", s{d}" for d in range(len(at)))
    text = f"""
HloModule m
ENTRY e {{
  x = f32[{shape}] parameter(0)
  u = f32[{window}] parameter(1)
{starts_text(len(at), 2)}
  y = f32[{shape}] dynamic-update-slice(x, u{names})
  z = f32[{shape}] dynamic-update-slice(y, u{names})
  ROOT t = (f32[{shape}], f32[{shape}]) tuple({"x" if needed else "y"}, z)
}}
"""
    x, u = drawn(*sizes(shape)), 9 + drawn(*sizes(window))
    run = same_on_tiles(text, MACHINES[machine], [x, u, *map(np.int32, at)])
    expected = x.copy()
    expected[
        tuple(
            slice(min(s, n - w), min(s, n - w) + w)
            for s, n, w in zip(at, x.shape, u.shape, strict=True)
        )
    ] = u
    np.testing.assert_array_equal(run.exact[1], expected)
    np.testing.assert_array_equal(run.exact[0], x if needed else expected)


def test_starts_may_be_one_vector() -> None:
    text = """
HloModule m
ENTRY e {
  x = f32[60,40] parameter(0)
  s = s32[2] parameter(1)
  a = f32[3,7] dynamic-slice(x, s), dynamic_slice_sizes={3,7}
  ROOT r = f32[60,40] dynamic-update-slice(x, a, s)
}
"""
    x = drawn(60, 40)
    run = same_on_tiles(text, MACHINES["tiny"], [x, np.array([5, 39], np.int32)])
    np.testing.assert_array_equal(run.exact[0], x)


def test_an_update_in_a_loop_is_made_in_place() -> None:
    """Whether elements of the state are all taken first, or each where it is used."""
    text = """
HloModule m
c {
  s = (s32[], f32[300,4], f32[300,4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(20)
  ROOT lt = pred[] compare(i, n), direction=LT
}
b {
  s = (s32[], f32[300,4], f32[300,4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[300,4] get-tuple-element(s), index=1
  one = s32[] constant(1)
  zero = s32[] constant(0)
  j = s32[] add(i, one)
  v = f32[1,4] dynamic-slice(x, i, zero), dynamic_slice_sizes={1,4}
  w = f32[1,4] add(v, v)
  y = f32[300,4] dynamic-update-slice(x, w, j, zero)
  log = f32[300,4] get-tuple-element(s), index=2
  u = f32[300,4] dynamic-update-slice(log, v, j, zero)
  ROOT o = (s32[], f32[300,4], f32[300,4]) tuple(j, y, u)
}
ENTRY e {
  x = f32[300,4] parameter(0)
  z = s32[] constant(0)
  t = (s32[], f32[300,4], f32[300,4]) tuple(z, x, x)
  w = (s32[], f32[300,4], f32[300,4]) while(t), condition=c, body=b
  y = f32[300,4] get-tuple-element(w), index=1
  u = f32[300,4] get-tuple-element(w), index=2
  ROOT r = (f32[300,4], f32[300,4]) tuple(y, u)
}
"""
    x = drawn(300, 4)
    run = same_on_tiles(text, MACHINES["tiny"], [x])
    expected, log = x.copy(), x.copy()
    for turn in range(20):
        log[turn + 1] = expected[turn]
        expected[turn + 1] = 2 * expected[turn]
    np.testing.assert_array_equal(run.exact[0], expected)
    np.testing.assert_array_equal(run.exact[1], log)
    (loop,) = (step for step in run.program.body.steps if isinstance(step, Repeat | RepeatWhile))
    made = [step for step in steps_within(loop.body, run.program) if isinstance(step, ComputeSet)]
    assert all(not isinstance(group.codelet, Copy) for step in made for group in step.groups)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("count", ["n", "given"])
def test_rows_of_stacks_are_taken_and_put_as_they_lie(machine: str, count: str) -> None:
    """As scans print them: no copy on a tile only for a dimension of one element."""
    text = f"""
HloModule m
c {{
  s = (s32[], f32[8,3,40], f32[3,8,40], f32[3,40], f32[8], s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(8)
  given = s32[] get-tuple-element(s), index=5
  ROOT lt = pred[] compare(i, {count}), direction=LT
}}
b {{
  s = (s32[], f32[8,3,40], f32[3,8,40], f32[3,40], f32[8], s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[8,3,40] get-tuple-element(s), index=1
  y = f32[3,8,40] get-tuple-element(s), index=2
  h = f32[3,40] get-tuple-element(s), index=3
  q = f32[8] get-tuple-element(s), index=4
  given = s32[] get-tuple-element(s), index=5
  one = s32[] constant(1)
  zero = s32[] constant(0)
  j = s32[] add(i, one)
  slice = f32[1,3,40] dynamic-slice(x, i, zero, zero), dynamic_slice_sizes={{1,3,40}}
  row = f32[3,40] reshape(slice)
  number = f32[1] dynamic-slice(q, i), dynamic_slice_sizes={{1}}
  factor = f32[] reshape(number)
  factors = f32[3,40] broadcast(factor), dimensions={{}}
  scaled = f32[3,40] multiply(h, factors)
  now = f32[3,40] subtract(scaled, row)
  back = f32[3,1,40] reshape(now)
  put = f32[3,8,40] dynamic-update-slice(y, back, zero, i, zero)
  ROOT o = (s32[], f32[8,3,40], f32[3,8,40], f32[3,40], f32[8], s32[])
    tuple(j, x, put, now, q, given)
}}
ENTRY e {{
  x = f32[8,3,40] parameter(0)
  h = f32[3,40] parameter(1)
  q = f32[8] parameter(2)
  given = s32[] parameter(3)
  none = f32[] constant(0)
  y = f32[3,8,40] broadcast(none), dimensions={{}}
  z = s32[] constant(0)
  t = (s32[], f32[8,3,40], f32[3,8,40], f32[3,40], f32[8], s32[]) tuple(z, x, y, h, q, given)
  w = (s32[], f32[8,3,40], f32[3,8,40], f32[3,40], f32[8], s32[])
    while(t), condition=c, body=b
  ROOT r = f32[3,8,40] get-tuple-element(w), index=2
}}
"""
    x, h, q = drawn(8, 3, 40), drawn(3, 40), drawn(8)
    run = same_on_tiles(text, MACHINES[machine], [x, h, q, np.int32(8)])
    state, expected = h, np.zeros((3, 8, 40), np.float32)
    for turn in range(8):
        state = expected[:, turn] = state * q[turn] - x[turn]
    np.testing.assert_array_equal(run.exact[0], expected)
    (loop,) = (step for step in run.program.body.steps if isinstance(step, Repeat | RepeatWhile))
    exchanges = [s for s in steps_within(loop.body, run.program) if isinstance(s, Exchange)]
    pieces = [p for s in exchanges for made in s.definitions for p in made.pieces]
    values = run.program.values
    assert all(values[p.value].shape == p.view for p in pieces)


ROWS = "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1"

GATHERS = [
    ("50,8", "20,1", "20,8", ROWS + ", slice_sizes={1,8}"),
    ("5000,3", "9,1", "9,3", ROWS + ", slice_sizes={1,3}"),
    ("9,700", "9,1", "9,700", ROWS + ", slice_sizes={1,700}"),
    (
        "400", "700", "700",
        "offset_dims={}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
        "slice_sizes={1}",
    ),
    (
        "30,40,6", "11,2", "11,4,5,6",
        "offset_dims={1,2,3}, collapsed_slice_dims={}, start_index_map={0,1}, index_vector_dim=1, "
        "slice_sizes={4,5,6}",
    ),
    (
        "6,90,4", "6,17,1", "6,17,4",
        "offset_dims={2}, collapsed_slice_dims={1}, start_index_map={1}, index_vector_dim=2, "
        "operand_batching_dims={0}, start_indices_batching_dims={0}, slice_sizes={1,1,4}",
    ),
    ("50,8", "0,1", "0,8", ROWS + ", slice_sizes={1,8}"),
]  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("table", "places", "result", "how"), GATHERS)
def test_a_gather(machine: str, table: str, places: str, result: str, how: str) -> None:
    text = f"""
HloModule m
ENTRY e {{
  x = f32[{table}] parameter(0)
  i = s32[{places}] parameter(1)
  ROOT r = f32[{result}] gather(x, i), {how}
}}
"""
    high = max(sizes(table)) + 3
    arguments = [drawn(*sizes(table)), numbers(-3, high, *sizes(places))]
    same_on_tiles(text, MACHINES[machine], arguments)


def test_a_table_too_large_for_a_tile_is_read_in_ranges() -> None:
    text = f"""
HloModule m
ENTRY e {{
  x = f32[40000,2] parameter(0)
  i = s32[10,1] parameter(1)
  ROOT r = f32[10,2] gather(x, i), {ROWS}, slice_sizes={{1,2}}
}}
"""
    x, i = drawn(40000, 2), numbers(0, 40000, 10, 1)
    run = same_on_tiles(text, MACHINES["gc200"], [x, i])
    np.testing.assert_array_equal(run.functional[0], x[i[:, 0]])
    assert [codelet.name for codelet in codelets(run.program)] == ["gather-candidates", "or-bits"]
    for group in groups(run.program):
        for operand in group.inputs:
            assert np.prod([span.size for span in operand.spans]) * 4 <= 1 << 16


SCATTER_ROWS = (
    "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
    "index_vector_dim=1"
)

SCATTERS = [
    ("50,8", "20,1", "20,8", SCATTER_ROWS),
    ("3000,3", "90,1", "90,3", SCATTER_ROWS),
    (
        "900", "700,1", "700",
        "update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
        "index_vector_dim=1",
    ),
    (
        "30,40,6", "11,2", "11,4,5,6",
        "update_window_dims={1,2,3}, inserted_window_dims={}, "
        "scatter_dims_to_operand_dims={0,1}, index_vector_dim=1",
    ),
    (
        "6,90,4", "6,17,1", "6,17,4",
        "update_window_dims={2}, inserted_window_dims={1}, scatter_dims_to_operand_dims={1}, "
        "index_vector_dim=2, input_batching_dims={0}, scatter_indices_batching_dims={0}",
    ),
    ("50,8", "0,1", "0,8", SCATTER_ROWS),
]  # fmt: skip

BODIES = {
    "add": "ROOT r = f32[] add(a, b)",
    "assign": "ROOT r = f32[] copy(b)",
    "expression": "m = f32[] multiply(a, a)\n  ROOT r = f32[] subtract(m, b)",
}


def region(body: str) -> str:
    return f"f {{ a = f32[] parameter(0) b = f32[] parameter(1)\n  {BODIES[body]} }}"


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(("operand", "places", "updates", "how"), SCATTERS)
def test_a_scatter(
    machine: str, body: str, operand: str, places: str, updates: str, how: str
) -> None:
    text = f"""
HloModule m
{region(body)}
ENTRY e {{
  x = f32[{operand}] parameter(0)
  i = s32[{places}] parameter(1)
  u = f32[{updates}] parameter(2)
  y = f32[{operand}] scatter(x, i, u), {how}, to_apply=f
  zero = f32[] constant(0)
  z = f32[{operand}] broadcast(zero), dimensions={{}}
  v = f32[{operand}] scatter(z, i, u), {how}, to_apply=f
  ROOT t = (f32[{operand}], f32[{operand}], f32[{operand}]) tuple(x, y, v)
}}
"""
    high = max(sizes(operand)) + 3
    arguments = [
        drawn(*sizes(operand)), numbers(-3, high, *sizes(places)), drawn(*sizes(updates))
    ]  # fmt: skip
    same_on_tiles(text, MACHINES[machine], arguments)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("row", [0, 2, 4])
def test_windows_that_would_fill_a_tile_come_in_slices(row: int, body: str) -> None:
    operand, places, updates, how = SCATTERS[row]
    text = f"""
HloModule m
{region(body)}
ENTRY e {{
  x = f32[{operand}] parameter(0)
  i = s32[{places}] parameter(1)
  u = f32[{updates}] parameter(2)
  ROOT y = f32[{operand}] scatter(x, i, u), {how}, to_apply=f
}}
"""
    high = max(sizes(operand)) + 3
    arguments = [
        drawn(*sizes(operand)), numbers(-3, high, *sizes(places)), drawn(*sizes(updates))
    ]  # fmt: skip
    small = load_machine(
        "tiny", {"bytes_per_tile": "2048", "executable_bytes": "1024", "element_bytes": "1024"}
    )
    run = same_on_tiles(text, small, arguments)
    assert sum(isinstance(codelet, Scatter) for codelet in codelets(run.program)) > 1


@pytest.mark.parametrize("base", ["zeros", "drawn"])
@pytest.mark.parametrize(("updates", "last"), [((8, 64), 16), ((256,), 4), ((7,), 3)])
def test_updates_of_few_rows_are_summed_in_shares(
    base: str, updates: tuple[int, ...], last: int
) -> None:
    """Whole numbers, which any order sums alike; where a share has few updates there are none."""
    many = ",".join(map(str, updates))
    start = f"x = f32[2,{last}] parameter(2)"
    if base == "zeros":
        start = f"zero = f32[] constant(0)\n  x = f32[2,{last}] broadcast(zero), dimensions={{}}"
    text = f"""
HloModule m
{region("add")}
ENTRY e {{
  i = s32[{many},1] parameter(0)
  u = f32[{many},{last}] parameter(1)
  {start}
  ROOT y = f32[2,{last}] scatter(x, i, u), update_window_dims={{{len(updates)}}},
    inserted_window_dims={{0}}, scatter_dims_to_operand_dims={{0}},
    index_vector_dim={len(updates)}, to_apply=f
}}
"""
    given = [numbers(-1, 4, *updates, 1), numbers(-9, 9, *updates, last).astype(np.float32)]
    if base == "drawn":
        given.append(numbers(-9, 9, 2, last).astype(np.float32))
    run = same_on_tiles(text, MACHINES["gc200"], given)
    reduced = [x for x in codelets(run.program) if x.name == "reduce"]
    assert bool(reduced) is (updates != (7,))


def test_a_scatter_of_two_operands() -> None:
    text = f"""
HloModule m
f {{
  a = f32[] parameter(0)
  b = s32[] parameter(1)
  c = f32[] parameter(2)
  d = s32[] parameter(3)
  s = f32[] add(a, c)
  m = s32[] maximum(b, d)
  ROOT r = (f32[], s32[]) tuple(s, m)
}}
ENTRY e {{
  x = f32[90,4] parameter(0)
  k = s32[90,4] parameter(1)
  i = s32[30,1] parameter(2)
  u = f32[30,4] parameter(3)
  v = s32[30,4] parameter(4)
  ROOT y = (f32[90,4], s32[90,4]) scatter(x, k, i, u, v), {SCATTER_ROWS}, to_apply=f
}}
"""
    arguments = [drawn(90, 4), numbers(0, 9, 90, 4), numbers(0, 90, 30, 1), drawn(30, 4),
                 numbers(0, 20, 30, 4)]  # fmt: skip
    for machine in MACHINES.values():
        same_on_tiles(text, machine, arguments)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("base", ["negate(given)", "broadcast(filling), dimensions={}"])
@pytest.mark.parametrize("at", [(1, 1), (-3, 9), (0, 2)])
def test_a_large_update_at_a_known_place_is_exchanged(
    machine: str, base: str, at: tuple[int, int]
) -> None:
    """No tile holds all of it, as where its place is not known."""
    text = f"""
HloModule m
ENTRY e {{
  given = f32[40,60] parameter(0)
  u = f32[38,58] parameter(1)
  filling = f32[] constant(5)
  x = f32[40,60] {base}
  a = s32[] constant({at[0]})
  b = s32[] constant({at[1]})
  y = f32[40,60] dynamic-update-slice(x, u, a, b)
  ROOT r = (f32[40,60], f32[40,60]) tuple(y, given)
}}
"""
    x, u = drawn(40, 60), 9 + drawn(38, 58)
    run = same_on_tiles(text, MACHINES[machine], [x, u])
    expected = -x if "given" in base else np.full_like(x, 5)
    row, column = np.clip(at, 0, 2)
    expected[row : row + 38, column : column + 58] = u
    np.testing.assert_array_equal(run.exact[0], expected)
    np.testing.assert_array_equal(run.exact[1], x)
    assert not any(isinstance(x, DynamicUpdateSlice) for x in codelets(run.program))


def test_shares_of_updates_lie_by_their_own_sizes() -> None:
    """What the result's reader wishes has the result's sizes, of one row, and not the shares'."""
    how = "update_window_dims={1,2}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}"
    text = f"""
HloModule m
{region("add")}
ENTRY e {{
  places = s32[5278,1] parameter(0)
  x = f32[1,8,8] parameter(1)
  u = f32[5278,8,8] parameter(2)
  y = f32[1,8,8] scatter(x, places, u), {how}, index_vector_dim=1, to_apply=f
  flat = f32[1,64] reshape(y)
  chosen = pred[1,64] parameter(4)
  other = f32[1,64] parameter(3)
  ROOT r = f32[1,64] select(chosen, other, flat)
}}
"""
    places, x, u = numbers(0, 1, 5278, 1), drawn(1, 8, 8), drawn(5278, 8, 8)
    x, u = np.rint(9 * x), np.rint(9 * u)  # whose sums are exact in any order
    chosen = np.arange(64).reshape(1, 64) % 3 == 0
    run = same_on_tiles(text, MACHINES["gc200"], [places, x, u, drawn(1, 64), chosen])
    expected = np.where(chosen, drawn(1, 64), (x + u.sum(0)).reshape(1, 64))
    np.testing.assert_array_equal(run.exact[0], expected)
