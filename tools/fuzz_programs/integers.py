"""Families of operations on integers and predicates: arithmetic, bits, comparisons, choices."""

from hloipu_runtime.element_types import Kind
from tools.fuzz_programs.adjusting import (
    arithmetic,
    clamped,
    full_range_is_unsigned,
    is_exact,
    is_integer,
    is_number,
    kind_of,
    small_integer,
)
from tools.fuzz_programs.builder import Body, Families
from tools.fuzz_programs.facts import PREDICATE, Facts, UntameError, full_range, hull
from tools.fuzz_programs.values import Value, array_shape

INTEGER_BINARY = (
    "add subtract multiply divide remainder maximum minimum and or xor shift-left "
    "shift-right-arithmetic shift-right-logical"
).split()


def integer_operation(body: Body) -> Value:
    """Append an integer op; all are defined everywhere, and wrap."""
    a = body.pick(is_integer)
    element_type = a.type
    whole = full_range(element_type)
    if body.rng.random() < 0.2:
        # XLA's constant folding counts the zeros of a negative s8, s16 or s32 as of its 64 bits.
        counted = kind_of(a) is Kind.UNSIGNED
        opcode = body.rng.choice("not popcnt count-leading-zeros".split()[: 2 + counted])
        bits = Facts(0, a.array.element_type.bits, 0, 1)
        return body.add(opcode, a.shape, [a], lambda f: whole if opcode == "not" else bits)
    opcode = body.rng.choice(INTEGER_BINARY)
    b = body.pick_like(a)
    if opcode in ("add", "subtract", "multiply"):
        return arithmetic(body, opcode, a, b)
    if opcode in ("divide", "remainder") and not (body.is_entry and b.opcode == "parameter"):
        # StableHLO's folding ends the process where it divides a constant by a constant zero.
        one = body.filled(b.type, b.sizes, 1)
        b = body.add("or", b.shape, [b, one], lambda f, g: whole)
    return body.add(opcode, a.shape, [a, b], lambda f, g: whole)


def integer_power(body: Body) -> Value:
    """Append an integer power of a small exponent."""
    a = body.pick(is_integer)
    exponent = small_integer(body, body.pick_like(a), 0, 7)
    return body.add("power", a.shape, [a, exponent], lambda f, g: full_range(a.type))


def packed_operation(body: Body) -> Value:
    """Append an op on four-bit integers or eight-bit floats."""

    def is_packed(v: Value) -> bool:
        return v.type in ("s4", "u4") or (
            kind_of(v) is Kind.FLOAT and v.array.element_type.bits <= 8
        )

    a = body.pick(is_packed)
    b = body.pick_like(a)
    opcode = body.rng.choice("add subtract multiply".split())
    return arithmetic(body, opcode, a, b)


def predicate_operation(body: Body) -> Value:
    """Append and, or, xor, not of predicates."""
    a = body.pick(lambda v: v.type == "pred")
    if body.rng.random() < 0.25:
        return body.add("not", a.shape, [a], lambda f: PREDICATE)
    opcode = body.rng.choice("and or xor".split())
    return body.add(opcode, a.shape, [a, body.pick_like(a)], lambda f, g: PREDICATE)


def decided(f: Facts, g: Facts) -> Facts:
    """Return a predicate's facts; refuses operands with an error."""
    if not (f.exact and g.exact):
        raise UntameError
    return PREDICATE


def comparison(body: Body) -> Value:
    """Append a comparison of exact values."""
    a = body.pick(is_exact)
    b = body.pick_like(a, is_exact)
    direction = body.rng.choice("EQ NE LT LE GT GE".split())
    shape = array_shape("pred", a.sizes)
    return body.add("compare", shape, [a, b], decided, f"direction={direction}")


def selection(body: Body) -> Value:
    """Append a select by a whole array of predicates or by one."""
    a = body.pick()
    b = body.pick_like(a)
    sizes = a.sizes
    wanted = array_shape("pred", sizes), array_shape("pred", ())
    predicates = [v for v in body.arrays() if v.array in wanted]
    predicate = body.rng.choice(predicates) if predicates else body.fresh("pred", sizes)
    return body.add("select", a.shape, [predicate, a, b], lambda p, f, g: hull(f, g))


def clamping(body: Body) -> Value:
    """Append a clamp of numbers to a drawn interval."""
    value = body.pick(is_number)
    low, high = sorted(body.rng.sample(range(0, 9), 2))
    shift = 0 if full_range_is_unsigned(value) else 4
    return clamped(body, value, low - shift, high - shift)


FAMILIES: Families = {
    integer_operation: 8,
    integer_power: 1,
    packed_operation: 2,
    predicate_operation: 2,
    comparison: 5,
    selection: 5,
    clamping: 2,
}
"""Family -> weight."""
