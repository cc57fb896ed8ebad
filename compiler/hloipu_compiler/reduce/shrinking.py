"""Smaller sizes: one size of dimensions changed everywhere at once."""

from collections.abc import Sequence
from dataclasses import replace

from hloipu_compiler.ir.attributes import Attributes, SliceRange, Value
from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.ir.shapes import ArrayShape, BufferShape, Shape, TupleShape, leaves
from hloipu_compiler.reduce.rewriting import Draft, Key, without_interface

SIZE_LISTS = frozenset("dynamic_slice_sizes slice_sizes fft_length".split())
"""Attributes that say sizes of results."""


def sizes_to_shrink(module: Module) -> list[Key]:
    """List (size, smaller size) pairs, the largest size and the smallest replacement first."""
    found: set[int] = set()
    for computation in module.computations:
        for x in computation.instructions:
            for _, leaf in leaves(x.shape):
                array = leaf.contents if isinstance(leaf, BufferShape) else leaf
                found.update(array.dimensions)
    return [
        Key("", str(size), smaller)
        for size in sorted(found, reverse=True)
        if size > 1
        for smaller in dict.fromkeys((1, 2, size // 2, size - 1))
        if smaller < size
    ]


def resized(module: Module, keys: Sequence[Key]) -> Module:
    """Change a size wherever a shape or attribute says it; literals of that size become zeros."""
    old, new = int(keys[0].instruction), keys[0].choice
    computations = tuple(_resized_computation(c, old, new) for c in module.computations)
    return without_interface(replace(module, computations=computations))


def _resized_computation(computation: Computation, old: int, new: int) -> Computation:
    draft = Draft(computation)
    for i, x in enumerate(computation.instructions):
        shape = resized_shape(x.shape, old, new)
        if x.literal is not None and shape != x.shape:
            draft.place[i] = draft.zero(shape)
        else:
            draft.copy(i, shape=shape, attributes=_resized_attributes(x.attributes, old, new))
    return draft.finish()


def resized_shape(shape: Shape, old: int, new: int) -> Shape:
    """Return a shape with one size replaced by another."""
    if isinstance(shape, TupleShape):
        return TupleShape(tuple(resized_shape(e, old, new) for e in shape.elements))
    if isinstance(shape, BufferShape) or old not in shape.dimensions:
        return shape
    sizes = tuple(new if n == old else n for n in shape.dimensions)
    return ArrayShape(shape.element_type, sizes, shape.layout, shape.dynamic)


def _resized_attributes(attributes: Attributes, old: int, new: int) -> Attributes:
    changed: dict[str, Value] = {}
    for key, value in attributes.items():
        if key in SIZE_LISTS and isinstance(value, tuple) and old in value:
            changed[key] = tuple(new if n == old else n for n in value)  # type: ignore[assignment]
        elif key == "slice" and isinstance(value, tuple):
            ranges = [r for r in value if isinstance(r, SliceRange)]
            changed[key] = tuple(
                r._replace(limit=new) if (r.start, r.limit) == (0, old) else r for r in ranges
            )
    return attributes.replaced(**changed) if changed else attributes
