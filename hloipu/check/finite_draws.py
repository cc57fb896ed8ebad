"""Random arguments under which a module's results are finite, found by trial."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hloipu.check.time_limit import TimeUpError
from hloipu.inputs import flat, grouped
from hloipu_compiler.interpret.evaluator import EvaluationLimits
from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.interpret.planning.plan import Array
from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.interpret.random_inputs import random_arguments
from hloipu_compiler.ir.graph import Module
from hloipu_runtime.errors import HloipuError

CHANGES: dict[str, Callable[[Array], Array]] = {
    "": lambda x: x,
    "floats made positive": np.abs,
    "floats divided by 4": lambda x: x / 4,
    "floats times 4": lambda x: x * 4,
    "floats divided by 16": lambda x: x / 16,
    "floats times 16": lambda x: x * 16,
}
"""What is done to a draw, one after the other, until all results are finite."""


class Draw(NamedTuple):
    """Leaves of arguments, what was done to them, and how many results' elements are not finite."""

    leaves: list[Array]
    change: str
    not_finite: int
    not_finite_before: int
    """As they were drawn."""


def finite_draw(module: Module, seed: int, limits: EvaluationLimits) -> Draw:
    """Return the arguments of a seed, changed where that makes more elements of results finite.

    Each trial evaluates the module once. Where it cannot be evaluated the draw stays as it is.
    """
    drawn = flat(random_arguments(module, seed))
    types = [
        leaf.element_type for s in module.entry.program_shape.parameters for leaf in array_leaves(s)
    ]
    draws: list[Draw] = []
    for change, function in CHANGES.items():
        leaves = [
            _changed(drawn_leaf, function) if change and t.is_float else drawn_leaf
            for drawn_leaf, t in zip(drawn, types, strict=True)
        ]
        count = _not_finite(module, leaves, limits)
        if count is None:
            break
        draws.append(Draw(leaves, change, count, draws[0].not_finite if draws else count))
        if not count:
            break
    return min(draws, key=lambda draw: draw.not_finite, default=Draw(drawn, "", 0, 0))


def _changed(array: Array, function: Callable[[Array], Array]) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(function(array.astype(np.float64))).astype(array.dtype)


def _not_finite(module: Module, leaves: Sequence[Array], limits: EvaluationLimits) -> int | None:
    """Return how many elements of results are NaN or infinite; None where there are none."""
    try:
        results = evaluate_everywhere(module, *grouped(module, leaves), limits=limits)
    except TimeUpError:
        raise
    except HloipuError:
        return None
    kinds = [leaf.element_type for leaf in array_leaves(module.entry.program_shape.result)]
    return sum(
        int(np.count_nonzero(~np.isfinite(result.astype(np.complex128))))
        for result, kind in zip(results, kinds, strict=True)
        if kind.is_float or kind.is_complex
    )
