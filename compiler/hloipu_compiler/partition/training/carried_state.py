"""Finds state carried from micro-batch to micro-batch, by what its new value is made of.

New state is walked backwards through elementwise ops and such as move elements. What is met then is
its origin: of a weight it is a gradient; of a moving average, a count or a queue of features it is
what the forward pass computes, whole numbers, or what no weight goes into. A metric of floats that
the loss is not made of looks as the gradient of another loss does: unless it is added to the old
state element by element, it is in doubt.
"""

from collections.abc import Iterable, Set

from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.ops import Trait, with_trait
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.partition.training.reach import Mask, ancestors, dependants
from hloipu_runtime.reached import reached

_MOVING = frozenset(
    {"transpose", "reshape", "bitcast", "copy", "slice", "concatenate", "dynamic-update-slice",
     "dynamic-slice", "pad", "reverse", "broadcast", "get-tuple-element", "tuple", "opt-barrier"}
)  # fmt: skip
_MIXING = _MOVING | with_trait(Trait.ELEMENTWISE) | {"scatter", "convert"}


class MovingState:
    """One step: what varies by micro-batch, what the loss is made of, where state is taken."""

    def __init__(
        self, entry: Computation, varying: Mask, forward: Mask, state: Iterable[int]
    ) -> None:
        self.entry = entry
        self.varying = varying
        self.forward = forward
        self.sloped = _sloped(entry, state)

    def is_handed_on(self, result: int) -> bool:
        """Whether new state is what the forward pass computes, moved at most.

        Such as the last output of a recurrent net, or a queue of features: no weight, of which
        something is taken away.
        """
        if not self.varying[result]:
            return False
        return all(
            self.forward[i] and self.entry.instructions[i].parameter_number < 0
            for i in self._origins(result, _MOVING)
        )

    def is_statistic(self, result: int) -> bool:
        """Whether new state that no gradient goes into is made by each micro-batch for certain."""
        return all(
            self.forward[i] or not self.sloped[i] or not has_slope(self.entry.instructions[i])
            for i in self._origins(result, _MIXING)
        )

    def is_added_to(self, own: Iterable[int], result: int) -> bool:
        """Whether new state has the old in it element by element alone, as sums of metrics do.

        What is learned acts on its own gradient through the model: through products, reductions.
        """
        between = ancestors(self.entry, [result])
        after = dependants(self.entry, list(own))
        return all(
            op.opcode in _MIXING
            for position, op in enumerate(self.entry.instructions)
            if between[position] and after[position] and op.parameter_number < 0
        )

    def is_mixed_of(self, result: int, own: Set[int]) -> bool:
        """Whether new state is made of the old by moving elements and element by element."""

        def mixed(position: int) -> tuple[int, ...]:
            op = self.entry.instructions[position]
            return () if self.forward[position] or op.opcode not in _MIXING else op.operands

        return any(position in own for position in reached([result], mixed))

    def is_shifted(self, result: int, own: Set[int]) -> bool:
        """Whether elements of the old state are at other places of the new, as they were.

        So it is with a queue or a history; an update changes every element where it is. What is
        kept in place is followed through what is written over parts of it.
        """
        position = result
        while position not in own:
            op = self.entry.instructions[position]
            if op.opcode in ("dynamic-update-slice", "scatter", "reshape", "bitcast", "copy"):
                position = op.operands[0]
            elif op.opcode == "concatenate":
                places = _parts_of(self.entry, position, own)
                return any(here != there for here, there in places)
            else:
                return False
        return False

    def _origins(self, result: int, through: Set[str]) -> set[int]:
        origins, seen, waiting = set[int](), {result}, [result]
        while waiting:
            position = waiting.pop()
            op = self.entry.instructions[position]
            if self.forward[position] or op.parameter_number >= 0 or op.opcode not in through:
                origins.add(position)
                continue
            new = {i for i in op.operands if self.varying[i]} - seen
            seen |= new
            waiting.extend(new)
        return origins


def _parts_of(entry: Computation, position: int, own: Set[int]) -> list[tuple[int, int]]:
    """Return where parts of state begin within arrays put together, and where within the state."""
    op = entry.instructions[position]
    (axis,) = op.attributes.integers("dimensions")
    begins, begin = list[tuple[int, int]](), 0
    for i in op.operands:
        part = entry.instructions[i]
        if not isinstance(part.shape, ArrayShape):
            return []
        if part.opcode == "slice" and part.operands[0] in own:
            begins.append((begin, part.attributes.slice_ranges()[axis].start))
        begin += part.shape.dimensions[axis]
    return begins


def is_made_forward(entry: Computation, forward: Mask, result: int) -> bool:
    """Whether the forward pass makes new state, which is moved at most."""
    ops = entry.instructions
    return all(
        ops[i].parameter_number < 0 and (forward[i] or ops[i].opcode in _MOVING)
        for i in reached([result], lambda i: () if forward[i] else ops[i].operands)
    )


def _sloped(entry: Computation, state: Iterable[int]) -> Mask:
    """Return what depends on state of floats by floats alone: what has a derivative by it."""
    is_sloped = Mask(len(entry.instructions))
    for position in state:
        is_sloped[position] = has_slope(entry.instructions[position])
    for position, op in enumerate(entry.instructions):
        if not is_sloped[position] and any(is_sloped[i] for i in op.operands):
            is_sloped[position] = has_slope(op)
    return is_sloped


def is_float(op: Instruction) -> bool:
    """Whether an array is of floats; a tuple may have some."""
    if not isinstance(op.shape, ArrayShape):
        return True
    return op.shape.element_type.name.startswith(("f", "bf"))


def has_slope(op: Instruction) -> bool:
    """Whether an array is of floats or complex numbers; a tuple may have some."""
    if not isinstance(op.shape, ArrayShape):
        return True
    return is_float(op) or op.shape.element_type.name in ("c64", "c128")
