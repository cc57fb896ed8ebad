"""Computations that combine two scalars, in several spellings, and what combining does."""

from math import prod

from hloipu_runtime.element_types import Kind
from tools.fuzz_programs.adjusting import is_float, is_integer, kind_of
from tools.fuzz_programs.builder import Body
from tools.fuzz_programs.facts import (
    AnyFacts,
    Facts,
    Transfer,
    UntameError,
    full_range,
    hull,
    repeated,
    rounded,
)
from tools.fuzz_programs.values import Value, array_shape


def combiner_region(body: Body, opcode: str, element_type: str) -> str:
    """Write a computation of two scalars that computes an opcode, in one of several ways."""
    region = Body(body.draft, f"combine_{opcode}")
    shape = array_shape(element_type, ())
    facts = Facts(0, 0, 0, 1)
    a, b = (region.parameter(shape, facts) for _ in range(2))

    def plain(name: str, x: Value, y: Value) -> Value:
        return region.add(name, shape, [x, y], lambda *_: facts)

    def negate(x: Value) -> Value:
        return region.add("negate", shape, [x], lambda _: facts)

    draw = body.rng.random()
    if body.rng.random() < 0.4:
        a, b = b, a
    signed = kind_of(a) in (Kind.FLOAT, Kind.SIGNED) and element_type not in ("s4",)
    floating = kind_of(a) is Kind.FLOAT
    if opcode in ("maximum", "minimum") and element_type != "pred" and draw < 0.3:
        direction = "GE" if opcode == "maximum" else "LE"
        flag = region.add(
            "compare", array_shape("pred", ()), [a, b], lambda *_: facts, f"direction={direction}"
        )
        root = region.add("select", shape, [flag, a, b], lambda *_: facts)
    elif opcode in ("maximum", "minimum") and floating and draw < 0.45:
        other = "minimum" if opcode == "maximum" else "maximum"
        root = negate(plain(other, negate(a), negate(b)))
    elif opcode == "add" and signed and draw < 0.25:
        root = plain("subtract", a, negate(b))
    elif 0.3 < draw < 0.36:
        inner = Body(body.draft, "inner")
        x, y = (inner.parameter(shape, facts) for _ in range(2))
        inner.root(inner.add(opcode, shape, [x, y], lambda *_: facts))
        root = region.add("call", shape, [a, b], lambda *_: facts, f"to_apply={inner.name}")
    else:
        root = plain(opcode, a, b)
    region.root(root)
    return region.name


def combining(opcode: str, element_type: str, count: int, *, padded: bool = False) -> Transfer:
    """Return the transfer of combining `count` elements and an initial value.

    With `padded`, there may be fewer elements, even none.
    """

    def transfer(f: Facts, start: Facts) -> AnyFacts:
        if opcode == "add":
            terms = repeated(f, count)
            total = Facts(
                min(0, terms.low) + start.low, max(0, terms.high) + start.high,
                terms.error + start.error, min(f.grain, start.grain),
            )  # fmt: skip
            scale = count * f.magnitude + start.magnitude
            return rounded(element_type, total, roundings=2 + count, terms=scale)
        if opcode in ("maximum", "minimum"):
            return f if count and not padded else hull(f, start)
        return full_range(element_type)

    return transfer


def reducible(body: Body, *, most: int = 600) -> tuple[Value, str]:
    """Choose an operand to reduce, and an opcode."""
    value = body.pick(lambda v: prod(v.sizes) <= most and v.type not in ("s4", "u4"))
    kind = kind_of(value)
    if kind is Kind.PREDICATE:
        return value, body.rng.choice(("and", "or"))
    if kind is Kind.COMPLEX:
        return value, "add"
    if kind is Kind.FLOAT:
        if not is_float(value):
            raise UntameError
        return value, body.rng.choice("add add maximum minimum".split())
    return value, body.rng.choice("add multiply maximum minimum and or xor".split())


def initial(body: Body, opcode: str, like: Value) -> Value:
    """Make the identity of a monoid: XLA applies any other initial value when it pleases."""
    name = like.type
    if opcode in ("maximum", "minimum"):
        return lowest(body, like) if opcode == "maximum" else highest(body, like)
    if opcode == "and":
        if name == "pred":
            return body.scalar(name, 1)
        zero = body.scalar(name, 0)
        return body.add("not", zero.shape, [zero], lambda _: full_range(name))
    return body.scalar(name, 1 if opcode == "multiply" else 0)


EXTREME = 64.0
"""Beyond all tame floats."""


def lowest(body: Body, like: Value) -> Value:
    """Make a scalar that is not greater than any element of an array."""
    whole = full_range(like.type) if is_integer(like) else None
    if whole is None and like.known.low - like.known.error < -EXTREME:
        raise UntameError
    if whole is None:
        return body.scalar(like.type, -EXTREME)
    shape, text = array_shape(like.type, ()), str(int(whole.low))
    return body.add("constant", shape, [], lambda: whole, inside=text)


def highest(body: Body, like: Value) -> Value:
    """Make a scalar that is not less than any element of an array."""
    whole = full_range(like.type) if is_integer(like) else None
    if whole is None and like.known.high + like.known.error > EXTREME:
        raise UntameError
    if whole is None:
        return body.scalar(like.type, EXTREME)
    text = str(2 ** (like.array.element_type.bits - (whole.low < 0)) - 1)
    return body.add("constant", array_shape(like.type, ()), [], lambda: whole, inside=text)
