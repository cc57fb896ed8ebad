"""Values without meaning on the host, `opaque[]`, made numbers.

A dropout gives out a reference to where its input lies, so that its gradient draws the same
numbers. Drawn from the seed alone they are the same anyway: the reference is a number that nobody
reads.
"""

from dataclasses import replace

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_runtime.element_types import OPAQUE, PRED

_NUMBER = ArrayShape(PRED)


def without_opaque(module: Module) -> Module:
    """Return a module in which opaque values are truth values; the same, where it has none."""
    if not any(_has(x.shape) for c in module.computations for x in c.instructions):
        return module
    computations = tuple(
        replace(c, instructions=tuple(x._replace(shape=_plain(x.shape)) for x in c.instructions))
        for c in module.computations
    )
    return replace(module, computations=computations)


def _has(shape: Shape) -> bool:
    if isinstance(shape, TupleShape):
        return any(_has(part) for part in shape.elements)
    return isinstance(shape, ArrayShape) and shape.element_type is OPAQUE


def _plain(shape: Shape) -> Shape:
    if isinstance(shape, TupleShape):
        return TupleShape(tuple(_plain(part) for part in shape.elements))
    return _NUMBER if _has(shape) else shape
