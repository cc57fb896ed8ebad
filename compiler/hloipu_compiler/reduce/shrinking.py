"""Edits that shrink sizes and simplify element types everywhere at once."""

from collections.abc import Callable
from dataclasses import replace

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.inference.faults import ShapeFault
from hloipu_compiler.inference.rules import infer_shape
from hloipu_compiler.ir.attributes import Attributes, Value
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.ir.shapes import (
    ArrayShape,
    BufferShape,
    Shape,
    TupleShape,
    compatible,
    leaves_of,
)
from hloipu_compiler.reduce.rewriting import Draft, NotReducibleError, without_interface
from hloipu_runtime.element_types import ElementType

SIZE_LISTS = frozenset("dynamic_slice_sizes slice_sizes fft_length".split())
"""Attributes that say sizes of results."""
DECLARED = frozenset({"get-tuple-element", "call", "fusion", "while", "conditional", "tuple"})
"""Opcodes whose shapes follow from others' declared ones, which sizes change in as they stand."""

Resize = Callable[[int], int]
"""From a size to the one that takes its place."""


def sizes_of(module: Module) -> list[int]:
    """Return the sizes of dimensions above 1, the largest first."""
    sizes: set[int] = set()
    for leaf in _leaves(module):
        sizes.update(leaf.dimensions)
    return sorted((size for size in sizes if size > 1), reverse=True)


def types_of(module: Module) -> list[ElementType]:
    """Return the element types of arrays."""
    type_by_name = {leaf.element_type.name: leaf.element_type for leaf in _leaves(module)}
    return [type_by_name[name] for name in sorted(type_by_name) if type_by_name[name].is_array]


def _leaves(module: Module) -> list[ArrayShape]:
    return [
        leaf for c in module.computations for op in c.instructions for leaf in leaves_of(op.shape)
    ]


def only(old: int, new: int) -> Resize:
    """Return the change of one size."""
    return lambda size: new if size == old else size


def multiples(old: int, new: int) -> Resize:
    """Return the change of a size and, by the same factor, of its multiples (for reshapes)."""
    return lambda size: size // old * new if size > 0 and size % old == 0 else size


def resized(module: Module, resize: Resize) -> Module:
    """Change sizes wherever shapes and attributes say them; literals of such sizes become zeros.

    A shape that follows from its operands' is inferred where the change would miss it, as the sum
    of sizes that a concatenation has.
    """
    for computation in callees_first(module, only_reachable=True):
        draft = Draft(computation)
        for i, instruction in enumerate(computation.instructions):
            shape = _resized_shape(instruction.shape, resize)
            attributes = _resized_attributes(instruction.attributes, resize)
            if instruction.literal is not None:
                if shape == instruction.shape:
                    draft.copy(i)
                else:
                    draft.place[i] = draft.zero(shape)
                continue
            below = tuple(draft.made[draft.place[o]].shape for o in instruction.operands)
            if instruction.opcode == "slice" and isinstance(below[0], ArrayShape):
                attributes = _resized_slice(attributes, below[0], shape)
            shape = _inferred(module, instruction, below, attributes, shape)
            draft.copy(i, shape=shape, attributes=attributes)
        new = draft.finish()
        module = replace(
            module,
            computations=tuple(new if c.name == new.name else c for c in module.computations),
        )
    return without_interface(module)


def retyped(module: Module, old: ElementType, new: ElementType) -> Module:
    """Change an element type wherever a shape says it."""
    computations = []
    for computation in module.computations:
        draft = Draft(computation)
        for i, instruction in enumerate(computation.instructions):
            draft.copy(i, shape=_retyped_shape(instruction.shape, old, new))
        computations.append(draft.finish())
    return without_interface(replace(module, computations=tuple(computations)))


def _retyped_shape(shape: Shape, old: ElementType, new: ElementType) -> Shape:
    if isinstance(shape, TupleShape):
        return TupleShape(tuple(_retyped_shape(e, old, new) for e in shape.elements))
    if isinstance(shape, BufferShape):
        raise NotReducibleError
    if shape.element_type is not old:
        return shape
    return ArrayShape(new, shape.dimensions, shape.layout, shape.dynamic)


def _inferred(
    module: Module,
    instruction: Instruction,
    below: tuple[Shape, ...],
    attributes: Attributes,
    shape: Shape,
) -> Shape:
    """Return the shape that an operation gives, the one at hand where that says nothing else."""
    op = OPS.get(instruction.opcode)
    if op is None or Trait.NEEDS_SHAPE in op.traits or instruction.opcode in DECLARED or not below:
        return shape
    try:
        inferred = infer_shape(
            instruction.opcode,
            below,
            attributes,
            shape,
            lambda name: module.computation[name].program_shape,
        )
    except ShapeFault:
        return shape  # the verifier refuses the candidate
    return shape if compatible(inferred, shape) else inferred


def _resized_shape(shape: Shape, resize: Resize) -> Shape:
    if isinstance(shape, TupleShape):
        return TupleShape(tuple(_resized_shape(e, resize) for e in shape.elements))
    if isinstance(shape, BufferShape):
        return shape
    sizes = tuple(map(resize, shape.dimensions))
    if sizes == shape.dimensions:
        return shape
    return ArrayShape(shape.element_type, sizes, shape.layout, shape.dynamic)


def _resized_attributes(attributes: Attributes, resize: Resize) -> Attributes:
    changed: dict[str, Value] = {
        key: tuple(resize(n) for n in attributes.integers(key))
        for key in attributes
        if key in SIZE_LISTS
    }
    return attributes.replaced(**changed) if changed else attributes


def _resized_slice(attributes: Attributes, source: ArrayShape, result: Shape) -> Attributes:
    """Return a slice's ranges for other sizes: they begin where they did if there is room."""
    ranges = attributes.slice_ranges()
    if not isinstance(result, ArrayShape):
        return attributes
    new_ranges = []
    for r, size, length in zip(ranges, source.dimensions, result.dimensions, strict=True):
        reach = (length - 1) * r.stride + 1
        start = min(r.start, max(size - reach, 0))
        unchanged = r.limit <= size and -(-(r.limit - r.start) // r.stride) == length
        new_ranges.append(r if unchanged else r._replace(start=start, limit=start + reach))
    return attributes.replaced(slice=tuple(new_ranges))
