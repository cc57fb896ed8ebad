"""Comparisons of random fractions with a number, as comparisons of the bits that they are made of.

A random float from 0 up to 1 is made of as many bits as its mantissa has: they are put behind the
exponent of 1, and 1 is subtracted, which is exact. It is less than a number just where the bits are
less than an integer, so that masks, such as those of dropout, need no float at all.
"""

from math import ceil, floor, isfinite

from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.shapes import array_shape
from hloipu_compiler.passes.algebra.arithmetic import filled, uniform
from hloipu_compiler.passes.algebra.movement import became, static
from hloipu_compiler.passes.framework.rewriting import Draft, Rule
from hloipu_runtime.element_types import Kind

_IEEE = ("f16", "bf16", "f32", "f64")
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}


def _compare(draft: Draft, x: Instruction) -> Instruction | None:
    """Compare the bits of a fraction in place of the fraction."""
    direction, (fraction, limit) = x.attributes.text("direction"), x.operands
    if direction not in _MIRRORED or x.attributes.text("type") == "TOTALORDER":
        return None
    value = uniform(draft, limit)
    if value is None:
        fraction, direction = limit, _MIRRORED[direction]
        value = uniform(draft, x.operands[0])
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
    border = filled(draft, x, word, first << word.element_type.bits - element.mantissa_bits)
    below = "LT" if direction in ("LT", "LE") else "GE"
    return became(x, "compare", (bits, border), direction=below)


def _bits_of(draft: Draft, at: int) -> int | None:
    """Return the unsigned integers whose upper bits are the mantissas of fractions from 0 to 1."""
    x = draft.made[at]
    while x.opcode in ("add", "maximum"):  # with 0, where fractions begin
        others = [n for n in x.operands if not _is(draft, n, 0)]
        if len(others) != 1:
            return None
        x = draft.made[others[0]]
    shape = static(x.shape)
    if x.opcode != "subtract" or shape is None or not _is(draft, x.operands[1], 1):
        return None
    if shape.element_type.name not in _IEEE:
        return None
    cast = draft.made[x.operands[0]]
    if cast.opcode != "bitcast-convert":
        return None
    joined = draft.made[cast.operands[0]]
    word, element = static(joined.shape), shape.element_type
    if joined.opcode != "or" or word is None or word.element_type.kind is not Kind.UNSIGNED:
        return None
    if word.dimensions != shape.dimensions or word.element_type.bits != element.bits:
        return None
    one = ((1 << element.exponent_bits - 1) - 1) << element.mantissa_bits
    shifted = [n for n in joined.operands if not _is(draft, n, one)]
    if len(shifted) != 1:
        return None
    source = draft.made[shifted[0]]
    unused = element.bits - element.mantissa_bits
    if source.opcode != "shift-right-logical" or not _is(draft, source.operands[1], unused):
        return None
    return source.operands[0]


def _is(draft: Draft, at: int, number: int) -> bool:
    value = uniform(draft, at)
    return value is not None and bool(value.reshape(()) == number)


FRACTION_RULES: dict[str, Rule] = {"compare": _compare}
