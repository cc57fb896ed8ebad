"""Steps in pieces compute what the whole ones do, and no whole stack is left."""

import jax
import numpy as np
import pytest

import hloipu
from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.ir.attributes import Alias
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.partition.scans.pieces import InPieces, step_in_pieces
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.roles import required_wrapping
from hloipu_compiler.plan.wrapping import Wrapping, WrappingRequest
from tests.support.pieces import front, in_pieces_alike, opcodes, whole_results, wrapping_with
from tests.support.stacked_steps import ROWS, STACKED, StackedStep

EXACT = ("sgd", "adam", "momentum-axis-1")
CLIPPED = "adamw-clipped"


def cut(step: StackedStep) -> tuple[Module, Wrapping, InPieces]:
    module = front(step.text)
    wrapping = required_wrapping(module, WrappingRequest(1), feeds_rest=True)
    return module, wrapping, step_in_pieces(module, wrapping)


def results(step: StackedStep) -> list[tuple[np.ndarray, np.ndarray]]:
    module, _, made = cut(step)
    arguments = [np.asarray(x) for x in jax.tree.leaves((step.state(), *step.batch(0)))]
    before = [np.asarray(x) for x in evaluate_everywhere(module, *arguments)]
    return list(zip(before, whole_results(made, *arguments), strict=True))


@pytest.mark.parametrize("name", EXACT)
def test_steps_in_pieces_compute_the_same_bits(name: str) -> None:
    for before, after in results(STACKED[name]):
        np.testing.assert_array_equal(before, after)


def test_norms_over_pieces_are_those_of_the_whole_but_for_rounding() -> None:
    for before, after in results(STACKED[CLIPPED]):
        np.testing.assert_allclose(before, after, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("step", STACKED.values(), ids=STACKED)
def test_nothing_of_a_stack_is_whole(step: StackedStep) -> None:
    module, wrapping, made = cut(step)
    stacked = [
        pair
        for pair in wrapping.state
        if _sizes(module, pair.parameter)[:1] == (ROWS,)
        or (step.axis == 1 and _sizes(module, pair.parameter)[1:2] == (ROWS,))
    ]
    assert stacked
    assert made.numbers is not None
    pieces = len(step.bounds) - 1
    for pair in stacked:
        assert len(made.numbers.parameters[pair.parameter]) == pieces
        assert len(made.numbers.results[pair.result]) == pieces
    assert not {"concatenate", "slice"} & opcodes(made)
    assert len(made.wrapping.state) == len(wrapping.state) + len(stacked) * (pieces - 1)


def _sizes(module: Module, number: int) -> tuple[int, ...]:
    shape = module.entry.program_shape.parameters[number]
    return shape.dimensions if isinstance(shape, ArrayShape) else ()


def step_of(line: str, *, kind: str = "f32[4,6]", before: str = "") -> str:
    """Return a step: the rows of s, changed by the line from s to t, put together and kept."""
    return f"""HloModule m
{before}
ENTRY e {{
  s = {kind} parameter(0)
  x = f32[2,6] parameter(1)
  {line}
  a = f32[2,6] slice(t), slice={{[0:2],[0:6]}}
  b = f32[2,6] slice(t), slice={{[2:4],[0:6]}}
  c = f32[2,6] multiply(a, x)
  d = f32[2,6] add(b, x)
  g = f32[4,6] concatenate(c, d), dimensions={{0}}
  ROOT r = (f32[4,6]) tuple(g)
}}
"""


ADD = """
sum {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT o = f32[] add(p, q)
}
"""


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("t = f32[4,6] transpose(s), dimensions={1,0}", "f32[6,4]"),
        ("t = f32[4,6] reshape(s)", "f32[4,2,3]"),
        ("t = f32[4,6] reshape(s)", "f32[1,4,6]"),
        ("t = f32[4,6] convert(s)", "bf16[4,6]"),
        ("t = f32[4,6] reverse(s), dimensions={1}", "f32[4,6]"),
        ("t = f32[4,6] slice(s), slice={[0:4],[1:13:2]}", "f32[4,14]"),
        ("z = f32[] constant(3)\n  t = f32[4,6] pad(s, z), padding=0_0x1_2_1", "f32[4,2]"),
        ("t = f32[4,6] broadcast(s), dimensions={0}", "f32[4]"),
        ("t = f32[4,6] concatenate(s, s), dimensions={1}", "f32[4,3]"),
        ("z = f32[] constant(0)\n  t = f32[4,6] reduce(s, z), dimensions={1}, to_apply=sum",
         "f32[4,3,6]"),
        ("z = s32[] constant(1)\n  t = f32[4,6] dynamic-slice(s, z, z), "
         "dynamic_slice_sizes={4,6}", "f32[4,8]"),
        ("z = s32[] constant(1)\n  t = f32[4,6] dynamic-update-slice(s, u, z, z)\n", "f32[4,6]"),
        ("t = f32[4,6] dot(s, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
         "f32[4,3]"),
        ("t = f32[4,6] dot(w, s), lhs_contracting_dims={1}, rhs_contracting_dims={1}, "
         "lhs_batch_dims={0}, rhs_batch_dims={0}", "f32[4,3,6]"),
        ("z = f32[] constant(-1)\n  o = f32[] constant(1)\n  t = f32[4,6] clamp(z, s, o)",
         "f32[4,6]"),
        ("k = f32[4] constant({1,2,3,4})\n  m = f32[4,6] broadcast(k), dimensions={0}\n"
         "  t = f32[4,6] multiply(s, m)", "f32[4,6]"),
        ("i = s32[4,6] iota(), iota_dimension=1\n  j = f32[4,6] convert(i)\n"
         "  t = f32[4,6] add(s, j)", "f32[4,6]"),
        ("y = pred[] constant(true)\n  n = f32[4,6] negate(s)\n"
         "  t = f32[4,6] select(y, s, n)", "f32[4,6]"),
    ],
)  # fmt: skip
def test_ops_that_keep_rows_apart_are_done_by_rows(line: str, kind: str) -> None:
    if "(s, w)" in line:
        line = f"w = f32[3,6] constant({{...}})\n  {line}".replace("{...}", _ones(3, 6))
    if "(w, s)" in line:
        line = f"w = f32[4,3] constant({{...}})\n  {line}".replace("{...}", _ones(4, 3))
    if "(s, u," in line:
        line = f"u = f32[4,2] constant({{...}})\n  {line}".replace("{...}", _ones(4, 2))
    text = step_of(line, kind=kind, before=ADD if "to_apply" in line else "")
    wrapping = wrapping_with(feeds=(1,), constants=(0,), results=1)
    made = in_pieces_alike(text, wrapping, frozenset("abg"))
    assert [x.sizes for x in made.stacks] == [(2, 2), (2, 2)]
    assert len(made.wrapping.constants) == 2
    whole = [x for x in made.module.entry.instructions if x.name in ("s", "t", "g")]
    assert not whole


SPREAD = """HloModule m

ENTRY e {
  s = f32[8,3] parameter(0)
  t = f32[8,3] negate(s)
  a = f32[2,3] slice(t), slice={[0:2],[0:3]}
  b = f32[3,3] slice(t), slice={[1:4],[0:3]}
  c = f32[1,3] slice(t), slice={[5:6],[0:3]}
  d = f32[7,3] slice(s), slice={[1:8],[0:3]}
  f = f32[7,3] tanh(d)
  g = f32[2,3] slice(f), slice={[3:5],[0:3]}
  ROOT r = (f32[2,3], f32[3,3], f32[1,3], f32[7,3], f32[2,3]) tuple(a, b, c, f, g)
}
"""


@pytest.mark.parametrize("cuts", ["a", "b", "c", "d", "g", "abcdg"])
def test_ranges_across_pieces_and_within_them_are_taken_from_pieces(cuts: str) -> None:
    made = in_pieces_alike(SPREAD, wrapping_with(constants=(0,), results=5), frozenset(cuts))
    entry = made.module.entry
    given = [entry.instructions[p].shape for p in entry.parameters]
    assert all(isinstance(x, ArrayShape) and x.dimensions[0] < 8 for x in given) == (cuts != "g")


PARTED = """HloModule m

ENTRY e {
  s = f32[8,3] parameter(0)
  a = f32[2,3] slice(s), slice={[0:2],[0:3]}
  h = f32[4,2,3] reshape(s)
  i = f32[1,2,3] slice(h), slice={[1:2],[0:2],[0:3]}
  j = f32[1,2,3] slice(h), slice={[2:3],[0:2],[0:3]}
  n = f32[4,2,3] negate(h)
  k = f32[8,3] reshape(n)
  l = f32[1,3] slice(s), slice={[3:4],[0:3]}
  ROOT r = (f32[2,3], f32[1,2,3], f32[1,2,3], f32[8,3], f32[1,3]) tuple(a, i, j, k, l)
}
"""


@pytest.mark.parametrize(
    ("cuts", "sizes"), [("a", (2, 6)), ("i", (2, 2, 4)), ("aij", (2, 2, 2, 2)), ("al", None)]
)
def test_what_reshapes_part_or_join_is_cut_where_both_can_be(
    cuts: str, sizes: tuple[int, ...] | None
) -> None:
    made = in_pieces_alike(PARTED, wrapping_with(constants=(0,), results=5), frozenset(cuts))
    given = [x for x in made.stacks if x.kind == "parameter"]
    assert [x.sizes for x in given] == ([] if sizes is None else [sizes])
    rows = [x for x in made.module.entry.instructions if x.name.startswith("n.rows")]
    assert len(rows) == len(sizes or ())


def _ones(rows: int, columns: int) -> str:
    row = ",".join(str(n + 1) for n in range(columns))
    return "{" + ",".join([f"{{{row}}}"] * rows) + "}"


def reduction(kind: str, opcode: str, init: str) -> str:
    return f"""HloModule m

f {{
  p = {kind}[] parameter(0)
  q = {kind}[] parameter(1)
  ROOT o = {kind}[] {opcode}(q, p)
}}

ENTRY e {{
  s = {kind}[5,3] parameter(0)
  z = {kind}[] constant({init})
  a = {kind}[2,3] slice(s), slice={{[0:2],[0:3]}}
  b = {kind}[3,3] slice(s), slice={{[2:5],[0:3]}}
  n = {kind}[3] reduce(s, z), dimensions={{0}}, to_apply=f
  m = {kind}[] reduce(s, z), dimensions={{1,0}}, to_apply=f
  ROOT r = ({kind}[3], {kind}[], {kind}[2,3], {kind}[3,3]) tuple(n, m, a, b)
}}
"""


@pytest.mark.parametrize(
    ("kind", "opcode", "init"),
    [
        ("s32", "add", "0"), ("s32", "add", "7"), ("s32", "multiply", "3"), ("f32", "maximum", "0"),
        ("f32", "minimum", "inf"), ("s32", "and", "6"), ("s32", "or", "1"), ("s32", "xor", "5"),
        ("pred", "and", "true"), ("pred", "or", "false"),
    ],
)  # fmt: skip
def test_reductions_over_rows_count_what_they_begin_with_once(
    kind: str, opcode: str, init: str
) -> None:
    made = in_pieces_alike(reduction(kind, opcode, init), wrapping_with(constants=(0,), results=4))
    assert [x.sizes for x in made.stacks] == [(2, 3)]
    assert len(made.module.entry.parameters) == 2


def test_reductions_that_nothing_puts_together_read_the_whole() -> None:
    text = reduction("s32", "subtract", "0")
    made = in_pieces_alike(text, wrapping_with(constants=(0,), results=4))
    assert not made.stacks


def test_parameters_that_an_op_reads_whole_stay() -> None:
    line = "t = f32[4,6] add(s, s)\n  k = f32[4,6] reverse(s), dimensions={0}"
    text = step_of(line).replace("(f32[4,6]) tuple(g)", "(f32[4,6], f32[4,6]) tuple(g, k)")
    made = in_pieces_alike(text, wrapping_with(feeds=(1,), constants=(0,), results=2))
    assert [x.kind for x in made.stacks] == ["result"]
    assert made.wrapping.constants == (0,)


@pytest.mark.parametrize(("last", "stacks"), [("x", 3), ("s", 2)])
def test_a_result_of_which_data_decides_some_rows_alone_stays_whole(last: str, stacks: int) -> None:
    text = f"""HloModule m

ENTRY e {{
  s = f32[4,6] parameter(0)
  x = f32[2,6] parameter(1)
  a = f32[2,6] slice(s), slice={{[0:2],[0:6]}}
  b = f32[2,6] slice(s), slice={{[2:4],[0:6]}}
  first = f32[2,6] add(a, x)
  other = f32[2,6] add(b, {"x" if last == "x" else "b"})
  k = f32[4,6] concatenate(first, other), dimensions={{0}}
  l = f32[4,6] concatenate(b, a), dimensions={{0}}
  ROOT r = (f32[4,6], f32[4,6]) tuple(k, l)
}}
"""
    wrapping = wrapping_with(feeds=(1,), constants=(0,), results=2)
    assert len(in_pieces_alike(text, wrapping).stacks) == stacks


def test_only_named_cuts_count() -> None:
    line = "h = f32[4,6] concatenate(s, s), dimensions={1}\n  t = f32[4,6] tanh(h)"
    text = step_of(line, kind="f32[4,3]")
    wrapping = wrapping_with(feeds=(1,), constants=(0,), results=1)
    assert not in_pieces_alike(text, wrapping, frozenset()).stacks
    columns = in_pieces_alike(text, wrapping, frozenset({"h"})).stacks
    assert [(x.name, x.axis, x.sizes) for x in columns] == [
        ("x", 1, (3, 3)), ("result.0", 1, (3, 3)),
    ]  # fmt: skip
    rows = in_pieces_alike(text, wrapping, frozenset({"b"})).stacks
    assert [(x.name, x.axis, x.sizes) for x in rows] == [("s", 0, (2, 2))]


KEPT = """HloModule m, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }

ENTRY e {
  c = f32[4,3] parameter(0)
  n = s32[] parameter(1)
  x = f32[2,3] parameter(2)
  a = f32[2,3] slice(c), slice={[0:2],[0:3]}
  b = f32[2,3] slice(c), slice={[2:4],[0:3]}
  w = f32[3,3] constant({{1,2,3},{4,5,6},{7,8,9}})
  y = f32[2,3] dot(a, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  z = f32[2,3] add(y, b)
  new = f32[4,3] concatenate(z, x), dimensions={0}
  o = s32[] constant(1)
  m = s32[] add(n, o)
  ROOT r = (f32[4,3], s32[], f32[2,3]) tuple(new, m, y)
}
"""


def test_caches_are_cut_as_what_replaces_them_is() -> None:
    made = in_pieces_alike(KEPT, wrapping_with(state=2, feeds=(2,), results=3))
    assert [(x.name, x.kind, x.first, x.sizes) for x in made.stacks] == [
        ("s0", "parameter", 0, (2, 2)),
        ("result.0", "result", 0, (2, 2)),
    ]
    assert made.wrapping.state == (
        ("s0[0:2]", 0, 0), ("s0[2:4]", 1, 1), ("s1", 2, 2),
    )  # fmt: skip
    assert made.wrapping.feeds[0].places == (3,)
    assert made.wrapping.outfeeds[0].places == (3,)
    assert made.module.attributes["input_output_alias"] == tuple(
        Alias((n,), n, ()) for n in range(3)
    )


def test_what_is_asked_of_the_cut_goes_by_the_new_numbers() -> None:
    made = in_pieces_alike(KEPT, wrapping_with(state=2, feeds=(2,), results=3))
    asked = PipelineRequest(carried=frozenset({0, 1}), loss=2, accumulators={0: "f32", 2: "bf16"})
    found = made.request(asked)
    assert found.carried == {0, 1, 2}
    assert found.loss == 3
    assert found.accumulators == {0: "f32", 1: "f32", 3: "bf16"}


def test_tuples_within_the_result_keep_everything_whole() -> None:
    text = KEPT.replace("(f32[4,3], s32[], f32[2,3]) tuple(new, m, y)",
                        "(f32[4,3], s32[], (f32[2,3])) tuple(new, m, k)")  # fmt: skip
    text = text.replace("  ROOT", "  k = (f32[2,3]) tuple(y)\n  ROOT")
    assert not in_pieces_alike(text, wrapping_with(state=2, feeds=(2,), results=3)).stacks


def test_a_class_of_too_many_pieces_stays_whole() -> None:
    rows = 2000
    lines = ["t0 = f32[2000] negate(s)"]
    lines += [f"t{n} = f32[{rows}] negate(t{n - 1})" for n in range(1, 600)]
    lines += [f"r{n} = f32[1] slice(t599), slice={{[{n}:{n + 1}]}}" for n in range(rows)]
    kinds = ", ".join(["f32[1]"] * rows)
    names = ", ".join(f"r{n}" for n in range(rows))
    body = "\n  ".join(lines)
    text = f"""HloModule m

ENTRY e {{
  s = f32[{rows}] parameter(0)
  {body}
  ROOT r = ({kinds}) tuple({names})
}}
"""
    module = hloipu.verify(text)
    made = step_in_pieces(module, wrapping_with(constants=(0,), results=rows))
    assert made.module is module
