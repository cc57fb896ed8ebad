"""Finds loops over layers, forward and backward, by the rows of weights that they read.

Weights are floats that stay on the device and do not differ by micro-batch. A loop over time reads
rows of data, and is left whole.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.partition.scans.loop_form import READ, WRITTEN, StackedLoop, stacked_loop
from hloipu_compiler.partition.training.reach import Mask, dependants, parameter_positions
from hloipu_compiler.plan.wrapping import Wrapping

Source = tuple[int, int]
"""What a stack is: an op of the entry and, of a loop, which element of its result; -1: itself."""

_FEW_ELEMENTS = 64
"""Stacks of no more are numbers of layers, such as the rates of dropout."""
_MOST_OPS = 100_000
"""Of trips written out, in all loops together; loops that would make more stay whole."""
_MOVING = frozenset("transpose reshape bitcast copy convert opt-barrier".split())


@dataclass(frozen=True)
class LayerLoop:
    """A loop over layers."""

    loop: StackedLoop
    reads: Mapping[Source, Mapping[int, int]] = field(default_factory=dict)
    """Stack -> row -> the trip that reads it."""
    writes: Mapping[Source, Mapping[int, int]] = field(default_factory=dict)

    @property
    def stacks(self) -> Set[Source]:
        """What it reads and writes rows of."""
        return self.reads.keys() | self.writes.keys()


def layer_loops(module: Module, wrapping: Wrapping) -> list[LayerLoop]:
    """Return the loops of a flat module's entry that run over layers, in order.

    Those that read rows of a stack that another one reads or writes rows of are among them.
    """
    entry = module.entry
    loops = [
        _layer_loop(entry, loop)
        for position, op in enumerate(entry.instructions)
        if op.opcode == "while" and (loop := stacked_loop(module, entry, position)) is not None
    ]
    if not loops:
        return []
    weights = _weights(entry, wrapping)
    chosen = [loop for loop in loops if _is_over_weights(entry, loop, weights)]
    known: set[Source] = set()
    while (
        new := {at for loop in chosen for at in loop.stacks if at[1] >= 0 or weights[at[0]]} - known
    ):
        known |= new
        chosen = [loop for loop in loops if not known.isdisjoint(loop.stacks)]
    return _few(module, chosen)


def _weights(entry: Computation, wrapping: Wrapping) -> Mask:
    """Return what is made of parameters and does not differ by micro-batch."""
    places = parameter_positions(entry)
    fed = [n for feed in wrapping.feeds for n in feed.places]
    data = [at for n in fed or wrapping.inputs for at in places[n]]
    varying = dependants(entry, data)
    begun = dependants(entry, [at for each in places for at in each])
    return Mask(b and not v for b, v in zip(begun, varying, strict=True))


def _is_over_weights(entry: Computation, each: LayerLoop, weights: Mask) -> bool:
    given = entry.instructions[entry.instructions[each.loop.position].operands[0]].operands
    return any(
        element.kind == READ and weights[given[n]] and _is_large_float(entry, given[n])
        for n, element in enumerate(each.loop.elements)
    )


def _few(module: Module, loops: list[LayerLoop]) -> list[LayerLoop]:
    """Return the loops, the first of which do not make too many ops when written out."""
    few, left = [], _MOST_OPS
    for each in loops:
        op = module.entry.instructions[each.loop.position]
        body = module.computation[op.attributes.text("body")]
        left -= each.loop.trips * len(body.instructions)
        if left >= 0:
            few.append(each)
    return few


def _layer_loop(entry: Computation, loop: StackedLoop) -> LayerLoop:
    given = entry.instructions[entry.instructions[loop.position].operands[0]].operands
    reads: dict[Source, Mapping[int, int]] = {}
    writes: dict[Source, Mapping[int, int]] = {}
    for index, element in enumerate(loop.elements):
        if element.kind in (READ, WRITTEN):
            trips = {int(row): n for n, row in enumerate(loop.rows[element.accesses[0]])}
            if element.kind == WRITTEN:
                writes[loop.position, index] = trips
            elif len(trips) == loop.trips:
                reads[_source(entry, given[index])] = trips
    return LayerLoop(loop, reads, writes)


def _source(entry: Computation, position: int) -> Source:
    """Return what a stack is made of by moving and converting alone."""
    op = entry.instructions[position]
    while op.opcode in _MOVING and len(op.operands) == 1:
        position = op.operands[0]
        op = entry.instructions[position]
    if op.opcode == "get-tuple-element":
        return op.operands[0], op.attributes.integer("index")
    return position, -1


def _is_large_float(entry: Computation, position: int) -> bool:
    shape = entry.instructions[position].shape
    if not isinstance(shape, ArrayShape):
        return False
    return shape.element_type.is_float and shape.element_count > _FEW_ELEMENTS
