"""Judge whether a leaf's error is within the module's published budgets.

The rule is derived in docs/numerics.md, "Whole modules".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from hloipu_compiler.interpret.agreement import Budget, compare_values, smallest_normal
from hloipu_compiler.interpret.planning.plan import Array
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.element_types import ElementType

FACTOR = 2.0
"""How much larger than the largest sample's our error may be, element by element and as a whole.

Samples err by about as much as budgets allow, correct implementations by less.
"""


UNKNOWN_ROUNDINGS = 64
"""Roundings that are taken to add up where nothing says what a module makes of them. *Assumed.*"""


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether a leaf agrees, and what to say of it."""

    agrees: bool
    said: str
    is_judged: bool = True
    """False: no element is finite, so that nothing but NaN and infinities was compared."""


def judge(
    shape: ArrayShape, ours: Array, theirs: Array | None, value: Array, samples: Sequence[Array]
) -> Finding:
    """Judge a leaf, in its user dtype, by its value without errors and by samples with errors.

    `theirs` is the reference's own result, one more sample of what is not finite where.
    """
    element = shape.element_type
    if not (element.is_float or element.is_complex):
        return _judge_exact(ours, value, samples)
    a, exact, drawn = _wide(ours), _wide(value), [_wide(sample) for sample in samples]
    with np.errstate(all="ignore"):
        return _judge_floats(element, a, None if theirs is None else _wide(theirs), exact, drawn)


def judge_without_samples(
    shape: ArrayShape, ours: Array, theirs: Array, exact: Array | None = None
) -> Finding:
    """Judge a leaf, in its user dtype, by a reference's result, and by that in f64 if it is known.

    Integers must be equal. Floats may be off, as a whole, by what UNKNOWN_ROUNDINGS independent
    roundings on both sides add up to, each uniform within half a step, and by the reference's own
    error, with FACTOR to spare; an element by four times that of the larger of its size and the
    usual one.
    """
    element = shape.element_type
    if not (element.is_float or element.is_complex):
        verdict = compare_values(ours, theirs, Budget(element.name))
        return Finding(verdict.agrees, str(verdict))
    a, b = _wide(ours), _wide(theirs)
    right = b if exact is None else _wide(exact)
    with np.errstate(all="ignore"):
        unlike = ~_same_kind(a, b) & ~_same_kind(a, right)
        if unlike.any():
            index = tuple(map(int, np.argwhere(unlike)[0]))
            return Finding(False, f"at {list(index)}: {ours[index]} against {theirs[index]}")
        judged = np.isfinite(a) & np.isfinite(b) & np.isfinite(right)
        if judged.size and not judged.any():
            return _nothing_finite(judged)
        size = np.where(judged, np.abs(right), 0.0)
        error = np.where(judged, np.abs(a - right), 0.0)
        reference_error = np.where(judged, np.abs(b - right), 0.0)
    relative = 2.0 ** -_mantissa_bits(element) * sqrt(2 * UNKNOWN_ROUNDINGS / 12)
    norm_scale = 1 / sqrt(np.count_nonzero(judged))
    least = smallest_normal(element.name)
    usual = FACTOR * (relative * _norm(size) + _norm(reference_error)) * norm_scale + least
    bound = 4 * np.maximum(FACTOR * relative * size, usual)
    worst = tuple(map(int, np.unravel_index(int(np.argmax(error / bound)), error.shape)))
    text = (
        f"worst at {list(worst)}: {ours[worst]} against {right[worst]}, {error[worst]:.2g} off, "
        f"{bound[worst]:.2g} allowed (judged without samples){_not_judged(judged)}"
    )
    return Finding(bool(_norm(error) * norm_scale <= usual and (error <= bound).all()), text)


def _nothing_finite(judged: Array) -> Finding:
    text = f"NOT JUDGED: {judged.size} of {judged.size} elements are not finite on either side"
    return Finding(True, text, is_judged=False)


def _not_judged(judged: Array) -> str:
    count = judged.size - int(np.count_nonzero(judged))
    if not count:
        return ""
    return f"; {count} of {judged.size} elements are not finite on either side and were not judged"


def _judge_exact(ours: Array, value: Array, samples: Sequence[Array]) -> Finding:
    """Judge integers and predicates: how many are others, not by how much."""
    off = ours != value
    if not off.any():
        return Finding(True, f"all {off.size} elements are equal")
    apart = [sample != value for sample in samples]
    known = np.any(apart, axis=0)
    allowed_new = FACTOR * _most_new(apart)
    allowed = FACTOR * max(int(np.count_nonzero(is_off)) for is_off in apart)
    new, count = int(np.count_nonzero(off & ~known)), int(np.count_nonzero(off))
    index = tuple(map(int, np.argwhere(off & ~known if new else off)[0]))
    text = (
        f"{count} of {off.size} elements differ, {allowed:.0f} may; "
        f"at {list(index)}: {ours[index]} against {value[index]}"
    )
    return Finding(new <= allowed_new and count <= allowed, text)


def _most_new(apart: Sequence[Array]) -> int:
    """Return the most elements that are off in one sample and in no other."""
    times = np.sum(apart, axis=0, dtype=np.int64)
    return max(int(np.count_nonzero(is_off & (times == 1))) for is_off in apart)


def _judge_floats(
    element: ElementType, ours: Array, theirs: Array | None, exact: Array, samples: Sequence[Array]
) -> Finding:
    if not ours.size:
        return Finding(True, "no elements")
    unlike = ~_same_kind(ours, exact)
    for reference in (*samples, *(() if theirs is None else (theirs,))):
        unlike &= _same_kind(reference, exact)
    if unlike.any():
        index = tuple(map(int, np.argwhere(unlike)[0]))
        return Finding(False, f"at {list(index)}: {ours[index]} against {exact[index]}")
    judged = np.isfinite(ours) & np.isfinite(exact)
    for sample in samples:
        judged &= np.isfinite(sample)
    if judged.size and not judged.any():
        return _nothing_finite(judged)
    errors = [np.where(judged, np.abs(sample - exact), 0.0) for sample in samples]
    error = np.where(judged, np.abs(ours - exact), 0.0)
    steps = _steps(element, np.where(judged, exact, 0.0))
    largest_norm = max(map(_norm, errors))
    bound = FACTOR * np.maximum(_bounds(errors), steps)
    beyond = error > bound
    # As many may be beyond as lie beyond what the other samples say in one sample.
    allowed_beyond = FACTOR * max(
        int(
            np.count_nonzero(
                error_of_sample
                > FACTOR * np.maximum(_bounds([*errors[:i], *errors[i + 1 :]]), steps)
            )
        )
        for i, error_of_sample in enumerate(errors)
    )
    count, norm = int(np.count_nonzero(beyond)), _norm(error)
    allowed_norm = FACTOR * largest_norm
    size = _norm(np.where(judged, np.abs(exact), 0.0)) or 1.0
    worst = tuple(
        map(
            int,
            np.unravel_index(int(np.argmax(error / np.where(bound > 0, bound, 1))), error.shape),
        )
    )
    text = (
        f"off by {norm / size:.2g} of its size, {allowed_norm / size:.2g} allowed; "
        f"worst at {list(worst)}: {ours[worst]} against {exact[worst]}, "
        f"{error[worst]:.2g} off, {bound[worst]:.2g} allowed{_not_judged(judged)}"
    )
    return Finding(count <= allowed_beyond and norm <= allowed_norm, text)


def _bounds(errors: Sequence[Array]) -> Array:
    """Return the largest error of each element, at least the leaf's usual one."""
    usual = np.sqrt(np.mean([np.mean(x * x) for x in errors]))
    return np.asarray(np.maximum(np.max(errors, axis=0), usual))


def _steps(element: ElementType, values: Array) -> Array:
    """Return the distance between neighbours in a type at some values."""
    bits = _mantissa_bits(element)
    size = np.maximum(np.abs(values), smallest_normal(element.name))
    return np.asarray(np.ldexp(1.0, np.frexp(size)[1] - 1 - bits))


def _mantissa_bits(element: ElementType) -> int:
    return element.mantissa_bits if element.is_float else 23 if element.bits == 64 else 52


def _same_kind(a: Array, b: Array) -> Array:
    """Whether elements are both finite, both NaN or the same infinity."""
    return np.asarray((np.isfinite(a) & np.isfinite(b)) | (np.isnan(a) & np.isnan(b)) | (a == b))


def _norm(values: Array) -> float:
    return float(np.sqrt(np.sum(values * values)))


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
