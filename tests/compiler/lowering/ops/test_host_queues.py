"""Infeed and outfeed ops: queues by name, one stream for each array, in the order of the text."""

import numpy as np
import pytest

from hloipu_compiler.errors import CodegenError
from hloipu_runtime.errors import UsageError
from tests.support.sessions import compiled

ECHO = """
HloModule echo

ENTRY e {
  t = token[] after-all()
  in = ((f32[4], s32[2]), token[]) infeed(t), infeed_config="source"
  data = (f32[4], s32[2]) get-tuple-element(in), index=0
  x = f32[4] get-tuple-element(data), index=0
  n = s32[2] get-tuple-element(data), index=1
  t1 = token[] get-tuple-element(in), index=1
  twice = f32[4] add(x, x)
  pair = (f32[4], s32[2]) tuple(twice, n)
  t2 = token[] outfeed(pair, t1), outfeed_config="sink"
  ROOT sum = f32[4] add(twice, x)
}
"""

LOOP = """
HloModule loop

body {
  s = (s32[], f32[3], token[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  total = f32[3] get-tuple-element(s), index=1
  t = token[] get-tuple-element(s), index=2
  in = (f32[3], token[]) infeed(t), infeed_config="\\022\\004rows\\"\\001\\001(\\003"
  x = f32[3] get-tuple-element(in), index=0
  t1 = token[] get-tuple-element(in), index=1
  more = f32[3] add(total, x)
  t2 = token[] outfeed(more, t1), outfeed_config="sums"
  one = s32[] constant(1)
  next = s32[] add(i, one)
  ROOT r = (s32[], f32[3], token[]) tuple(next, more, t2)
}

condition {
  s = (s32[], f32[3], token[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(5)
  ROOT c = pred[] compare(i, n), direction=LT
}

ENTRY e {
  zero = s32[] constant(0)
  z = f32[] constant(0)
  zeros = f32[3] broadcast(z), dimensions={}
  t = token[] after-all()
  s = (s32[], f32[3], token[]) tuple(zero, zeros, t)
  done = (s32[], f32[3], token[]) while(s), condition=condition, body=body
  ROOT total = f32[3] get-tuple-element(done), index=1
}
"""


@pytest.mark.parametrize("mode", ["functional", "exact"])
def test_arrays_go_through_queues_by_name(mode: str) -> None:
    program = compiled(ECHO)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    n = np.arange(6, dtype=np.int32).reshape(3, 2)
    with program.session(infeeds={"source": (x, n)}, mode=mode, poison=True) as session:
        results = [session.run(1).outputs[0] for _ in range(3)]
        told = [arrived.element for arrived in session.stream("sink").drain()]
    np.testing.assert_array_equal(results, 3 * x)
    np.testing.assert_array_equal([a for a, _ in told], 2 * x)
    np.testing.assert_array_equal([b for _, b in told], n)


@pytest.mark.parametrize("mode", ["functional", "exact"])
def test_queues_in_a_loop_of_the_module(mode: str) -> None:
    program = compiled(LOOP)
    assert [queue.name for queue in program.program.queues] == ["rows", "sums"]
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    with program.session(infeeds={"rows": x}, mode=mode, poison=True) as session:
        (total,) = session.run().outputs
        told = [arrived.element for arrived in session.stream("sums").drain()]
    np.testing.assert_array_equal(total, x.sum(0))
    np.testing.assert_array_equal(told, x.cumsum(0))


def test_ops_without_a_name_are_called_what_they_are() -> None:
    text = ECHO.replace(', infeed_config="source"', "").replace(', outfeed_config="sink"', "")
    assert [queue.name for queue in compiled(text).program.queues] == ["infeed", "outfeed"]


def test_one_name_for_both_ways_is_told_apart() -> None:
    queues = compiled(ECHO.replace('"sink"', '"source"')).program.queues
    assert [(queue.name, queue.to_device) for queue in queues] == [
        ("source", True),
        ("source.outfeed", False),
    ]


def test_two_ops_of_one_name_share_the_queue_if_they_can() -> None:
    again = """  in2 = (f32[4], token[]) infeed(t1), infeed_config="source"
  ROOT sum"""
    with pytest.raises(CodegenError, match="other arrays") as caught:
        compiled(ECHO.replace("  ROOT sum", again))
    assert caught.value.code == "E0472"


def test_a_feed_may_not_have_the_name_of_an_ops_queue() -> None:
    text = ECHO.replace("  t = token[]", "  w = f32[4] parameter(0)\n  t = token[]").replace(
        "add(twice, x)", "add(twice, w)"
    )
    with pytest.raises(UsageError, match=r"'source\.0' of the queue 'source'") as caught:
        compiled(text, loop=2, feeds={"source": (0,)})
    assert caught.value.code == "E3152"


def test_no_queue_may_have_the_stream_of_a_parameter_or_a_result() -> None:
    for name in ("parameter", "result"):
        text = ECHO.replace("  t = token[]", "  w = f32[4] parameter(0)\n  t = token[]")
        with pytest.raises(UsageError, match=f"'{name}.0' of the queue") as caught:
            compiled(
                text.replace('"source"', f'"{name}"').replace("add(twice, x)", "add(twice, w)")
            )
        assert caught.value.code == "E3152"
