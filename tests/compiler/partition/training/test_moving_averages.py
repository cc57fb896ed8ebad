"""Numbers of a step: state that counts, and results that may be a loss."""

import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.partition.training.errors import StagingError
from hloipu_compiler.partition.training.losses import losses_of
from hloipu_compiler.partition.training.op_phases import counts_by
from hloipu_compiler.partition.training.reach import parameter_positions

TEXT = """HloModule m
ENTRY e {{
  n = s32[] parameter(0)
  x = s32[] parameter(1)
  v = s32[2] parameter(2)
  one = s32[] constant(1)
  two = s32[] constant(2)
  {value}
}}
"""


@pytest.mark.parametrize(
    ("value", "added"),
    [
        ("ROOT r = s32[] add(n, two)", 2.0),
        ("ROOT r = s32[] add(one, n)", 1.0),
        ("ROOT r = s32[] subtract(n, one)", 1.0),
        ("ROOT r = s32[] multiply(n, two)", None),  # no sum
        ("ROOT r = s32[] multiply(x, two)", None),
        ("ROOT r = s32[] add(x, two)", None),  # of something else
        ("ROOT r = s32[] add(n, x)", None),  # no constant
        ("ROOT r = s32[2] add(v, v)", None),
    ],
)
def test_what_is_added(value: str, added: float | None) -> None:
    entry = parse(TEXT.format(value=value)).entry
    own = {at for number in (0, 2) for at in parameter_positions(entry)[number]}
    assert counts_by(entry, own, entry.position["r"]) == added


LOOP = """HloModule m
body {
  p = (f32[], f32[]) parameter(0)
  a = f32[] get-tuple-element(p), index=0
  b = f32[] get-tuple-element(p), index=1
  c = f32[] add(a, b)
  ROOT t = (f32[], f32[]) tuple(c, b)
}
test {
  p = (f32[], f32[]) parameter(0)
  a = f32[] get-tuple-element(p), index=0
  b = f32[] get-tuple-element(p), index=1
  ROOT r = pred[] compare(a, b), direction=LT
}
ENTRY e {
  w = f32[] parameter(0)
  x = f32[] parameter(1)
  s = (f32[], f32[]) tuple(w, x)
  l = (f32[], f32[]) while(s), condition=test, body=body
  d = f32[] multiply(w, x)
  far = f32[] exponential(d)
  count = s32[] constant(3)
  ROOT r = (f32[], (f32[], f32[]), f32[], f32[], f32[], s32[]) tuple(w, l, far, d, x, count)
}
"""


def test_losses_are_numbers_made_of_data_and_state_the_nearest_first() -> None:
    """No result within a tuple that a loop makes whole, no new state, nothing of data alone."""
    entry = parse(LOOP).entry
    assert losses_of(entry, ((0, 0),), (1,), None) == [4, 3]
    assert losses_of(entry, ((0, 0),), (1,), 3) == [3]
    with pytest.raises(StagingError):
        losses_of(entry, ((0, 0),), (1,), 0)
    with pytest.raises(StagingError):
        losses_of(entry, ((0, 0),), (1,), 7)
