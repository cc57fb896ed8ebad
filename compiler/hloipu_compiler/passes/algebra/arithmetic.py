"""Rewrites of elementwise ops: identities, and ops that undo each other.

As in XLA's AlgebraicSimplifier, `x * 1` is `x` although a multiplication would flush a subnormal
and quieten a signalling nan. `x + 0` is `x` for integers only, where `x + -0` is for floats:
-0 + 0 is 0.
"""

from math import ceil, floor, isfinite

import numpy as np

from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.ops import COMMUTATIVE
from hloipu_compiler.ir.shapes import ArrayShape, array_shape
from hloipu_compiler.passes.algebra.movement import (
    became,
    operand_if_same,
    same_value_shape,
    static,
)
from hloipu_compiler.passes.framework.constant_values import Array, scalar_constant
from hloipu_compiler.passes.framework.rewriting import Draft, Rule
from hloipu_runtime.element_types import F32, Kind


def uniform(draft: Draft, at: int) -> Array | None:
    """Return the constant that every element of a value is, as an array of one element."""
    op = draft.made[at]
    if op.opcode == "broadcast":
        op = draft.made[op.operands[0]]
    return scalar_constant(op)


def filled(draft: Draft, like: Instruction, shape: ArrayShape, number: int) -> int:
    """Append a value whose elements are all one number; return where it is."""
    literal = Literal(str(number))
    single = draft.add(like, "constant", ArrayShape(shape.element_type), literal=literal)
    return draft.add(like, "broadcast", shape, (single,), Attributes({"dimensions": ()}))


def is_value(draft: Draft, at: int, wanted: float) -> bool:
    """Whether all elements of a value are one number."""
    value = uniform(draft, at)
    return value is not None and bool(value.reshape(()) == wanted)


def wide_addition(module: Module) -> str:
    """Return the name of a computation that adds two numbers of f32; empty: there is none."""
    known = (
        c.name
        for c in module.computations
        if len(c.instructions) == 3
        and c.instructions[c.root].shape == ArrayShape(F32)
        and commutative_region(c) == "add"
    )
    return next(known, "")


def commutative_region(region: Computation) -> str | None:
    """Return the opcode of a region that is one commutative op on its two parameters."""
    root = region.instructions[region.root]
    if len(region.instructions) != 3 or root.opcode not in COMMUTATIVE:
        return None
    operands = [region.instructions[i].parameter_number for i in root.operands]
    shapes = {region.instructions[i].shape for i in (*root.operands, region.root)}
    return root.opcode if sorted(operands) == [0, 1] and len(shapes) == 1 else None


def _is_zero(draft: Draft, at: int, *, negative: bool) -> bool:
    """Whether all elements are the zero of that sign; of integers and predicates the only one."""
    value = uniform(draft, at)
    if value is None or bool(value.reshape(()) != 0):
        return False
    if value.dtype.kind == "c":
        parts = (value.real, value.imag)
        return all(bool(np.signbit(part).reshape(())) is negative for part in parts)
    return value.dtype.kind != "f" or bool(np.signbit(value).reshape(())) is negative


def _is_full(draft: Draft, at: int) -> bool:
    """Whether all bits of all elements are set."""
    op = draft.made[at]
    shape = op.shape
    value = uniform(draft, at)
    if value is None or not isinstance(shape, ArrayShape):
        return False
    number = int(value.reshape(()))
    kind = shape.element_type.kind
    if kind is Kind.PREDICATE:
        return number == 1
    return number == (-1 if kind is Kind.SIGNED else (1 << shape.element_type.bits) - 1)


def _kept(draft: Draft, op: Instruction, at: int) -> int | None:
    return at if same_value_shape(draft, op, at) else None


def _element_kind(op: Instruction) -> Kind:
    return op.shape.element_type.kind if isinstance(op.shape, ArrayShape) else Kind.OPAQUE


def _add(draft: Draft, op: Instruction) -> int | None:
    left, right = op.operands
    if _is_zero(draft, right, negative=True):
        return _kept(draft, op, left)
    return _kept(draft, op, right) if _is_zero(draft, left, negative=True) else None


def _by_zero(draft: Draft, op: Instruction) -> int | None:
    """Drop what subtracts zero, or shifts by it."""
    left, right = op.operands
    return _kept(draft, op, left) if _is_zero(draft, right, negative=False) else None


def _multiply(draft: Draft, op: Instruction) -> int | None:
    left, right = op.operands
    if _element_kind(op) is Kind.COMPLEX:
        return None  # (a + bi)(1 + 0i) has other zeros, and nans where b is infinite
    if is_value(draft, right, 1):
        return _kept(draft, op, left)
    return _kept(draft, op, right) if is_value(draft, left, 1) else None


def _divide(draft: Draft, op: Instruction) -> int | None:
    left, right = op.operands
    if _element_kind(op) is Kind.COMPLEX:
        return None
    return _kept(draft, op, left) if is_value(draft, right, 1) else None


def _and(draft: Draft, op: Instruction) -> int | None:
    left, right = op.operands
    if left == right or _is_full(draft, right) or _is_zero(draft, left, negative=False):
        return _kept(draft, op, left)
    if _is_full(draft, left) or _is_zero(draft, right, negative=False):
        return _kept(draft, op, right)
    return None


def _or(draft: Draft, op: Instruction) -> int | None:
    left, right = op.operands
    if left == right or _is_zero(draft, right, negative=False) or _is_full(draft, left):
        return _kept(draft, op, left)
    if _is_zero(draft, left, negative=False) or _is_full(draft, right):
        return _kept(draft, op, right)
    return None


def _xor(draft: Draft, op: Instruction) -> int | None:
    left, right = op.operands
    if _is_zero(draft, right, negative=False):
        return _kept(draft, op, left)
    return _kept(draft, op, right) if _is_zero(draft, left, negative=False) else None


def _extremum(draft: Draft, op: Instruction) -> int | None:
    left, right = op.operands
    return _kept(draft, op, left) if left == right else None


def _undone(draft: Draft, op: Instruction) -> int | None:
    """Drop an op that is its own inverse, applied twice."""
    source = draft.made[op.operands[0]]
    return _kept(draft, op, source.operands[0]) if source.opcode == op.opcode else None


def _convert(draft: Draft, op: Instruction) -> int | None:
    """Drop a conversion to the same type, and one back from a type that keeps every value."""
    operand = op.operands[0]
    if same_value_shape(draft, op, operand):
        return operand
    source = draft.made[operand]
    if source.opcode != "convert" or not same_value_shape(draft, op, source.operands[0]):
        return None
    narrow, wide = static(op.shape), static(source.shape)
    if narrow is None or wide is None:
        return None
    return source.operands[0] if _keeps_values(narrow, wide) else None


def _keeps_values(narrow: ArrayShape, wide: ArrayShape) -> bool:
    """Whether a type holds every value of another; of floats, IEEE ones with nan and infinity."""
    a, b = narrow.element_type, wide.element_type
    if a.is_integer and a.kind is b.kind:
        return b.bits >= a.bits
    if a.name not in ("bf16", "f16", "f32") or b.name not in ("f32", "f64"):
        return False
    return b.bits >= a.bits


def _select(draft: Draft, op: Instruction) -> int | None:
    predicate, on_true, on_false = op.operands
    if on_true == on_false:
        return _kept(draft, op, on_true)
    value = uniform(draft, predicate)
    if value is None:
        return None
    return _kept(draft, op, on_true if bool(value.reshape(())) else on_false)


def _part(draft: Draft, op: Instruction) -> int | None:
    """Read the parts of a complex number where it was put together."""
    source = draft.made[op.operands[0]]
    if source.opcode != "complex":
        return None
    return _kept(draft, op, source.operands[0 if op.opcode == "real" else 1])


_IEEE = ("f16", "bf16", "f32", "f64")
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}


def _compare(draft: Draft, op: Instruction) -> Instruction | None:
    """Compare the bits of a random fraction with a number's, in place of the fraction.

    A random float from 0 up to 1 is made of as many bits as its mantissa has: they are put behind
    the exponent of 1, and 1 is subtracted, which is exact. It is less than a number just where the
    bits are less than an integer, so that masks, as of dropout, need no float at all.
    """
    direction, (fraction, limit) = op.attributes.text("direction"), op.operands
    if direction not in _MIRRORED or op.attributes.text("type") == "TOTALORDER":
        return None
    value = uniform(draft, limit)
    if value is None:
        fraction, direction = limit, _MIRRORED[direction]
        value = uniform(draft, op.operands[0])
    if value is None or value.dtype.kind != "f":
        return None
    bits, number = _bits_of(draft, fraction), float(value.reshape(()))
    if bits is None or not isfinite(number):
        return None
    element = array_shape(draft.shape(fraction)).element_type
    word = array_shape(draft.shape(bits))
    scaled = number * 2.0**element.mantissa_bits
    first = ceil(scaled) if direction in ("LT", "GE") else floor(scaled) + 1
    if not 0 < first < 1 << element.mantissa_bits:
        return None
    border = filled(draft, op, word, first << word.element_type.bits - element.mantissa_bits)
    below = "LT" if direction in ("LT", "LE") else "GE"
    return became(op, "compare", (bits, border), direction=below)


def _bits_of(draft: Draft, at: int) -> int | None:
    """Return the unsigned integers whose upper bits are the mantissas of fractions from 0 to 1."""
    op = draft.made[at]
    while op.opcode in ("add", "maximum"):  # with 0, where fractions begin
        others = [n for n in op.operands if not is_value(draft, n, 0)]
        if len(others) != 1:
            return None
        op = draft.made[others[0]]
    shape = static(op.shape)
    if op.opcode != "subtract" or shape is None or not is_value(draft, op.operands[1], 1):
        return None
    if shape.element_type.name not in _IEEE:
        return None
    cast = draft.made[op.operands[0]]
    if cast.opcode != "bitcast-convert":
        return None
    joined = draft.made[cast.operands[0]]
    word, element = static(joined.shape), shape.element_type
    if joined.opcode != "or" or word is None or word.element_type.kind is not Kind.UNSIGNED:
        return None
    if word.dimensions != shape.dimensions or word.element_type.bits != element.bits:
        return None
    one = ((1 << element.exponent_bits - 1) - 1) << element.mantissa_bits
    shifted = [n for n in joined.operands if not is_value(draft, n, one)]
    if len(shifted) != 1:
        return None
    source = draft.made[shifted[0]]
    unused = element.bits - element.mantissa_bits
    if source.opcode != "shift-right-logical" or not is_value(draft, source.operands[1], unused):
        return None
    return source.operands[0]


ARITHMETIC_RULES: dict[str, Rule] = {
    "add": _add,
    "subtract": _by_zero,
    "multiply": _multiply,
    "divide": _divide,
    "and": _and,
    "or": _or,
    "xor": _xor,
    "shift-left": _by_zero,
    "shift-right-arithmetic": _by_zero,
    "shift-right-logical": _by_zero,
    "maximum": _extremum,
    "minimum": _extremum,
    "not": _undone,
    "negate": _undone,
    "convert": _convert,
    "bitcast-convert": operand_if_same,
    "compare": _compare,
    "select": _select,
    "real": _part,
    "imag": _part,
}
