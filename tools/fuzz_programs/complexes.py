"""A family of operations on complex numbers."""

from hloipu_runtime.element_types import Kind
from tools.fuzz_programs.adjusting import TAME, arithmetic_facts, kind_of, tamed
from tools.fuzz_programs.builder import Body, Families
from tools.fuzz_programs.facts import (
    AnyFacts,
    Facts,
    Transfer,
    UntameError,
    added,
    hull,
    multiplied,
    negated,
    rounded,
)
from tools.fuzz_programs.values import Value, array_shape


def complex_operation(body: Body) -> Value:
    """Append an op on complex numbers, or one that makes them or takes them apart."""
    if body.rng.random() < 0.4:
        real = tamed(body, body.pick(lambda v: v.type in ("f32", "f64")))
        imaginary = tamed(body, body.pick_like(real))
        shape = array_shape({"f32": "c64", "f64": "c128"}[real.type], real.sizes)
        return body.add("complex", shape, [real, imaginary], hull)
    a = body.pick(lambda v: kind_of(v) is Kind.COMPLEX)
    part = array_shape({"c64": "f32", "c128": "f64"}[a.type], a.sizes)
    opcode = body.rng.choice("add subtract multiply negate real imag abs".split())
    if opcode in ("real", "imag"):
        return body.add(opcode, part, [a], lambda f: f)
    if opcode == "negate":
        return body.add(opcode, a.shape, [a], negated)
    if opcode == "abs":
        return body.add(opcode, part, [a], lambda f: modulus(a.type, f))
    b = body.pick_like(a)
    if max(a.known.magnitude, b.known.magnitude) > TAME:
        raise UntameError
    return body.add(opcode, a.shape, [a, b], complex_arithmetic(opcode, a.type))


def modulus(element_type: str, f: Facts) -> Facts:
    """Return the facts of a complex absolute value."""
    ideal = Facts(0, 1.5 * f.magnitude, 1.5 * f.error)
    return rounded(element_type, ideal, roundings=ROUNDINGS_COMPLEX)


ROUNDINGS_COMPLEX = 8.0
"""Steps allowed to each part of a complex product or modulus, of the largest modulus."""


def complex_arithmetic(opcode: str, element_type: str) -> Transfer:
    """Return the transfer of an addition, subtraction or multiplication of complex numbers."""

    def transfer(f: Facts, g: Facts) -> AnyFacts:
        if opcode != "multiply":
            return arithmetic_facts(opcode, element_type)(f, g)
        product = multiplied(f, g)
        parts = added(product, hull(product, negated(product)))
        scale = 2 * f.magnitude * g.magnitude
        wide = Facts(-scale, scale, parts.error, parts.grain)
        return rounded(element_type, wide, roundings=ROUNDINGS_COMPLEX)

    return transfer


FAMILIES: Families = {complex_operation: 3}
"""Family -> weight."""
