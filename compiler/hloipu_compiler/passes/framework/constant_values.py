"""Values of constants, as arrays and as comparable keys."""

from functools import lru_cache

import numpy as np

from hloipu_compiler.hlo.literals.values import literal_array
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]

_SMALL_ELEMENTS = 16
_SHORT_TEXT = 512
_COMPARED_BYTES = 1 << 16
"""Larger computed arrays are equal only where they are one array."""


def constant_array(op: Instruction) -> Array | None:
    """Return the value of a constant in storage form, read-only.

    None where it is no array of known sizes, or its values were left out of the text.
    """
    literal, shape = op.literal, op.shape
    if literal is None or not isinstance(shape, ArrayShape) or shape.dynamic is not None:
        return None
    if not shape.element_type.is_array:
        return None
    if literal.array is not None:
        return literal.array
    if literal.is_elided:
        return None
    if len(literal.text) <= _SHORT_TEXT:
        return _read(literal.text, shape)
    return _checked(literal_array(literal, shape, op.name))


@lru_cache(maxsize=4096)
def _read(text: str, shape: ArrayShape) -> Array | None:
    return _checked(literal_array(Literal(text), shape))


def _checked(value: object) -> Array | None:
    if not isinstance(value, np.ndarray):
        return None
    value.flags.writeable = False
    return value


def scalar_constant(op: Instruction) -> Array | None:
    """Return the value of a constant of one element, None for anything else."""
    if op.opcode != "constant" or not isinstance(op.shape, ArrayShape):
        return None
    return constant_array(op) if op.shape.element_count == 1 else None


def constant_key(op: Instruction) -> object:
    """Return what two constants of one shape share if and only if they have the same bits.

    None where that cannot be told.
    """
    literal, shape = op.literal, op.shape
    if literal is None or literal.is_elided:
        return None
    if isinstance(shape, ArrayShape) and (
        literal.array is not None or shape.element_count <= _SMALL_ELEMENTS
    ):
        array = constant_array(op)
        if array is None:
            return None
        return array.tobytes() if array.nbytes <= _COMPARED_BYTES else id(array)
    return literal.text
