"""Loops with accumulators of the older form, and what they train to, turn by turn."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.support.poplar_small import FEED, TAKEN, WEIGHTS, Array, elements

COUNT, TURNS = 3, 6
BEGINNINGS: list[Array] = [WEIGHTS[0], np.array([2, -1], np.float32)]
"""A weight, and an array that an optimizer keeps."""
_FULL = NDArray[np.float64]


@dataclass(frozen=True)
class Window:
    """A text, how many arrays it begins with, what they are in the end."""

    text: str
    arrays: int
    state: list[_FULL]
    is_step: bool = True
    """Whether it can be cut as a step; it stays a loop otherwise."""


_KIND = f'backend_config="{{\\"num_mini_batches\\":{COUNT}}}"'
_SENDS = f"""  loss.r = f32[] reduce(x, zero), dimensions={{0}}, to_apply=sum
  ready2 = token[] after-all()
  sent = token[] outfeed(loss.r, ready2), outfeed_config={TAKEN}
"""


def _text(body: str, arrays: int, result: str) -> str:
    shapes = ", ".join(["f32[2]"] * arrays)
    names = ["w", "m"][:arrays]
    parameters = "".join(f"  {n} = f32[2] parameter({k})\n" for k, n in enumerate(names))
    loop = (
        f'backend_config="{{\\"callConfig\\":{{\\"type\\":\\"RepeatLoop\\",'
        f'\\"repeatConfig\\":{{\\"repeatCount\\":\\"{TURNS}\\"}}}}}}"'
    )
    taken = "".join(f"  r{k} = f32[2] get-tuple-element(p), index={k}\n" for k in range(arrays))
    given = ", ".join(f"r{k}" for k in range(arrays))
    return f"""HloModule older

sum {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}}

body {{
{parameters}  ready = token[] after-all()
  feed = ((f32[2]), token[]) infeed(ready), infeed_config={FEED}
  data = (f32[2]) get-tuple-element(feed), index=0
  x = f32[2] get-tuple-element(data), index=0
  g = f32[2] multiply(x, w)
  zero = f32[] constant(0)
  half.c = f32[] constant(0.5)
  half = f32[2] broadcast(half.c), dimensions={{}}
{_SENDS}{body}  ROOT out = ({shapes}) tuple({result})
}}

ENTRY main {{
{parameters}  p = ({shapes}) call({", ".join(names)}), to_apply=body, {loop}
{taken}  ROOT out = ({shapes}) tuple({given})
}}
"""


_State = tuple[_FULL, _FULL]


def _trained(turn: Callable[[int, _State, _FULL], _State]) -> list[_FULL]:
    """Return what a turn's formulas make of the beginnings, applied once for each element."""
    w, m = (np.asarray(x, np.float64) for x in BEGINNINGS)
    total = np.zeros(2)
    for number, x in enumerate(elements(TURNS)):
        total = total + x * w
        given = total if number % COUNT == COUNT - 1 else np.zeros(2)
        w, m = turn(number, (w, m), given)
        if number % COUNT == COUNT - 1:
            total = np.zeros(2)
    return [w, m]


def _descent() -> Window:
    body = (
        f'  s = f32[2] custom-call(g), custom_call_target="StatefulGradientAccumulate", {_KIND}\n'
        "  u = f32[2] multiply(s, half)\n  n = f32[2] subtract(w, u)\n"
    )
    state = _trained(lambda _, now, given: (now[0] - 0.5 * given, now[1]))
    return Window(_text(body, 1, "n"), 1, state[:1])


def _decayed() -> Window:
    """Every turn takes something off the weight, whatever the accumulator gives out."""
    body = (
        f'  s = f32[2] custom-call(g), custom_call_target="StatefulGradientAccumulate", {_KIND}\n'
        "  d = f32[2] multiply(w, half)\n  u = f32[2] add(s, d)\n  n = f32[2] subtract(w, u)\n"
    )
    state = _trained(lambda _, now, given: (0.5 * now[0] - given, now[1]))
    return Window(_text(body, 1, "n"), 1, state[:1], is_step=False)


def _momentum(target: str) -> Window:
    body = (
        "  s = (f32[2], f32[2]) custom-call(m, g, half.c), "
        f'custom_call_target="{target}", {_KIND}\n'
        "  n.m = f32[2] get-tuple-element(s), index=0\n"
        "  n.g = f32[2] get-tuple-element(s), index=1\n"
        "  n = f32[2] subtract(w, n.g)\n"
    )
    w, m = (np.asarray(x, np.float64) for x in BEGINNINGS)
    for number, x in enumerate(elements(TURNS)):
        m = (0.5 * m if number % COUNT == 0 else m) + x * w
        if number % COUNT == COUNT - 1:
            w = w - m
    return Window(_text(body, 2, "n, n.m"), 2, [w, m])


WINDOWS: Mapping[str, Window] = {
    "descent": _descent(),
    "weight decay every turn": _decayed(),
    "momentum": _momentum("StatefulGradientAccumulateWithMomentum"),
}
"""Name -> text and results."""


def over_replicas(momentum: bool, replicas: int) -> Window:
    """Return a text that adds up, or with momentum averages, over replicas what it accumulated.

    Replica r takes elements r, r + R, and so on.
    """
    if momentum:
        target = "StatefulGradientAccumulateWithMomentumAndAllReduceWithNorm"
        body = (
            f'  s = (f32[2], f32[2]) custom-call(m, g, half.c), custom_call_target="{target}", '
            f"{_KIND}\n  n.m = f32[2] get-tuple-element(s), index=0\n"
            "  n.g = f32[2] get-tuple-element(s), index=1\n  n = f32[2] subtract(w, n.g)\n"
        )
    else:
        target = "StatefulGradientAccumulateAndAllReduce"
        body = (
            f'  s = f32[2] custom-call(g), custom_call_target="{target}", {_KIND}\n'
            "  u = f32[2] multiply(s, half)\n  n = f32[2] subtract(w, u)\n"
        )
    w, m = (np.asarray(x, np.float64) for x in BEGINNINGS)
    data = elements(TURNS * replicas)
    for first in range(0, TURNS, COUNT):
        total = sum(x * w for x in data[first * replicas : (first + COUNT) * replicas])
        if momentum:
            m = 0.5 * m + total / replicas
            w = w - m
        else:
            w = w - 0.5 * total
    text = _text(body, 2, "n, n.m") if momentum else _text(body, 1, "n")
    return Window(text, 1 + momentum, [w, m][: 1 + momentum])
