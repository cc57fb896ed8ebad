"""Edits of calls: a callee as the entry, inlined, or in place of a loop or branch."""

from collections.abc import Sequence
from dataclasses import replace

from hloipu_compiler.analysis.call_graph import callees, callees_first
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.reduce.rewriting import (
    PASSES_OPERANDS,
    Draft,
    Key,
    NotReducibleError,
    calling,
    edited,
    instructions_of,
    without_interface,
)

MOST_HOISTED = 24
"""Callees that are tried as the entry in a round."""
MOST_GROWTH = 2
"""Times the instructions that a module may have once calls are written out in it."""


def hoistable(module: Module) -> list[Key]:
    """List computations that run as a whole: those the entry calls first, the largest first."""
    run = {
        name
        for c in module.computations
        for op in c.instructions
        if op.opcode in OPS and Trait.CALLER in OPS[op.opcode].traits
        for name in op.attributes.called
    }
    direct = callees(module)[module.entry.name]
    names = sorted(
        (name for name in run if name in module.computation and name != module.entry.name),
        key=lambda name: (name not in direct, -len(module.computation[name].instructions), name),
    )
    return [Key(name, "") for name in names[:MOST_HOISTED]]


def hoisted(module: Module, keys: Sequence[Key]) -> Module:
    """Make a computation the entry, without those that it does not need."""
    names = [c.name for c in module.computations]
    module = replace(module, entry_position=names.index(keys[0].computation))
    needed = {c.name for c in callees_first(module, only_reachable=True)}
    reachable = tuple(c for c in module.computations if c.name in needed)
    position = [c.name for c in reachable].index(keys[0].computation)
    return without_interface(replace(module, computations=reachable, entry_position=position))


def calls(module: Module) -> list[Key]:
    """List what can be written out in its caller."""
    return instructions_of(module, lambda c, i, instruction: inlinable(instruction))


def inlinable(instruction: Instruction) -> bool:
    """Whether an instruction only stands for the computation that it calls."""
    return instruction.opcode in PASSES_OPERANDS and len(instruction.attributes.called) == 1


def inlined(module: Module, keys: Sequence[Key]) -> Module:
    """Replace calls and fusions by the instructions of what they call."""
    old = module

    def edit(draft: Draft, i: int, instruction: Instruction, _: Key) -> None:
        if inlinable(instruction):
            operands = [draft.place[o] for o in instruction.operands]
            draft.place[i] = _written_out(old, draft, instruction.attributes.called[0], operands)
        else:
            draft.copy(i)

    module = edited(old, keys, edit)
    if module.instruction_count > MOST_GROWTH * old.instruction_count:
        raise NotReducibleError
    return module


def _written_out(module: Module, draft: Draft, name: str, operands: list[int]) -> int:
    callee = module.computation[name]
    place: dict[int, int] = {}
    for i, instruction in enumerate(callee.instructions):
        if instruction.parameter_number >= 0:
            place[i] = operands[instruction.parameter_number]
        else:
            place[i] = draft.adopt(instruction, [place[o] for o in instruction.operands])
    return place[callee.root]


def branches(module: Module) -> list[Key]:
    """List the branches of conditionals, and the bodies of loops."""
    keys = []
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode == "conditional":
                count = len(instruction.attributes.called)
                keys += [Key(computation.name, instruction.name, n) for n in range(count)]
            elif instruction.opcode == "while":
                keys.append(Key(computation.name, instruction.name))
    return keys


def to_calls(module: Module, keys: Sequence[Key]) -> Module:
    """Replace conditionals by calls of one branch, loops by calls of their bodies."""

    def edit(draft: Draft, i: int, instruction: Instruction, key: Key) -> None:
        if instruction.opcode not in ("conditional", "while"):
            draft.copy(i)
            return
        is_loop = instruction.opcode == "while"
        attributes, operands = instruction.attributes, instruction.operands
        callee = attributes.text("body") if is_loop else attributes.called[key.choice]
        argument = draft.place[operands[0 if is_loop else 1 + key.choice]]
        called = calling({"to_apply": callee})
        draft.place[i] = draft.add("call", "call", instruction.shape, [argument], attributes=called)

    return edited(module, keys, edit)
