"""Schedules steps of several IPUs in alternating local and meeting times.

Meetings are as early as what they need lets them be; those that nothing needs come last. Steps of
an IPU keep their order, but for small ones. A step runs before a meeting if something at that
meeting needs it, or if its IPU would only wait for slower ones meanwhile.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """Kinds of steps for scheduling."""

    LOCAL = "on one IPU"
    MEETING = "between IPUs"
    BARRIER = "behind all before it, before all behind it"


class Timed(NamedTuple):
    """A step, as far as its time depends on it."""

    kind: Kind
    ipus: tuple[int, ...]
    """On which it keeps its place; none of a step that may go past others, or of a barrier."""
    needs: tuple[int, ...]
    """Steps before it that must be through."""
    weight: int
    """About how many cycles it takes."""


def times_of(steps: Sequence[Timed]) -> list[int]:
    """Return the time of each step; at one time, steps keep their order.

    Time grows with the steps and what they need, and with IPUs times meetings.
    """
    earliest, segments = _earliest(steps)
    times = _sinks_last(steps, earliest, segments)
    latest = _latest(steps, times, segments)
    _filled(steps, earliest, latest, times)
    for number, step in enumerate(steps):
        if step.kind is Kind.LOCAL and not step.ipus:
            times[number] = max((earliest[number], *(_after(times[n]) for n in step.needs)))
    return times


def _after(time: int) -> int:
    """Return the first time at which steps of one IPU can need what is there at a time."""
    return time + time % 2


def _earliest(steps: Sequence[Timed]) -> tuple[list[int], list[int]]:
    times: list[int] = []
    last: dict[int, int] = {}
    base = latest = 0
    for step in steps:
        time = max(
            (base, *(times[n] for n in step.needs), *(last.get(ipu, 0) for ipu in step.ipus))
        )
        match step.kind:
            case Kind.LOCAL:
                time = _after(time)
            case Kind.MEETING:
                time |= 1
            case Kind.BARRIER:
                base = time = latest | 1
        last.update(dict.fromkeys(step.ipus, time))
        latest = max(latest, time)
        times.append(time)
    segments, behind = [0] * len(steps), latest | 1
    for number in range(len(steps) - 1, -1, -1):
        segments[number] = behind
        if steps[number].kind is Kind.BARRIER:
            behind = times[number]
    return times, segments


def _sinks_last(
    steps: Sequence[Timed], earliest: Sequence[int], segments: Sequence[int]
) -> list[int]:
    """Return times at which meetings are that nothing needs as late as the next barrier."""
    needed = {n for step in steps for n in step.needs}
    return [
        segments[n]
        if step.kind is Kind.MEETING and not step.ipus and n not in needed
        else earliest[n]
        for n, step in enumerate(steps)
    ]


def _latest(steps: Sequence[Timed], times: Sequence[int], segments: Sequence[int]) -> list[int]:
    """Return the latest times of local steps at which no meeting is kept waiting."""
    latest_times = [end - 1 for end in segments]
    following: dict[int, int] = {}
    for number in range(len(steps) - 1, -1, -1):
        step = steps[number]
        if step.kind is not Kind.LOCAL:
            latest_times[number] = times[number] - 1
        for ipu in step.ipus:
            latest_times[number] = min(
                latest_times[number], following.get(ipu, latest_times[number])
            )
        following.update(dict.fromkeys(step.ipus, latest_times[number]))
        for n in step.needs:
            latest_times[n] = min(latest_times[n], latest_times[number])
    return latest_times


def _filled(
    steps: Sequence[Timed], earliest: Sequence[int], latest: Sequence[int], times: list[int]
) -> None:
    """Set the times of local steps that keep their order."""
    queues: dict[int, list[int]] = {}
    for number, step in enumerate(steps):
        if step.kind is Kind.LOCAL and step.ipus:
            queues.setdefault(step.ipus[0], []).append(number)
    waiting = dict.fromkeys(queues, 0)
    for time in range(0, max(latest, default=-1) + 1, 2):
        weight_by_ipu = dict.fromkeys(waiting, 0)
        for ipu, queue in queues.items():
            while waiting[ipu] < len(queue) and latest[queue[waiting[ipu]]] <= time:
                weight_by_ipu[ipu] += steps[queue[waiting[ipu]]].weight
                times[queue[waiting[ipu]]] = time
                waiting[ipu] += 1
        longest = max(weight_by_ipu.values(), default=0)
        for ipu, queue in queues.items():
            while waiting[ipu] < len(queue) and earliest[queue[waiting[ipu]]] <= time:
                weight_by_ipu[ipu] += steps[queue[waiting[ipu]]].weight
                if weight_by_ipu[ipu] > longest:
                    break
                times[queue[waiting[ipu]]] = time
                waiting[ipu] += 1
