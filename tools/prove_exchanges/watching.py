"""The exact engine, watched: what every step reads and writes, and what if it read other things."""

import warnings
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np

from hloipu_runtime.kernels.computing import flushing_subnormals
from hloipu_runtime.program.program import Array, Program
from hloipu_runtime.program.steps import ComputeSet, Exchange, Step, ValueId, VariableId
from hloipu_runtime.simulate.exact.exact import Action, ExactEngine
from hloipu_runtime.simulate.exact.storage import TileStorage
from hloipu_runtime.simulate.participants import meeting_participants, run_together
from hloipu_runtime.simulate.run.host import Counts, Host
from hloipu_runtime.simulate.run.participant import Participant
from tools.prove_exchanges.inputs import Fed, Given

MOST_DONE = 3000
"""Steps and turns of loops that a run may take; a tampered predicate may never become false."""


class EndlessError(Exception):
    """A run takes more turns than it may."""


class OtherPoison(TileStorage):
    """Memory that is poisoned with other values: what one poison hides the other one shows."""

    def poison(self) -> None:
        """Make all of it zeros and predicates false."""
        self.merged.fill(0)


Met = tuple[int, ValueId]
"""A participant, and a value that it computes."""


@dataclass
class Trace:
    """For each value of the logical form, checksums of what tiles held whenever it was met."""

    reads: dict[Met, list[int]] = field(default_factory=dict)
    writes: dict[Met, list[int]] = field(default_factory=dict)


@dataclass
class Scramble:
    """Overwrites what a vertex reads that is not what it read in a run of the untouched program."""

    expected: Trace
    seed: int
    count: int = 0
    """How many operands were overwritten."""


@dataclass
class Watching:
    """How a run is watched."""

    trace: Trace = field(default_factory=Trace)
    other_poison: bool = False
    scramble: Scramble | None = None


class WatchedEngine(ExactEngine):
    """The exact engine, watched."""

    def __init__(self, program: Program, watching: Watching | None, number: int = 0) -> None:
        super().__init__(program, poison=True)
        self.number = number
        self.trace = None if watching is None else watching.trace
        self.scramble = None if watching is None else watching.scramble
        self.other_poison = watching is not None and watching.other_poison
        if self.scramble is not None:
            self.rng = np.random.default_rng((self.scramble.seed, number))

    def memory(self, variable: VariableId) -> TileStorage:
        """Return a variable's memory, of the kind of poison wanted."""
        is_new = variable not in self.memories.alive
        storage = super().memory(variable)
        if is_new and self.other_poison:
            storage = OtherPoison(storage.tiles, storage.merged, storage.mapping, storage.shape)
            if variable not in self.program.constants:
                storage.poison()
            self.memories.alive[variable] = storage
        return storage

    def _prepare(self, step: Step, place: str, host: Host, counts: Counts) -> list[Action]:
        actions = super()._prepare(step, place, host, counts)
        if self.trace is None or not isinstance(step, ComputeSet | Exchange):
            return actions
        read, targets = _looked_at(step)
        me = self.number
        before = [(self.memory(variable), (me, value)) for variable, value in read]
        after = [(self.memory(variable), (me, value)) for variable, value in targets]
        reads, writes = self.trace.reads, self.trace.writes
        restore: list[Action] = []

        def begin() -> None:
            count = {value: len(reads.get(value, ())) for _, value in before}
            _note(reads, before)
            if self.scramble is not None and isinstance(step, ComputeSet):
                written = [storage for storage, _ in after]
                restore[:] = _scrambled(self.scramble, self.rng, reads, count, before, written)

        def end() -> None:
            for action in restore:
                action()
            _note(writes, after)

        return [begin, *actions, end]


def _looked_at(
    step: ComputeSet | Exchange,
) -> tuple[list[tuple[VariableId, ValueId]], list[tuple[VariableId, ValueId]]]:
    """Return the variables that a step reads and writes, with the values that are meant."""
    if isinstance(step, Exchange):
        sent = [(x.source, x.value) for x in step.transfers]
        return sent, [(x.variable, x.value) for x in step.definitions]
    read = [
        (operand.variable, value)
        for group in step.groups
        for operand, value in zip(group.inputs, group.reads, strict=True)
    ]
    written = [
        (operand.variable, value)
        for group in step.groups
        for operand, value in zip(group.outputs, group.writes, strict=True)
    ]
    return read, written


def _note(sums: dict[Met, list[int]], seen: list[tuple[TileStorage, Met]]) -> None:
    for storage, value in seen:
        sums.setdefault(value, []).append(_checksum(storage))


def _scrambled(
    scramble: Scramble,
    rng: np.random.Generator,
    reads: dict[Met, list[int]],
    count: dict[Met, int],
    seen: list[tuple[TileStorage, Met]],
    written: list[TileStorage],
) -> list[Action]:
    """Overwrite the operands that were misread, and return what puts back what they held."""
    wrong: list[TileStorage] = []
    right: list[TileStorage] = []
    for storage, value in seen:
        number = count[value]
        count[value] += 1
        expected = scramble.expected.reads.get(value, [])
        same = number < len(expected) and expected[number] == reads[value][number]
        (right if same else wrong).append(storage)
    restore: list[Action] = []
    for storage in wrong:
        if any(storage is other for other in right):
            continue  # one variable, read rightly and wrongly at once
        if not any(storage is other for other in written):
            restore.append(partial(np.copyto, storage.merged, storage.merged.copy()))
        _fill(storage.merged, rng)
        scramble.count += 1
    return restore


def _fill(array: Array, rng: np.random.Generator) -> None:
    """Overwrite an array with numbers that its type holds; small whole ones."""
    drawn: Any = rng.integers(0, 2 if array.dtype == np.bool_ else 4, array.shape)
    if array.dtype.kind not in "iub":
        drawn = rng.normal(0, 100, array.shape)
    array[...] = np.asarray(drawn).astype(array.dtype)


def _checksum(storage: TileStorage) -> int:
    """Return a checksum of what all tiles hold of a variable, unused ends of parts left out."""
    array = storage.tiles
    axes = len(storage.mapping.tiles.extents)
    for dimension, (span, size) in enumerate(
        zip(storage.mapping.spans, storage.shape, strict=True)
    ):
        count = 1 if span.axis < 0 else storage.mapping.tiles.extents[span.axis]
        index = np.arange(count)[:, None] * span.step + span.offset + np.arange(span.size)
        shape = [1] * array.ndim
        shape[axes + dimension] = span.size
        if span.axis >= 0:
            shape[span.axis] = count
        array = np.where(((index >= 0) & (index < size)).reshape(shape), array, array.dtype.type())
    if array.dtype.kind in "fc":
        array = np.where(np.isnan(array), array.dtype.type(np.nan), array)
    return crc32(np.ascontiguousarray(array).tobytes())


@dataclass(frozen=True)
class Run:
    """What the outside sees of a run."""

    outputs: dict[str, Array]
    """Every element that a participant gave, and the state that it ended with."""
    runs: dict[str, int]


def _not_too_long(done: int) -> None:
    if done > MOST_DONE:
        raise EndlessError


def run_exact(program: Program, given: Given, watching: Watching | None = None) -> Run:
    """Run all participants tile by tile with poisoned memories."""
    engines = [WatchedEngine(program, watching, n) for n in range(program.participants)]
    hosts = [Fed(streams) for streams in given.streams]
    counts = [Counts(progress=_not_too_long) for _ in engines]
    for engine, state in zip(engines, given.states, strict=False):
        engine.state = state

    def run_one(here: Participant) -> None:
        engines[here.number].here = here
        engines[here.number].run(hosts[here.number], counts[here.number])

    with np.errstate(all="ignore"), warnings.catch_warnings(), flushing_subnormals():
        warnings.simplefilter("ignore")
        run_together(meeting_participants(program), run_one)
    outputs: dict[str, Array] = {}
    runs: Counter[str] = Counter()
    for number, (engine, host) in enumerate(zip(engines, hosts, strict=True)):
        runs.update(counts[number].runs)
        outputs |= {f"{number} state {name}": array for name, array in engine.state.items()}
        for stream, elements in host.given.items():
            outputs |= {f"{number} {stream} {n}": array for n, array in enumerate(elements)}
    return Run(outputs, dict(runs))
