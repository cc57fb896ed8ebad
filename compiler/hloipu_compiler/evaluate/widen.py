"""A module computing in f64 and c128 throughout: what its values are before rounding."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hloipu_compiler.evaluate.constants import constant_leaves
from hloipu_compiler.evaluate.manual_sharding import is_border
from hloipu_compiler.evaluate.plan import Array
from hloipu_compiler.ir.annotations import is_identity
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape, BufferShape, Shape, TupleShape
from hloipu_runtime.element_types import C128, F64, ElementType

_BITWISE = frozenset({"bitcast-convert", "custom-call", "rng-bit-generator", "rng"})
"""Ops that see the width of a float, or whose code is not ours to widen."""

_ENTRY_SHAPES = "entry_computation_layout"


def widened(module: Module) -> Module | None:
    """Return the module with every float f64 and every complex c128.

    None where an op looks at the bits of floats, so that another width means another program.
    Constants keep the values that their own type rounds them to.
    """
    for computation in module.computations:
        for x in computation.instructions:
            if x.opcode in _BITWISE and not _only_moves(x) and _touches_floats(computation, x):
                return None
    # The header repeats the entry's shapes, which are others now.
    header = Attributes({k: v for k, v in module.attributes.items() if k != _ENTRY_SHAPES})
    computations = tuple(map(_widened_computation, module.computations))
    return replace(module, computations=computations, attributes=header)


def _only_moves(x: Instruction) -> bool:
    return is_identity(x) or is_border(x)


def widened_argument(array: Array) -> Array:
    """Return an argument of the module in the type its parameter has in the widened one."""
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    if array.dtype.kind in "biu" or "int" in array.dtype.name:
        return array
    return array.astype(np.float64)


def _wide_type(element: ElementType) -> ElementType:
    if element.is_float:
        return F64
    return C128 if element.is_complex else element


def _wide_shape(shape: Shape) -> Shape:
    if isinstance(shape, TupleShape):
        return TupleShape(tuple(map(_wide_shape, shape.elements)))
    if isinstance(shape, BufferShape):
        return shape
    return ArrayShape(_wide_type(shape.element_type), shape.dimensions, shape.layout, shape.dynamic)


def _has_floats(shape: Shape) -> bool:
    return _wide_shape(shape) != shape


def _touches_floats(computation: Computation, x: Instruction) -> bool:
    shapes = [computation.instructions[i].shape for i in x.operands]
    return any(map(_has_floats, [x.shape, *shapes]))


def _widened_computation(computation: Computation) -> Computation:
    return replace(
        computation, instructions=tuple(map(_widened_instruction, computation.instructions))
    )


def _widened_instruction(x: Instruction) -> Instruction:
    shape = _wide_shape(x.shape)
    if x.opcode != "constant" or shape == x.shape or not isinstance(shape, ArrayShape):
        return x._replace(shape=shape)
    (value,) = constant_leaves(x)
    return x._replace(shape=shape, literal=Literal(array=value.astype(shape.element_type.storage)))


def widened_arguments(arguments: Sequence[Array]) -> list[Array]:
    """Widen a flat list of arguments."""
    return [widened_argument(np.asarray(x)) for x in arguments]
