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
from tests.support.pipelined_programs import PipelineMaker
from tests.support.random_programs import random_program

Ids = frozenset[int]


@dataclass
class Paths:
    """The points of a program: what each reads and writes, and which may come next."""

    program: Program
    reads: list[Ids] = field(default_factory=list)
    writes: list[Ids] = field(default_factory=list)
    following: list[set[int]] = field(default_factory=list)
    forced: list[tuple[int, int, Ids]] = field(default_factory=list)
    """From point to point, what takes memory there whatever reads it."""

    lost: dict[tuple[int, int], Ids] = field(default_factory=dict)
    """What does not live from one point to the next, though it is read later."""

    def point(self, before: set[int], reads: Ids, writes: Ids) -> set[int]:
        number = len(self.reads)
        self.reads.append(reads)
        self.writes.append(writes)
        self.following.append(set())
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
        """All positions in turn; what they hand on takes memory throughout, unless it waits away.

        That is brought just before a body, or taken away just after it; so are pages of a group.
        """
        begin, away, entering = len(self.reads), waiting_away(self.program, step), set(before)
        handed = {v for c in step.channels for v in (c.source, c.destination, *c.places)} - away
        for position, stage in enumerate(step.stages):
            came = {c.destination for c in step.channels if c.consumer == position} & away
            gone = {c.source for c in step.channels if c.producer == position} & away
            pages = frozenset(page.here for page in stage.paged)
            before = self.steps(stage.first, before)
            if pages:
                before = self.point(before, frozenset(), pages)
            first = len(self.reads)
            if came:
                before = self.point(before, frozenset(), frozenset(came))
            before = self.steps(stage.body, before)
            if gone:
                before = self.point(before, frozenset(gone), frozenset())
            if stage.first.steps or pages:
                self._turning(first, before, frozenset())
            if pages:
                before = self.point(before, pages, frozenset())
        carried = frozenset(item.variable for item in step.carried)
        self._turning(begin, before, carried | handed)
        self.reads[begin] |= carried
        self.lost |= {(last, begin): frozenset(handed) for last in entering}
        return before if step.count else before | entering

    def taking(self) -> list[set[int]]:
        """Return the variables that take memory at each point."""
        after: list[Ids] = [frozenset() for _ in self.reads]
        changed = True
        while changed:
            changed = False
            for number in reversed(range(len(self.reads))):
                now = frozenset().union(
                    *(
                        (self.reads[n] | (after[n] - self.writes[n]))
                        - self.lost.get((number, n), frozenset())
                        for n in self.following[number]
                    )
                )
                changed |= now != after[number]
                after[number] = now
        taking = [set(r | w | a) for r, w, a in zip(self.reads, self.writes, after, strict=True)]
        for first, last, variables in self.forced:
            for number in range(first, last):
                taking[number] |= variables
        return taking


def waiting_away(program: Program, step: Pipeline) -> set[int]:
    """Return what gives its tiles free while it waits in remote memory.

    Sources are copied at the end of a slot: positions before them that work in it on the same IPU
    would take them.
    """
    variables, table = program.variables, replace(step, count=9).timetable  # as of many
    found, others = set[int](), {item.variable for item in step.carried}
    for channel in step.channels:
        is_away = variables[channel.places[0]].role is Role.REMOTE
        if not is_away or variables[channel.source].ipu != variables[channel.destination].ipu:
            others |= {channel.source, channel.destination}
            continue
        found.add(channel.destination)
        (ipu,) = step.stages[channel.producer].ipus
        slots = (table.active(slot) for slot in range(table.slots))
        beside = {n for active in slots if channel.producer in active for n in active}
        if not any(n < channel.producer and ipu in step.stages[n].ipus for n in beside):
            found.add(channel.source)
    return found - others


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
def test_liveness_in_pipelines(ipus: tuple[int, ...], interval: int, group: int) -> None:
    kinds = ("activations", "weights", "totals", "pages")
    for away in ((), *((kind,) for kind in kinds), kinds, ("activations", "weights", "totals")):
        maker = PipelineMaker(
            len(ipus),
            interval or 2 * len(ipus),
            9,
            ipus=ipus,
            group=group,
            offloaded=frozenset(away),
        )
        program = maker.program()
        check(program)
        # As a part of more: what is there before, is read after, or is not run at all.
        (pipe,) = (x for x in program.body.steps if isinstance(x, Pipeline))
        handed = {v for c in pipe.channels for v in (c.source, c.destination, *c.places)}
        outside = [
            n
            for n, v in enumerate(program.variables)
            if v.role is not Role.REMOTE and n not in handed
        ]
        for count in (0, 1, 9):
            steps: tuple[Step, ...] = (
                *(StreamIn("before", n, 0) for n in outside[::2]),
                replace(pipe, count=count) if group == 1 else pipe,
                *(StreamOut("after", n, 0) for n in outside),
            )
            check(replace(program, body=Sequence(steps)))
