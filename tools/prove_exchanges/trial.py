"""One mutant judged: by the static proof, and by running it tile by tile on poisoned memories."""

import warnings
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES, Kind
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.kernels.storage import to_storage, user_dtype
from hloipu_runtime.kernels.subnormals import flushing_subnormals
from hloipu_runtime.program.program import Array, Port, Program
from hloipu_runtime.program.steps import ComputeSet, Exchange, Step, ValueId, VariableId
from hloipu_runtime.program.verify import faults_of
from hloipu_runtime.sim.exact import Action, ExactEngine
from hloipu_runtime.sim.faults import TileFault
from hloipu_runtime.sim.host import Arrays, Counts, Host
from hloipu_runtime.sim.storage import POISON_BYTE, TileStorage
from tests.support.program_checker import misread
from tools.prove_exchanges.kinds import Subject

MOST_DONE = 3000
"""Steps and turns of loops that a run may take; a tampered predicate may never become false."""

INPUT_SETS = 2
"""Sets of inputs on which results alone are compared."""

MORE_INPUT_SETS = 12
"""Sets of inputs on which everything that tiles compute is compared, where results agree."""

FAULT, POISON, VALUES, INNER = "fault", "poison", "values", "inner values"
ENDLESS, ERROR = "endless", "error"
CAUGHT = (FAULT, POISON, VALUES, INNER, ENDLESS, ERROR)
EQUIVALENT, SAME_DATA, UNUSED, MASKED = "equivalent", "same data", "unused", "masked"
"""Nothing that a result needs is misread; it is, but equal; or whatever it is, nobody looks at it;
or on no inputs does it change what any tile computes."""


class EndlessError(Exception):
    """A run takes more turns than it may."""


class OtherPoison(TileStorage):
    """Memory that is poisoned with other values: what one poison hides the other one shows."""

    def poison(self) -> None:
        """Make all of it zeros and predicates false."""
        self.merged.fill(0)


@dataclass
class Trace:
    """For each value of the logical form, checksums of what tiles held whenever it was met."""

    reads: dict[ValueId, list[int]] = field(default_factory=dict)
    writes: dict[ValueId, list[int]] = field(default_factory=dict)


class WatchedEngine(ExactEngine):
    """The exact engine, which writes a trace where one is given."""

    def __init__(
        self, program: Program, trace: Trace | None = None, *, other_poison: bool = False
    ) -> None:
        super().__init__(program, poison=True)
        self.trace = trace
        self.other_poison = other_poison

    def memory(self, variable: VariableId) -> TileStorage:
        """Return a variable's memory, of the kind of poison wanted."""
        is_new = variable not in self.memories
        found = super().memory(variable)
        if is_new and self.other_poison:
            found = OtherPoison(found.tiles, found.merged, found.mapping, found.shape)
            if variable not in self.program.constants:
                found.poison()
            self.memories[variable] = found
        return found

    def _prepare(self, step: Step, place: str, host: Host, counts: Counts) -> list[Action]:
        actions = super()._prepare(step, place, host, counts)
        if self.trace is None or not isinstance(step, ComputeSet | Exchange):
            return actions
        read, made = _looked_at(step)
        before = [(self.memory(variable), value) for variable, value in read]
        after = [(self.memory(variable), value) for variable, value in made]
        reads, writes = self.trace.reads, self.trace.writes
        return [lambda: _note(reads, before), *actions, lambda: _note(writes, after)]


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
    made = [
        (operand.variable, value)
        for group in step.groups
        for operand, value in zip(group.outputs, group.writes, strict=True)
    ]
    return read, made


def _note(sums: dict[ValueId, list[int]], seen: list[tuple[TileStorage, ValueId]]) -> None:
    for storage, value in seen:
        sums.setdefault(value, []).append(_checksum(storage))


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
    runs: dict[str, int]


def _not_too_long(done: int) -> None:
    if done > MOST_DONE:
        raise EndlessError


def run_exact(
    program: Program,
    inputs: dict[str, Array],
    trace: Trace | None = None,
    *,
    other_poison: bool = False,
) -> Run:
    """Run tile by tile with poisoned memories."""
    host = Arrays(dict(inputs))
    with np.errstate(all="ignore"), warnings.catch_warnings(), flushing_subnormals():
        warnings.simplefilter("ignore")
        engine = WatchedEngine(program, trace, other_poison=other_poison)
        counts = engine.run(host, Counts(progress=_not_too_long))
    return Run(host.outputs, dict(counts.runs))


def inputs_for(name: str, ports: tuple[Port, ...], number: int) -> dict[str, Array]:
    """Draw arrays in storage form; a program's are the same on every machine and in every run."""
    return {
        port.stream: _array(port, np.random.PCG64(crc32(f"{name}#{number}#{n}".encode())), number)
        for n, port in enumerate(ports)
    }


def _array(port: Port, source: np.random.PCG64, number: int) -> Array:
    """Draw numbers between -1 and 1, or between 1/2 and 2; small whole ones, or large ones."""
    count = int(np.prod(port.shape, dtype=np.int64))
    words = np.asarray(source.random_raw(count), np.uint64).reshape(port.shape) >> np.uint64(40)
    kind = ELEMENT_TYPES[port.element_type]
    if kind.kind is Kind.PREDICATE:
        drawn = words % np.uint64(2) == 1
    elif kind.is_integer:
        most = min((1, 3, 9, 100)[number % 4], 2 ** (kind.bits - 1) - 1)
        drawn = (words % np.uint64(most + 1)).astype(np.int64)
    else:
        unit = words.astype(np.float64) / 2**24
        drawn = unit * 2 - 1 if number % 2 == 0 else unit * 1.5 + 0.5
        if kind.is_complex:
            drawn = drawn + 1j * unit[::-1] if unit.ndim else drawn + 0.5j
    return to_storage(drawn.astype(user_dtype(port.element_type)), port.element_type)


@dataclass
class Original:
    """A subject and what it gives when nothing is tampered with."""

    subject: Subject

    def __post_init__(self) -> None:
        self._runs: dict[int, Run | None] = {}
        self._traces: dict[int, Trace] = {}

    def inputs(self, number: int) -> dict[str, Array]:
        """Return a set of inputs: the subject's own, then drawn ones."""
        if number < len(self.subject.inputs):
            return self.subject.inputs[number]
        return inputs_for(self.subject.name, self.subject.program.parameters, number)

    @property
    def most(self) -> int:
        """How many sets of inputs there are."""
        return MORE_INPUT_SETS if self.subject.program.parameters else 1

    def run(self, number: int) -> Run | None:
        """Return what the untouched program gives for a set; None where it turns for too long."""
        if number not in self._runs:
            try:
                self._runs[number] = run_exact(self.subject.program, self.inputs(number))
            except EndlessError:
                self._runs[number] = None
        return self._runs[number]

    def trace(self, number: int) -> Trace:
        """Return what the untouched program computes on the way."""
        if number not in self._traces:
            trace = self._traces[number] = Trace()
            run_exact(self.subject.program, self.inputs(number), trace)
        return self._traces[number]


@dataclass(frozen=True)
class Verdict:
    """Who caught one mutant."""

    subject: str
    kind: str
    static: str
    """Rules that the proof finds broken; empty where it finds nothing."""
    exact: str
    detail: str = ""


def judged(original: Original, kind: str, changed: Program) -> Verdict:
    """Judge one mutant by all catchers."""
    faults = faults_of(changed, original.subject.tiles_per_ipu)
    rules = ",".join(sorted({fault.rule for fault in faults}))
    exact, detail = _exact_verdict(original, changed)
    return Verdict(original.subject.name, kind, rules, exact, detail)


def _exact_verdict(original: Original, changed: Program) -> tuple[str, str]:
    """Return who catches a mutant in the exact mode: results first, then a closer look."""
    for number in range(min(INPUT_SETS, original.most)):
        caught, detail = _caught(original, changed, number)
        if caught:
            return caught, detail
    if not misread(changed):
        return EQUIVALENT, ""
    differs = False
    for number in range(original.most):
        for other_poison in (False, True):
            trace = Trace()
            caught, detail = _caught(original, changed, number, trace, other_poison)
            if caught:
                return caught, detail
            differs |= original.run(number) is not None and trace != original.trace(number)
    return (MASKED, misread(changed)[0]) if differs else (SAME_DATA, "")


def _caught(
    original: Original,
    changed: Program,
    number: int,
    trace: Trace | None = None,
    other_poison: bool = False,
) -> tuple[str, str]:
    """Return who catches a mutant on one set of inputs, or nothing; what is met goes to `trace`."""
    expected = original.run(number)
    if expected is None:
        return "", ""
    try:
        found = run_exact(changed, original.inputs(number), trace, other_poison=other_poison)
    except TileFault as fault:
        return FAULT, fault.message
    except EndlessError:
        return ENDLESS, ""
    except HloipuError as error:
        return FAULT, error.message
    except Exception as error:  # a codelet met parts that no proved program gives it
        return ERROR, f"{type(error).__name__}: {error}"
    caught = _difference(expected, found)
    if not caught and trace is not None and trace.writes != original.trace(number).writes:
        caught = INNER
    return caught, f"inputs {number}" if caught else ""


def _difference(expected: Run, found: Run) -> str:
    """Return by what two runs differ, or nothing."""
    apart = ""
    for stream, array in expected.outputs.items():
        other = found.outputs.get(stream)
        if other is None or other.shape != array.shape:
            return VALUES
        same = (array == other) | ((array != array) & (other != other))
        if not np.all(same):
            apart = VALUES
            if np.any(_is_poison(other) & ~_is_poison(array)):
                return POISON
    return apart or (VALUES if expected.runs != found.runs else "")


def _is_poison(array: Array) -> Array:
    if array.dtype.kind in "fc":
        return np.isnan(array)
    if array.dtype == np.bool_:
        return np.zeros(array.shape, bool)
    poison = np.frombuffer(bytes([POISON_BYTE]) * array.dtype.itemsize, array.dtype)[0]
    return np.asarray(array == poison)
