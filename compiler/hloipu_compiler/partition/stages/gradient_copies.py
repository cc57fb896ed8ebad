"""Copies of gradients that a call could not hand out otherwise: fed arrays, and new state."""

from collections.abc import Sequence, Set
from dataclasses import replace

from hloipu_compiler.hlo.attributes.frontend_attributes import frontend_attributes_text
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Instruction, Module, with_computation
from hloipu_compiler.partition.training.reach import ancestors, result_positions
from hloipu_compiler.partition.training.step_phases import BACKWARD, UPDATE, Phases
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.rewriting import with_operands


def with_gradient_copies(module: Module, phases: Phases) -> Module:
    """Return the module with a copy of each gradient that is what a queue feeds.

    Such as the gradient of sum(w * x): a call cannot hand out what it does not compute. So with a
    gradient that is new state as it is, such as the last gradient of an optimistic update: it is
    the update that hands out the gradients combined.
    """
    entry = module.entry
    fed = {
        g.position for g in phases.gradients if entry.instructions[g.position].parameter_number >= 0
    }
    results = result_positions(entry)
    updated = {results[pair.result] for pair in phases.updated}
    handed = {g.position for g in phases.gradients} & updated
    if not fed and not handed:
        return module
    if handed:
        return _with_handed_copies(module, handed, [pair.result for pair in phases.updated])
    names = Names(op.name for op in entry.instructions)
    instructions: list[Instruction] = []
    place: list[int] = []
    copies: dict[int, int] = {}
    marked = Attributes({"frontend_attributes": frontend_attributes_text({"ipu_phase": BACKWARD})})
    loss = result_positions(entry)[phases.loss] if phases.loss >= 0 else None
    ahead = ancestors(entry, [] if loss is None else [loss])
    for position, x in enumerate(entry.instructions):
        in_update = phases.phase[position] == UPDATE and not ahead[position]
        operands = tuple(copies[i] if in_update and i in copies else place[i] for i in x.operands)
        place.append(len(instructions))
        instructions.append(with_operands(x, operands))
        if position in fed:
            copies[position] = len(instructions)
            instructions.append(
                Instruction(
                    names.fresh(f"{x.name}.gradient"), "copy", x.shape, (place[-1],), marked
                )
            )
    new = replace(entry, instructions=tuple(instructions), root=place[entry.root])
    return with_computation(module, new)


def _with_handed_copies(module: Module, handed: Set[int], updated: Sequence[int]) -> Module:
    """Return the module with a copy by the update of each gradient that is new state."""
    entry = module.entry
    names = Names(op.name for op in entry.instructions)
    marked = Attributes({"frontend_attributes": frontend_attributes_text({"ipu_phase": UPDATE})})
    root = entry.instructions[entry.root]
    instructions = list(entry.instructions[: entry.root])
    results, operands = result_positions(entry), list(root.operands)
    if root.opcode != "tuple" or len(operands) != len(results):
        return module
    for number in updated:
        position = results[number]
        if position in handed and position is not None:
            op = entry.instructions[position]
            operands[number] = len(instructions)
            instructions.append(
                Instruction(names.fresh(f"{op.name}.state"), "copy", op.shape, (position,), marked)
            )
    if entry.root != len(entry.instructions) - 1:
        return module
    instructions.append(with_operands(root, tuple(operands)))
    new = replace(entry, instructions=tuple(instructions), root=len(instructions) - 1)
    return with_computation(module, new)
