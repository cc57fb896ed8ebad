"""What a compiled kernel does for each element, as data, and as LLVM's intermediate text.

Every instruction is one that the processor does alike in numpy and here: IEEE 754's exact and
correctly rounded ones, integers, choices, bits. No two are contracted to one and none reordered:
LLVM does that only where flags allow it, and none is written. Floats are f32 or f64; an instruction
of its own brings f32 to the grid of a narrow float.
"""

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hloipu_runtime.element_types import GRIDS, Grid
from hloipu_runtime.kernels.native.text import Text, number, register_type


class Instruction(NamedTuple):
    """One instruction on values by number."""

    op: str
    """Name in `INSTRUCTIONS`, perhaps with what it depends on behind a colon."""
    arguments: tuple[int, ...]
    type: str
    """Of its result: f32, f64, c64 (both parts in one integer), pred, s8 to u64."""


class Given(NamedTuple):
    """What an instruction is written with."""

    text: Text
    values: tuple[str, ...]
    """Names of its arguments."""
    types: tuple[str, ...]
    """Storage types of its arguments."""
    type: str
    detail: str
    """What stands behind the colon."""

    @property
    def kind(self) -> str:
        """LLVM's type of the result."""
        return register_type(self.type)

    @property
    def source(self) -> str:
        """LLVM's type of the first argument."""
        return register_type(self.types[0])

    @property
    def intrinsic(self) -> str:
        """How LLVM's own functions name the first argument's type."""
        return {"float": "f32", "double": "f64"}.get(self.source, self.source)


Writer = Callable[[Given], str]


def _plain(name: str) -> Writer:
    return lambda g: g.text.new(f"{name} {g.kind} {', '.join(g.values)}")


def _own(name: str) -> Writer:
    """Return the writer of one of LLVM's functions of one argument."""
    return lambda g: g.text.call(f"llvm.{name}.{g.intrinsic}", g.kind, (g.source, g.values[0]))


def _reciprocal(g: Given) -> str:
    return g.text.new(f"fdiv {g.kind} 1.0, {g.values[0]}")


def _bits(g: Given) -> tuple[str, int]:
    """Return the integer type as wide as the first argument, and its width."""
    width = {"f32": 32, "f64": 64}[g.types[0]]
    return f"i{width}", width


def _as_bits(g: Given, value: str) -> str:
    return g.text.new(f"bitcast {g.source} {value} to {_bits(g)[0]}")


def _is_nan(g: Given, value: str) -> str:
    return g.text.new(f"fcmp uno {g.source} {value}, {value}")


def _better(g: Given, first: str, second: str, relation: str) -> str:
    """Choose as numpy's extrema do: a NaN wins, of two equal ones the second."""
    text = g.text
    wins = text.new(f"fcmp {relation} {g.kind} {first}, {second}")
    chosen = text.new(f"select i1 {wins}, {g.kind} {first}, {g.kind} {second}")
    nan = _is_nan(g, first)
    return text.new(f"select i1 {nan}, {g.kind} {first}, {g.kind} {chosen}")


def _extremum(g: Given) -> str:
    """Write `max` or `min` of floats: NaN wins, +0 is larger than -0, subnormals may be flushed.

    The detail `number` says that the second argument is a number other than zero: equal ones are
    then the same. `zero`: it is +0 of a maximum, which wins over -0 as the second of equal ones.
    """
    name, _, known = g.detail.partition(":")
    relation = "ogt" if name == "max" else "olt"
    x, y = g.values
    text = g.text
    if known:
        return _flushed(g, _better(g, x, y, relation))
    one, other = _better(g, x, y, relation), _better(g, y, x, relation)
    integer, width = _bits(g)
    sign = -(1 << (width - 1))
    if name == "max":
        mask = text.new(f"or {integer} {_as_bits(g, other)}, {-sign - 1}")
        joined = text.new(f"and {integer} {_as_bits(g, one)}, {mask}")
    else:
        mask = text.new(f"and {integer} {_as_bits(g, other)}, {sign}")
        joined = text.new(f"or {integer} {_as_bits(g, one)}, {mask}")
    chosen = text.new(f"bitcast {integer} {joined} to {g.kind}")
    return _flushed(g, chosen)


def _flushed(g: Given, value: str) -> str:
    """Return a value times one: zero for a subnormal in a mode that takes it for that.

    LLVM is not to know the one. Its `canonicalize` would do, but for x86-64 it ends the process
    over vectors of two f32, which short loops become (`FCANONICALIZE`, LLVM 20).
    """
    one = g.text.call(f"llvm.arithmetic.fence.{g.intrinsic}", g.kind, (g.kind, "1.0"))
    return g.text.new(f"fmul {g.kind} {one}, {value}")


def _order_keys(g: Given, bits: Sequence[str]) -> list[str]:
    """Return integers that are ordered as IEEE's total order of floats of these bits."""
    text, (integer, width), keys = g.text, _bits(g), []
    for value in bits:
        sign = text.new(f"ashr {integer} {value}, {width - 1}")
        mask = text.new(f"lshr {integer} {sign}, 1")
        keys.append(text.new(f"xor {integer} {value}, {mask}"))
    return keys


def _ordered_extremum(g: Given) -> str:
    """Write `max` or `min` by the order of bits: NaN wins, +0 over -0, nothing is flushed."""
    text, integer = g.text, _bits(g)[0]
    bits = [_as_bits(g, x) for x in g.values]
    keys = _order_keys(g, bits)
    relation = "sgt" if g.detail == "max" else "slt"
    wins = text.new(f"icmp {relation} {integer} {keys[1]}, {keys[0]}")
    wins = text.new(f"or i1 {wins}, {_is_nan(g, g.values[1])}")
    stays = text.new(f"fcmp ord {g.kind} {g.values[0]}, {g.values[0]}")
    wins = text.new(f"and i1 {wins}, {stays}")
    return text.new(f"select i1 {wins}, {g.kind} {g.values[1]}, {g.kind} {g.values[0]}")


def _clip_below(g: Given) -> str:
    """Write numpy's minimum of a value and a number: a NaN stays."""
    wins = g.text.new(f"fcmp ogt {g.kind} {g.values[0]}, {number(float(g.detail))}")
    return g.text.new(
        f"select i1 {wins}, {g.kind} {number(float(g.detail))}, {g.kind} {g.values[0]}"
    )


def _sign(g: Given) -> str:
    """Scale the smallest subnormal beyond 1, and clip; zeros and NaN stay what they are."""
    text, (x,) = g.text, g.values
    for power in (127, 23) if g.type == "f32" else (1023, 52):
        x = text.new(f"fmul {g.kind} {x}, {number(2.0**power)}")
    for relation, bound in (("olt", -1.0), ("ogt", 1.0)):
        beyond = text.new(f"fcmp {relation} {g.kind} {x}, {number(bound)}")
        x = text.new(f"select i1 {beyond}, {g.kind} {number(bound)}, {g.kind} {x}")
    return x


def _round_away_from_zero(g: Given) -> str:
    """Add what is just below one half, and cut."""
    half = 0.5 - 2.0 ** (-25 if g.type == "f32" else -54)
    text, (x,), kind = g.text, g.values, (g.kind, g.kind)
    pairs = ((g.kind, number(half)), (g.kind, x))
    signed = text.call(f"llvm.copysign.{g.intrinsic}", kind[0], *pairs)
    larger = text.new(f"fadd {g.kind} {x}, {signed}")
    return text.call(f"llvm.trunc.{g.intrinsic}", g.kind, (g.kind, larger))


def _is_finite(g: Given) -> str:
    size = g.text.call(f"llvm.fabs.{g.intrinsic}", g.source, (g.source, g.values[0]))
    return g.text.new(f"fcmp olt {g.source} {size}, {number(float('inf'))}")


_OF_FLOATS = {"EQ": "oeq", "NE": "une", "GE": "oge", "GT": "ogt", "LE": "ole", "LT": "olt"}


def _compare(g: Given) -> str:
    kind, direction = g.types[0], g.detail
    if kind in ("f32", "f64"):
        relation = f"fcmp {_OF_FLOATS[direction]}"
    elif direction in ("EQ", "NE"):
        relation = f"icmp {direction.lower()}"
    else:
        relation = f"icmp {'s' if kind[0] == 's' else 'u'}{direction.lower()}"
    return g.text.new(f"{relation} {g.source} {g.values[0]}, {g.values[1]}")


def _compare_totally(g: Given) -> str:
    """Compare floats in IEEE's total order."""
    keys = _order_keys(g, [_as_bits(g, x) for x in g.values])
    signed = "s" if g.detail not in ("EQ", "NE") else ""
    return g.text.new(f"icmp {signed}{g.detail.lower()} {_bits(g)[0]} {', '.join(keys)}")


def _select(g: Given) -> str:
    """Choose bits, subnormals too.

    Where floats are chosen by what they compare like, LLVM takes x86-64's extremum for that, which
    flushes them: it is not to know that no bits are added to one of them.
    """
    predicate, yes, no = g.values
    if g.type in ("f32", "f64"):
        text, integer = g.text, f"i{g.type[1:]}"
        one = text.call(f"llvm.arithmetic.fence.{g.type}", g.kind, (g.kind, "1.0"))
        bits_of_one = {"f32": 0x3F800000, "f64": 0x3FF0000000000000}[g.type]
        bits, known = (text.new(f"bitcast {g.kind} {x} to {integer}") for x in (yes, one))
        none = text.new(f"xor {integer} {known}, {bits_of_one}")
        yes = text.new(f"or {integer} {bits}, {none}")
        yes = text.new(f"bitcast {integer} {yes} to {g.kind}")
    return g.text.new(f"select i1 {predicate}, {g.kind} {yes}, {g.kind} {no}")


def _integer_extremum(g: Given) -> str:
    name = f"llvm.{'s' if g.type[0] == 's' else 'u'}{g.detail}.{g.kind}"
    return g.text.call(name, g.kind, (g.kind, g.values[0]), (g.kind, g.values[1]))


def _shift(g: Given) -> str:
    """Shift by an unsigned amount; at or beyond the width zeros or sign bits alone are left."""
    text, (x, amount) = g.text, g.values
    width = int(g.type[1:])
    fits = text.new(f"icmp ult {g.kind} {amount}, {width}")
    if g.detail == "ashr":
        amount = text.new(f"select i1 {fits}, {g.kind} {amount}, {g.kind} {width - 1}")
        return text.new(f"ashr {g.kind} {x}, {amount}")
    amount = text.new(f"select i1 {fits}, {g.kind} {amount}, {g.kind} 0")
    shifted = text.new(f"{g.detail} {g.kind} {x}, {amount}")
    return text.new(f"select i1 {fits}, {g.kind} {shifted}, {g.kind} 0")


def _convert(g: Given) -> str:
    """Convert by value between storage types; out of range, integers of floats are clamped."""
    before, after, text, (x,) = g.types[0], g.type, g.text, g.values
    if before == after:
        return x
    if after == "pred":
        test = "fcmp une" if before[0] == "f" else "icmp ne"
        return text.new(f"{test} {g.source} {x}, {number(0) if before[0] == 'f' else 0}")
    if before[0] == "f" and after[0] == "f":
        return text.new(f"{'fpext' if after == 'f64' else 'fptrunc'} {g.source} {x} to {g.kind}")
    if after[0] == "f":
        unsigned = before[0] in "up"
        return text.new(f"{'uitofp' if unsigned else 'sitofp'} {g.source} {x} to {g.kind}")
    if before[0] == "f" and int(after[1:]) <= 16:
        return _to_short(g)
    if before[0] == "f":
        sign = "s" if after[0] == "s" else "u"
        return text.call(f"llvm.fpto{sign}i.sat.{g.kind}.{g.intrinsic}", g.kind, (g.source, x))
    old = 1 if before == "pred" else int(before[1:])
    new = int(after[1:])
    if old == new:
        return x
    how = "trunc" if new < old else "sext" if before[0] == "s" else "zext"
    return text.new(f"{how} {g.source} {x} to {g.kind}")


def _to_short(g: Given) -> str:
    """Convert floats to integers of up to 16 bits; LLVM's own clamping is not done in vectors."""
    text, (x,), bits = g.text, g.values, int(g.type[1:])
    low, high = (
        (-(1 << bits - 1), (1 << bits - 1) - 1) if g.type[0] == "s" else (0, (1 << bits) - 1)
    )
    clamped = x
    for relation, bound in (("ogt", low), ("olt", high)):
        inside = text.new(f"fcmp {relation} {g.source} {clamped}, {number(bound)}")
        clamped = text.new(f"select i1 {inside}, {g.source} {clamped}, {g.source} {number(bound)}")
    nan = text.new(f"fcmp uno {g.source} {x}, {x}")
    clamped = text.new(f"select i1 {nan}, {g.source} {number(0)}, {g.source} {clamped}")
    whole = text.new(f"fptosi {g.source} {clamped} to i32")
    return text.new(f"trunc i32 {whole} to {g.kind}")


def _bitcast(g: Given) -> str:
    if g.source == g.kind:
        return g.values[0]
    return g.text.new(f"bitcast {g.source} {g.values[0]} to {g.kind}")


def _not(g: Given) -> str:
    return g.text.new(f"xor {g.kind} {g.values[0]}, {'true' if g.type == 'pred' else -1}")


def _integer_negate(g: Given) -> str:
    return g.text.new(f"sub {g.kind} 0, {g.values[0]}")


def _size(g: Given) -> str:
    """Write the absolute value; the lowest number of all stays what it is."""
    (x,) = g.values
    if g.type[0] == "u":
        return x
    negative = g.text.new(f"icmp slt {g.kind} {x}, 0")
    return g.text.new(f"select i1 {negative}, {g.kind} {_integer_negate(g)}, {g.kind} {x}")


def _integer_sign(g: Given) -> str:
    above = g.text.new(f"icmp {'u' if g.type[0] == 'u' else 's'}gt {g.kind} {g.values[0]}, 0")
    one = g.text.new(f"zext i1 {above} to {g.kind}")
    if g.type[0] == "u":
        return one
    rest = g.text.new(f"ashr {g.kind} {g.values[0]}, {int(g.type[1:]) - 1}")
    return g.text.new(f"or {g.kind} {rest}, {one}")


def _leading_zeros(g: Given) -> str:
    values = (g.kind, g.values[0]), ("i1", "false")
    return g.text.call(f"llvm.ctlz.{g.intrinsic}", g.kind, *values)


def _quotient(g: Given) -> str:
    """Divide towards zero; by zero it is -1, all ones, and what does not fit wraps."""
    quotient, by_zero = _divided(g, "div")
    if g.type[0] == "s":
        opposite = g.text.new(f"icmp eq {g.kind} {g.values[1]}, -1")
        negated = _integer_negate(g)
        quotient = g.text.new(f"select i1 {opposite}, {g.kind} {negated}, {g.kind} {quotient}")
    return g.text.new(f"select i1 {by_zero}, {g.kind} -1, {g.kind} {quotient}")


def _rest(g: Given) -> str:
    """Write what division towards zero leaves: of division by zero the dividend."""
    rest, by_zero = _divided(g, "rem")
    return g.text.new(f"select i1 {by_zero}, {g.kind} {g.values[0]}, {g.kind} {rest}")


def _divided(g: Given, what: str) -> tuple[str, str]:
    """Return the result of a division by 1 instead of by 0 and -1, and whether it was by 0."""
    text, (x, y) = g.text, g.values
    by_zero = text.new(f"icmp eq {g.kind} {y}, 0")
    safe = text.new(f"select i1 {by_zero}, {g.kind} 1, {g.kind} {y}")
    if g.type[0] == "s":
        opposite = text.new(f"icmp eq {g.kind} {y}, -1")
        safe = text.new(f"select i1 {opposite}, {g.kind} 1, {g.kind} {safe}")
    return text.new(f"{'s' if g.type[0] == 's' else 'u'}{what} {g.kind} {x}, {safe}"), by_zero


# --- complex numbers ------------------------------------------------------------------------------
def _imag(g: Given) -> str:
    return _part(g, g.text.new(f"lshr i64 {g.values[0]}, 32"))


def _part(g: Given, bits: str) -> str:
    return g.text.new(f"bitcast i32 {g.text.new(f'trunc i64 {bits} to i32')} to float")


def _complex(g: Given) -> str:
    real, imag = (
        g.text.new(f"zext i32 {g.text.new(f'bitcast float {x} to i32')} to i64") for x in g.values
    )
    return g.text.new(f"or i64 {real}, {g.text.new(f'shl i64 {imag}, 32')}")


def _fused_product(g: Given) -> str:
    """Multiply the first two and add the third, rounded once."""
    return g.text.call(f"llvm.fma.{g.intrinsic}", g.kind, *((g.kind, x) for x in g.values))


# --- narrow floats --------------------------------------------------------------------------------
def _round(g: Given) -> str:
    """Round f32 to a narrow float's grid, to nearest and ties to even; see `rounding`."""
    name, _, how = g.detail.partition(":")
    if name == "f16" and how == "half":
        half = g.text.new(f"fptrunc float {g.values[0]} to half")
        value = g.text.new(f"fpext half {half} to float")
        g.text.halves.add(value)
        return value
    if name == "bf16":
        return _round_to_bf16(g, has_short_nan=how == "short_nan")
    return _round_to_grid(g, GRIDS[name])


def _round_to_bf16(g: Given, *, has_short_nan: bool) -> str:
    """Carry into the kept bits; a NaN's payload may not carry.

    Arithmetic gives a NaN that it was given, made quiet, or the one that it makes itself (IEEE
    754-2019, 6.2): of numbers of the grid their payload is short, and nothing is carried.
    """
    text, (x,) = g.text, g.values
    bits = _as_bits(g, x)
    last = text.new(f"and i32 {text.new(f'lshr i32 {bits}, 16')}, 1")
    carried = text.new(f"add i32 {bits}, {text.new(f'add i32 {last}, 32767')}")
    if not has_short_nan:
        quiet = text.new(f"or i32 {bits}, {1 << 22}")
        carried = text.new(f"select i1 {_is_nan(g, x)}, i32 {quiet}, i32 {carried}")
    kept = text.new(f"and i32 {carried}, -65536")
    return text.new(f"bitcast i32 {kept} to float")


def _round_to_grid(g: Given, grid: Grid) -> str:
    """Add and take away 1.5 * 2^k, whose unit in the last place is one step of the grid."""
    text, (x,) = g.text, g.values
    bits = _as_bits(g, x)
    lowest = 127 + grid.min_exponent << 23
    highest = struct.unpack("<I", struct.pack("<f", grid.largest))[0] & 0x7F800000
    exponent = text.new(f"and i32 {bits}, {0x7F800000}")
    exponent = text.call("llvm.umax.i32", "i32", ("i32", exponent), ("i32", str(lowest)))
    exponent = text.call("llvm.umin.i32", "i32", ("i32", exponent), ("i32", str(highest)))
    lifted = text.new(f"add i32 {exponent}, {(23 - grid.mantissa_bits) << 23 | 1 << 22}")
    power = text.new(f"bitcast i32 {lifted} to float")
    rounded = text.new(f"fadd float {x}, {power}")
    rounded = text.new(f"fsub float {rounded}, {power}")
    if grid.negative_zero:  # LLVM may turn the sign of a NaN that it adds to, and subtracts from
        rounded = text.call("llvm.copysign.f32", "float", ("float", rounded), ("float", x))
    rounded = _settled(g, rounded, grid)
    if grid.nan:
        return rounded
    return text.new(f"select i1 {_is_nan(g, x)}, float {number(-0.0)}, float {rounded}")


def _settled(g: Given, rounded: str, grid: Grid) -> str:
    """Replace what is beyond the largest number."""
    text = g.text
    size = text.call("llvm.fabs.f32", "float", ("float", rounded))
    beyond = text.new(f"fcmp ogt float {size}, {number(grid.largest)}")
    value = {"saturate": grid.largest, "infinity": float("inf"), "nan": float("nan")}[grid.overflow]
    replacement = text.call(
        "llvm.copysign.f32", "float", ("float", number(value)), ("float", rounded)
    )
    return text.new(f"select i1 {beyond}, float {replacement}, float {rounded}")


INSTRUCTIONS: dict[str, Writer] = {
    **{name: _plain(name) for name in "fadd fsub fmul fdiv fneg add sub mul and or xor".split()},
    **{name: _own(name) for name in "fabs sqrt floor ceil rint".split()},
    "reciprocal": _reciprocal,
    "extremum": _extremum,
    "clip_below": _clip_below,
    "sign": _sign,
    "round_away": _round_away_from_zero,
    "is_finite": _is_finite,
    "compare": _compare,
    "compare_totally": _compare_totally,
    "select": _select,
    "ordered_extremum": _ordered_extremum,
    "integer_extremum": _integer_extremum,
    "shift": _shift,
    "convert": _convert,
    "bitcast": _bitcast,
    "not": _not,
    "negate": _integer_negate,
    "size": _size,
    "integer_sign": _integer_sign,
    "leading_zeros": _leading_zeros,
    "ones": _own("ctpop"),
    "quotient": _quotient,
    "rest": _rest,
    "round": _round,
    "real": lambda g: _part(g, g.values[0]),
    "imag": _imag,
    "complex": _complex,
    "fused_product": _fused_product,
}


_OF_HALVES = frozenset(
    "floor ceil rint extremum clip_below sign is_finite compare convert".split()
)  # fmt: skip
"""Instructions that LLVM does to f16 before it is extended, one element after another."""


def _as_float(text: Text, value: str) -> str:
    """Return a value extended from f16, whose last 13 bits are zeros, so that LLVM forgets that."""
    kept = text.new(f"and i32 {text.new(f'bitcast float {value} to i32')}, {-(1 << 13)}")
    return text.new(f"bitcast i32 {kept} to float")


def write(text: Text, instruction: Instruction, values: Sequence[str], types: Sequence[str]) -> str:
    """Write an instruction on named values of storage types; return the name of its result."""
    op, _, detail = instruction.op.partition(":")
    if op in _OF_HALVES and not text.halves.isdisjoint(values):
        values = [_as_float(text, x) if x in text.halves else x for x in values]
    return INSTRUCTIONS[op](Given(text, tuple(values), tuple(types), instruction.type, detail))
