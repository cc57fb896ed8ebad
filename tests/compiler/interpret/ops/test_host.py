"""What reaches outside of a program: infeed, outfeed, the ids of participants, channels."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import Evaluator, evaluate
from hloipu_compiler.interpret.participants import evaluate_participants
from hloipu_compiler.interpret.planning.site import Effects
from hloipu_runtime.errors import UnsupportedError, UsageError
from tests.support.arrays import f32

INFEED = """HloModule m
ENTRY e {
  t = token[] after-all()
  f = ((bf16[2], s32[]), token[]) infeed(t), infeed_config="queue 3"
  ROOT v = (bf16[2], s32[]) get-tuple-element(f), index=0
}
"""


def test_infeed_asks_for_its_configuration() -> None:
    asked: list[str] = []

    def source(config: str) -> Sequence[object]:
        asked.append(config)
        return [np.array([1, 2.5], ml_dtypes.bfloat16), np.int32(7)]

    pair, number = Evaluator(parse(INFEED), Effects(infeed=source))()
    assert asked == ["queue 3"]
    assert (pair.dtype, pair.tolist(), int(number)) == (ml_dtypes.bfloat16, [1, 2.5], 7)


def test_infeed_without_a_source_or_with_too_little() -> None:
    with pytest.raises(UsageError, match="'f' has no source"):
        evaluate(parse(INFEED))
    with pytest.raises(UsageError, match="'f' takes 2 arrays, its source gave 1"):
        evaluate(parse(INFEED), effects=Effects(infeed=lambda _: [np.int32(1)]))


def test_outfeed_in_a_loop_in_order() -> None:
    text = """HloModule m
more {
  s = (s32[], token[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT r = pred[] compare(i, n), direction=LT
}
body {
  s = (s32[], token[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  t = token[] get-tuple-element(s), index=1
  o = token[] outfeed(i, t), outfeed_shape=s32[], outfeed_config="log"
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT r = (s32[], token[]) tuple(j, o)
}
ENTRY e {
  z = s32[] constant(0)
  t = token[] after-all()
  s = (s32[], token[]) tuple(z, t)
  w = (s32[], token[]) while(s), condition=more, body=body
  ROOT r = s32[] get-tuple-element(w), index=0
}
"""
    got: list[Any] = []
    (last,) = evaluate(
        parse(text), effects=Effects(outfeed=lambda config, x: got.append((config, int(x[0]))))
    )
    assert got == [("log", 0), ("log", 1), ("log", 2)]
    assert last == 3
    assert evaluate(parse(text))[0] == 3  # nobody has to listen


def test_ids_of_participants() -> None:
    text = """HloModule m
ENTRY e {
  r = u32[] replica-id()
  p = u32[] partition-id()
  ROOT t = (u32[], u32[]) tuple(r, p)
}
"""
    each = evaluate_participants(parse(text), [[]], replicas=2, partitions=3)
    assert [[int(x) for x in one] for one in each] == [[i // 3, i % 3] for i in range(6)]
    assert [int(x) for x in evaluate(parse(text))] == [0, 0]


def test_channels_to_other_programs_are_refused() -> None:
    text = """HloModule m
ENTRY e {
  a = f32[2] parameter(0)
  t = token[] after-all()
  s = (f32[2], u32[], token[]) send(a, t), channel_id=4
  ROOT d = token[] send-done(s), channel_id=4
}
"""
    with pytest.raises(UnsupportedError, match="send 's' talks to another program over channel 4"):
        Evaluator(parse(text))


SET_SIZE = """HloModule m
ENTRY e {
  a = f32[4] parameter(0)
  n = s32[] parameter(1)
  ROOT s = f32[<=4] set-dimension-size(a, n), dimensions={0}
}
"""


def test_set_dimension_size_to_the_whole() -> None:
    (got,) = evaluate(parse(SET_SIZE), f32([1, 2, 3, 4]), np.int32(4))
    assert got.tolist() == [1, 2, 3, 4]
    with pytest.raises(UnsupportedError, match="'s' sets a dimension of 4 to 3"):
        evaluate(parse(SET_SIZE), f32([1, 2, 3, 4]), np.int32(3))
