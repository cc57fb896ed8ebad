"""One mutant judged: by the static proof, and by running it tile by tile on poisoned memories."""

from dataclasses import dataclass

import numpy as np

from hloipu_runtime.errors import HloipuError
from hloipu_runtime.program.program import Array, Program
from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.simulate.exact.storage import POISON_BYTE
from hloipu_runtime.simulate.run.faults import TileFault
from hloipu_runtime.simulate.run.meeting import MeetingError
from tests.support.program_checker import misread
from tools.prove_exchanges.inputs import Given, inputs_for, varied
from tools.prove_exchanges.places import Subject
from tools.prove_exchanges.watching import (
    EndlessError,
    Run,
    Scramble,
    Trace,
    Watching,
    run_exact,
)

DECLARED = frozenset({
    "type narrowed", "partials narrowed", "loaded for another role", "streamed for another role",
    "made for another role", "kept for another role",
})  # fmt: skip
"""Kinds of mutants that change what records say of variables, and neither steps nor elements."""

UNSEEN = DECLARED | {"sync dropped", "sync moved", "sync lowered", "stage moved"}
"""Kinds that no run can tell: tiles and IPUs take turns while they are simulated."""

INPUT_SETS = 2
"""Sets of inputs on which results alone are compared."""

MORE_INPUT_SETS = 12
"""Sets of inputs on which everything that tiles compute is compared, where results agree."""

FAULT, POISON, VALUES, INNER = "fault", "poison", "values", "inner values"
ENDLESS, ERROR = "endless", "error"
CAUGHT = (FAULT, POISON, VALUES, INNER, ENDLESS, ERROR)

EQUIVALENT, SAME_DATA, UNUSED, MASKED = "equivalent", "same data", "unused", "masked"
"""No result needs what is misread; it is equal; nothing depends on it; nothing shows it."""
UNRUN = "not run"
"""The static proof refuses what no run can tell."""


@dataclass
class Original:
    """A subject and what it gives when nothing is tampered with."""

    subject: Subject

    def __post_init__(self) -> None:
        self._runs: dict[int, Run | None] = {}
        self._traces: dict[int, Trace] = {}

    def inputs(self, number: int) -> Given:
        """Return a set of inputs: the subject's own, then drawn ones."""
        name, own, program = self.subject.name, self.subject.inputs, self.subject.program
        if number < len(own):
            return own[number]
        if program.is_resident or program.participants > 1:
            return varied(name, own[0], number)
        return inputs_for(name, program.parameters, number)

    @property
    def most(self) -> int:
        """How many sets of inputs there are."""
        program = self.subject.program
        if program.is_resident:
            return MORE_INPUT_SETS // 6
        return MORE_INPUT_SETS if program.parameters else 1

    def run(self, number: int) -> Run | None:
        """Return what the untouched program gives for a set of inputs.

        None where drawn inputs make it turn for too long, or send participants different ways to
        their collectives.
        """
        if number not in self._runs:
            try:
                self._runs[number] = run_exact(self.subject.program, self.inputs(number))
            except (EndlessError, MeetingError):
                self._runs[number] = None
        return self._runs[number]

    def trace(self, number: int) -> Trace:
        """Return what the untouched program computes on the way."""
        if number not in self._traces:
            watching = Watching()
            run_exact(self.subject.program, self.inputs(number), watching)
            self._traces[number] = watching.trace
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
    if rules and kind in UNSEEN:
        return Verdict(original.subject.name, kind, rules, UNRUN)
    exact, detail = _exact_verdict(original, changed)
    if exact == EQUIVALENT and kind in DECLARED:
        exact = SAME_DATA  # the referee follows elements, not what records say of them
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
            watching = Watching(other_poison=other_poison)
            caught, detail = _caught(original, changed, number, watching)
            if caught:
                return caught, detail
            ended = original.run(number) is not None
            differs |= ended and watching.trace != original.trace(number)
    if not differs:
        return SAME_DATA, ""
    return UNUSED if _is_unused(original, changed) else MASKED, misread(changed)[0]


def _is_unused(original: Original, changed: Program) -> bool:
    """Whether nothing changes whatever vertices misread: it is overwritten in every run."""
    overwritten = 0
    for number in range(original.most):
        if original.run(number) is None:
            continue
        expected = original.trace(number)
        scramble = Scramble(expected, number)
        watching = Watching(scramble=scramble)
        if _caught(original, changed, number, watching)[0]:
            return False
        overwritten += scramble.count
    return overwritten > 0


def _caught(
    original: Original,
    changed: Program,
    number: int,
    watching: Watching | None = None,
) -> tuple[str, str]:
    """Return who catches a mutant on one set of inputs, or nothing."""
    expected = original.run(number)
    if expected is None:
        return "", ""
    try:
        changed_run = run_exact(changed, original.inputs(number), watching)
    except TileFault as fault:
        return FAULT, fault.message
    except EndlessError:
        return ENDLESS, ""
    except HloipuError as error:
        return FAULT, error.message
    except Exception as error:  # a codelet met parts that no proved program gives it
        return ERROR, f"{type(error).__name__}: {error}"
    caught = _difference(expected, changed_run)
    if not caught and watching is not None:
        caught = INNER if watching.trace.writes != original.trace(number).writes else ""
    return caught, f"inputs {number}" if caught else ""


def _difference(expected: Run, other_run: Run) -> str:
    """Return by what two runs differ, or nothing."""
    apart = "" if expected.outputs.keys() == other_run.outputs.keys() else VALUES
    for stream, array in expected.outputs.items():
        other = other_run.outputs.get(stream)
        if other is None or other.shape != array.shape:
            return VALUES
        same = (array == other) | ((array != array) & (other != other))
        if not np.all(same):
            apart = VALUES
            if np.any(_is_poison(other) & ~_is_poison(array)):
                return POISON
    turns = sorted(expected.runs.values()), sorted(other_run.runs.values())  # places may have moved
    return apart or (VALUES if turns[0] != turns[1] else "")


def _is_poison(array: Array) -> Array:
    if array.dtype.kind in "fc":
        return np.isnan(array)
    if array.dtype == np.bool_:
        return np.zeros(array.shape, bool)
    poison = np.frombuffer(bytes([POISON_BYTE]) * array.dtype.itemsize, array.dtype)[0]
    return np.asarray(array == poison)
