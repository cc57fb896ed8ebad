"""How new state is made of the old, through calls, branches and loops."""

import pytest

import hloipu
from hloipu_compiler.analysis.written_state import is_computed, is_written, keeps_parts

CALLED = """HloModule called
assign { a = f32[] parameter(0)  ROOT b = f32[] parameter(1) }
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
write {
  c = f32[5,2] parameter(0)
  i = s32[1] parameter(1)
  x = f32[2] parameter(2)
  ROOT s = f32[5,2] scatter(c, i, x), update_window_dims={0}, inserted_window_dims={0},
    scatter_dims_to_operand_dims={0}, index_vector_dim=0, to_apply=HOW
}
ENTRY e {
  c = f32[5,2] parameter(0)
  i = s32[1] parameter(1)
  x = f32[2] parameter(2)
  new = f32[5,2] call(c, i, x), to_apply=write
  ROOT r = (f32[5,2]) tuple(new)
}"""
LOOP = """HloModule loop
below { s = (s32[], f32[3,2], f32[3,2]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT }
body { s = (s32[], f32[3,2], f32[3,2]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  old = f32[3,2] get-tuple-element(s), index=1
  made = f32[3,2] get-tuple-element(s), index=2
  one = s32[] constant(1)
  nought = s32[] constant(0)
  next = s32[] add(i, one)
  row = f32[1,2] dynamic-slice(old, i, nought), dynamic_slice_sizes={1,2}
  value = f32[1,2] VALUE
  new = f32[3,2] dynamic-update-slice(made, value, i, nought)
  ROOT t = (s32[], f32[3,2], f32[3,2]) tuple(next, old, new) }
ENTRY e {
  c = f32[3,2] parameter(0)
  nought = s32[] constant(0)
  zero = f32[] constant(0)
  zeros = f32[3,2] broadcast(zero), dimensions={}
  start = (s32[], f32[3,2], f32[3,2]) tuple(nought, c, zeros)
  done = (s32[], f32[3,2], f32[3,2]) while(start), condition=below, body=body
  new = f32[3,2] get-tuple-element(done), index=2
  ROOT r = (f32[3,2]) tuple(new)
}"""
BRANCHES = """HloModule branches
left { t = (f32[2], f32[2]) parameter(0)  ROOT a = f32[2] get-tuple-element(t), index=0 }
right { t = (f32[2], f32[2]) parameter(0)
  a = f32[2] get-tuple-element(t), index=0
  b = f32[2] get-tuple-element(t), index=1
  ROOT r = f32[2] add(a, b) }
ENTRY e {
  c = f32[2] parameter(0)
  x = f32[2] parameter(1)
  p = pred[] parameter(2)
  t = (f32[2], f32[2]) tuple(c, x)
  new = f32[2] conditional(p, t, t), true_computation=left, false_computation=right
  ROOT r = (f32[2]) tuple(new)
}"""
UNKNOWN = """HloModule unknown
ENTRY e {
  c = f32[2] parameter(0)
  x = f32[2] parameter(1)
  y = f32[2] VALUE
  made = (f32[2], f32[]) custom-call(x, y), custom_call_target="nobody_knows"
  new = f32[2] get-tuple-element(made), index=0
  ROOT r = (f32[2]) tuple(new)
}"""


@pytest.mark.parametrize(
    ("text", "written", "kept", "computed"),
    [
        (CALLED.replace("HOW", "assign"), True, True, True),
        (CALLED.replace("HOW", "add"), False, False, True),
        (LOOP.replace("VALUE", "copy(row)"), True, True, True),
        (LOOP.replace("VALUE", "negate(row)"), False, False, True),
        (BRANCHES, False, True, True),
        (UNKNOWN.replace("VALUE", "subtract(c, x)"), False, False, True),
        (UNKNOWN.replace("VALUE", "negate(x)"), True, False, False),
    ],
)
def test_new_state_is_followed_back(text: str, written: bool, kept: bool, computed: bool) -> None:
    module = hloipu.parse(text)
    assert is_written(module, (0,), (0,)) == written
    assert keeps_parts(module, (0,), (0,)) == kept
    assert is_computed(module, (0,), (0,)) == computed
