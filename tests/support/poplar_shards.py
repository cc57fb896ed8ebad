"""Loops whose ops name devices: a product of two weights, one on each of two."""

import numpy as np
from numpy.typing import NDArray

from tests.support.poplar_small import FEED, SUM, TAKEN, WEIGHTS, elements

TURNS = 4
_ON = ["sharding={maximal device=0}", "sharding={maximal device=1}"]
_BODY = f"""  ready = token[] after-all()
  feed = ((f32[2]), token[]) infeed(ready), infeed_config={FEED}
  data = (f32[2]) get-tuple-element(feed), index=0
  x = f32[2] get-tuple-element(data), index=0, {_ON[0]}
  h = f32[2] multiply(x, w0), {_ON[0]}
  l = f32[2] multiply(h, w1), {_ON[1]}
  zero = f32[] constant(0)
  loss = f32[] reduce(l, zero), dimensions={{0}}, to_apply=sum, {_ON[1]}
  ready2 = token[] after-all()
  sent = token[] outfeed(loss, ready2), outfeed_config={TAKEN}
  dh = f32[2] copy(w1), {_ON[1]}
  g1 = f32[2] copy(h), {_ON[1]}
  g0 = f32[2] multiply(dh, x), {_ON[0]}
"""
_PLAIN = f"""  n0 = f32[2] subtract(w0, g0), {_ON[0]}
  n1 = f32[2] subtract(w1, g1), {_ON[1]}
"""
_ACCUMULATED = (
    "  one = f32[] constant(1)\n"
    + "".join(
        f"  c{n} = f32[2] custom-call(w{n}), custom_call_target="
        f'"GradientAccumulatorCreate", {_ON[n]}\n'
        f"  a{n} = f32[2] custom-call(c{n}, g{n}, one), custom_call_target="
        f'"GradientAccumulatorAddWithScale", {_ON[n]}\n'
        f"  s{n} = f32[2] custom-call(a{n}), custom_call_target="
        f'"GradientAccumulatorSink", {_ON[n]}\n'
        for n in (0, 1)
    )
    + "  ru = (f32[2], f32[2]) call(s0, s1, w0, w1), to_apply=update, "
    'frontend_attributes={CALL_CONFIG_TYPE="ResourceUpdate"}\n'
    "  n0 = f32[2] get-tuple-element(ru), index=0\n"
    "  n1 = f32[2] get-tuple-element(ru), index=1\n"
)
_REPEATED = (
    '"{\\"callConfig\\":{\\"type\\":\\"RepeatLoop\\",\\"repeatConfig\\":'
    f'{{\\"repeatCount\\":\\"{TURNS}\\"}}}}}}"'
)


def sharded_loop(form: str, micro_batches: int, *, comes_back: bool = False) -> str:
    """Return a loop on two devices; 0 micro-batches: weights change in every turn.

    `form`: repeat or while. `comes_back`: the loss is made on the first device.
    """
    body = _BODY + (_ACCUMULATED if micro_batches else _PLAIN)
    if comes_back:
        body = body.replace(f"to_apply=sum, {_ON[1]}", f"to_apply=sum, {_ON[0]}")
    update = f"""update {{
  g0 = f32[2] parameter(0)
  g1 = f32[2] parameter(1)
  w0 = f32[2] parameter(2)
  w1 = f32[2] parameter(3)
  c = s32[] constant({micro_batches})
  k = () custom-call(c), custom_call_target="GradientAccumulationCount"
{_PLAIN}  ROOT out = (f32[2], f32[2]) tuple(n0, n1)
}}

"""
    make = _repeated if form == "repeat" else _while
    computations, run = make(body)
    return f"""HloModule sharded

{SUM}

{update if micro_batches else ""}{computations}ENTRY main {{
  w0 = f32[2] parameter(0)
  w1 = f32[2] parameter(1)
{run}  ROOT out = (f32[2], f32[2]) tuple(r0, r1)
}}
"""


def _repeated(body: str) -> tuple[str, str]:
    computation = (
        f"body {{\n  w0 = f32[2] parameter(0)\n  w1 = f32[2] parameter(1)\n{body}"
        "  ROOT out = (f32[2], f32[2]) tuple(n0, n1)\n}\n\n"
    )
    run = (
        f"  p = (f32[2], f32[2]) call(w0, w1), to_apply=body, backend_config={_REPEATED}\n"
        "  r0 = f32[2] get-tuple-element(p), index=0\n"
        "  r1 = f32[2] get-tuple-element(p), index=1\n"
    )
    return computation, run


def _while(body: str) -> tuple[str, str]:
    computations = f"""body {{
  state = (s32[], f32[2], f32[2]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  w0 = f32[2] get-tuple-element(state), index=1, {_ON[0]}
  w1 = f32[2] get-tuple-element(state), index=2, {_ON[1]}
  step = s32[] constant(1)
  j = s32[] add(i, step)
{body}  ROOT out = (s32[], f32[2], f32[2]) tuple(j, n0, n1)
}}

goes_on {{
  state = (s32[], f32[2], f32[2]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] constant({TURNS})
  ROOT c = pred[] compare(i, n), direction=LT
}}

"""
    run = """  i0 = s32[] constant(0)
  st = (s32[], f32[2], f32[2]) tuple(i0, w0, w1)
  p = (s32[], f32[2], f32[2]) while(st), condition=goes_on, body=body
  r0 = f32[2] get-tuple-element(p), index=1
  r1 = f32[2] get-tuple-element(p), index=2
"""
    return computations, run


def shards_trained(micro_batches: int) -> list[NDArray[np.float64]]:
    """Return the weights in the end."""
    w0, w1 = (np.asarray(w, np.float64) for w in WEIGHTS)
    data, each = elements(TURNS), max(micro_batches, 1)
    for first in range(0, TURNS, each):
        taken = data[first : first + each]
        g0, g1 = sum(x * w1 for x in taken), sum(x * w0 for x in taken)
        w0, w1 = w0 - g0, w1 - g1
    return [w0, w1]
