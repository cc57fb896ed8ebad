"""Plants mutations, judges them, and sorts those that are not found."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from hloipu.check.judging.deviations import FACTOR
from hloipu.check.outputs import Truth, compare_outputs, nested, truth_of
from hloipu.xla_cpu.runner import XlaCpu
from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.interpret.planning.plan import Array
from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.interpret.widen import widened, widened_arguments
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.errors import HloipuError, UnsupportedError
from hloipu_runtime.kernels.core.storage import user_dtype
from tools.judge_check.models import LIMITS, Model
from tools.judge_check.mutations import Mutant, mutants

SECONDS_FOR_A_MUTANT = 20
SECONDS_OF_XLA = 60.0
"""For each module; a search that ends in f32 may go on for ever in a narrow type."""
TOO_MANY_ITERATIONS = "E5031"


@dataclass(frozen=True, slots=True)
class Oracle:
    """XLA:CPU, whose silence is an answer like others."""

    xla: XlaCpu

    def __call__(self, work: Sequence[tuple[Module, Sequence[Array]]]) -> list[list[Array] | str]:
        """Compute modules on leaves of arguments; for each the result's leaves, or why not."""
        answers: list[list[Array] | str] = []
        for number, one in enumerate(work):
            try:
                answers += self.xla([one])
            except UnsupportedError as error:
                # Others of the same work are the same module, on other samples.
                return [*answers, *[error.message] * (len(work) - number)]
        return answers


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one mutant: `found`, or why it was not."""

    model: str
    kind: str
    mutation: str
    place: str
    state: str
    """`found`, `does not end`, `equivalent: ...`, `within budgets: ...`, or `MISSED`.

    Within budgets: in f64 the fault moves no result by more than an implementation may that keeps
    the published budgets. No judge that accepts all of these can find it.
    """


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError where the block takes longer."""

    def stop(_number: int, _frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def truth_for(model: Model, oracle: Oracle) -> Truth | str:
    """Return the truth of a model, its samples of doubt drawn in advance, or why there is none."""
    try:
        with time_limit(SECONDS_FOR_A_MUTANT):
            evaluate_everywhere(model.module, *nested(model.module, model.arguments), limits=LIMITS)
    except TimeoutError:
        return f"takes longer than {SECONDS_FOR_A_MUTANT} s"
    except HloipuError as error:
        return f"{error.code}: {error.message}"
    truth = truth_of(oracle, model.module, model.arguments)
    if truth is None:
        return "XLA:CPU does not compute its form in f64"
    more = truth.extended().samples[len(truth.samples) :]
    return replace(truth, draw=lambda _numbers: more)


def results_of(model: Model, oracle: Oracle) -> list[Array]:
    """Return what XLA:CPU gives in the model's own types, or else what we do."""
    (theirs,) = oracle([(model.module, model.arguments)])
    if isinstance(theirs, str):
        return evaluate_everywhere(model.module, *nested(model.module, model.arguments))
    return theirs


def judged(
    model: Model, theirs: list[Array], truth: Truth, seed: int, most_of_a_kind: int
) -> list[Outcome]:
    """Judge the mutants of a model."""
    exact = _in_f64(model.module, model.arguments)
    outcomes = []
    for mutant in mutants(model.module, seed, most_of_a_kind):
        state = _state(model, mutant, theirs, truth, exact)
        outcomes.append(Outcome(model.name, model.kind, mutant.kind, mutant.place, state))
    return outcomes


def _state(
    model: Model, mutant: Mutant, theirs: list[Array], truth: Truth, exact: list[Array] | None
) -> str:
    try:
        with time_limit(SECONDS_FOR_A_MUTANT):
            ours = evaluate_everywhere(
                mutant.module, *nested(mutant.module, model.arguments), limits=LIMITS
            )
    except TimeoutError:
        return "does not end"
    except HloipuError as error:
        return "does not end" if error.code == TOO_MANY_ITERATIONS else f"refused: {error.code}"
    reports = compare_outputs(model.module, ours, theirs, truth)
    if not all(report.agrees for report in reports):
        return "found"
    return _why_not(model, mutant, truth, exact)


def _why_not(model: Model, mutant: Mutant, truth: Truth, exact: list[Array] | None) -> str:
    """Say how far the mutation moves the results in f64, beside what the types' rounding does."""
    moved = _in_f64(mutant.module, model.arguments)
    if exact is None:
        return "equivalent or missed: the model does not end in f64"
    if moved is None:
        return "MISSED, and does not end in f64"
    largest, of_budgets, finite = 0.0, 0.0, False
    leaves = array_leaves(model.module.entry.program_shape.result)
    for number, (shape, a, b) in enumerate(zip(leaves, exact, moved, strict=True)):
        value = truth.values[number]
        if not shape.element_type.is_array:
            continue
        with np.errstate(all="ignore"):
            x, y, r = (np.asarray(v).astype(np.complex128) for v in (a, b, value))
            known = np.isfinite(x) & np.isfinite(y) & np.isfinite(r)
            finite = finite or bool(known.any())
            # What rounds to the same numbers of the type is no change that anybody sees.
            seen = known & (_in_type(a, shape) != _in_type(b, shape))
            change = np.linalg.norm(np.where(seen, y - x, 0))
            rounding = np.linalg.norm(np.where(known, r - x, 0))
            allowed = max(np.linalg.norm(np.where(known, s[number] - r, 0)) for s in truth.samples)
        if change:
            largest = max(largest, float(change / rounding) if rounding else np.inf)
            of_budgets = max(of_budgets, float(change / allowed) if allowed else np.inf)
    if not finite:
        return "equivalent: nothing is finite"
    if largest == 0:
        return "equivalent: no change in f64"
    if largest <= 1:
        return f"equivalent: {largest:.1g} of the types' rounding"
    if of_budgets <= FACTOR:
        return f"within budgets: {of_budgets:.2g} of the worst sample's error"
    return f"MISSED, {largest:.3g} times the types' rounding"


def _in_type(value: Array, shape: ArrayShape) -> Array:
    return np.asarray(value).astype(user_dtype(shape.element_type.name))


def _in_f64(module: Module, arguments: Sequence[Array]) -> list[Array] | None:
    """Return a module's results in f64 throughout; None where they are long in coming."""
    wide = widened(module)
    try:
        with time_limit(SECONDS_FOR_A_MUTANT):
            leaves = nested(wide, widened_arguments(arguments))
            return evaluate_everywhere(wide, *leaves, limits=LIMITS)
    except (TimeoutError, HloipuError):
        return None
