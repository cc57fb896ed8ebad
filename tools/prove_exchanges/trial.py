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
from hloipu_runtime.program.steps import Sequence
from hloipu_runtime.program.verify import faults_of
from hloipu_runtime.sim.exact import Action, ExactEngine
from hloipu_runtime.sim.faults import TileFault
from hloipu_runtime.sim.host import Arrays, Counts, Host
from hloipu_runtime.sim.storage import POISON_BYTE
from tests.support.program_checker import misread
from tools.prove_exchanges.kinds import Subject

MOST_TURNS = 3000
"""Blocks that a run may enter; a tampered predicate may never become false."""

INPUT_SETS = 3
"""Inputs on which a mutant must agree with its original before it is looked into further."""

FAULT, POISON, VALUES, ENDLESS, CRASH = "fault", "poison", "values", "endless", "crash"
EQUIVALENT, SURVIVED = "equivalent", "survived"
CAUGHT = (FAULT, POISON, VALUES, ENDLESS, CRASH)


class EndlessError(Exception):
    """A run enters more blocks than it may."""


class BoundedEngine(ExactEngine):
    """The exact engine, ended when it turns for too long."""

    def __init__(self, program: Program) -> None:
        super().__init__(program, poison=True)
        self.turns = 0

    def _block(self, body: Sequence, place: str, host: Host, counts: Counts) -> list[Action]:
        def count() -> None:
            self.turns += 1
            if self.turns > MOST_TURNS:
                raise EndlessError

        return [count, *super()._block(body, place, host, counts)]


@dataclass(frozen=True)
class Run:
    """What the outside sees of a run."""

    outputs: dict[str, Array]
    runs: dict[str, int]


def run_exact(program: Program, inputs: dict[str, Array]) -> Run:
    """Run tile by tile with poisoned memories."""
    host = Arrays(dict(inputs))
    with np.errstate(all="ignore"), warnings.catch_warnings(), flushing_subnormals():
        warnings.simplefilter("ignore")
        counts = BoundedEngine(program).run(host)
    return Run(host.outputs, dict(counts.runs))


def inputs_for(name: str, ports: tuple[Port, ...], number: int) -> dict[str, Array]:
    """Draw arrays in storage form; a program's are the same on every machine and in every run."""
    return {
        port.stream: _array(port, np.random.PCG64(crc32(f"{name}#{number}#{n}".encode())), number)
        for n, port in enumerate(ports)
    }


def _array(port: Port, source: np.random.PCG64, number: int) -> Array:
    """Draw numbers between -1 and 1, or between 1/2 and 2; small whole ones, at last large ones."""
    count = int(np.prod(port.shape, dtype=np.int64))
    words = np.asarray(source.random_raw(count), np.uint64).reshape(port.shape) >> np.uint64(40)
    kind = ELEMENT_TYPES[port.element_type]
    if kind.kind is Kind.PREDICATE:
        drawn = words % np.uint64(2) == 1
    elif kind.is_integer:
        most = min((3, 9, 100)[number % INPUT_SETS], 2 ** (kind.bits - 1) - 1)
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
    runs: dict[int, Run] = field(default_factory=dict)

    def run(self, number: int) -> Run:
        """Return what the untouched program gives for a set of inputs."""
        if number not in self.runs:
            self.runs[number] = run_exact(self.subject.program, self.inputs(number))
        return self.runs[number]

    def inputs(self, number: int) -> dict[str, Array]:
        """Return a set of inputs."""
        return inputs_for(self.subject.name, self.subject.program.parameters, number)


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
    if exact == SURVIVED and not misread(changed):
        exact = EQUIVALENT
    return Verdict(original.subject.name, kind, rules, exact, detail)


def _exact_verdict(original: Original, changed: Program) -> tuple[str, str]:
    for number in range(INPUT_SETS):
        expected = original.run(number)
        try:
            found = run_exact(changed, original.inputs(number))
        except TileFault as fault:
            return FAULT, fault.message
        except EndlessError:
            return ENDLESS, ""
        except HloipuError as error:
            return FAULT, error.message
        except Exception as error:  # a codelet met parts that no proved program gives it
            return CRASH, f"{type(error).__name__}: {error}"
        caught = _difference(expected, found)
        if caught:
            return caught, f"inputs {number}"
    return SURVIVED, ""


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


