"""Proofs of deviations: functions that say which elements of an output they explain."""

from collections.abc import Sequence

import numpy as np

from hloipu_compiler.evaluate.agreement import smallest_normal
from hloipu_compiler.evaluate.budgets import compare_values, disagreements  # noqa: F401
from hloipu_compiler.evaluate.evaluator import Evaluator
from hloipu_compiler.evaluate.site import Effects
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.blocks import Array
from tools.conformance.deviations import Evidence, Explainer


def flushed(array: Array) -> Array:
    """Return an array of f32, f64, c64 or c128 with its subnormal parts made zeros of their sign."""
    if array.dtype.kind == "c":
        parts = array.copy()
        parts.real, parts.imag = flushed(array.real), flushed(array.imag)
        return parts
    if array.dtype not in (np.float32, np.float64):
        return array
    small = np.abs(array) < np.finfo(array.dtype).tiny
    return np.where(small, np.copysign(array.dtype.type(0), array), array)


def flush(evidence: Evidence) -> Array:
    """XLA:CPU runs with subnormals off: on flushed inputs and results we give what it gives."""
    inputs = [flushed(x) for x in evidence.inputs]
    result = results_on(evidence, inputs)
    a, b = flushed(result), flushed(evidence.theirs)
    return ~disagreements(a, b, evidence.budget, evidence.magnitudes)


def results_on(evidence: Evidence, inputs: Sequence[Array]) -> Array:
    """Return our output on other inputs."""
    return Evaluator(evidence.module, Effects(state={}))(*inputs)[evidence.leaf]


EXPLAINERS: dict[str, Explainer] = {"flush": flush}
"""By name, for the table."""

__all__ = ["ELEMENT_TYPES", "EXPLAINERS", "smallest_normal"]
