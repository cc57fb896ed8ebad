"""The program of one device gives each device its blocks of what the whole program gives."""

from collections import Counter

import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.participants import evaluate_participants
from hloipu_compiler.ir.ops import COLLECTIVES
from hloipu_compiler.partition.spmd.partitioning import partitioned, ready_to_divide
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import UnsupportedError
from tests.support.blocks import check_on_devices

BINARY = "{0} {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] {0}(a, b) }}\n"
NOT_LESS = (
    "not_less { a = f32[] parameter(0)  b = f32[] parameter(1)  "
    "ROOT r = pred[] compare(a, b), direction=GE }\n"
)
X = "p = f32[12,8] parameter(0), sharding="
Y = "q = f32[8,12] parameter(1), sharding="
ROWS, BOTH = "{devices=[4,1]<=[4]}", "{devices=[2,2]<=[4]}"
DOT = "ROOT d = f32[12,12] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
Z = "q = f32[12,8] parameter(1), sharding="
DOT_ROWS = "ROOT d = f32[8,8] dot(p, q), lhs_contracting_dims={0}, rhs_contracting_dims={0}"
REVERSAL = "ROOT r = f32[12,8] reverse(p), dimensions={0}, sharding="
EIGHT = "{devices=[8,1]<=[8]}"
CASES: dict[str, tuple[str, dict[str, int]]] = {
    "a reduction begins once": (
        f"{X}{ROWS}\n  c = f32[] constant(5)\n"
        "  ROOT s = f32[8] reduce(p, c), dimensions={0}, to_apply=add",
        {"all-reduce": 1},
    ),
    "a maximum": (
        f"{X}{ROWS}\n  c = f32[] constant(0.25)\n"
        "  ROOT s = f32[8] reduce(p, c), dimensions={0}, to_apply=maximum",
        {"all-reduce": 1},
    ),
    "no op that combines": (
        f"{X}{ROWS}\n  c = f32[] constant(2)\n"
        "  ROOT s = f32[8] reduce(p, c), dimensions={0}, to_apply=subtract",
        {"all-gather": 1},
    ),
    "rows by columns": (
        f"{X}{{devices=[2,1,2]<=[4] last_tile_dim_replicate}}\n"
        f"  {Y}{{devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}}\n  {DOT}",
        {},
    ),
    "a sum over blocks": (f"{X}{ROWS}\n  {Z}{ROWS}\n  {DOT_ROWS}", {"all-reduce": 1}),
    "operands smaller than their product": (
        f"{X}{{devices=[1,4]<=[4]}}\n  {Y}{{devices=[4,1]<=[4]}}\n  {DOT}",
        {"all-gather": 2},
    ),
    "one axis for both": (f"{X}{ROWS}\n  {Y}{{devices=[1,4]<=[4]}}\n  {DOT}", {"all-gather": 1}),
    "devices in an order of their own": (
        f"{X}{{devices=[2,2]3,1,0,2}}\n  {Y}{{devices=[2,2]3,1,0,2}}\n  {DOT}, "
        "sharding={devices=[2,2]3,1,0,2}",
        {"all-gather": 2},
    ),
    "another sharding is asked for": (
        f"{X}{BOTH}\n  ROOT n = f32[12,8] negate(p), "
        "sharding={devices=[1,2,2]<=[4] last_tile_dim_replicate}",
        {"all-to-all": 1, "all-gather": 1},
    ),
    "axes change places": (
        f"{X}{BOTH}\n  ROOT n = f32[12,8] negate(p), sharding={{devices=[2,2]<=[2,2]T(1,0)}}",
        {"collective-permute": 1},
    ),
    "an axis changes dimension": (
        f"{X}{ROWS}\n  ROOT n = f32[12,8] negate(p), sharding={{devices=[1,4]<=[4]}}",
        {"all-to-all": 1},
    ),
    "an axis moves behind another": (
        f"{X}{{devices=[2,2]<=[2,2]T(1,0)}}\n"
        "  ROOT n = f32[12,8] negate(p), sharding={devices=[1,4]<=[4]}",
        {"all-to-all": 1},
    ),
    "an axis moves to the front": (
        "p = f32[4,3,8] parameter(0), sharding={devices=[1,1,4]<=[4]}\n"
        "  ROOT n = f32[4,3,8] negate(p), sharding={devices=[4,1,1]<=[4]}",
        {"all-to-all": 1},
    ),
    "a sum of which each keeps a part": (
        f"{X}{ROWS}\n  {Z}{ROWS}\n  {DOT_ROWS}, sharding={ROWS}",
        {"reduce-scatter": 1},
    ),
    "three by two, strided at the end": (
        f"{X}{{devices=[3,2]<=[6]}}\n  r = f32[3,4,8] reshape(p)\n"
        "  t = f32[8,3,4] transpose(r), dimensions={2,0,1}\n  ROOT n = f32[24,4] reshape(t)",
        {"all-gather": 1},
    ),
    "uneven within": (
        f"{X}{BOTH}\n  s = f32[11,8] slice(p), slice={{[1:12], [0:8]}}, sharding={BOTH}\n"
        "  c = f32[] constant(1)\n  ROOT r = f32[11] reduce(s, c), dimensions={1}, to_apply=add",
        {"all-gather": 1, "all-reduce": 1, "collective-permute": 1},
    ),
    "all that may be divided along rows": (
        f"{X}{ROWS}\n  c = f32[] constant(1)\n  i = s32[] constant(2)\n  z = s32[] constant(0)\n"
        "  a = f32[12,10] pad(p, c), padding=0_0x1_1\n"
        "  b = f32[12,6] slice(a), slice={[0:12], [2:8]}\n"
        "  d = f32[12,3] dynamic-slice(b, z, i), dynamic_slice_sizes={12,3}\n"
        "  e = f32[12,6] dynamic-update-slice(b, d, z, i)\n"
        "  f = f32[12,12] concatenate(e, b), dimensions={1}\n"
        "  ROOT g = f32[12,12] reverse(f), dimensions={1}",
        {},
    ),
    "a window as large as what it looks at": (
        "p = f32[6,4,2] parameter(0), sharding={devices=[2,1,1]<=[2]}\n"
        "  q = f32[6,4,3] parameter(1), sharding={devices=[2,1,1]<=[2]}\n"
        "  ROOT c = f32[1,2,3] convolution(p, q), window={size=6}, dim_labels=0fb_0io->0bf",
        {"all-reduce": 1},
    ),
    "more blocks than groups of features": (
        "p = f32[2,3] parameter(0), sharding={devices=[1,2]<=[2]}\n"
        "  q = f32[1,3] parameter(1), sharding={devices=[1,2]<=[2]}\n"
        "  ROOT c = f32[2,3] convolution(p, q), dim_labels=bf_io->bf, feature_group_count=3, "
        "sharding={devices=[1,2]<=[2]}",
        {},
    ),
    "windows with gaps between them": (
        "p = f32[8,3] parameter(0), sharding={devices=[4,1]<=[4]}\n"
        "  q = f32[3,3] parameter(1)\n  c = f32[] constant(0)\n"
        "  ROOT s = f32[8,3] select-and-scatter(p, q, c), window={size=1x1 stride=3x1}, "
        "select=not_less, scatter=add",
        {"collective-permute": 4},
    ),
    "orders of devices that no mesh has": (
        f"{X}{ROWS}\n  {Z}{{devices=[4,1]3,1,0,2}}\n  ROOT s = f32[12,8] add(p, q), "
        "sharding={devices=[1,2,2]5,4,1,0 last_tile_dim_replicate}",
        {"all-to-all": 1, "all-gather": 1},
    ),
    "some of the devices, or one": (
        f"{X}{ROWS}\n  {Z}{{devices=[2,1]2,3}}\n  s = f32[12,8] add(p, q)\n  "
        "ROOT t = f32[12,8] copy(s), sharding={maximal device=3}",
        {"all-gather": 1},
    ),
    "rows of an array that each device has whole": (
        f"{X}{ROWS}\n  q = f32[5,8] parameter(1)\n"
        f"  ROOT s = f32[17,8] concatenate(q, p), dimensions={{0}}, sharding={ROWS}",
        {"collective-permute": 2},
    ),
    "rows of one block for two": (
        f"{X}{ROWS}\n  ROOT s = f32[2,8] slice(p), slice={{[4:6], [0:8]}}, sharding={ROWS}",
        {"collective-permute": 1},
    ),
    "a reversal": (f"{X}{ROWS}\n  {REVERSAL}{ROWS}", {"collective-permute": 1}),
    "a reversal of rows that do not divide": (
        f"{X}{EIGHT}\n  {REVERSAL}{EIGHT}",
        {"collective-permute": 1},
    ),
    "what is gathered anyway": (
        f"{X}{ROWS}\n  q = f32[8,4] parameter(1), sharding={{devices=[1,4]<=[4]}}\n"
        "  d = f32[12,4] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        '  n = f32[12,8] custom-call(p), custom_call_target="Sharding", sharding={replicated}\n'
        "  ROOT r = (f32[12,4], f32[12,8]) tuple(d, n)",
        {"all-gather": 1, "all-to-all": 1},
    ),
    "a layout for all": (
        f"{X}{ROWS}\n  ROOT l = f32[12,8]{{0,1}} custom-call(p), operand_layout_constraints="
        '{f32[12,8]{0,1}}, custom_call_target="LayoutConstraint"',
        {},
    ),
    "an array without elements behind another": (
        f"{X}{ROWS}\n  q = f32[0,8] parameter(1), sharding={{devices=[1,4]<=[4]}}\n"
        "  ROOT c = f32[12,8] concatenate(p, q), dimensions={0}",
        {},
    ),
    "a product over no elements": (
        f"p = f32[12,0] parameter(0), sharding={ROWS}\n  q = f32[0,12] parameter(1), "
        f"sharding={ROWS}\n  {DOT}",
        {},
    ),
    "an update without elements": (
        f"{X}{ROWS}\n  q = f32[0,8] parameter(1), sharding={{devices=[1,4]<=[4]}}\n"
        "  i = s32[] constant(1)\n  ROOT u = f32[12,8] dynamic-update-slice(p, q, i, i)",
        {},
    ),
    "an update from a place beyond 32 bits": (
        f"{X}{ROWS}\n  q = f32[4,2] parameter(1)\n  i = s64[] constant(5)\n"
        "  j = s64[] constant(-9223371164713784320)\n"
        "  ROOT u = f32[12,8] dynamic-update-slice(p, q, i, j)",
        {},
    ),
    "windows inside that begin with any number": (
        f"{X}{{devices=[2,1]<=[2]}}\n  c = f32[] parameter(1)\n  ROOT w = f32[4,8] "
        "reduce-window(p, c), window={size=3x1 stride=3x1}, to_apply=subtract",
        {},
    ),
    "a loop": (
        f"{X}{ROWS}\n  z = s32[] constant(0)\n  t = (s32[], f32[12,8]) tuple(z, p)\n"
        "  w = (s32[], f32[12,8]) while(t), condition=less, body=step\n"
        "  ROOT g = f32[12,8] get-tuple-element(w), index=1",
        {},
    ),
}
LOOP = """
step {
  t = (s32[], f32[12,8]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  x = f32[12,8] get-tuple-element(t), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  zero = f32[] constant(0)
  s = f32[8] reduce(x, zero), dimensions={0}, to_apply=add
  b = f32[12,8] broadcast(s), dimensions={1}
  h = f32[12,8] subtract(x, b)
  ROOT r = (s32[], f32[12,8]) tuple(j, h)
}
less {
  t = (s32[], f32[12,8]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  n = s32[] constant(3)
  ROOT r = pred[] compare(i, n), direction=LT
}
"""


@pytest.mark.parametrize("case", CASES)
def test_devices_have_their_blocks_of_the_result(case: str) -> None:
    body, meetings = CASES[case]
    applied = "".join(map(BINARY.format, ("add", "maximum", "subtract")))
    module = parse(f"HloModule m\n{applied}{NOT_LESS}{LOOP}ENTRY e {{\n  {body}\n}}")
    verify(module)
    entry, draws = module.entry, np.random.default_rng(1)
    sizes = [entry.instructions[i].shape.dimensions for i in entry.parameters]  # type: ignore[union-attr]
    arguments = [draws.standard_normal(n).astype(np.float32) for n in sizes]
    expected = evaluate_participants(module, [arguments])[0]
    local = check_on_devices(ready_to_divide(module), arguments, expected)
    kinds = Counter(x.opcode for x in local.entry.instructions)
    assert {k: n for k, n in kinds.items() if k in COLLECTIVES} == meetings


GATHERING = """HloModule m
step {
  t = (s32[], f32[16,8], f32[8,8]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  x = f32[16,8] get-tuple-element(t), index=1
  w = f32[8,8] get-tuple-element(t), index=2
  one = s32[] constant(1)
  j = s32[] add(i, one)
  h = f32[16,8] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  s = f32[16,8] sine(h)
  ROOT r = (s32[], f32[16,8], f32[8,8]) tuple(j, s, w)
}
less {
  t = (s32[], f32[16,8], f32[8,8]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  n = s32[] constant(TRIPS)
  ROOT r = pred[] compare(i, n), direction=LT
}
ENTRY e {
  p = f32[16,8] parameter(0), sharding={devices=[4,1]<=[4]}
  q = f32[8,8] parameter(1), sharding={devices=[4,1]<=[4]}
  z = s32[] constant(0)
  t = (s32[], f32[16,8], f32[8,8]) tuple(z, p, q)
  w = (s32[], f32[16,8], f32[8,8]) while(t), condition=less, body=step
  ROOT g = f32[16,8] get-tuple-element(w), index=1
}"""


MOVED = """  y = f32[8,8] custom-call(w), custom_call_target="Sharding", sharding={replicated}
  v = f32[8,8] transpose(y), dimensions={1,0}
  h = f32[16,8] dot(x, v), lhs_contracting_dims={1}, rhs_contracting_dims={1}"""


@pytest.mark.parametrize(
    ("trips", "gathers_early", "moves"),
    [(3, True, False), (3, True, True), (1, True, False), (3, False, False)],
)
def test_loops_gather_before_them_what_they_do_not_change(
    trips: int, gathers_early: bool, moves: bool
) -> None:
    text = GATHERING.replace("TRIPS", str(trips))
    if moves:
        (product,) = (line for line in text.splitlines() if " dot(" in line)
        text = text.replace(product, MOVED)
    module = parse(text)
    verify(module)
    draws = np.random.default_rng(1)
    arguments = [draws.standard_normal(n).astype(np.float32) for n in ((16, 8), (8, 8))]
    check_on_devices(module, arguments, evaluate_participants(module, [arguments])[0])
    made = partitioned(module, gathers_early=gathers_early).module
    inside = {c.name for c in made.computations for x in c.instructions if x.opcode == "all-gather"}
    assert inside == ({made.entry.name} if gathers_early and trips > 1 else {"step"})


ROW = """  o = s32[] constant(0)
  v = f32[1,8] dynamic-slice(w, i, o), dynamic_slice_sizes={1,8}
  u = f32[8] reshape(v)
  b = f32[16,8] broadcast(u), dimensions={1}
  h = f32[16,8] multiply(x, b)"""


@pytest.mark.parametrize("gathers_early", [True, False])
def test_a_stack_that_a_loop_reads_is_gathered_once_or_row_by_row(gathers_early: bool) -> None:
    text = GATHERING.replace("TRIPS", "8")
    (product,) = (line for line in text.splitlines() if " dot(" in line)
    module = parse(text.replace(product, ROW))
    verify(module)
    draws = np.random.default_rng(1)
    arguments = [draws.standard_normal(n).astype(np.float32) for n in ((16, 8), (8, 8))]
    check_on_devices(module, arguments, evaluate_participants(module, [arguments])[0])
    made = partitioned(module, gathers_early=gathers_early).module
    found = {(c.name, x.opcode) for c in made.computations for x in c.instructions}
    meetings = {each for each in found if each[1] in COLLECTIVES}
    once = {(made.entry.name, "all-gather")}
    assert meetings == (once if gathers_early else {("step", "all-reduce")})


def test_a_carry_that_does_not_divide_stays_in_blocks() -> None:
    text = GATHERING.replace("TRIPS", "3").replace("f32[16,8]", "f32[17,8]")
    module = parse(text)
    verify(module)
    draws = np.random.default_rng(1)
    arguments = [draws.standard_normal(n).astype(np.float32) for n in ((17, 8), (8, 8))]
    local = check_on_devices(module, arguments, evaluate_participants(module, [arguments])[0])
    (step,) = (c for c in local.computations if c.name == "step")
    assert not [x for x in step.instructions if x.opcode in COLLECTIVES]
    assert local.entry.instructions[local.entry.root].shape.dimensions == (17, 8)  # type: ignore[union-attr]


def test_effects_are_refused() -> None:
    body = f"{X}{ROWS}\n  t = token[] after-all()\n  s = (f32[12,8], u32[], token[]) send(p, t)"
    body += ", channel_id=1, is_host_transfer=true\n  ROOT r = f32[12,8] negate(p)"
    module = parse(f"HloModule m\nENTRY e {{\n  {body}\n}}")
    with pytest.raises(UnsupportedError) as refused:
        check_on_devices(module, [], [])
    assert (refused.value.code, "send" in refused.value.hint) == ("E0479", True)
