"""Rewrites a module to a batch of another size, to estimate its cost.

Sizes change, those of parameters and results among them: this is an edit of the model, tried out
before anyone makes it. Numbers in the text that come from the batch (to divide a sum by, say) stay,
so that the values are not those of the model with the other batch.
"""

from dataclasses import replace
from fractions import Fraction
from math import gcd
from typing import ClassVar

import numpy as np

from hloipu_compiler.analysis.scaling_dims import (
    WHOLE,
    Cell,
    arrays_of,
    looked_up,
    scaling_classes,
    weights,
)
from hloipu_compiler.errors import VerifyError
from hloipu_compiler.ir.attributes import Attributes, SliceRange, Value
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_compiler.passes.framework.attribute_edits import without
from hloipu_compiler.passes.framework.constant_values import constant_array
from hloipu_compiler.passes.framework.pass_base import NO_DEAD_CODE, TRIP_COUNTS, Facts, Pass
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import UsageError
from hloipu_runtime.frozen import dataclass

_LEAST_SHARE = 0.75
"""Of the bytes of all that is computed: a batch is nearly everywhere, the side of a weight not."""
MOST_SAMPLES = 2**24
"""Of a batch that a module is rewritten to: its constants may grow with it."""


def batch_of(module: Module) -> frozenset[Cell]:
    """Return the dimensions that are the batch; none where there is no such thing.

    That is the class with most bytes in the arrays that have it, of those that lead in parameters
    and are nothing else there: neither in state (aliased to a result) nor further inside, as the
    sides of weights are, nor only ever summed over, nor rows that indices point to. Arrays with no
    other dimensions, as weights and their gradients, do not count.
    """
    classes = scaling_classes(module)
    members = classes.members()
    entry = module.entry
    state = _state(module)
    leading: set[Cell] = set()
    not_batch = set(looked_up(module, classes) | weights(module, classes))
    for number, position in enumerate(entry.parameters):
        shape = entry.instructions[position].shape
        for element, array in arrays_of(shape):
            for dimension in range(array.rank):
                cell = classes.of_cell.get(Cell(entry.name, position, element, dimension))
                if cell is None:
                    continue
                is_data = dimension == 0 and (number, element) not in state
                (leading if is_data else not_batch).add(cell)
    bytes_by_place = _made_bytes(module)
    free = {cell[:3] for first in members.keys() - not_batch for cell in members[first]}
    least = _LEAST_SHARE * sum(size for place, size in bytes_by_place.items() if place in free)
    best: Cell | None = None
    for first in sorted(leading - not_batch):
        weight = sum(
            bytes_by_place.get(place, 0) for place in {cell[:3] for cell in members[first]}
        )
        if weight >= least:
            best, least = first, weight
    return frozenset() if best is None else frozenset(members[best])


def _state(module: Module) -> set[tuple[int, int]]:
    """Return the parameters that results take over, with the element where they are tuples."""
    return {
        (alias.parameter, alias.parameter_index[0] if alias.parameter_index else WHOLE)
        for alias in module.attributes.aliases()
    }


def _made_bytes(module: Module) -> dict[tuple[str, int, int], int]:
    """Return the bytes of each array that the module computes."""
    return {
        (computation.name, position, element): array.byte_count
        for computation in module.computations
        for position, op in enumerate(computation.instructions)
        if op.opcode not in ("parameter", "constant", "tuple", "get-tuple-element")
        for element, array in arrays_of(op.shape)
    }


def batch_size(module: Module, cells: frozenset[Cell]) -> int:
    """Return the size of the batch, whose dimensions `cells` are; 0 where there are none.

    Of several dimensions of parameters (samples, and samples by tokens, say) what divides all.
    """
    entry = module.entry
    parameters = frozenset(entry.parameters)
    size = 0
    for cell in cells:
        if cell.computation == entry.name and cell.position in parameters:
            arrays = dict(arrays_of(entry.instructions[cell.position].shape))
            size = gcd(size, arrays[cell.element].dimensions[cell.dimension])
    return size


def batch_divided(module: Module, by: int) -> Module:
    """Return the module with its batch divided; the same one where that gives no valid module."""
    return module if by < 2 else _batch_times(module, batch_of(module), Fraction(1, by))


def batch_made(module: Module, size: int) -> Module:
    """Return the module with a batch of this size.

    Raises UsageError E1011 where it has no batch, or none that could be of this size.
    """
    cells = batch_of(module)
    now = batch_size(module, cells)
    if now == size:
        return module
    scaled = (
        _batch_times(module, cells, Fraction(size, now))
        if now and 0 < size <= MOST_SAMPLES
        else module
    )
    if scaled is module:
        raise UsageError(
            "E1011",
            f"the batch of {module.name} is {now} and cannot be made {size}"
            if now
            else f"{module.name} has no dimension that can be told to be a batch",
            hint="lower the model with that batch in place of rewriting it",
        )
    return scaled


def _batch_times(module: Module, cells: frozenset[Cell], factor: Fraction) -> Module:
    """Return the module with its batch scaled; the same one where that gives no valid module."""
    cut: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        cut.setdefault((cell.computation, cell.position), []).append(cell)
    computations = []
    for computation in module.computations:
        changed = _computation(computation, cut, factor)
        if changed is None:
            return module
        computations.append(changed)
    if not cells:
        return module
    header = without(module.attributes, ("entry_computation_layout",))
    scaled = replace(module, computations=tuple(computations), attributes=header)
    try:
        verify(scaled)
    except VerifyError:  # something that is not known here depends on the batch
        return module
    return scaled


def _computation(
    computation: Computation, cut: dict[tuple[str, int], list[Cell]], factor: Fraction
) -> Computation | None:
    old = computation.instructions
    instructions = list(old)
    for position, op in enumerate(old):
        cells = cut.get((computation.name, position))
        if cells is not None:
            shape = _scaled(op.shape, cells, factor)
            if shape is None:
                return None
            instructions[position] = _instruction(op, shape)
        if op.opcode == "gather":
            table = op.operands[0]
            instructions[position] = _gather(
                instructions[position], old[table].shape, instructions[table].shape
            )
    return replace(computation, instructions=tuple(instructions))


def _gather(op: Instruction, before: Shape, after: Shape) -> Instruction:
    if not isinstance(before, ArrayShape) or not isinstance(after, ArrayShape) or before == after:
        return op
    sizes = tuple(
        new if size == old else size
        for size, old, new in zip(
            op.attributes.integers("slice_sizes"), before.dimensions, after.dimensions, strict=False
        )
    )
    values = {**dict(op.attributes.items()), "slice_sizes": sizes}
    return op._replace(attributes=Attributes(values, op.attributes.called))


def _scaled(shape: Shape, cells: list[Cell], factor: Fraction) -> Shape | None:
    """Return a shape with some dimensions scaled, None where one cannot be."""
    if isinstance(shape, TupleShape):
        elements = list(shape.elements)
        for number, element in enumerate(elements):
            own = [c._replace(element=WHOLE) for c in cells if c.element == number]
            if own:
                scaled_element = _scaled(element, own, factor)
                if scaled_element is None:
                    return None
                elements[number] = scaled_element
        return TupleShape(tuple(elements))
    if not isinstance(shape, ArrayShape):
        return None
    sizes = list(shape.dimensions)
    for cell in cells:
        size = sizes[cell.dimension] * factor
        if size.denominator != 1:
            return None
        sizes[cell.dimension] = size.numerator
    return ArrayShape(shape.element_type, tuple(sizes), shape.layout, shape.dynamic)


def _instruction(op: Instruction, shape: Shape) -> Instruction:
    if not isinstance(shape, ArrayShape) or not isinstance(op.shape, ArrayShape):
        return op._replace(shape=shape)
    literal = op.literal
    if op.opcode == "constant":
        array = constant_array(op)
        if array is not None:
            for axis, (old, new) in enumerate(zip(array.shape, shape.dimensions, strict=True)):
                if old != new:  # a larger batch has the rows of the smaller one again
                    array = array.take(np.arange(new) % old, axis)
            literal = Literal(array=array)
    values: dict[str, Value] = dict(op.attributes.items())
    ranges = op.attributes.slice_ranges()
    if ranges and len(ranges) == shape.rank:
        values["slice"] = tuple(
            SliceRange(0, new) if r.limit - r.start == old != new and r.stride == 1 else r
            for r, old, new in zip(ranges, op.shape.dimensions, shape.dimensions, strict=True)
        )
    sizes = values.get("dynamic_slice_sizes")
    if isinstance(sizes, tuple):
        values["dynamic_slice_sizes"] = shape.dimensions
    return op._replace(
        shape=shape, literal=literal, attributes=Attributes(values, op.attributes.called)
    )


@register
@dataclass(frozen=True, slots=True)
class SmallerBatch(Pass):
    """Divides the batch, the data parameters' leading dimension, everywhere: an edit, tried out."""

    name: ClassVar[str] = "smaller-batch"
    breaks: ClassVar[Facts] = frozenset({NO_DEAD_CODE, TRIP_COUNTS})
    by: int = 2
    """What the batch is divided by."""

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module with a smaller batch."""
        return batch_divided(module, self.by), plan


@register
@dataclass(frozen=True, slots=True)
class ScaledBatch(Pass):
    """Makes the batch, the data parameters' leading dimension, of a size: an edit, tried out."""

    name: ClassVar[str] = "scaled-batch"
    breaks: ClassVar[Facts] = frozenset({NO_DEAD_CODE, TRIP_COUNTS})
    to: int = 1
    """Samples of the batch."""

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module with that batch; UsageError E1011 where it can have none."""
        return batch_made(module, self.to), plan
