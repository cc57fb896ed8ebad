"""Families of operations on floats: functions, arithmetic, roundings."""

import math
from collections.abc import Callable
from dataclasses import replace

from hloipu_runtime.element_types import ELEMENT_TYPES, Kind
from tools.fuzz_programs.adjusting import (
    absolute,
    arithmetic,
    floored,
    is_exact,
    is_float,
    is_integer,
    is_number,
    kind_of,
    positive,
    small_integer,
    tamed,
)
from tools.fuzz_programs.builder import Body, Families
from tools.fuzz_programs.facts import (
    Facts,
    UntameError,
    full_range,
    hull,
    negated,
    of_function,
    rounded,
)
from tools.fuzz_programs.values import Value, array_shape

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
    value = body.pick(is_float)
    if domain == "positive":
        value = positive(body, value)
    else:
        value = tamed(body, value, {"any": 32, "small": 3, "unit": 1}[domain])
    element_type = value.type

    def transfer(f: Facts) -> Facts:
        if domain == "positive" and f.low - f.error < 0.05:
            raise UntameError
        low, high, slope = bounds(f.low - f.error, f.high + f.error)
        return of_function(opcode, element_type, low, high, f.error * slope)

    return body.add(opcode, value.shape, [value], transfer)


def power_or_atan2(body: Body) -> Value:
    """Append x**y of a positive x, or atan2(y, x) of one."""
    value = positive(body, tamed(body, body.pick(is_float), 3))
    y = tamed(body, body.pick_like(value), 3)
    element_type = value.type

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
        return body.add("power", value.shape, [value, y], power)
    return body.add("atan2", value.shape, [y, value], atan2)


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
    if whole is not None and opcode == "abs":
        # XLA takes |x*x| for x*x, also where the product wraps.
        a = small_integer(body, a, -100, 100)
    if whole is not None and whole.low in (a.known.low, 0):
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
    value = body.pick(is_float)
    if body.rng.random() < 0.2:
        shape = array_shape("pred", value.sizes)
        return body.add("is-finite", shape, [value], lambda f: Facts(1, 1, 0, 1))
    name = body.rng.choice("f16 bf16 f8e5m2".split())
    element, own = ELEMENT_TYPES[name], value.type
    if element.mantissa_bits > value.array.element_type.mantissa_bits:
        raise UntameError
    value = tamed(body, value)
    bits = f"exponent_bits={element.exponent_bits}, mantissa_bits={element.mantissa_bits}"

    def transfer(f: Facts) -> Facts:
        reduced = rounded(name, f)
        return reduced if reduced.exact or own == name else rounded(own, reduced)

    return body.add("reduce-precision", value.shape, [value], transfer, bits)


FAMILIES: Families = {
    function_of_float: 8,
    power_or_atan2: 2,
    float_arithmetic: 10,
    extremum: 5,
    float_rounding: 2,
    float_remainder: 1,
    precision: 1,
}
"""Family -> weight."""
