"""Copies of what calls could not hand out or read otherwise: gradients, and state of stages."""

from collections.abc import Container, Mapping, Sequence, Set
from dataclasses import replace

from hloipu_compiler.hlo.attributes.frontend_attributes import frontend_attributes_text
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Instruction, Module, with_computation
from hloipu_compiler.partition.training.marks import marked_stages
from hloipu_compiler.partition.training.reach import (
    ancestors,
    parameter_positions,
    result_positions,
)
from hloipu_compiler.partition.training.step_phases import BACKWARD, UPDATE, Phases
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.rewriting import Rewriting, with_operands


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
    loss = results[phases.loss] if phases.loss >= 0 else None
    ahead = ancestors(entry, [] if loss is None else [loss])
    readers = {n for n, phase in enumerate(phases.phase) if phase == UPDATE and not ahead[n]}
    return _with_copies(module, {n: {"ipu_phase": BACKWARD} for n in fed}, "gradient", readers)


def with_state_copies(module: Module, phases: Phases) -> Module:
    """Return the module with a copy of state that ops of several annotated stages read.

    State that micro-batches change, such as a key, has one stage that reads it and makes it anew:
    the first of these, which sends what it read to the others.
    """
    entry = module.entry
    marked, parameters = marked_stages(entry), parameter_positions(entry)
    copied = {}
    for pair in phases.per_micro_batch:
        for position in parameters[pair.parameter]:
            stages = {marked[n] for n in entry.users[position] if n in marked}
            if len(stages) > 1:
                copied[position] = {"ipu_stage": str(min(stages))}
    readers = range(len(entry.instructions))
    return _with_copies(module, copied, "read", readers) if copied else module


def _with_copies(
    module: Module,
    copied: Mapping[int, Mapping[str, str]],
    suffix: str,
    readers: Container[int],
) -> Module:
    """Return the module with copies, annotated so, behind some ops, which some ops read instead."""
    entry = module.entry
    draft = Rewriting(entry)
    place = draft.place
    copies: dict[int, int] = {}
    for position, x in enumerate(entry.instructions):
        reads = copies if position in readers else {}
        operands = tuple([reads.get(i, place[i]) for i in x.operands])
        place.append(draft.append(with_operands(x, operands)))
        if position in copied:
            marks = Attributes({"frontend_attributes": frontend_attributes_text(copied[position])})
            name = draft.fresh_name(f"{x.name}.{suffix}")
            copies[position] = draft.append(Instruction(name, "copy", x.shape, (place[-1],), marks))
    return with_computation(module, draft.finish())


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
