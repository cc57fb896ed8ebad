"""The exact mode: every tile has its own memory, and only exchanges cross tiles.

Steps are prepared, that is, turned into calls on views of tile memories, when they are first met:
once for a loop's body, however often it turns. Variables get their memory at their first use and
lose it after the last one on the outermost level. Without poison, what was prepared serves later
runs as well: each step then finds its variables in the memories that they had in the first run.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from functools import cache, partial
from itertools import chain
from typing import assert_never

import numpy as np

from hloipu_runtime.arguments import Watch
from hloipu_runtime.kernels.core.quiet import warnings_off
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.collective import Collective, RemoteCopy
from hloipu_runtime.program.descriptors import is_complete
from hloipu_runtime.program.program import Array, Program
from hloipu_runtime.program.uses import used, written
from hloipu_runtime.simulate.exact.copying import prepare_transfer
from hloipu_runtime.simulate.exact.pipelining import pipelined
from hloipu_runtime.simulate.exact.small_steps import (
    Prepared,
    SmallLoop,
    TileProgram,
    called,
    parts_of,
)
from hloipu_runtime.simulate.exact.storage import TileStorage, scatter_whole, scattering
from hloipu_runtime.simulate.exact.tile_memories import TileMemories
from hloipu_runtime.simulate.exact.vertices import prepare_group
from hloipu_runtime.simulate.run.host import Counts, CurrentRun, Host, in_range
from hloipu_runtime.simulate.run.participant import ALONE, Participant

Action = Callable[[], object]


class ExactEngine:
    """Runs one program on tile memories; `poison`: fill them before use, also in each iteration."""

    def __init__(self, program: Program, *, poison: bool = False) -> None:
        self.program = program
        self.poison = poison
        self.here: Participant = ALONE
        """Who this engine is; may be another one in each run."""
        self.memories = TileMemories(program, poison=poison)
        self._now = CurrentRun()
        steps = program.body.steps
        self._touched = [self.memories.with_memories(used(step, program)) for step in steps]
        first = {v: n for n in reversed(range(len(steps))) for v in self._touched[n]}
        last = {v: n for n, variables in enumerate(self._touched) for v in variables}
        self._begun = self._by_step(first, self.memories.given_away)
        """Of each step, the results whose first use it is."""
        self._ended = self._by_step(last, last.keys() - self.memories.state)
        """Of each step, the variables whose last use it is: prepared ones keep their memory."""
        self._actions: list[list[Prepared] | None] = [None] * len(steps)
        self._tiles = TileProgram(program, self.memory)
        self._together: list[Action] = []
        """All of them, once they are prepared, some as one."""
        self._rewritten = sorted(written(program.body, program) & set(program.constants))
        """Constants that the program writes over."""

    @property
    def state(self) -> dict[str, Array]:
        """Between runs: the array of each state port by name, in storage form; copies.

        Assigning to it writes tile memories, where it stays from run to run.
        """
        return {
            port.name: np.array(self.memory(port.variable).whole())
            for port in self.program.state
            if port.variable in self.memories.alive
        }

    @state.setter
    def state(self, arrays: Mapping[str, Array]) -> None:
        for port in self.program.state:
            if port.name in arrays:
                scatter_whole(self.memory(port.variable), arrays[port.name])
            else:
                self.memories.alive.pop(port.variable, None)

    @property
    def kept_bytes(self) -> int:
        """Bytes of memory that stay from run to run."""
        return self.memories.bytes

    def run(self, host: Host, counts: Counts | None = None, watch: Watch | None = None) -> Counts:
        """Run the program once, from the state that the run before left.

        Raises TileFault where a step leaves its tile's memory.
        """
        counts = Counts() if counts is None else counts
        self._now.host, self._now.counts = host, counts
        try:
            with warnings_off():
                self._run(counts, watch)
        finally:
            self._now.host = None
            self.memories.end_run()
            if self.memories.are_too_many:
                self._actions, self._together = [None] * len(self._actions), []
                self.memories.forget()
        return counts

    def _run(self, counts: Counts, watch: Watch | None) -> None:
        for variable in self._rewritten:
            self.memories.load_again(variable)
        counts.ran("body")
        steps = self.program.body.steps
        if watch is None and counts.progress is None and None not in self._actions:
            if not self._together:
                self._together = self._tiles.together(chain(*filter(None, self._actions)))
            for action in self._together:
                action()
            counts.done += len(steps)
            return
        for number, step in enumerate(steps):
            is_prepared = self._actions[number] is not None
            for action in called(self._prepared(number, step)):
                action()
            counts.advance()
            if watch is not None:
                for variable, value in left_by(step):
                    record = self.program.variables[variable]
                    # A buffer may hold only what its vertices read: every third row, say.
                    if is_complete(record.mapping, record.shape):
                        watch(value, self.memory(variable).whole())
            if not is_prepared:
                for variable in self._ended[number]:
                    self.memories.drop(variable)
        self.memories.may_share = False

    def _by_step(
        self, steps: Mapping[s.VariableId, int], variables: Set[s.VariableId]
    ) -> list[list[s.VariableId]]:
        by_step: list[list[s.VariableId]] = [[] for _ in self._touched]
        for variable in variables & steps.keys():
            by_step[steps[variable]].append(variable)
        return by_step

    def _prepared(self, number: int, step: s.Step) -> list[Prepared]:
        """Return a step of the outermost level prepared, from the run before if there was one."""
        prepared = self._actions[number]
        self.memories.may_share = prepared is None
        if prepared is None:
            if not self.poison:
                # Others must not have the memory that a branch not yet taken will need.
                for variable in self._touched[number]:
                    self.memory(variable)
            begun: list[Action] = [
                partial(self.memories.begin, variable) for variable in self._begun[number]
            ]
            prepared = [(s.Sequence(()), begun)] if begun else []
            for part in parts_of(step):
                prepared.append((part, self._prepare(part, f"body/{number}", self._now, self._now)))
            if not self.poison:
                self._actions[number] = prepared
        return prepared

    def memory(self, variable: s.VariableId) -> TileStorage:
        """Return a variable's memory, made on the first request."""
        return self.memories.memory(variable)

    def _prepare(self, step: s.Step, place: str, host: Host, counts: Counts) -> list[Action]:
        match step:
            case s.ComputeSet():
                return [
                    action
                    for group in step.groups
                    if not any(self.memories.lies_in_another(x.variable) for x in group.outputs)
                    for action in prepare_group(
                        group,
                        [self.memory(operand.variable) for operand in group.inputs],
                        [self.memory(operand.variable) for operand in group.outputs],
                        self.memories.scratch,
                    )
                ]
            case s.Exchange():
                return [
                    prepare_transfer(
                        transfer,
                        self.memory(transfer.source),
                        self.memory(transfer.destination),
                        step.name or place,
                    )
                    for transfer in step.transfers
                    if not self.memories.lies_in_another(transfer.destination)
                ]
            case s.Sync():
                return []
            case s.StreamIn():
                target, lent = self.memory(step.variable), self.memories.lent(step.variable)
                filled = self.memories.given(step.variable)
                if lent is not None:
                    return [lambda: lent.lend(host.take(step.stream))]
                if filled is not None:
                    return [lambda: filled.fill(host.take(step.stream))]
                scatter = scattering(target)
                return [lambda: scatter(host.take(step.stream))]
            case s.StreamOut():
                source, given = self.memory(step.variable), self.memories.given(step.variable)
                if given is not None:
                    return [lambda: host.give(step.stream, given.taken())]
                return [lambda: host.give(step.stream, source.whole())]
            case Collective():
                return [self._collective(step, place)]
            case RemoteCopy():
                there, here = self.memory(step.source), self.memory(step.destination)
                scatter = scattering(here)
                return [lambda: scatter(there.whole())]
            case s.Sequence():
                return self._sequence(step, place, host, counts)
            case s.Parallel():
                return [
                    action
                    for number, branch in enumerate(step.branches)
                    for action in self._block(branch, f"{place}|{number}", host, counts)
                ]
            case s.Repeat():
                return [self._repeat(step, place, host, counts)]
            case s.Pipeline():
                return [self._pipeline(step, place, host, counts)]
            case s.RepeatWhile():
                return [self._repeat_while(step, place, host, counts)]
            case s.If():
                predicate = self.memory(step.predicate)
                return [
                    self._branches(
                        step.branches,
                        lambda: 0 if bool(predicate.whole()) else 1,
                        place,
                        host,
                        counts,
                    )
                ]
            case s.Switch():
                index = self.memory(step.index)
                count = len(step.branches)
                return [
                    self._branches(
                        step.branches,
                        lambda: in_range(int(index.whole()), count),
                        place,
                        host,
                        counts,
                    )
                ]
            case s.Call():
                body = self.program.functions[step.function]
                return [
                    *self._fresh(body, step.arguments),
                    *self._block(body, s.function_path(step.function), host, counts),
                ]
            case _:
                assert_never(step)

    def _collective(self, step: Collective, place: str) -> Action:
        sources = [self.memory(moved.variable) for moved in step.inputs]
        targets = [self.memory(moved.variable) for moved in step.outputs]

        def run() -> None:
            # Copies: other participants look at them after this one's memories have changed.
            operands = [np.array(source.whole()) for source in sources]
            results = self.here.meet(self.program, step, place, operands)
            for target, result in zip(targets, results, strict=True):
                scatter_whole(target, result)

        return run

    def _sequence(self, step: s.Sequence, place: str, host: Host, counts: Counts) -> list[Action]:
        prepared = [
            (part, self._prepare(part, f"{place}/{number}", host, counts))
            for number, inner in enumerate(step.steps)
            for part in parts_of(inner)
        ]
        return called(prepared) if self.poison else self._tiles.together(prepared)

    def _step_by_step(
        self, step: s.Sequence, place: str, host: Host, counts: Counts
    ) -> list[list[Action]]:
        return [
            self._prepare(inner, f"{place}/{number}", host, counts)
            for number, inner in enumerate(step.steps)
        ]

    def _block(self, body: s.Sequence, place: str, host: Host, counts: Counts) -> list[Action]:
        """Return a sequence that counts how often it is run."""

        def count() -> None:
            counts.ran(place)

        return [count, *self._sequence(body, place, host, counts)]

    def _fresh(
        self,
        body: s.Sequence,
        carried: tuple[s.Carried, ...] | tuple[s.Passed, ...],
        paged: tuple[s.Paged, ...] = (),
    ) -> list[Action]:
        """Return what takes away what the iteration, or the call, before left behind."""
        if not self.poison:
            return []
        kept = {item.variable for item in carried} | {page.here for page in paged}
        return [
            self.memory(variable).poison for variable in sorted(written(body, self.program) - kept)
        ]

    def _repeat(self, step: s.Repeat, place: str, host: Host, counts: Counts) -> Action:
        path = f"{place}/repeat"
        loop = None if self.poison else SmallLoop(self._tiles, step, [path])

        @cache
        def prepared() -> list[Action]:
            fresh = self._fresh(step.body, step.carried)
            return fresh + self._block(step.body, path, host, counts)

        def run() -> None:
            if not step.count:
                return
            actions = prepared()
            turns = counts.iterations(step.name, path, step.count)
            for _ in turns if loop is None else loop.of(loop.memories, counts, turns):
                for action in actions:
                    action()

        return run

    def _pipeline(self, step: s.Pipeline, place: str, host: Host, counts: Counts) -> Action:
        @cache
        def prepared() -> Action:
            firsts = [
                [
                    *self._fresh(stage.first, ()),
                    *self._sequence(stage.first, f"{place}/repeat/{n}/first", host, counts),
                ]
                for n, stage in enumerate(step.stages)
            ]
            fresh = [self._fresh(stage.body, step.carried, stage.paged) for stage in step.stages]
            bodies = [
                self._step_by_step(stage.body, f"{place}/repeat/{position}", host, counts)
                for position, stage in enumerate(step.stages)
            ]
            return pipelined(
                self.program,
                step,
                firsts,
                fresh,
                bodies,
                lambda copy: self._prepare(copy, place, host, counts),
            )

        def run() -> None:
            if not step.count:
                return
            prepared()()
            for _ in range(step.count):
                counts.ran(f"{place}/repeat")

        return run

    def _repeat_while(self, step: s.RepeatWhile, place: str, host: Host, counts: Counts) -> Action:
        path, asked = f"{place}/while", f"{place}/condition"
        loop = None if self.poison else SmallLoop(self._tiles, step, [path, asked])

        @cache
        def condition() -> list[Action]:
            fresh = self._fresh(s.Sequence((step.condition, step.body)), step.carried)
            return fresh + self._block(step.condition, asked, host, counts)

        @cache
        def body() -> list[Action]:
            return self._block(step.body, path, host, counts)

        def run() -> None:
            before, predicate = condition(), self.memory(step.predicate)
            turns = counts.iterations(step.name, path)
            for _ in turns if loop is None else loop.of(loop.memories, counts, turns):
                for action in before:
                    action()
                if not bool(predicate.whole()):
                    return
                for action in body():
                    action()

        return run

    def _branches(
        self,
        branches: tuple[s.Sequence, ...],
        choose: Callable[[], int],
        place: str,
        host: Host,
        counts: Counts,
    ) -> Action:
        @cache
        def prepared(chosen: int) -> list[Action]:
            return self._block(branches[chosen], f"{place}?{chosen}", host, counts)

        def run() -> None:
            for action in prepared(choose()):
                action()

        return run


def left_by(step: s.Step) -> Iterator[tuple[s.VariableId, s.ValueId]]:
    """Yield the variables that hold a new value after a step, and that value."""
    match step:
        case s.ComputeSet():
            for group in step.groups:
                for operand, value in zip(group.outputs, group.writes, strict=True):
                    yield operand.variable, value
        case s.Exchange():
            yield from ((definition.variable, definition.value) for definition in step.definitions)
        case s.StreamIn():
            yield step.variable, step.value
        case Collective():
            yield from step.outputs
        case s.Repeat() | s.Pipeline() | s.RepeatWhile():
            yield from ((item.variable, item.final) for item in step.carried)
        case s.If() | s.Switch():
            yield from ((item.variable, item.value) for item in step.merged)
        case s.Sequence() | s.Parallel():
            # What is overwritten before the end is not there any more.
            yield from dict(x for inner in s.inner_steps(step) for x in left_by(inner)).items()
        case _:
            pass
