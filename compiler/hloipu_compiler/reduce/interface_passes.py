"""Edits of the entry's results and parameters."""

from collections.abc import Sequence
from dataclasses import replace

from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import TupleShape
from hloipu_compiler.reduce.cleaning import without_parameters
from hloipu_compiler.reduce.rewriting import Draft, Key, with_computation, without_interface


def outputs(module: Module) -> list[Key]:
    """List the elements of the entry's root tuple."""
    root = module.entry.instructions[module.entry.root]
    if root.opcode != "tuple" or len(root.operands) < 2:
        return []
    return [Key(module.entry.name, root.name, i) for i in range(len(root.operands))]


def drop_outputs(module: Module, keys: Sequence[Key]) -> Module:
    """Leave elements out of the entry's root tuple."""
    entry, dropped = module.entry, {k.choice for k in keys}
    draft = Draft(entry)
    for i, x in enumerate(entry.instructions):
        if i == entry.root and isinstance(x.shape, TupleShape):
            kept = [n for n in range(len(x.operands)) if n not in dropped]
            shape = TupleShape(tuple(x.shape.elements[n] for n in kept))
            operands = tuple(draft.place[x.operands[n]] for n in kept)
            draft.copy(i, operands=operands, shape=shape, attributes=Attributes({}))
        else:
            draft.copy(i)
    return without_interface(with_computation(module, draft.finish()))


def earlier_roots(module: Module) -> list[Key]:
    """List the operands of the entry's root, as roots to be."""
    entry = module.entry
    root = entry.instructions[entry.root]
    return [Key(entry.name, entry.instructions[i].name) for i in dict.fromkeys(root.operands)]


def move_root(module: Module, keys: Sequence[Key]) -> Module:
    """Make an instruction the entry's root."""
    root = module.entry.position[keys[0].instruction]
    return without_interface(with_computation(module, replace(module.entry, root=root)))


def unused_parameters(module: Module) -> list[Key]:
    """List the entry's parameters that nothing uses."""
    entry = module.entry
    return [
        Key(entry.name, entry.instructions[i].name)
        for i in entry.parameters
        if not entry.users[i] and i != entry.root
    ]


def drop_parameters(module: Module, keys: Sequence[Key]) -> Module:
    """Leave unused parameters of the entry out."""
    names = {k.instruction for k in keys}
    entry = module.entry
    numbers = {n for n, i in enumerate(entry.parameters) if entry.instructions[i].name in names}
    return without_interface(with_computation(module, without_parameters(entry, numbers)))
