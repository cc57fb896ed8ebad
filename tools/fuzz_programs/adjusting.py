"""Bringing values where an operation needs them: tame, positive, whole, within bounds."""

import math
from dataclasses import replace

from hloipu_runtime.element_types import Kind
from tools.fuzz_programs.builder import Body
from tools.fuzz_programs.facts import (
    AnyFacts,
    Facts,
    Transfer,
    UntameError,
    added,
    full_range,
    multiplied,
    negated,
    rounded,
)
from tools.fuzz_programs.values import Value

TAME = 16.0
"""Floats beyond this are brought back before they are used much further."""


def kind_of(value: Value) -> Kind:
    """Return the kind of an array's elements."""
    return value.array.element_type.kind


def is_float(value: Value) -> bool:
    """Whether a value is a real float array of 16 bits and more."""
    return kind_of(value) is Kind.FLOAT and value.array.element_type.bits >= 16


def is_integer(value: Value) -> bool:
    """Whether a value is an integer array of 8 bits and more."""
    return value.array.element_type.is_integer and value.array.element_type.bits >= 8


def is_number(value: Value) -> bool:
    """Whether a value is a float or integer array."""
    return is_float(value) or is_integer(value)


def is_exact(value: Value) -> bool:
    """Whether decisions may depend on a value."""
    return value.known.exact and kind_of(value) is not Kind.COMPLEX


def clamped(body: Body, value: Value, low: float, high: float) -> Value:
    """Append a clamp to an interval."""
    bounds = [body.scalar(value.type, low), body.scalar(value.type, high)]
    if body.rng.random() < 0.2 and value.sizes:
        bounds = [body.broadcast(b, value.sizes, ()) for b in bounds]

    def transfer(a: Facts, x: Facts, b: Facts) -> Facts:
        low, high = (min(max(v, a.low), b.high) for v in (x.low, x.high))
        inside = Facts(low, high, x.error)
        return replace(inside, grain=min(f.grain for f in (a, x, b)))

    return body.add("clamp", value.shape, [bounds[0], value, bounds[1]], transfer)


def tamed(body: Body, value: Value, bound: float = TAME) -> Value:
    """Bring a float back into ±bound: by a clamp, a power of two, or a floor of that."""
    facts = value.known
    if facts.magnitude <= bound:
        return value
    if body.rng.random() < 0.6:
        return clamped(body, value, -bound, bound)
    scale = body.filled(
        value.type, value.sizes, 2.0 ** -math.ceil(math.log2(facts.magnitude / bound))
    )
    scaled = arithmetic(body, "multiply", value, scale)
    return floored(body, scaled) if scaled.known.exact and body.rng.random() < 0.5 else scaled


def positive(body: Body, value: Value) -> Value:
    """Return a float array of at least 1/4 made from another."""
    if value.known.low - value.known.error >= 0.25:
        return value
    value = tamed(body, value)
    size = body.add("abs", value.shape, [value], absolute)
    return arithmetic(body, "add", size, body.filled(value.type, value.sizes, 0.5))


def small_integer(body: Body, value: Value, low: int, high: int) -> Value:
    """Return an integer array within bounds made from another."""
    facts = value.known
    if low <= facts.low and facts.high <= high:
        return value
    return clamped(body, value, max(low, full_range(value.type).low), high)


def floored(body: Body, value: Value, opcode: str = "floor") -> Value:
    """Append a rounding to whole numbers of an exact value."""

    def transfer(x: Facts) -> Facts:
        if not x.exact:
            raise UntameError
        return Facts(math.floor(x.low), math.ceil(x.high), 0, max(1.0, x.grain))

    return body.add(opcode, value.shape, [value], transfer)


def absolute(x: Facts) -> Facts:
    """Return the facts of an absolute value."""
    low = 0.0 if x.low <= 0 <= x.high else min(abs(x.low), abs(x.high))
    return Facts(low, x.magnitude, x.error, x.grain)


def arithmetic(body: Body, opcode: str, a: Value, b: Value) -> Value:
    """Append an addition, subtraction or multiplication."""
    return body.add(opcode, a.shape, [a, b], arithmetic_facts(opcode, a.type))


def arithmetic_facts(opcode: str, element_type: str) -> Transfer:
    """Return the transfer of an addition, subtraction or multiplication of reals."""

    def transfer(a: Facts, b: Facts) -> AnyFacts:
        if opcode == "multiply":
            return rounded(element_type, multiplied(a, b))
        ideal = added(a, negated(b) if opcode == "subtract" else b)
        return rounded(element_type, ideal, terms=a.magnitude + b.magnitude)

    return transfer


def full_range_is_unsigned(value: Value) -> bool:
    """Whether an array holds no negative numbers by its type."""
    return kind_of(value) is Kind.UNSIGNED
