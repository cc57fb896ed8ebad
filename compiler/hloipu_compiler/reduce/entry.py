"""Edits that cut the entry: before or after a place, results, parameters."""

from collections.abc import Sequence
from dataclasses import replace

from hloipu_compiler.ir.graph import Instruction, Module, with_computation
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape, leaves
from hloipu_compiler.reduce.rewriting import (
    Draft,
    Key,
    NotReducibleError,
    edited,
    without_interface,
    without_parameters,
)

SOURCES = frozenset({"constant", "iota", "parameter", "after-all", "tuple"})
"""Opcodes that stay where others become parameters: constants decide what is compiled, and tuples
are only as simple as their elements."""


def cut_after(module: Module, length: int) -> Module:
    """Keep the entry's first instructions; its results are those that none of them reads."""
    entry = module.entry
    first_instructions = entry.instructions[:length]
    read_positions = {o for instruction in first_instructions for o in instruction.operands}
    ends = [
        i for i, op in enumerate(first_instructions)
        if i not in read_positions and op.opcode != "parameter" and is_data(op)
    ]  # fmt: skip
    if not ends:
        raise NotReducibleError
    return with_results(module, ends)


def with_results(module: Module, positions: Sequence[int]) -> Module:
    """Make some instructions the entry's results: a tuple of them, or the only one itself."""
    entry = module.entry
    if len(positions) == 1:
        narrowed = replace(entry, root=positions[0])
        return without_interface(with_computation(module, narrowed))
    draft = Draft(entry)
    for i in range(len(entry.instructions)):
        draft.copy(i)
    shape = TupleShape(tuple(entry.instructions[i].shape for i in positions))
    root = draft.add("results", "tuple", shape, [draft.place[i] for i in positions])
    return without_interface(with_computation(module, draft.finish(root)))


def cut_before(module: Module, length: int) -> Module:
    """Replace the entry's first instructions by parameters where others read them."""
    first = module.entry.instructions[:length]
    keys = [Key(module.entry.name, op.name) for op in first if is_replaceable(op)]
    return to_parameters(module, keys)


def replaceable(module: Module) -> list[Key]:
    """List the entry's instructions that parameters can stand for, the last ones first."""
    entry = module.entry
    return [
        Key(entry.name, op.name)
        for i, op in reversed(list(enumerate(entry.instructions)))
        if i != entry.root and is_replaceable(op)
    ]


def is_replaceable(instruction: Instruction) -> bool:
    """Whether a parameter can stand for an instruction."""
    return instruction.opcode not in SOURCES and is_data(instruction)


def is_data(instruction: Instruction) -> bool:
    """Whether an instruction's value is made of arrays of numbers only."""
    return all(
        isinstance(leaf, ArrayShape) and leaf.element_type.is_array
        for _, leaf in leaves(instruction.shape)
    )


def to_parameters(module: Module, keys: Sequence[Key]) -> Module:
    """Replace instructions of the entry by parameters, where others read them."""
    entry, names = module.entry, {k.instruction for k in keys}
    gone = {i for i, instruction in enumerate(entry.instructions) if instruction.name in names}
    draft, number = Draft(entry), len(entry.parameters)
    for i, instruction in enumerate(entry.instructions):
        if i not in gone:
            draft.copy(i)
        elif i == entry.root or not gone.issuperset(entry.users[i]):
            draft.place[i] = draft.add(
                "arg", "parameter", instruction.shape, parameter_number=number
            )
            number += 1
    return without_interface(with_computation(module, draft.finish()))


def outputs(module: Module) -> list[Key]:
    """List the elements of the entry's root tuple."""
    root = module.entry.instructions[module.entry.root]
    if root.opcode != "tuple" or len(root.operands) < 2:
        return []
    return [Key(module.entry.name, root.name, i) for i in range(len(root.operands))]


def drop_outputs(module: Module, keys: Sequence[Key]) -> Module:
    """Leave elements out of the entry's root tuple."""
    root = module.entry.instructions[module.entry.root]
    dropped = {k.choice for k in keys}
    operands = [o for n, o in enumerate(root.operands) if n not in dropped]
    if not operands:
        raise NotReducibleError
    return with_results(module, operands)


def earlier_roots(module: Module) -> list[Key]:
    """List the operands of the entry's root, as roots to be."""
    entry = module.entry
    root = entry.instructions[entry.root]
    return [Key(entry.name, entry.instructions[i].name) for i in dict.fromkeys(root.operands)]


def move_root(module: Module, keys: Sequence[Key]) -> Module:
    """Make an instruction the entry's root."""
    return with_results(module, [module.entry.position[keys[0].instruction]])


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


def tuple_parameters(module: Module) -> list[Key]:
    """List the entry's parameters that are tuples."""
    entry = module.entry
    return [
        Key(entry.name, entry.instructions[i].name)
        for i in entry.parameters
        if isinstance(entry.instructions[i].shape, TupleShape)
    ]


def split_parameters(module: Module, keys: Sequence[Key]) -> Module:
    """Replace tuple parameters by a parameter for each element."""
    entry, names = module.entry, {k.instruction for k in keys}
    draft, first = Draft(entry), {}
    number = 0
    for i in entry.parameters:
        instruction = entry.instructions[i]
        first[i] = number
        is_split = instruction.name in names and isinstance(instruction.shape, TupleShape)
        number += (
            len(instruction.shape.elements)
            if is_split and isinstance(instruction.shape, TupleShape)
            else 1
        )
    for i, instruction in enumerate(entry.instructions):
        if i not in first:
            draft.copy(i)
        elif instruction.name in names and isinstance(instruction.shape, TupleShape):
            parts = [
                draft.add(instruction.name, "parameter", shape, parameter_number=first[i] + n)
                for n, shape in enumerate(instruction.shape.elements)
            ]
            draft.place[i] = draft.add("parts", "tuple", instruction.shape, parts)
        else:
            draft.copy(i, parameter_number=first[i])
    return without_interface(with_computation(module, draft.finish()))


def elements_of_tuples(module: Module) -> list[Key]:
    """List reads of elements of tuples that the same computation puts together."""
    return [
        Key(c.name, op.name)
        for c in module.computations
        for op in c.instructions
        if op.opcode == "get-tuple-element" and c.instructions[op.operands[0]].opcode == "tuple"
    ]


def read_directly(module: Module, keys: Sequence[Key]) -> Module:
    """Read what a tuple was put together from, not its element."""

    def edit(draft: Draft, i: int, instruction: Instruction, _: Key) -> None:
        parts = draft.old.instructions[instruction.operands[0]].operands
        draft.place[i] = draft.place[parts[instruction.attributes.integer("index")]]

    return edited(module, keys, edit)
