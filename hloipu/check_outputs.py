"""Compare a whole module's result with a reference's.

Three ways: our error and the reference's are both measured against the same module computed by the
reference in f64 throughout, so that a program that amplifies rounding is not blamed on either.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hloipu_compiler.evaluate.agreement import Budget, compare_values
from hloipu_compiler.evaluate.plan import Array
from hloipu_compiler.evaluate.site import array_leaves
from hloipu_compiler.evaluate.widen import widened, widened_arguments
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_runtime.element_types import ElementType

REFERENCE_FACTOR = 8.0
"""How much larger than the reference's our error may be: both are samples of one distribution."""

EPSILONS = 64.0
"""Roundings of the largest value of a result that are allowed in any case."""


Reference = Callable[[Sequence[tuple[Module, Sequence[Array]]]], list[list[Array] | str]]
"""Computes modules on leaves of arguments; for each the result's leaves, or why it could not."""


@dataclass(frozen=True, slots=True)
class OutputReport:
    """One leaf of the result, ours against the reference."""

    number: int
    shape: ArrayShape
    agrees: bool
    said: str


def compare_outputs(
    module: Module,
    ours: Sequence[Array],
    theirs: Sequence[Array],
    truth: Sequence[Array] | None,
) -> list[OutputReport]:
    """Judge every leaf of the result, in user dtypes; `truth` is the reference's in f64."""
    reports = []
    leaves = array_leaves(module.entry.program_shape.result)
    for number, (shape, a, b) in enumerate(zip(leaves, ours, theirs, strict=True)):
        if not shape.element_type.is_array:
            continue
        agrees, said = judge_leaf(shape, a, b, truth[number] if truth else None)
        reports.append(OutputReport(number, shape, agrees, said))
    return reports


def judge_leaf(
    shape: ArrayShape, ours: Array, theirs: Array, truth: Array | None
) -> tuple[bool, str]:
    """Return whether a value, in its user dtype, agrees with a reference's, and what to say."""
    element = shape.element_type
    if element.is_float or element.is_complex:
        return _judge_floats(ours, theirs, truth, element)
    verdict = compare_values(ours, theirs, Budget(element.name))
    return verdict.agrees, str(verdict)


def truth_of(
    reference: Reference, module: Module, arguments: Sequence[Array]
) -> list[Array] | None:
    """Return the result's leaves as the reference computes the module in f64 throughout.

    None where there is no such module or the reference cannot compute it. Our own kernels must not
    stand in: a wrong one would be wrong in f64 as well, and excuse itself.
    """
    wide = widened(module)
    if wide is None:
        return None
    (answer,) = reference([(wide, widened_arguments(arguments))])
    return None if isinstance(answer, str) else answer


def nested(module: Module, leaves: Sequence[Array]) -> list[Any]:
    """Group leaves by entry parameter."""
    arguments: list[Any] = []
    at = 0
    for shape in module.entry.program_shape.parameters:
        count = shape.leaf_count if isinstance(shape, TupleShape) else 1
        mine = list(leaves[at : at + count])
        arguments.append(mine if isinstance(shape, TupleShape) else mine[0])
        at += count
    return arguments


def _judge_floats(
    ours: Array, theirs: Array, truth: Array | None, element: ElementType
) -> tuple[bool, str]:
    a, b = _wide(ours), _wide(theirs)
    nan_differs = np.isnan(a) != np.isnan(b)
    if nan_differs.any():
        index = tuple(map(int, np.argwhere(nan_differs)[0]))
        return (
            False,
            f"NaN at {list(index)} on one side only: {ours[index]} against {theirs[index]}",
        )
    finite = np.isfinite(a) & np.isfinite(b)
    infinite_differs = ~finite & ~np.isnan(a) & (a != b)
    if infinite_differs.any() and truth is None:
        index = tuple(map(int, np.argwhere(infinite_differs)[0]))
        return False, f"at {list(index)}: {ours[index]} against {theirs[index]}"
    if not finite.any():
        return True, "no finite elements"
    error = np.where(finite, np.abs(a - b), 0.0)
    scale = float(np.abs(b[finite]).max())
    epsilon = 2.0 ** -(element.mantissa_bits if element.is_float else _part_bits(element))
    allowed = EPSILONS * epsilon * scale
    if truth is not None:
        exact = _wide(truth)
        error = np.where(finite & np.isfinite(exact), np.abs(a - exact), 0.0)
        known = finite & np.isfinite(exact)
        theirs_off = float(np.abs(b - exact)[known].max()) if known.any() else 0.0
        allowed += REFERENCE_FACTOR * theirs_off
    worst = tuple(map(int, np.unravel_index(int(np.argmax(error)), error.shape)))
    said = (
        f"worst at {list(worst)}: {ours[worst]} against {theirs[worst]}, "
        f"{float(error[worst]):.3g} off, {allowed:.3g} allowed"
    )
    return bool(error[worst] <= allowed), said


def _part_bits(element: ElementType) -> int:
    return 23 if element.bits == 64 else 52


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
