"""Families of conversions between types, and of their bits."""

import math
from dataclasses import replace

from hloipu_runtime.element_types import ELEMENT_TYPES, Kind
from tools.fuzz_programs.adjusting import (
    clamped,
    is_exact,
    is_float,
    is_integer,
    kind_of,
    small_integer,
    tamed,
)
from tools.fuzz_programs.builder import Body, Families
from tools.fuzz_programs.facts import (
    PREDICATE,
    Facts,
    UntameError,
    full_range,
    hull,
    limit,
    represents,
    rounded,
)
from tools.fuzz_programs.values import Value, array_shape, drawn_facts

INTEGERS = "s8 s16 s32 s64 u8 u16 u32 u64 s32 u32".split()

FLOATS = "f32 f32 f64 f16 bf16".split()

NARROW = "f8e4m3fn f8e5m2 s4 u4".split()

COMPLEX = "c64 c128".split()


def converted(body: Body, value: Value, element_type: str) -> Value:
    """Append a conversion, after whatever makes it defined and reproducible."""
    target = ELEMENT_TYPES[element_type]
    source = value.array.element_type
    if source.is_complex and not target.is_complex:
        raise UntameError
    if (source.is_float or source.is_complex) and target.is_integer:
        bound = min(96.0, full_range(element_type).high)
        value = clamped(body, value, 0 if full_range(element_type).low == 0 else -bound, bound)
    if source.is_integer and (target.is_float or target.is_complex):
        value = small_integer(body, value, -8, 8 if target.bits > 8 else 3)
    if target.is_float and source.is_float and value.known.magnitude >= limit(element_type):
        value = tamed(body, value, 4)

    def transfer(f: Facts) -> Facts:
        if target.is_complex and not source.is_complex:
            f = hull(f, Facts(0, 0, 0, f.grain))
        if target.is_float or target.is_complex:
            return rounded(element_type, f)
        if not f.exact:
            raise UntameError
        if target.kind is Kind.PREDICATE:
            return PREDICATE
        # Towards zero, so that the grain becomes 1; integers wrap.
        whole = replace(f, low=math.trunc(f.low), high=math.trunc(f.high), grain=max(1.0, f.grain))
        return whole if represents(element_type, whole) else full_range(element_type)

    return body.add("convert", array_shape(element_type, value.sizes), [value], transfer)


def conversion(body: Body) -> Value:
    """Append one to three conversions in a row."""
    value = body.pick()
    for _ in range(body.rng.choice((1, 1, 2, 3))):
        names = [*FLOATS, *INTEGERS, *NARROW, "pred"]
        if kind_of(value) in (Kind.FLOAT, Kind.COMPLEX):
            names += COMPLEX
        value = converted(body, value, body.rng.choice(names))
    return value


def bit_conversion(body: Body) -> Value:
    """Append a bitcast-convert of integers, or of exact floats that cannot be a negative zero."""

    def has_bits(v: Value) -> bool:
        return is_integer(v) or (is_float(v) and is_exact(v) and v.known.low > 0)

    value = body.pick(has_bits)
    bits = value.array.element_type.bits
    to = body.rng.choice([w for w in (8, 16, 32, 64) if w <= bits])
    name = f"{body.rng.choice('su')}{to}"
    sizes = value.sizes if to == bits else (*value.sizes, bits // to)
    shape = array_shape(name, sizes)
    return body.add("bitcast-convert", shape, [value], lambda f: full_range(name))


def new_array(body: Body) -> Value:
    """Make an array of a drawn type, of the shape of another."""
    sizes = body.pick().sizes
    name = body.rng.choice([*FLOATS, *INTEGERS, *NARROW, "pred", *COMPLEX])
    return body.fresh(name, sizes, drawn_facts(body.rng, name))


FAMILIES: Families = {conversion: 6, bit_conversion: 2, new_array: 3}
"""Family -> weight."""
