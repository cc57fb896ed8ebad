"""What is known of an array before it is computed: an interval, a grain, a bound on its error.

Interval arithmetic keeps values tame. The error bounds the difference of two right evaluations of
the same instruction, by first-order propagation through the operations' derivatives. A value
without error is a multiple of its grain that its type represents: sums and products of such values
are exact in any order, so that what is derived from them may be compared, sorted and floored.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from hloipu_compiler.interpret.agreement import largest_finite, smallest_normal
from hloipu_compiler.interpret.budgets import ulps_of
from hloipu_runtime.element_types import ELEMENT_TYPES, Kind

ROUNDINGS = 2.0
"""Steps of the result type allowed to any inexact float op: excess precision, contracted products.

XLA:CPU keeps narrow intermediates in f32 and contracts a*b+c, and rewrites x/c and (x*a)*b.
"""
POOREST = 2.0**-4
"""A value whose error is more of its magnitude than this says nothing and is not used further."""


class UntameError(Exception):
    """An operation on these operands would leave the range where a difference means a bug."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Bounds that hold for every element (for both parts of complex elements)."""

    low: float
    high: float
    error: float = 0.0
    grain: float = 0.0
    """All elements are whole multiples of it; 0 where that is not known."""

    @property
    def exact(self) -> bool:
        """Whether every right evaluation gives equal values."""
        return self.error == 0

    @property
    def magnitude(self) -> float:
        """Bound of the absolute values."""
        return max(abs(self.low), abs(self.high))

    @property
    def poor(self) -> bool:
        """Whether the error drowns the value."""
        return self.error > POOREST * self.magnitude

    def covers(self, other: "Facts") -> bool:
        """Whether what holds under these facts holds for a value with the other facts."""
        whole = self.grain == 0 or (other.grain > 0 and other.grain % self.grain == 0)
        inside = self.low <= other.low and other.high <= self.high
        return inside and whole and other.error <= self.error


AnyFacts = Facts | tuple["AnyFacts", ...]
Transfer = Callable[..., AnyFacts]
"""From the operands' facts to the result's; raises UntameError."""

PREDICATE = Facts(0, 1, 0, 1)


def full_range(element_type: str) -> Facts:
    """Return the facts of an integer or predicate of which nothing is known."""
    element = ELEMENT_TYPES[element_type]
    if element.kind is Kind.PREDICATE:
        return PREDICATE
    if element.kind is Kind.SIGNED:
        return Facts(-(2.0 ** (element.bits - 1)), 2.0 ** (element.bits - 1) - 1, 0, 1)
    return Facts(0, 2.0**element.bits - 1, 0, 1)


def epsilon(element_type: str) -> float:
    """Return the distance from 1 to the next value of a float or complex type."""
    real = {"c64": "f32", "c128": "f64"}.get(element_type, element_type)
    return float(2.0 ** -ELEMENT_TYPES[real].mantissa_bits)


def limit(element_type: str) -> float:
    """Return the magnitude that values of a float type are kept below."""
    return min(2.0**20, largest_finite(element_type) / 4)


def represents(element_type: str, facts: Facts) -> bool:
    """Whether every multiple of the grain within the interval is a value of a type."""
    element = ELEMENT_TYPES[element_type]
    if not (element.is_float or element.is_complex):
        whole = full_range(element_type)
        return facts.grain >= 1 and whole.low <= facts.low and facts.high <= whole.high
    return (
        facts.grain >= smallest_normal(element_type)
        and facts.magnitude * epsilon(element_type) <= 2 * facts.grain
        and facts.magnitude < largest_finite(element_type)
    )


def rounded(
    element_type: str, ideal: Facts, *, roundings: float = ROUNDINGS, terms: float | None = None
) -> Facts:
    """Return the facts of an ideal result once it is rounded to a type.

    `terms` bounds the sum of absolute values on the way; the result's magnitude where it is absent.
    """
    element = ELEMENT_TYPES[element_type]
    if not (element.is_float or element.is_complex):
        whole = full_range(element_type)
        return ideal if whole.low <= ideal.low and ideal.high <= whole.high else whole
    scale = ideal.magnitude if terms is None else terms
    if scale > limit(element_type):
        raise UntameError
    if ideal.exact and represents(element_type, replace(ideal, low=-scale, high=scale)):
        return ideal
    error = ideal.error + roundings * epsilon(element_type) * max(
        scale, smallest_normal(element_type)
    )
    return Facts(ideal.low, ideal.high, error)


def of_function(opcode: str, element_type: str, low: float, high: float, error: float) -> Facts:
    """Return the facts of an op that no rule of IEEE 754 rounds, from its ideal bounds."""
    steps = ROUNDINGS + ulps_of(opcode, element_type)
    return rounded(element_type, Facts(low, high, error), roundings=steps)


def hull(*all_facts: Facts) -> Facts:
    """Return what holds for a value that is one of several."""
    return Facts(
        min(f.low for f in all_facts),
        max(f.high for f in all_facts),
        max(f.error for f in all_facts),
        min(f.grain for f in all_facts),
    )


def widened(facts: AnyFacts, other: AnyFacts) -> AnyFacts:
    """Return the hull, leaf by leaf."""
    if isinstance(facts, Facts):
        assert isinstance(other, Facts)
        return hull(facts, other)
    assert isinstance(other, tuple)
    return tuple(widened(a, b) for a, b in zip(facts, other, strict=True))


def added(a: Facts, b: Facts) -> Facts:
    """Return the ideal facts of a sum."""
    return Facts(a.low + b.low, a.high + b.high, a.error + b.error, min(a.grain, b.grain))


def negated(a: Facts) -> Facts:
    """Return the facts of a negation of a float."""
    return Facts(-a.high, -a.low, a.error, a.grain)


def multiplied(a: Facts, b: Facts) -> Facts:
    """Return the ideal facts of a product."""
    corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    error = a.magnitude * b.error + b.magnitude * a.error + a.error * b.error
    return Facts(min(corners), max(corners), error, a.grain * b.grain)


def repeated(a: Facts, count: int) -> Facts:
    """Return the ideal facts of a sum of `count` such terms."""
    if count == 0:
        return Facts(0, 0, 0, a.grain or 1)
    return Facts(a.low * count, a.high * count, a.error * count, a.grain)
