"""Arrays that a stepped program leaves, compared with a reference and with samples of it.

Samples have errors within the budgets of ops. Each module of a step is computed in the form of
`hloipu.check.judging.perturb` and its results are brought back to their own types, so that all that
is between the modules, such as adding gradients up, is done as for the reference's own values.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from hloipu.check.judging.perturb import perturbed
from hloipu.check.outputs import (
    SAMPLES,
    SAMPLES_OF_DOUBT,
    OutputReport,
    Reference,
    Truth,
    compare_outputs,
    spread_of,
)
from hloipu.check.step_values import StepValues
from hloipu_compiler.interpret.planning.plan import Array
from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.interpret.widen import widened_arguments
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.core.storage import user_dtype
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.seen import number_of, seen_by_users

Values = TypeVar("Values")


@dataclass(frozen=True, slots=True)
class Sampled(Generic[Values]):
    """Values without errors, and some with them."""

    values: Values
    samples: list[Values]
    more: Callable[[], list[Values]]
    """Returns further samples, always the same ones."""


def sampled(
    reference: Reference, compute: Callable[[Reference], Values | str]
) -> Sampled[Values] | None:
    """Return what a computation by a reference gives in samples, or None where it gives none."""
    forms: dict[int, tuple[Module, Module | None]] = {}

    def form_of(module: Module) -> Module | None:
        if id(module) not in forms:
            forms[id(module)] = module, perturbed(module)
        return forms[id(module)][1]

    def drawn(number: int) -> Values | str:
        spread = spread_of(number)

        def moved(work: Sequence[tuple[Module, Sequence[Array]]]) -> list[list[Array] | str]:
            jobs = []
            for module, leaves in work:
                form = form_of(module)
                if form is None:
                    return ["sizes are known only while it runs"] * len(work)
                jobs.append((form, [*widened_arguments(leaves), spread]))
            answers = reference(jobs)
            return [_narrowed(answer, m) for answer, (m, _) in zip(answers, work, strict=True)]

        return compute(moved)

    samples: list[Values] = []
    for number in range(SAMPLES + 1):
        values = drawn(number)
        if isinstance(values, str):
            return None
        samples.append(values)

    @cache
    def more() -> list[Values]:
        numbers = range(SAMPLES + 1, SAMPLES + 1 + SAMPLES_OF_DOUBT)
        return [outcome for outcome in map(drawn, numbers) if not isinstance(outcome, str)]

    return Sampled(samples[0], samples[1:], more)


def _narrowed(answer: list[Array] | str, module: Module) -> list[Array] | str:
    """Bring leaves of a result in f64 to their own types, whose values they have."""
    if isinstance(answer, str):
        return answer
    leaves = array_leaves(module.entry.program_shape.result)
    with np.errstate(all="ignore"):
        return [
            array.astype(user_dtype(leaf.element_type.name))
            if leaf.element_type.is_array
            else array
            for array, leaf in zip(answer, leaves, strict=True)
        ]


class Compared(NamedTuple):
    """An array, ours and a reference's, and what it is without errors if that is known."""

    name: str
    element_type: str
    ours: Array
    theirs: Array | None
    """None: the reference gives no such array."""
    truth: Truth | None
    """Of one leaf."""


@dataclass(frozen=True, slots=True)
class NamedReport:
    """Comparison of an array, with its name."""

    name: str
    report: OutputReport


def compared_arrays(
    program: Program, ours: StepValues, theirs: StepValues, truth: Sampled[StepValues] | None
) -> Iterator[Compared]:
    """Yield every array that a run of a program leaves: state, results, what went out."""
    user_view = seen_by_users(program)
    for state in user_view.state:
        n = state.parameter
        known = _array_truth(truth, lambda values, n=n: values.state.get(n))  # type: ignore[misc]
        name = f"state {state.name}"
        yield Compared(name, state.element_type, ours.state[n], theirs.state.get(n), known)
    for port in user_view.results:
        n = number_of(port)
        known = _array_truth(truth, lambda values, n=n: values.results.get(n))  # type: ignore[misc]
        yield Compared(f"out_{n}", port.element_type, ours.results[n], theirs.results.get(n), known)
    for queue in user_view.queues:
        for k, port in enumerate(() if queue.to_device else queue.streams):
            key = queue.name, k
            if key in ours.outfed or key in theirs.outfed:
                place = f", result {queue.places[k]}" if len(queue.places) > 1 else ""
                yield Compared(
                    f"outfeed {queue.name}{place}",
                    port.element_type,
                    ours.outfed[key],
                    theirs.outfed.get(key),
                    _array_truth(truth, lambda values, key=key: values.outfed.get(key)),  # type: ignore[misc]
                )


def _array_truth(
    truth: Sampled[StepValues] | None, array_of: Callable[[StepValues], Array | None]
) -> Truth | None:
    """Return one array of samples, as the truth of a leaf."""
    return None if truth is None else leaf_truth(truth, array_of)


def leaf_truth(truth: Sampled[Values], array_of: Callable[[Values], Array | None]) -> Truth | None:
    """Return the truth of one array; None where it is in no sample."""

    def of(values: Sequence[Values]) -> list[list[Array]]:
        return [[array] for array in map(array_of, values) if array is not None]

    value, samples = array_of(truth.values), of(truth.samples)
    if value is None or len(samples) < len(truth.samples):
        return None
    return Truth([value], samples, lambda _numbers: of(truth.more()))


def judged(arrays: Sequence[Compared]) -> list[NamedReport]:
    """Return how each array compares, by the rule of whole modules."""
    judgements = []
    for number, array in enumerate(arrays):
        shape = ArrayShape(ELEMENT_TYPES[array.element_type], array.ours.shape)
        if array.theirs is None or array.theirs.shape != array.ours.shape:
            reference_text = (
                "nothing" if array.theirs is None else f"an array of {list(array.theirs.shape)}"
            )
            fault = f"the reference has {reference_text}"
            judgements.append(NamedReport(array.name, OutputReport(number, shape, False, fault)))
            continue
        reports = compare_outputs(_module_of(shape), [array.ours], [array.theirs], array.truth)
        judgements += [NamedReport(array.name, report) for report in reports]
    return judgements


def _module_of(shape: ArrayShape) -> Module:
    parameter = Instruction("array", "parameter", shape, parameter_number=0)
    root = Instruction("results", "tuple", TupleShape((shape,)), (0,))
    return Module("arrays", (Computation("entry", (parameter, root), 1),), 0)
