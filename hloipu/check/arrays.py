"""Arrays that a stepped program leaves, by name, compared with the reference's."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hloipu.check.outputs import OutputReport, Truth, compare_outputs
from hloipu.check.sampled_steps import Sampled, Values
from hloipu.check.step_values import StepValues
from hloipu_compiler.interpret.planning.plan import Array
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.seen import number_of, seen_by_users


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
        known = _known(truth, lambda values, n=n: values.state.get(n))  # type: ignore[misc]
        name = f"state {state.name}"
        yield Compared(name, state.element_type, ours.state[n], theirs.state.get(n), known)
    for port in user_view.results:
        n = number_of(port)
        known = _known(truth, lambda values, n=n: values.results.get(n))  # type: ignore[misc]
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
                    _known(truth, lambda values, key=key: values.outfed.get(key)),  # type: ignore[misc]
                )


def _known(
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
