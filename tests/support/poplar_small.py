"""A product of two weights with what a queue feeds, as Graphcore's plugin prints it.

loss = sum(x w0 w1), so that the gradients are x w1 and x w0, and the update subtracts them. Inputs
that are small integers give exact results.
"""

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.source import Source
from hloipu_compiler.verify.verifier import verify

Array = NDArray[np.float32]

SIZE = 2
FEED = '"\\022\\001x\\"\\001\\001(\\003"'
TAKEN = '"\\022\\001l\\"\\001\\001(\\003"'

FORWARD_0 = f"""forward_0 {{
  w0 = f32[2] parameter(0)
  ready = token[] after-all()
  feed = ((f32[2]), token[]) infeed(ready), infeed_config={FEED}
  data = (f32[2]) get-tuple-element(feed), index=0
  x = f32[2] get-tuple-element(data), index=0
  h = f32[2] multiply(x, w0)
  ROOT out = (f32[2], f32[2]) tuple(h, x)
}}"""
FORWARD_1 = """forward_1 {
  h = f32[2] parameter(0)
  w1 = f32[2] parameter(1)
  l = f32[2] multiply(h, w1)
  zero = f32[] constant(0)
  loss = f32[] reduce(l, zero), dimensions={0}, to_apply=sum
  ROOT out = (f32[], f32[2]) tuple(loss, h)
}"""
BACKWARD_1 = """backward_1 {
  h = f32[2] parameter(0)
  w1 = f32[2] parameter(1)
  dw1 = f32[2] copy(h)
  dh = f32[2] copy(w1)
  ROOT out = (f32[2], f32[2]) tuple(dh, dw1)
}"""
BACKWARD_0 = """backward_0 {
  dh = f32[2] parameter(0)
  x = f32[2] parameter(1)
  dw0 = f32[2] multiply(dh, x)
  ROOT out = (f32[2]) tuple(dw0)
}"""
UPDATE = """update {
  g0 = f32[2] parameter(0)
  g1 = f32[2] parameter(1)
  w0 = f32[2] parameter(2)
  w1 = f32[2] parameter(3)
  n0 = f32[2] subtract(w0, g0)
  n1 = f32[2] subtract(w1, g1)
  ROOT out = (f32[2], f32[2]) tuple(n0, n1)
}"""
SUM = """sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}"""
STAGE = 'frontend_attributes={{CALL_CONFIG_TYPE="{0}",PIPELINE_STAGE_ID="{1}"}}'
_UPDATES = 'frontend_attributes={CALL_CONFIG_TYPE="ResourceUpdate"}'
_FORWARD = [STAGE.format("PipelineStage", n) for n in (0, 1)]
_BACKWARD = [STAGE.format("PipelineStageBackward", n) for n in (0, 1)]
CALLS = f"""  f0 = (f32[2], f32[2]) call(w0), to_apply=forward_0, {_FORWARD[0]}
  h = f32[2] get-tuple-element(f0), index=0
  x = f32[2] get-tuple-element(f0), index=1
  f1 = (f32[], f32[2]) call(h, w1), to_apply=forward_1, {_FORWARD[1]}
  loss = f32[] get-tuple-element(f1), index=0
  h1 = f32[2] get-tuple-element(f1), index=1
  ready = token[] after-all()
  sent = token[] outfeed(loss, ready), outfeed_config={TAKEN}
  b1 = (f32[2], f32[2]) call(h1, w1), to_apply=backward_1, {_BACKWARD[1]}
  dh = f32[2] get-tuple-element(b1), index=0
  dw1 = f32[2] get-tuple-element(b1), index=1
  b0 = (f32[2]) call(dh, x), to_apply=backward_0, {_BACKWARD[0]}
  dw0 = f32[2] get-tuple-element(b0), index=0
  one = f32[] constant(1)
  c0 = f32[2] custom-call(w0), custom_call_target="GradientAccumulatorCreate"
  a0 = f32[2] custom-call(c0, dw0, one), custom_call_target="GradientAccumulatorAddWithScale"
  g0 = f32[2] custom-call(a0), custom_call_target="GradientAccumulatorSink"
  c1 = f32[2] custom-call(), custom_call_target="GradientAccumulatorCreate"
  a1 = f32[2] custom-call(c1, dw1, one), custom_call_target="GradientAccumulatorAddWithScale"
  g1 = f32[2] custom-call(a1), custom_call_target="GradientAccumulatorSink"
  ru = (f32[2], f32[2]) call(g0, g1, w0, w1), to_apply=update, {_UPDATES}
  n0 = f32[2] get-tuple-element(ru), index=0
  n1 = f32[2] get-tuple-element(ru), index=1
"""
PIPELINE = f"""pipeline {{
  w0 = f32[2] parameter(0)
  w1 = f32[2] parameter(1)
  k = s32[] parameter(2)
{CALLS}  ROOT out = (f32[2], f32[2], s32[]) tuple(n0, n1, k)
}}"""
ENTRY = """ENTRY main {
  w0 = f32[2] parameter(0)
  w1 = f32[2] parameter(1)
  k = s32[] constant(3)
  p = (f32[2], f32[2], s32[]) call(w0, w1, k), to_apply=pipeline, frontend_attributes={CALL_CONFIG_TYPE="Pipeline",PIPELINE_SCHEDULE="0",PIPELINE_REPEAT_COUNT="2",GradientAccumulationOperandIndex="2"}
  r0 = f32[2] get-tuple-element(p), index=0
  r1 = f32[2] get-tuple-element(p), index=1
  ROOT out = (f32[2], f32[2]) tuple(r0, r1)
}"""  # noqa: E501
TEXT = "HloModule small\n\n" + "\n\n".join(
    (SUM, FORWARD_0, FORWARD_1, BACKWARD_0, BACKWARD_1, UPDATE, PIPELINE, ENTRY)
)
MICRO_BATCHES, TURNS = 3, 2


def changed(*pairs: tuple[str, str], text: str = TEXT) -> str:
    """Return the text with each first part in place of the second; each must be there."""
    for old, new in pairs:
        if old not in text:
            raise AssertionError(f"{old!r} is not in the text")
        text = text.replace(old, new)
    return text


def read(text: str) -> Module:
    """Return the verified module of a text."""
    module = parse(Source(text))
    verify(module)
    return module


def elements(count: int = MICRO_BATCHES * TURNS) -> list[Array]:
    """Return what the queue feeds."""
    return [np.array([1 + n % 3, 2 - n % 2], np.float32) for n in range(count)]


WEIGHTS = [np.array([1, 2], np.float32), np.array([3, -1], np.float32)]


def trained(
    micro_batches: int = MICRO_BATCHES, turns: int = TURNS, share: float = 1.0
) -> tuple[list[NDArray[np.float64]], list[float]]:
    """Return weights and losses after the updates, each with `share` of the sum of gradients."""
    w0, w1 = (np.asarray(w, np.float64) for w in WEIGHTS)
    data, losses = elements(micro_batches * turns), []
    for turn in range(turns):
        g0, g1 = np.zeros(SIZE), np.zeros(SIZE)
        for x in data[turn * micro_batches : (turn + 1) * micro_batches]:
            losses.append(float(np.sum(x * w0 * w1)))
            g0, g1 = g0 + x * w1, g1 + x * w0
        w0, w1 = w0 - share * g0, w1 - share * g1
    return [w0, w1], losses
