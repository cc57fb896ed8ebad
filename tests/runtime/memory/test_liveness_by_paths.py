"""Points at which variables take memory, against all paths that a run may take from point to point.

Nothing of regions is used: functions are written out at every call, each leaf step is a point, and
what follows what is a graph, over which liveness is solved for all variables at once.
"""

from dataclasses import dataclass, field, replace
from random import Random

import pytest

from hloipu_runtime.memory.liveness import liveness_of
from hloipu_runtime.program.collective import RemoteCopy
from hloipu_runtime.program.program import Program, Role
from hloipu_runtime.program.steps import (
    Call,
    Channel,
    ComputeSet,
    Exchange,
    If,
    Parallel,
    Pipeline,
    Repeat,
    RepeatWhile,
    Sequence,
    Step,
    StreamIn,
    StreamOut,
    Switch,
    Sync,
)
from hloipu_runtime.program.uses import written
from tests.support.pipelined_programs import PipelineMaker, read_where_made
from tests.support.random_programs import random_program

Ids = frozenset[int]
MANY = 7
"""Micro-batches, more than are under way at once in any pipeline here."""


@dataclass
class Paths:
    """The points of a program: what each reads and writes, and which may come next."""

    program: Program
    reads: list[Ids] = field(default_factory=list)
    writes: list[Ids] = field(default_factory=list)
    following: list[set[int]] = field(default_factory=list)
    forced: list[tuple[int, int, Ids]] = field(default_factory=list)
    """From point to point, what takes memory there whatever reads it."""

    at: list[int] = field(default_factory=list)
    """Points as the text has them, that several here may stand for."""

    points: int = 0
    """The next of these."""

    def point(self, before: set[int], reads: Ids, writes: Ids) -> set[int]:
        number = len(self.reads)
        self.reads.append(reads)
        self.writes.append(writes)
        self.following.append(set())
        self.at.append(self.points)
        self.points += 1
        for other in before:
            self.following[other].add(number)
        return {number}

    def steps(self, step: Step, before: set[int]) -> set[int]:
        """Add a step after some points; return the points after which the next may come."""
        match step:
            case Sequence():
                for inner in step.steps:
                    before = self.steps(inner, before)
                return before
            case Call():
                return self.steps(self.program.functions[step.function], before)
            case Sync():
                return before
            case ComputeSet():
                reads = frozenset(x.variable for group in step.groups for x in group.inputs)
                writes = frozenset(x.variable for group in step.groups for x in group.outputs)
                return self.point(before, reads, writes)
            case Exchange():
                kept = {d.variable for d in step.definitions if d.base is not None}
                reads = frozenset({t.source for t in step.transfers} | kept)
                return self.point(before, reads, frozenset(d.variable for d in step.definitions))
            case StreamIn():
                return self.point(before, frozenset(), frozenset((step.variable,)))
            case StreamOut():
                return self.point(before, frozenset((step.variable,)), frozenset())
            case Repeat() | RepeatWhile():
                return self._loop(step, before)
            case If() | Switch():
                looked = step.predicate if isinstance(step, If) else step.index
                before = self.point(before, frozenset((looked,)), frozenset())
                return set().union(*(self.steps(branch, before) for branch in step.branches))
            case Parallel():
                return self._parallel(step, before)
            case Pipeline():
                return self._pipeline(step, before)
            case RemoteCopy():
                return self.point(before, frozenset((step.source,)), frozenset((step.destination,)))
        raise NotImplementedError(type(step))

    def _loop(self, step: Repeat | RepeatWhile, before: set[int]) -> set[int]:
        """Carried variables take memory throughout, and hold what was there before."""
        first = len(self.reads)
        carried = frozenset(item.variable for item in step.carried)
        if isinstance(step, Repeat):
            after = self.steps(step.body, before)
            leaving = after if step.count else after | before
        else:
            tested = self.steps(step.condition, before)
            tested = self.point(tested, frozenset((step.predicate,)), frozenset())
            after = self.steps(step.body, tested)
            # Liveness does not tell a last look at the predicate from one before another turn: a
            # run may end after the body.
            leaving = after | tested
        if first < len(self.reads):
            self._turning(first, after | (leaving - before), carried)
            self.reads[first] |= carried  # handed in, whether or not the body reads it
        return leaving

    def _parallel(self, step: Parallel, before: set[int]) -> set[int]:
        """One branch after the other; on IPUs of several, all that any touches takes memory."""
        begin, of_branch = len(self.reads), []
        for branch in step.branches:
            first = len(self.reads)
            before = self.steps(branch, before)
            touched = frozenset().union(*self.reads[first:], *self.writes[first:])
            of_branch.append(touched)
        ipus = [{self.program.variables[v].ipu for v in touched} for touched in of_branch]
        shared = {ipu for n, x in enumerate(ipus) for y in ipus[n + 1 :] for ipu in x & y}
        everything = frozenset().union(*of_branch)
        forced = frozenset(v for v in everything if self.program.variables[v].ipu in shared)
        self.forced.append((begin, len(self.reads), forced))
        return before

    def _turning(self, first: int, after: set[int], carried: Ids) -> None:
        for last in after:
            self.following[last].add(first)
        self.forced.append((first, len(self.reads), carried))

    def _pipeline(self, step: Pipeline, before: set[int]) -> set[int]:
        """All slots of as many micro-batches as there are, and of many, written out one by one.

        Points are those of one turn of a full pipeline, passed again in every turn. What waits in
        several places takes memory throughout.
        """
        if step.count < 2:  # no other micro-batch is under way
            many = replace(step, count=MANY, interval=len(step.stages))
        else:
            many = replace(step, count=MANY)
        points, end = self._turn(many)
        carried = frozenset(item.variable for item in step.carried)
        waiting = (c.places for c in step.channels if len(c.places) > 1 or step.group > 1)
        forced = carried.union(*waiting)
        leaving = set() if step.count else set(before)
        for run in (many,) if step == many else (step, many):
            begin, after = len(self.reads), before
            for slot in range(run.timetable.slots):
                after = self._slot(run, slot, points, after)
            leaving |= after if run.count else set()
            if begin < len(self.reads):
                self.reads[begin] |= carried  # handed in, whether or not a body reads it
            self.forced.append((begin, len(self.reads), forced))
        self.points = end
        return leaving

    def _turn(self, step: Pipeline) -> tuple[dict[tuple[str, int], int], int]:
        """Return the first point of each part of a turn by position, and the point after it."""
        points, number = dict[tuple[str, int], int](), self.points
        for slot in range(min(step.interval, len(step.stages))):
            active = range(slot, len(step.stages), step.interval)
            is_handed_on = any(c.producer in active for c in step.channels)
            for position in reversed(active):
                stage = step.stages[position]
                taking = (c for c in step.channels if c.consumer == position)
                lengths = {
                    "first": self._length(stage.first),
                    "brought": bool(stage.paged),
                    "taken": any(c.places != (c.destination,) for c in taking),
                    "body": self._length(stage.body),
                    "handed on": is_handed_on and step.group > 1,
                    "returned": bool(stage.paged),
                }
                for part, length in lengths.items():
                    points[part, position] = number
                    number += length
            if step.group == 1:
                points |= {("handed on", position): number for position in active}
                number += is_handed_on
        return points, number

    def _slot(
        self, step: Pipeline, slot: int, points: dict[tuple[str, int], int], before: set[int]
    ) -> set[int]:
        """Later positions first, all of one IPU in turn; then copies to the places of this slot."""
        table, sources, filled = step.timetable, set[int](), set[int]()
        returned = frozenset[int]()
        for position in reversed(table.active(slot)):
            stage, turn = step.stages[position], table.micro_batch(position, slot)
            assert turn is not None
            pages = frozenset(page.here for page in stage.paged)
            if turn % step.group == 0:
                self.points = points["first", position]
                before = self.steps(stage.first, before)
                if pages:
                    self.points = points["brought", position]
                    before = self.point(before, frozenset(), pages)
            came = [c for c in step.channels if c.consumer == position]
            came = [c for c in came if c.places != (c.destination,)]
            if came:
                self.points = points["taken", position]
                places = frozenset(c.places[turn % len(c.places)] for c in came)
                before = self.point(before, places, frozenset(c.destination for c in came))
            self.points = points["body", position]
            before = self.steps(stage.body, before)
            for c in step.channels:
                if c.producer == position:
                    sources.add(c.source)
                    filled.add(c.places[turn % len(c.places)])
                    if self._goes_by_destination(c):
                        filled.add(c.destination)
            if turn % step.group == step.group - 1 or turn == step.count - 1:
                returned |= pages
        (*_, last) = table.active(slot) or (0,)
        if sources:
            self.points = points["handed on", last]
            before = self.point(before, frozenset(sources), frozenset(filled))
        if returned:  # before or after copies, as nothing on tiles is written
            self.points = points["returned", last]
            before = self.point(before, returned, frozenset())
        return before

    def _goes_by_destination(self, channel: Channel) -> bool:
        """Whether what waits in remote memory comes from another IPU."""
        variables = self.program.variables
        away = variables[channel.places[0]].role is Role.REMOTE
        return away and variables[channel.source].ipu != variables[channel.destination].ipu

    def _length(self, step: Sequence) -> int:
        alone = Paths(self.program)
        alone.steps(step, set())
        return alone.points

    def taking(self) -> list[set[int]]:
        """Return the variables that take memory at each point of the text."""
        after: list[Ids] = [frozenset() for _ in self.reads]
        changed = True
        while changed:
            changed = False
            for number in reversed(range(len(self.reads))):
                now = frozenset().union(
                    *(self.reads[n] | (after[n] - self.writes[n]) for n in self.following[number])
                )
                changed |= now != after[number]
                after[number] = now
        taking = [set[int]() for _ in range(self.points)]
        for number, point in enumerate(self.at):
            taking[point] |= self.reads[number] | self.writes[number] | after[number]
        for first, last, variables in self.forced:
            for point in self.at[first:last]:
                taking[point] |= variables
        return taking


def altered(step: Sequence, draw: Random, variables: int) -> Sequence:
    """Return a sequence of which some branches and bodies are empty, and loops carry nothing.

    Any variable is read, or written anew, in between.
    """
    steps: list[Step] = []
    for inner in step.steps:
        match inner:
            case Sequence():
                inner = altered(inner, draw, variables)
            case If() | Switch():
                kept = [Sequence() if draw.random() < 0.4 else x for x in inner.branches]
                branches = tuple(altered(branch, draw, variables) for branch in kept)
                if isinstance(inner, Switch):
                    inner = replace(inner, branches=branches)
                else:
                    inner = replace(inner, then=branches[0], otherwise=branches[1])
            case Repeat() | RepeatWhile():
                body = Sequence() if draw.random() < 0.2 else altered(inner.body, draw, variables)
                carried = inner.carried if draw.random() < 0.3 else ()
                inner = replace(inner, body=body, carried=carried)
            case _:
                pass
        steps.append(inner)
        if draw.random() < 0.5:
            made = draw.choice((StreamIn, StreamOut, StreamOut))
            steps.append(made("other", draw.randrange(variables), 0))
    return Sequence(tuple(steps))


def check(program: Program) -> None:
    """Assert that variables take memory where paths say, in as few ranges as can be."""
    paths = Paths(program)
    paths.steps(program.body, set())
    taking = paths.taking()
    found = liveness_of(program)
    assert found.points == max(1, len(taking))
    for number, variable in enumerate(program.variables):
        points = [p for first, last in found.ranges[number] for p in range(first, last + 1)]
        if variable.role in (Role.CONSTANT, Role.STATE):
            assert points == list(range(found.points))
        elif variable.role is Role.REMOTE:
            assert points == []
        else:
            assert points == [p for p, live in enumerate(taking) if number in live], variable.name
        assert len(found.ranges[number]) == sum(point - 1 not in points for point in points)


@pytest.mark.parametrize("is_altered", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_liveness_is_that_of_all_paths(seed: int, is_altered: bool) -> None:
    program = random_program(seed, tiles=4, ipus=1 + seed % 2, steps=14)
    if is_altered:  # no longer proved, which liveness does not ask for
        program = replace(program, body=altered(program.body, Random(seed), len(program.variables)))
    check(program)


@pytest.mark.parametrize("ipus", [(0,), (0, 1), (0, 0), (0, 1, 0)])
@pytest.mark.parametrize(("interval", "group"), [(1, 1), (2, 1), (4, 1), (0, 3)])
@pytest.mark.parametrize("count", [1, 2, MANY])
@pytest.mark.thinned(4)
def test_liveness_in_pipelines(
    ipus: tuple[int, ...], interval: int, group: int, count: int
) -> None:
    kinds = ("activations", "weights", "totals")
    paged = (("pages",), (*kinds, "pages")) if group > 1 else ()
    for away in ((), *((kind,) for kind in kinds), kinds, *paged):
        maker = PipelineMaker(
            len(ipus),
            interval or 2 * len(ipus),
            count,
            ipus=ipus,
            group=group,
            offloaded=frozenset(away),
        )
        program = maker.program()
        check_pipeline(program)
        if group == 1:
            check_pipeline(read_where_made(program, slots=2 * len(ipus) if count == 1 else None))


def check_pipeline(program: Program) -> None:
    """Check a pipeline alone, and as a part of more: what is there before, is read after.

    There it may also be left out.
    """
    check(program)
    (pipe,) = (x for x in program.body.steps if isinstance(x, Pipeline))
    # Of what it makes, only what is carried is there after it.
    made = written(pipe, program) - {item.variable for item in pipe.carried}
    outside = [
        n for n, v in enumerate(program.variables) if v.role is not Role.REMOTE and n not in made
    ]
    for count in (0, pipe.count):
        steps: tuple[Step, ...] = (
            *(StreamIn("before", n, 0) for n in outside[::2]),
            replace(pipe, count=count),
            *(StreamOut("after", n, 0) for n in outside),
        )
        check(replace(program, body=Sequence(steps)))


def test_what_is_handed_on_from_before_a_pipeline_takes_memory_until_it_ends() -> None:
    program = PipelineMaker(2, 1, MANY, ipus=(0, 0)).program()
    (pipe,) = (x for x in program.body.steps if isinstance(x, Pipeline))
    channel, *others = pipe.channels
    variables = (*program.variables, program.variables[channel.source])
    before = len(program.variables)
    channels = (channel._replace(source=before), *others)
    steps = (
        StreamIn("before", before, 0),
        StreamIn("other", channel.destination, 0),
        replace(pipe, channels=channels),
    )
    program = replace(program, variables=variables, body=Sequence(steps))
    check(program)
    assert liveness_of(program).always(before)
