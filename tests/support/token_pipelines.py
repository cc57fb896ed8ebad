"""Pipelines on tokens: slot by slot, every micro-batch with tokens of its own.

In a slot, positions run at once unless they share an IPU, and then channels are copied; written
from what `Pipeline` and `Channel` document, with nothing of the verifier or the engines.
"""

from collections.abc import Iterator
from typing import Protocol

from hloipu_runtime.program.program import Role
from hloipu_runtime.program.steps import Carried, Channel, Pipeline, Step
from tests.support.counted_parts import cut
from tests.support.program_steps import reads, writes
from tests.support.tile_clocks import TileClocks
from tests.support.token_memory import TokenMemory

Turn = tuple[int, int]
"""A position and its micro-batch."""


class Walker(Protocol):
    """What knows the other steps."""

    clocks: TileClocks

    def walk(self, step: Step, place: str) -> None: ...

    def carry(self, carried: tuple[Carried, ...], which: str, place: str) -> None: ...


def slots_of(step: Pipeline) -> Iterator[list[Turn]]:
    """Yield what is done in each slot, by position."""
    positions = range(len(step.stages))
    if step.group > 1:
        for first in range(0, step.count, step.group):
            for position in positions:
                for number in range(first, min(first + step.group, step.count)):
                    yield [(position, number)]
        return
    for slot in range(step.interval * (step.count - 1) + len(positions) if step.count else 0):
        numbers = [(n, (slot - n) // step.interval) for n in positions if n <= slot]
        yield [
            (n, m) for n, m in numbers if m < step.count and slot == step.interval * m + n
        ]  # fmt: skip


def copy_whole(memory: TokenMemory, source: int, destination: int, place: str) -> None:
    """Put what a variable holds, whatever that is, on all tiles of another one."""
    found = memory.whole(source, place)
    for box, array in memory.parts(destination):
        array[...] = found[cut(box)]


class TokenPipeline:
    """One run of a pipeline by a walker."""

    def __init__(self, run: TokenMemory, walker: Walker, step: Pipeline, place: str) -> None:
        self.run = run
        self.walker = walker
        self.step = step
        self.place = place
        self.outer = dict(run.base)
        self.batches: list[dict[int, int]] = [dict(self.outer) for _ in range(step.count)]
        """First token of what a value is, for each micro-batch."""
        self.carried = {item.variable for item in step.carried}

    def go(self) -> None:
        """Run all slots; leave the values that the pipeline hands on."""
        self.walker.carry(self.step.carried, "initial", self.place)
        self._places()
        before = self.walker.clocks.ipus_here
        for active in slots_of(self.step):
            self._races(active)
            for position, number in reversed(active):
                self._turn(position, number)
            self._meet()
            for position, number in active:
                self._select(number)
                for channel in self.step.channels:
                    if channel.producer == position:
                        self._hand_on(channel, number)
            self._meet()
        last = self.batches[-1] if self.batches else None
        for item in self.step.carried:
            held = self.outer.get(item.initial) if last is None else last.get(item.following)
            self.outer.pop(item.final, None)
            if held is not None:
                self.outer[item.final] = held
        self.run.base = self.outer
        self.walker.clocks.ipus_here = before
        self.walker.carry(self.step.carried, "final", self.place)

    def _meet(self) -> None:
        """All IPUs meet at the end of a slot, for its copies, and before the next one."""
        self.walker.clocks.meet(self.run.program.ipus)

    def _select(self, number: int) -> None:
        """Let values be those of a micro-batch; it begins with what the one before handed on."""
        now, before = self.batches[number], self.batches[number - 1] if number else self.outer
        for item in self.step.carried:
            held = before.get(item.following if number else item.initial)
            now.pop(item.turn, None)
            if held is not None:
                now[item.turn] = held
        self.run.base = now

    def _turn(self, position: int, number: int) -> None:
        stage, where = self.step.stages[position], f"{self.place}/{position}"
        self.walker.clocks.ipus_here = len(stage.ipus)
        self._select(number)
        pages = {page.here for page in stage.paged}
        if number % self.step.group == 0:
            self.run.wipe(set(writes(self.run.program, stage.first)) | pages)
            self.walker.walk(stage.first, f"{where}/first")
            for page in stage.paged:
                copy_whole(self.run, page.there, page.here, where)
        self.run.wipe(set(writes(self.run.program, stage.body)) - self.carried - pages)
        for channel in self.step.channels:
            if channel.consumer == position and channel.places != (channel.destination,):
                place = channel.places[number % len(channel.places)]
                copy_whole(self.run, place, channel.destination, where)
        self.walker.walk(stage.body, where)
        if (number + 1) % self.step.group == 0 or number + 1 == self.step.count:
            for page in stage.paged:
                copy_whole(self.run, page.here, page.there, where)

    def _hand_on(self, channel: Channel, number: int) -> None:
        variables, where = self.run.program.variables, f"{self.place}/{channel.producer}"
        if self.run.strict:
            self.run.expect(channel.source, channel.value, where)
        source, place = channel.source, channel.places[number % len(channel.places)]
        is_away = variables[place].role is Role.REMOTE
        if is_away and variables[source].ipu != variables[channel.destination].ipu:
            copy_whole(self.run, source, channel.destination, where)
            source = channel.destination
        copy_whole(self.run, source, place, where)

    def _places(self) -> None:
        """Report what a position uses on IPUs that it does not keep."""
        program = self.run.program
        for position, stage in enumerate(self.step.stages):
            for block in (stage.first, stage.body):
                paged = {variable for page in stage.paged for variable in page}
                for variable in paged.union(reads(program, block), writes(program, block)):
                    if program.variables[variable].ipu not in stage.ipus:
                        name = program.variables[variable].name
                        self.run.report(f"{self.place}/{position}: {name} is on another IPU")
            for there, here in stage.paged:
                records = (program.variables[there], program.variables[here])
                alike = len({(x.element_type, x.shape, x.ipu) for x in records}) == 1
                if not alike or [x.role is Role.REMOTE for x in records] != [True, False]:
                    self.run.report(f"{self.place}/{position}: pages that are not alike")

    def _races(self, active: list[Turn]) -> None:
        """Report what two positions use at once, one of them to write it."""
        program = self.run.program
        stages = [self.step.stages[position] for position, _ in active]
        for k, one in enumerate(stages):
            for other in stages[k + 1 :]:
                if set(one.ipus) & set(other.ipus):
                    continue
                for first, second in ((one, other), (other, one)):
                    made = set(writes(program, first.body))
                    used = {*reads(program, second.body), *writes(program, second.body)}
                    for variable in sorted(made & used):
                        name = program.variables[variable].name
                        self.run.report(f"{self.place}: {name} is used at once by two positions")
