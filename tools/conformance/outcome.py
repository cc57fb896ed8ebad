"""Judge one case: our result against XLA's, within the published budgets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.budgets import Budget, budget_of, compare_values, disagreements
from hloipu_compiler.interpret.evaluator import Evaluator
from hloipu_compiler.interpret.participants import evaluate_participants
from hloipu_compiler.interpret.planning.site import Effects, array_leaves
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.vendor.expanding import expanded
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.errors import HloipuError, LimitError, UnsupportedError
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.storage import to_storage, user_dtype
from tests.support.xla_oracle import Oracle, OracleError
from tools.conformance.case import Case, widened
from tools.conformance.deviations import Deviation, Evidence, explained
from tools.conformance.values import inputs_of

EXACT, WITHIN, LISTED, FAILED = "exact", "within budget", "listed deviation", "fail"
UNCARRIED = "not carried"
"""XLA's route refuses or dies, so that it is no judge."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one case."""

    name: str
    opcode: str
    element_type: str
    status: str
    said: str = ""
    deviations: tuple[str, ...] = ()
    worst: float = 0.0
    """Largest error found: ULP, or multiples of the bound for ops that add up."""


def judged(case: Case, oracle: Oracle, table: Sequence[Deviation]) -> Outcome:
    """Run a case on both sides and compare."""
    try:
        theirs = xla_results(case, oracle)
        refusal = ""
    except OracleError as error:
        theirs, refusal = [], str(error)
    try:
        module = parse(case.text)
        verify(module)
        ours = our_results(case, expanded(module))
    except HloipuError as error:
        if refusal or isinstance(error, LimitError):
            return _outcome(case, UNCARRIED, f"both refuse: {error.message}; {refusal}")
        kind = "unsupported" if isinstance(error, UnsupportedError) else "refused"
        return _outcome(case, FAILED, f"we {kind}: [{error.code}] {error.message}")
    except Exception as error:  # the point of the tool: our own failures are counted, not raised
        return _outcome(case, FAILED, f"we died: {type(error).__name__}: {error}")
    if refusal:
        return _outcome(case, UNCARRIED, refusal)
    return compared(case, module, ours, theirs, table)


def _outcome(case: Case, status: str, said: str = "", **more: object) -> Outcome:
    return Outcome(case.name, case.opcode, case.element_type, status, said, **more)  # type: ignore[arg-type]


def xla_results(case: Case, oracle: Oracle) -> list[list[Array]]:
    """Return XLA's outputs of each participant; raises OracleError."""
    program = oracle.load(case.text, replicas=case.replicas, partitions=case.partitions)
    try:
        if case.participants == 1:
            return [program.run(inputs_of(case))]
        return program.run_each([inputs_of(case, i) for i in range(case.participants)])
    finally:
        program.unload()


def our_results(case: Case, module: Module) -> list[list[Array]]:
    """Return our outputs of each participant."""
    if case.participants == 1:
        return [Evaluator(module, Effects(state={}))(*inputs_of(case))]
    arguments = [inputs_of(case, i) for i in range(case.participants)]
    return evaluate_participants(
        module, arguments, replicas=case.replicas, partitions=case.partitions
    )


def budget_for(case: Case, element_type: str) -> Budget:
    """Return the budget of one output leaf."""
    return budget_of(
        case.opcode, element_type, terms=case.terms, combiner=case.combiner,
        operand_type=case.operand_type,
    )  # fmt: skip


def compared(
    case: Case,
    module: Module,
    ours: list[list[Array]],
    theirs: list[list[Array]],
    table: Sequence[Deviation],
) -> Outcome:
    """Compare all participants' outputs."""
    leaves = array_leaves(module.entry.program_shape.result)
    names: set[str] = set()
    status, worst = EXACT, 0.0
    for participant, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        inputs = inputs_of(case, participant)
        for leaf, (shape, a, b) in enumerate(zip(leaves, mine, other, strict=True)):
            element_type = shape.element_type.name
            budget = budget_for(case, element_type)
            if a.shape != b.shape:
                return _outcome(case, FAILED, f"shapes {a.shape} and {b.shape}")
            if a.dtype != b.dtype and a.dtype.itemsize == b.dtype.itemsize:
                b = b.view(a.dtype)  # rng-bit-generator comes back from StableHLO as unsigned bits
            if case.judged != "values":
                problem = PROPERTIES[case.judged](a) or PROPERTIES[case.judged](b)
                if problem:
                    return _outcome(case, FAILED, problem)
                continue
            magnitudes = magnitudes_of(case, inputs, leaf) if budget.factor else None
            if case.participants > 1:
                magnitudes = np.array(float(case.terms))  # every term is below 1
            verdict = compare_values(a, b, budget, magnitudes)
            if verdict.agrees:
                worst = max(worst, verdict.error)
                if verdict.index is not None and status == EXACT:
                    status = WITHIN
                continue
            bad = disagreements(a, b, budget, magnitudes)
            evidence = Evidence(case, module, inputs, leaf, a, b, budget, magnitudes)
            deviations, left = explained(evidence, bad, table)
            if left.any():
                kept = compare_values(np.where(left, a, b), b, budget, magnitudes)
                return _outcome(case, FAILED, f"output {leaf}: {kept}", worst=kept.error)
            names |= deviations
            status = LISTED
    return _outcome(case, status, deviations=tuple(sorted(names)), worst=worst)


def uniform_problem(values: Array) -> str:
    """Say what keeps values from being uniform in [0, 1), or "" where nothing does."""
    x = values.astype(np.float64)
    # f16 and bf16 round values near 1 up to it.
    if x.size and not (x.min() >= 0 and x.max() <= 1):
        return f"values from {x.min()} to {x.max()} are not in [0, 1]"
    if values.dtype.kind in "iub":
        return "" if not x.any() else "an integer in [0, 1) is not zero"
    spread = 5 * 0.289 / np.sqrt(max(1, x.size))
    return "" if not x.size or abs(x.mean() - 0.5) < spread else f"mean {x.mean()} is not 0.5"


def normal_problem(values: Array) -> str:
    """Say what keeps values from being normal with mean 0 and deviation 1, or ""."""
    x = values.astype(np.float64)
    if x.size < 1000:
        return "" if np.all(np.abs(x) < 6) else "a value beyond six deviations"
    close = abs(x.mean()) < 5 / np.sqrt(x.size) and abs(x.std() - 1) < 0.15
    return "" if close else f"mean {x.mean()}, deviation {x.std()}"


PROPERTIES: dict[str, Callable[[Array], str]] = {
    "rng_uniform": uniform_problem,
    "rng_normal": normal_problem,
    "shape": lambda _: "",
}
"""Judges of ops whose values depend on a hidden state, by name."""


def magnitudes_of(case: Case, inputs: Sequence[Array], leaf: int) -> Array | None:
    """Return the sums of absolute terms behind each element, computed in f64 by ourselves."""
    if case.participants > 1 or (case.summed is None and not case.normwise):
        return None
    wide = wide_inputs(case, inputs)
    if case.summed is not None:
        wide = [
            np.abs(x).astype(x.dtype) if i in case.summed and x.dtype.kind in "fci" else x
            for i, x in enumerate(wide)
        ]
    value = np.abs(wide_results(case, wide)[leaf])
    if value.dtype.kind not in "fc":
        return None
    return np.full(value.shape, np.max(value, initial=0.0)) if case.normwise else value


def wide_inputs(case: Case, inputs: Sequence[Array]) -> list[Array]:
    """Return a case's inputs with floats as f64 and complex numbers as c128."""
    wide = []
    for given, array in zip(case.inputs, inputs, strict=True):
        element = ELEMENT_TYPES[given.element_type]
        stored = to_storage(array, given.element_type)
        if element.is_float:
            wide.append(stored.astype(np.float64))
        elif element.is_complex:
            wide.append(stored.astype(np.complex128))
        else:
            wide.append(array)
    return wide


def wide_results(case: Case, wide: Sequence[Array]) -> list[Array]:
    """Evaluate a case's module in f64."""
    return Evaluator(parse(widened(case.text)), Effects(state={}))(*wide)


__all__ = ["Outcome", "judged", "user_dtype"]
