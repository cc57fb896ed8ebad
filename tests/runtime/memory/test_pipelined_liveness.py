"""Memory of what positions of a pipeline hand on, against slots that are run one by one."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from hloipu_runtime.memory.liveness import Liveness, liveness_of
from hloipu_runtime.memory.regions import Item, Region
from hloipu_runtime.program import channels
from hloipu_runtime.program.program import Program, Role
from hloipu_runtime.program.steps import Pipeline, VariableId
from tests.support.pipelined_programs import PipelineMaker, read_where_made

Leaf = tuple[int, Item]
"""Its point, and what it reads and writes."""


class Done(NamedTuple):
    """What happens at a point in one slot."""

    point: int
    ipus: frozenset[int]
    reads: frozenset[VariableId]
    writes: frozenset[VariableId]


IPUS = [(0, 1), (0, 0), (0, 1, 0), (0, 0, 0)]


def leaves(region: Region, base: int = 0) -> Iterator[tuple[str, Leaf]]:
    """Yield all points of a region with their paths."""
    for item in region.items:
        if not item.children:
            yield item.path, (base + item.offset, item)
        point = base + item.offset
        for suffix, child in item.children:
            for path, leaf in leaves(child, point):
                yield f"{item.path}{suffix}{path}", leaf
            point += child.length


def slots_of(program: Program, found: Liveness) -> Iterator[Done]:
    """Yield what is done in all slots, in the order of the exact engine."""
    pipe = next(step for step in program.body.steps if isinstance(step, Pipeline))
    every = list(leaves(found.region))
    bodies = {
        n: [leaf for path, leaf in every if f"/repeat/{n}/" in path]
        for n in range(len(pipe.stages))
    }
    ends = [leaf for path, leaf in every if path.endswith("/handed-on")]
    for slot in range(pipe.timetable.slots):
        active = pipe.timetable.active(slot)
        for n in reversed(active):
            for point, item in bodies[n]:
                yield Done(point, frozenset(pipe.stages[n].ipus), item.exposed, item.killed)
        here = [c for c in pipe.channels if c.producer in active]
        sources = frozenset(c.source for c in here)
        places = frozenset(v for c in here for v in (*c.places, c.destination))
        for point, item in ends:
            if sources & item.exposed:
                ipus = frozenset(range(program.ipus))
                yield Done(point, ipus, item.exposed & sources, item.killed & places)


def is_alive(found: Liveness, variable: VariableId, point: int) -> bool:
    return any(first <= point <= last for first, last in found.ranges[variable])


@pytest.mark.parametrize("late_bytes", [0, 10**6])
@pytest.mark.parametrize("offloaded", [frozenset[str](), frozenset(("activations",))])
@pytest.mark.parametrize("interval", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("ipus", IPUS)
def test_nothing_takes_the_memory_of_what_is_still_to_be_read(
    ipus: tuple[int, ...],
    interval: int,
    offloaded: frozenset[str],
    late_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From each write to the last read before the next one, whatever its IPU does in between."""
    monkeypatch.setattr(channels, "_LATE_BYTES", late_bytes)
    maker = PipelineMaker(
        len(ipus), interval, 9, ipus=ipus, offloaded=offloaded, works_first=late_bytes == 0
    )
    program = read_where_made(maker.program())
    found = liveness_of(program)
    pipe = next(step for step in program.body.steps if isinstance(step, Pipeline))
    done = list(slots_of(program, found))
    several = {v for c in pipe.channels if len(c.places) > 1 for v in c.places}
    checked = 0
    for variable, record in enumerate(program.variables):
        if record.role is not Role.TEMPORARY or variable in several:
            continue
        since: list[int] = []
        for each in done:
            if record.ipu in each.ipus:
                since.append(each.point)
            if variable in each.reads:
                checked += 1
                assert all(is_alive(found, variable, point) for point in since), record.name
            if variable in each.writes:
                since = [each.point]
    assert checked


@pytest.mark.parametrize("interval", [1, 2, 4])
def test_what_is_handed_on_takes_memory_only_while_it_is_there(interval: int) -> None:
    """Not throughout, but for what waits in several places; nothing is there before."""
    program = PipelineMaker(2, interval, 9).program()
    found = liveness_of(program)
    pipe = next(step for step in program.body.steps if isinstance(step, Pipeline))
    first = min(each.point for each in slots_of(program, found))
    whole = ((first, found.points - 1),)
    for channel in pipe.channels:
        for place in channel.places:
            assert (found.ranges[place] == whole) == (len(channel.places) > 1)
        assert found.ranges[channel.source] != whole


@pytest.mark.parametrize("interval", [1, 2, 3, 4])
def test_values_are_read_where_made_until_the_next_one_is_made(interval: int) -> None:
    """On one IPU, in a pipeline that does one micro-batch at a time, nothing is copied."""
    program = read_where_made(PipelineMaker(2, interval, 9, ipus=(0, 0)).program())
    pipe = next(step for step in program.body.steps if isinstance(step, Pipeline))
    waits = [(c.producer, c.consumer) for c in pipe.channels]
    assert waits == [x for x in [(0, 1), (1, 2), (0, 3), (2, 3)] if x[1] - x[0] > interval]
