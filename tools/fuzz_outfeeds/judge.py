"""Runs one case and compares every element of every outfeed with numpy's."""

from typing import Any, NamedTuple

import numpy as np

import hloipu
from hloipu_runtime.errors import HloipuError
from tools.fuzz_outfeeds.case import FED, Case, Outfeed
from tools.fuzz_outfeeds.expected import START, outfed, trained

RELATIVE = 2e-5
"""Of f32, over 200 steps of a descent that contracts, and sums of up to 1,600 elements."""


class Verdict(NamedTuple):
    """What a case showed."""

    case: Case
    compared: int
    """Elements of outfeeds."""
    faults: tuple[str, ...]


def judged(case: Case) -> Verdict:
    """Return what differs between a case's outfeeds and numpy's."""
    try:
        drained = _drained(case)
    except HloipuError as error:
        return Verdict(case, 0, (f"{error.code}: {error}",))
    results = trained(case, case.fed())
    faults: list[str] = []
    compared = 0
    for outfeed in case.outfeeds:
        wanted = outfed(outfeed, results, case.calls, case.element_type)
        fault = _difference(outfeed, drained[outfeed.name], wanted, case.replicas)
        compared += len(wanted)
        if fault:
            faults.append(f"{outfeed.text()} ({outfeed.mode}): {fault}")
    return Verdict(case, compared, tuple(faults))


def _drained(case: Case) -> dict[str, list[Any]]:
    """Return what each outfeed gives in all calls."""
    program = hloipu.compile(
        case.text, target="tiny", over_memory="allow", cache=False,
        outfeed=[outfeed.text() for outfeed in case.outfeeds], **case.options,
    )  # fmt: skip
    fed = case.fed()
    # By name, in another order than the program's; every second case by place.
    data: Any = {name: fed[name] for name in reversed(FED)}
    if case.seed % 2:
        data = tuple(fed[name] for name in FED)
    modes = {x.name: x.mode for x in case.outfeeds if x.of_session}
    state = [x.astype(np.float32) for x in START]
    with program.session(
        state=state, infeeds={"data": data}, outfeeds=modes, mode=case.mode, timeout=10
    ) as session:
        for count in case.calls:
            session.run(count * case.loop)
        return {
            x.name: [each.element for each in session.stream(x.name).drain()] for x in case.outfeeds
        }


def _difference(outfeed: Outfeed, drained: list[Any], wanted: list[Any], replicas: int) -> str:
    """Return where an outfeed's elements differ; empty: nowhere."""
    if len(drained) != len(wanted):
        return f"{len(drained)} elements, expected are {len(wanted)}"
    for number, (element, expected) in enumerate(zip(drained, wanted, strict=True)):
        leaves = element if isinstance(element, tuple) else (element,)
        if len(leaves) != len(expected):
            return f"element {number} has {len(leaves)} arrays, expected are {len(expected)}"
        for place, mine, theirs in zip(outfeed.places, leaves, expected, strict=True):
            theirs = theirs if replicas > 1 else theirs[0]
            mine = np.asarray(mine)
            if (mine.dtype, mine.shape) != (theirs.dtype, theirs.shape):
                return (
                    f"result {place} of element {number} is {mine.dtype}{list(mine.shape)}, "
                    f"expected is {theirs.dtype}{list(theirs.shape)}"
                )
            if not _near(mine, theirs):
                return f"result {place} of element {number} is {mine}, expected is {theirs}"
    return ""


def _near(mine: Any, theirs: Any) -> bool:
    """Whether floats are near, and everything else is the same."""
    if mine.dtype in (np.float32, np.complex64):
        return bool(np.allclose(mine, theirs, RELATIVE, 1e-6))
    return bool(np.array_equal(mine, theirs))
