"""Compares two results of one op, within a numeric budget.

The distance of two real floats is the number of representable values from one to the other, so
that it means the same in every format, near zero and at the largest finite value; infinity is the
step after that. Complex values are compared as points of the plane. Where a NaN stands counts, its
payload does not.
"""

from dataclasses import dataclass
from math import inf, log2, prod

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES, Kind
from hloipu_runtime.errors import UsageError
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.storage import to_bits, to_storage


@dataclass(frozen=True, slots=True)
class Budget:
    """Allowed distance of a result from XLA's; both allowances zero: equal.

    An element agrees when it is within `ulps` steps, or within
    `factor * log2(terms) * eps * magnitude`, where the magnitude is the sum of the absolute terms
    that make the element and eps is the result type's.
    """

    element_type: str
    ulps: float = 0.0
    factor: float = 0.0
    terms: int = 1
    """How many terms the longest sum has; fewer than two count as two."""
    signed_zero: bool = True
    """Whether the op defines the sign of a zero result."""
    subnormals_flushed: bool = False
    """Whether any two values below the smallest normal one agree (XLA:CPU flushes them)."""

    @property
    def exact(self) -> bool:
        """Whether results must be equal."""
        return self.ulps == 0 and self.factor == 0

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next value of the element type (of its parts, if complex)."""
        return float(2.0 ** -ELEMENT_TYPES[real_type(self.element_type)].mantissa_bits)

    @property
    def relative(self) -> float:
        """Factor from a magnitude to its bound."""
        return self.factor * log2(max(2, self.terms)) * self.epsilon

    def __str__(self) -> str:
        parts = []
        if self.ulps:
            parts.append(f"{self.ulps:g} ULP")
        if self.factor:
            parts.append(f"{self.factor:g} * log2({self.terms}) * eps * sum|terms|")
        return " or ".join(parts) or "exact"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of comparing one result: the worst element, and how far over budget it is."""

    agrees: bool
    elements: int
    disagreeing: int = 0
    index: tuple[int, ...] | None = None
    """Where the worst element stands; None where all are equal."""
    ours: object = None
    theirs: object = None
    error: float = 0.0
    """Steps between the two, or, where `unit` says so, multiples of the bound."""
    unit: str = "ULP"

    def __str__(self) -> str:
        if self.index is None:
            return f"all {self.elements} elements are equal"
        place = list(self.index)
        worst = f"at {place}: {self.ours} against {self.theirs}, {self.error:.3g} {self.unit} apart"
        if self.agrees:
            return f"within budget; worst {worst}"
        return f"{self.disagreeing} of {self.elements} elements differ; worst {worst}"


def real_type(element_type: str) -> str:
    """Return the type of a complex type's parts; other types are returned as they are."""
    return {"c64": "f32", "c128": "f64"}.get(element_type, element_type)


def compare_values(
    ours: Array, theirs: Array, budget: Budget, magnitudes: Array | None = None
) -> Verdict:
    """Compare two arrays of the budget's element type, each in the user's dtype or storage form.

    `magnitudes` (float64, broadcast to the results) are the sums of absolute terms; without them
    the larger of the two results stands in. Raises UsageError E3120 where shapes differ.
    """
    if ours.shape != theirs.shape:
        raise UsageError(
            "E3120",
            f"results of shapes {list(ours.shape)} and {list(theirs.shape)} cannot be compared",
            hint="compare results of one and the same instruction",
        )
    a = to_storage(ours, budget.element_type)
    b = to_storage(theirs, budget.element_type)
    with np.errstate(all="ignore"):
        bad, error, unit = _measure(a, b, budget, magnitudes)
    elements, count = prod(a.shape), int(np.count_nonzero(bad))
    if not elements or not error.any():
        return Verdict(True, elements)
    worst = int(np.argmax(np.where(bad, error, -1.0) if count else error))
    index = tuple(int(i) for i in np.unravel_index(worst, a.shape))
    return Verdict(
        not count, elements, count, index, a[index].item(), b[index].item(),
        float(error.flat[worst]), unit,
    )  # fmt: skip


def disagreements(
    ours: Array, theirs: Array, budget: Budget, magnitudes: Array | None = None
) -> Array:
    """Return which elements are over budget; arguments as for `compare_values`."""
    a = to_storage(ours, budget.element_type)
    b = to_storage(theirs, budget.element_type)
    with np.errstate(all="ignore"):
        return _measure(a, b, budget, magnitudes)[0]


def _measure(
    a: Array, b: Array, budget: Budget, magnitudes: Array | None
) -> tuple[Array, Array, str]:
    """Return (which elements disagree, how far each is apart, the unit of that)."""
    kind = ELEMENT_TYPES[budget.element_type].kind
    if kind in (Kind.PREDICATE, Kind.SIGNED, Kind.UNSIGNED):
        unequal = a != b
        apart = np.abs(a.astype(np.float64) - b.astype(np.float64)) if a.size else unequal
        return unequal, np.where(unequal, np.maximum(apart, 1.0), 0.0), "apart in value,"
    if kind is Kind.COMPLEX:
        steps = complex_steps(a, b, budget.element_type)
    else:
        steps = float_steps(a, b, budget.element_type, signed_zero=budget.signed_zero)
        if budget.subnormals_flushed:
            smallest = smallest_normal(budget.element_type)
            steps = np.where((np.abs(a) < smallest) & (np.abs(b) < smallest), 0.0, steps)
    bad = steps > budget.ulps
    if not budget.factor:
        return bad, steps, "ULP"
    apart = np.abs(a.astype(_wide(a)) - b.astype(_wide(b)))
    scale = np.maximum(np.abs(a.astype(_wide(a))), np.abs(b.astype(_wide(b))))
    if magnitudes is not None:
        scale = np.broadcast_to(magnitudes, a.shape)
    # Where the terms' sum overflows, the order of adding decides between finite, infinite and NaN.
    overflowing = scale >= largest_finite(budget.element_type)
    bound = budget.relative * scale + smallest_normal(budget.element_type)
    multiples = np.where(np.isfinite(apart), apart / bound, np.where(steps > 0, inf, 0.0))
    multiples = np.where(overflowing, 0.0, multiples)
    return bad & (multiples > 1), np.where(bad, multiples, 0.0), "of the bound"


def _wide(array: Array) -> type[np.complex128] | type[np.float64]:
    return np.complex128 if array.dtype.kind == "c" else np.float64


def float_steps(a: Array, b: Array, element_type: str, *, signed_zero: bool = True) -> Array:
    """Count the representable values between two arrays in storage form (float64 counts).

    A NaN against a number is infinitely far; two zeros of different sign are half a step apart
    where that counts.
    """
    left, right = _ordered(a, element_type), _ordered(b, element_type)
    same_side = (left < 0) == (right < 0)
    near = np.abs(np.where(same_side, left - right, 0)).astype(np.float64)
    far = np.abs(left.astype(np.float64)) + np.abs(right.astype(np.float64))
    steps = np.where(same_side, near, far)
    nans = np.isnan(a) | np.isnan(b)
    steps = np.where(nans, np.where(np.isnan(a) & np.isnan(b), 0.0, inf), steps)
    if signed_zero:
        zeros = (a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))
        steps = np.where(zeros, 0.5, steps)
    return np.asarray(steps)


def _ordered(array: Array, element_type: str) -> Array:
    """Return whole numbers that count representable values from zero, negative below it."""
    element = ELEMENT_TYPES[element_type]
    if element_type == "f8e8m0fnu":
        return to_bits(array, element_type).astype(np.int64)
    codes = to_bits(array, element_type).view(np.dtype(f"i{element.byte_width}")).astype(np.int64)
    magnitude = codes & np.int64((1 << (element.bits - 1)) - 1)
    return np.where(np.signbit(array), -magnitude, magnitude)


def complex_steps(a: Array, b: Array, element_type: str) -> Array:
    """Return the distance of two complex arrays in units of eps times the larger modulus.

    A pair that is infinite or NaN must be so in the same parts; infinite parts must have one sign.
    """
    apart = np.abs(a - b)
    scale = np.maximum(np.abs(a), np.abs(b)).astype(np.float64)
    epsilon = 2.0 ** -ELEMENT_TYPES[real_type(element_type)].mantissa_bits
    tiny = smallest_normal(real_type(element_type))
    steps = apart / (epsilon * np.maximum(scale, tiny))
    same = _same_part(a.real, b.real) & _same_part(a.imag, b.imag)
    steps = np.asarray(np.where(same, 0.0, np.where(np.isfinite(steps), steps, inf)))
    mixed = ~same & ~(np.isfinite(a) & np.isfinite(b))
    return np.asarray(np.where(mixed, _mixed_steps(a, b, element_type), steps))


def _same_part(a: Array, b: Array) -> Array:
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def _mixed_steps(a: Array, b: Array, element_type: str) -> Array:
    part = real_type(element_type)
    real = float_steps(np.ascontiguousarray(a.real), np.ascontiguousarray(b.real), part)
    imag = float_steps(np.ascontiguousarray(a.imag), np.ascontiguousarray(b.imag), part)
    return np.maximum(real, imag)


def smallest_normal(element_type: str) -> float:
    """Return the smallest normal positive value of a float or complex type."""
    name = real_type(element_type)
    exponent = -127 if name == "f8e8m0fnu" else 1 - _bias(name)
    return float(2.0**exponent)


def largest_finite(element_type: str) -> float:
    """Return a bound from which on sums of a type may overflow: a power of two below its largest.

    It is that of the second highest exponent, as the highest belongs to infinity in most formats.
    """
    name = real_type(element_type)
    return float(2.0 ** (2 ** ELEMENT_TYPES[name].exponent_bits - 2 - _bias(name)))


def _bias(name: str) -> int:
    """Return the exponent bias; that of the `fnuz` formats is one higher, b11 says its own."""
    if name == "f8e4m3b11fnuz":
        return 11
    return int(2 ** (ELEMENT_TYPES[name].exponent_bits - 1)) - 1 + name.endswith("fnuz")
