"""Families of elementwise operations: floats, integers, predicates, complex numbers, conversions."""

import math
from collections.abc import Callable
from dataclasses import replace

from hloipu_runtime.element_types import ELEMENT_TYPES, Kind
from tools.fuzz_programs.builder import Body, Value, array_shape, drawn_facts
from tools.fuzz_programs.facts import (
    PREDICATE,
    AnyFacts,
    Facts,
    Transfer,
    UntameError,
    added,
    full_range,
    hull,
    limit,
    multiplied,
    negated,
    of_function,
    represents,
    rounded,
)

INTEGERS = "s8 s16 s32 s64 u8 u16 u32 u64 s32 u32".split()
FLOATS = "f32 f32 f64 f16 bf16".split()
NARROW = "f8e4m3fn f8e5m2 s4 u4".split()
COMPLEX = "c64 c128".split()
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
        inside = Facts(*(min(max(v, a.low), b.high) for v in (x.low, x.high)), x.error)
        return replace(inside, grain=min(f.grain for f in (a, x, b)))

    return body.add("clamp", value.shape, [bounds[0], value, bounds[1]], transfer)


def tamed(body: Body, value: Value, bound: float = TAME) -> Value:
    """Bring a float back into ±bound: by a clamp, a power of two, or a floor of that."""
    facts = value.known
    if facts.magnitude <= bound:
        return value
    if body.rng.random() < 0.6:
        return clamped(body, value, -bound, bound)
    scale = body.filled(value.type, value.sizes, 2.0 ** -math.ceil(math.log2(facts.magnitude / bound)))
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


# ---- floats -----------------------------------------------------------------------------------
Bounds = tuple[float, float, float]
"""Least and greatest value, and a bound of the derivative."""

FUNCTIONS: dict[str, tuple[str, Callable[[float, float], Bounds]]] = {
    "tanh": ("any", lambda a, b: (-1, 1, 1)),
    "logistic": ("any", lambda a, b: (0, 1, 0.25)),
    "sine": ("any", lambda a, b: (-1, 1, 1)),
    "cosine": ("any", lambda a, b: (-1, 1, 1)),
    "erf": ("any", lambda a, b: (-1, 1, 1.2)),
    "exponential": ("small", lambda a, b: (math.exp(a), math.exp(b), math.exp(b))),
    "exponential-minus-one": ("small", lambda a, b: (math.expm1(a), math.expm1(b), math.exp(b))),
    "tan": ("unit", lambda a, b: (math.tan(a), math.tan(b), 4)),
    "log": ("positive", lambda a, b: (math.log(a), math.log(b), 1 / a)),
    "log-plus-one": ("positive", lambda a, b: (math.log1p(a), math.log1p(b), 1)),
    "sqrt": ("positive", lambda a, b: (math.sqrt(a), math.sqrt(b), 0.5 / math.sqrt(a))),
    "rsqrt": ("positive", lambda a, b: (b**-0.5, a**-0.5, 0.5 * a**-1.5)),
    "cbrt": ("positive", lambda a, b: (math.cbrt(a), math.cbrt(b), a ** (-2 / 3))),
}  # fmt: skip
"""Opcode -> what its operand must be, and its bounds over an interval."""


def function_of_float(body: Body) -> Value:
    """Append a function that no rule of IEEE 754 rounds, its operand brought into its domain."""
    opcode = body.rng.choice(list(FUNCTIONS))
    domain, bounds = FUNCTIONS[opcode]
    x = body.pick(is_float)
    if domain == "positive":
        x = positive(body, x)
    else:
        x = tamed(body, x, {"any": 32, "small": 3, "unit": 1}[domain])
    element_type = x.type

    def transfer(f: Facts) -> Facts:
        if domain == "positive" and f.low - f.error < 0.05:
            raise UntameError
        low, high, slope = bounds(f.low - f.error, f.high + f.error)
        return of_function(opcode, element_type, low, high, f.error * slope)

    return body.add(opcode, x.shape, [x], transfer)


def power_or_atan2(body: Body) -> Value:
    """Append x**y of a positive x, or atan2(y, x) of one."""
    x = positive(body, tamed(body, body.pick(is_float), 3))
    y = tamed(body, body.pick_like(x), 3)
    element_type = x.type

    def power(f: Facts, g: Facts) -> Facts:
        if f.low - f.error < 0.05:
            raise UntameError
        corners = [a**b for a in (f.low, f.high) for b in (g.low, g.high)]
        top, base = max(corners), f.low - f.error
        slope = g.magnitude / base, max(abs(math.log(base)), abs(math.log(f.high + f.error)))
        error = 1.1 * top * (f.error * slope[0] + g.error * slope[1])
        # The budget in steps holds for exact operands; log's rounding grows with the exponent.
        return rounded(element_type, Facts(min(corners), top, error), roundings=8)

    def atan2(g: Facts, f: Facts) -> Facts:
        if f.low - f.error < 0.05:
            raise UntameError
        error = (f.error + g.error) / (f.low - f.error)
        return of_function("atan2", element_type, -math.pi / 2, math.pi / 2, error)

    if body.rng.random() < 0.5:
        return body.add("power", x.shape, [x, y], power)
    return body.add("atan2", x.shape, [y, x], atan2)


def float_arithmetic(body: Body) -> Value:
    """Append +, -, *, / of floats, brought back where the result is large."""
    a = tamed(body, body.pick(is_float))
    b = tamed(body, body.pick_like(a))
    opcode = body.rng.choice("add subtract multiply multiply divide".split())
    if opcode != "divide":
        return tamed(body, arithmetic(body, opcode, a, b))
    b, element_type = positive(body, b), a.type

    def divide(f: Facts, g: Facts) -> Facts:
        least = g.low - g.error
        if least < 0.05:
            raise UntameError
        corners = [x / y for x in (f.low, f.high) for y in (least, g.high)]
        error = f.error / least + f.magnitude * g.error / least**2
        return rounded(element_type, Facts(min(corners), max(corners), error))

    return tamed(body, body.add("divide", a.shape, [a, b], divide))


def extremum(body: Body) -> Value:
    """Append a maximum, minimum, abs or negate of floats or integers."""
    a = body.pick(is_number)
    opcodes = "maximum minimum negate abs sign".split()
    opcode = body.rng.choice(opcodes[:3] if kind_of(a) is Kind.UNSIGNED else opcodes)
    whole = full_range(a.type) if is_integer(a) else None
    if opcode in ("maximum", "minimum"):
        chosen = max if opcode == "maximum" else min

        def transfer(f: Facts, g: Facts) -> Facts:
            both = hull(f, g)
            return replace(both, low=chosen(f.low, g.low), high=chosen(f.high, g.high))

        return body.add(opcode, a.shape, [a, body.pick_like(a)], transfer)
    if opcode == "sign":

        def sign(f: Facts) -> Facts:
            if not f.exact:
                raise UntameError
            return Facts(-1, 1, 0, 1)

        return body.add(opcode, a.shape, [a], sign)
    if whole is not None:
        if whole.low in (a.known.low, 0):
            return body.add(opcode, a.shape, [a], lambda f: whole)
    return body.add(opcode, a.shape, [a], absolute if opcode == "abs" else negated)


def float_rounding(body: Body) -> Value:
    """Append a rounding to whole numbers, of an exact float."""
    opcodes = "floor ceil round-nearest-afz round-nearest-even".split()
    return floored(body, body.pick(lambda v: is_float(v) and is_exact(v)), body.rng.choice(opcodes))


def float_remainder(body: Body) -> Value:
    """Append the remainder of exact floats: it is exact."""
    a = tamed(body, body.pick(lambda v: is_float(v) and is_exact(v)))
    b = positive(body, body.pick_like(a, is_exact))

    def transfer(f: Facts, g: Facts) -> Facts:
        if not (f.exact and g.exact and f.grain and g.grain):
            raise UntameError
        return Facts(min(0.0, f.low), max(0.0, f.high), 0, min(f.grain, g.grain))

    return body.add("remainder", a.shape, [a, b], transfer)


def precision(body: Body) -> Value:
    """Append a reduce-precision, or is-finite."""
    x = body.pick(is_float)
    if body.rng.random() < 0.2:
        shape = array_shape("pred", x.sizes)
        return body.add("is-finite", shape, [x], lambda f: Facts(1, 1, 0, 1))
    name = body.rng.choice("f16 bf16 f8e5m2".split())
    element, own = ELEMENT_TYPES[name], x.type
    if element.mantissa_bits > x.array.element_type.mantissa_bits:
        raise UntameError
    x = tamed(body, x)
    bits = f"exponent_bits={element.exponent_bits}, mantissa_bits={element.mantissa_bits}"

    def transfer(f: Facts) -> Facts:
        reduced = rounded(name, f)
        return reduced if reduced.exact or own == name else rounded(own, reduced)

    return body.add("reduce-precision", x.shape, [x], transfer, bits)


# ---- integers and predicates ------------------------------------------------------------------
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
        opcode = body.rng.choice("not popcnt count-leading-zeros".split())
        bits = Facts(0, a.array.element_type.bits, 0, 1)
        return body.add(opcode, a.shape, [a], lambda f: whole if opcode == "not" else bits)
    opcode = body.rng.choice(INTEGER_BINARY)
    b = body.pick_like(a)
    if opcode in ("add", "subtract", "multiply"):
        return arithmetic(body, opcode, a, b)
    return body.add(opcode, a.shape, [a, b], lambda f, g: whole)


def integer_power(body: Body) -> Value:
    """Append an integer power of a small exponent."""
    a = body.pick(is_integer)
    exponent = small_integer(body, body.pick_like(a), 0, 7)
    return body.add("power", a.shape, [a, exponent], lambda f, g: full_range(a.type))


def packed_operation(body: Body) -> Value:
    """Append an op on four-bit integers or eight-bit floats."""
    a = body.pick(lambda v: v.array.element_type.bits <= 8 and kind_of(v) is Kind.FLOAT
                  or v.type in ("s4", "u4"))  # fmt: skip
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
    found = [v for v in body.arrays() if v.array in wanted]
    predicate = body.rng.choice(found) if found else body.fresh("pred", sizes)
    return body.add("select", a.shape, [predicate, a, b], lambda p, f, g: hull(f, g))


def clamping(body: Body) -> Value:
    """Append a clamp of numbers to a drawn interval."""
    value = body.pick(is_number)
    low, high = sorted(body.rng.sample(range(0, 9), 2))
    shift = 0 if full_range_is_unsigned(value) else 4
    return clamped(body, value, low - shift, high - shift)


def full_range_is_unsigned(value: Value) -> bool:
    """Whether an array holds no negative numbers by its type."""
    return kind_of(value) is Kind.UNSIGNED


# ---- complex ----------------------------------------------------------------------------------
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


# ---- conversions ------------------------------------------------------------------------------
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


FAMILIES = {
    function_of_float: 8, power_or_atan2: 2, float_arithmetic: 10, extremum: 5, float_rounding: 2,
    float_remainder: 1, precision: 1, integer_operation: 8, integer_power: 1, packed_operation: 2,
    predicate_operation: 2, comparison: 5, selection: 5, clamping: 2, complex_operation: 3,
    conversion: 6, bit_conversion: 2, new_array: 3,
}  # fmt: skip
"""Family -> weight."""
