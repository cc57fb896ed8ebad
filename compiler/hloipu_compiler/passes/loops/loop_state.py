"""Drops unused elements of loop and branch tuples."""

from collections.abc import Sequence, Set
from dataclasses import replace

from hloipu_compiler.analysis.order import has_side_effect
from hloipu_compiler.ir.graph import Computation, Instruction, element_of
from hloipu_compiler.ir.shapes import Shape, TupleShape
from hloipu_compiler.passes.framework.attribute_edits import DESCRIBES_LEAVES
from hloipu_compiler.passes.framework.rewriting import with_control_names, with_operands

Elements = frozenset[int]
_GTE = "get-tuple-element"


def elements_read(computation: Computation, position: int) -> Elements | None:
    """Return which elements of a tuple are read; None where somebody takes the tuple as a whole."""
    if position == computation.root:
        return None
    read: set[int] = set()
    for user in computation.users[position]:
        op = computation.instructions[user]
        if op.opcode != _GTE:
            return None
        read.add(op.attributes.integer("index"))
    return frozenset(read)


def is_divisible(op: Instruction) -> bool:
    """Whether a tuple's elements may be left out: nothing is said about its leaves one by one."""
    shape = op.shape
    return (
        isinstance(shape, TupleShape)
        and not shape.has_buffer
        and not any(key in op.attributes for key in DESCRIBES_LEAVES)
    )


def state_needed(
    condition: Computation, body: Computation, outside: Elements, effectful: Set[str] | None
) -> Elements | None:
    """Return the elements of a loop's state that its result, its end or its effects depend on.

    None where the tuple is used as a whole somewhere, so that nobody can tell. Without `effectful`,
    effects count for nothing.
    """
    root, instructions = body.instructions[body.root], body.instructions
    parameter = body.parameters[0]
    ending = elements_read(condition, condition.parameters[0])
    if ending is None or root.opcode != "tuple" or elements_read(body, parameter) is None:
        return None
    checked = (root, instructions[parameter], condition.instructions[condition.parameters[0]])
    if body.users[body.root] or not all(map(is_divisible, checked)):
        return None
    needed = set(outside | ending)
    waiting = [root.operands[i] for i in needed]
    if effectful is not None:
        waiting += [i for i, op in enumerate(instructions) if stays(op, effectful)]
    seen = bytearray(len(instructions))
    while waiting:
        at = waiting.pop()
        if seen[at]:
            continue
        seen[at] = 1
        op = instructions[at]
        if op.opcode == _GTE and op.operands[0] == parameter:
            index = op.attributes.integer("index")
            if index not in needed:
                needed.add(index)
                waiting.append(root.operands[index])
        else:
            waiting += op.operands
    return frozenset(needed)


def stays(op: Instruction, effectful: Set[str]) -> bool:
    """Whether an instruction must stay although nobody uses its result."""
    return has_side_effect(op) or not effectful.isdisjoint(op.attributes.called)


def part_of(shape: Shape, kept: Sequence[int]) -> TupleShape:
    """Return a tuple's shape with some of its elements."""
    elements = shape.elements if isinstance(shape, TupleShape) else ()
    return TupleShape(tuple(elements[i] for i in kept))


def with_narrow_root(computation: Computation, kept: Sequence[int]) -> Computation:
    """Return a computation whose root has only some elements; the others may now be dead."""
    at, instructions = computation.root, computation.instructions
    root = instructions[at]
    shape = part_of(root.shape, kept)
    if root.opcode == "tuple" and not computation.users[at]:
        narrow = root._replace(shape=shape, operands=tuple(root.operands[i] for i in kept))
        changed = (*instructions[:at], narrow, *instructions[at + 1 :])
        return replace(computation, instructions=changed)
    used = {op.name for op in instructions}
    changed_instructions = list(instructions)
    operands = []
    for i, element in zip(kept, shape.elements, strict=True):
        operands.append(len(changed_instructions))
        own = unused(f"{root.name}.kept.{i}", used)
        changed_instructions.append(element_of(own, at, i, element))
    name = unused(f"{root.name}.kept", used)
    changed_instructions.append(
        Instruction(name, "tuple", shape, tuple(operands), metadata=root.metadata)
    )
    return replace(
        computation, instructions=tuple(changed_instructions), root=len(changed_instructions) - 1
    )


def unused(stem: str, used: set[str]) -> str:
    """Return a name that is not used, and take it."""
    name = stem
    while name in used:
        name += "_"
    used.add(name)
    return name


def with_narrow_parameter(computation: Computation, kept: Sequence[int]) -> Computation:
    """Return a computation whose parameter has only some elements; nobody reads the others."""
    at = computation.parameters[0]
    new_index = {old: new for new, old in enumerate(kept)}
    instructions = list(computation.instructions)
    instructions[at] = instructions[at]._replace(shape=part_of(instructions[at].shape, kept))
    for user in computation.users[at]:
        instructions[user] = renumbered(instructions[user], new_index)
    return replace(computation, instructions=tuple(instructions))


def renumbered(op: Instruction, new_index: dict[int, int]) -> Instruction:
    """Return a get-tuple-element that reads the same element where it stands now."""
    index = new_index[op.attributes.integer("index")]
    return op._replace(attributes=op.attributes.replaced(index=index))


def without_dead(computation: Computation, live: Sequence[bool]) -> Computation:
    """Return a computation without what is not live; the same one where all is."""
    if all(live):
        return computation
    live_instructions: list[Instruction] = []
    place: list[int] = []
    dead: dict[str, str] = {}
    for op, lives in zip(computation.instructions, live, strict=True):
        place.append(len(live_instructions))
        if lives:
            moved = tuple([place[i] for i in op.operands])
            live_instructions.append(with_operands(op, moved) if moved != op.operands else op)
        else:
            dead[op.name] = op.name
    root = place[computation.root]
    new = replace(computation, instructions=tuple(live_instructions), root=root)
    return with_control_names(new, dead)
