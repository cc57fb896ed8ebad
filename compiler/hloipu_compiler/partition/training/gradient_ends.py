"""Whether a gradient that is elementwise in the forward pass surely ends where it does.

Where no product or sum over rows lies between the forward pass and a weight, the text does not say
which functions are the loss's derivative and which the update's: a clamp may be either. A gradient
goes into weights or optimizer state linearly somewhere; a value that goes through a function first
wherever it is read may be what the gradient is computed from.
"""

from collections.abc import Set

from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.ops import Trait, with_trait
from hloipu_compiler.partition.training.errors import StagingError
from hloipu_compiler.partition.training.gradient_walk import GradientWalk, is_number
from hloipu_compiler.partition.training.reach import Mask

_ELEMENTWISE = with_trait(Trait.ELEMENTWISE)
_MOVING = frozenset(
    {"reshape", "bitcast", "copy", "transpose", "convert", "slice", "broadcast", "opt-barrier",
     "negate", "reverse", "pad", "concatenate", "tuple"}
)  # fmt: skip


def check_ends(entry: Computation, walk: GradientWalk, sloped: Mask) -> None:
    """Raise StagingError E0504 for a gradient of which it is not told that it is one.

    `sloped`: what depends on state by floats.
    """
    is_elementwise = _made_forward(entry, walk)
    for position in sorted(walk.gradients):
        if (
            not is_elementwise[position]
            or not sloped[position]
            or walk.marks.get(position) == "bwd"
        ):
            continue
        if is_number(entry.instructions[position]):
            continue  # `gradients_of_numbers` tells those from what they are made of
        if entry.instructions[position].parameter_number >= 0 or _goes_in(entry, walk, position):
            continue
        op = entry.instructions[position]
        raise StagingError(
            "E0504",
            f"the update reads {op.name!r} ({op.opcode}) through functions alone that may be a "
            "part "
            "of the gradient, which nothing ends that is not a function of elements",
            hint="print the text with metadata, which names what is backward, or mark the gradient "
            'with frontend_attributes={ipu_phase="bwd"}',
        )


def _made_forward(entry: Computation, walk: GradientWalk) -> Mask:
    """Return what is made of the forward pass's values element by element."""
    is_made = Mask(len(entry.instructions))
    for position, op in enumerate(entry.instructions):
        if walk.forward[position]:
            is_made[position] = 1
        elif walk.varying[position] and op.opcode in _ELEMENTWISE | _MOVING:
            is_made[position] = all(is_made[i] or not walk.varying[i] for i in op.operands)
    return is_made


def _goes_in(entry: Computation, walk: GradientWalk, gradient: int) -> bool:
    straight, bent = {gradient}, set[int]()
    for position in range(gradient + 1, len(entry.instructions)):
        op = entry.instructions[position]
        if bent.isdisjoint(op.operands) and straight.isdisjoint(op.operands):
            continue
        if is_number(op):
            continue  # a norm, say: it scales what it is broadcast into, as numbers do
        if position == entry.root:
            return not straight.isdisjoint(op.operands)
        if not bent.isdisjoint(op.operands) or not _is_linear(entry, walk, op, straight):
            bent.add(position)
            continue
        if walk.terms[position] or walk.optimizing[position]:
            return True
        straight.add(position)
    return False


def _is_linear(entry: Computation, walk: GradientWalk, op: Instruction, straight: Set[int]) -> bool:
    others = [i for i in op.operands if i not in straight]
    match op.opcode:
        case "add" | "subtract":
            return True
        case "multiply":
            return len(others) == 1 and _is_factor(entry, walk, others[0])
        case "divide":
            return op.operands[0] in straight and all(_is_factor(entry, walk, i) for i in others)
        case "select":
            return op.operands[0] not in straight
        case opcode:
            return opcode in _MOVING


def _is_factor(entry: Computation, walk: GradientWalk, position: int) -> bool:
    return not walk.varying[position] or entry.instructions[position].opcode == "broadcast"
