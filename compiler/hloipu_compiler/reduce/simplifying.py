"""Edits that simplify a module: zeros, operands, spare attributes."""

from collections.abc import Sequence
from dataclasses import replace

from hloipu_compiler.analysis.call_graph import call_sites
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import OPS
from hloipu_compiler.ir.shapes import compatible
from hloipu_compiler.passes.framework.attribute_edits import without
from hloipu_compiler.reduce.rewriting import Draft, Key, edited, instructions_of

SIMPLEST = frozenset({"parameter", "constant", "after-all", "tuple"})
"""Opcodes that zeros are no simpler than; of tuples it is the elements that may become zeros."""


def not_zero(module: Module) -> list[Key]:
    """List instructions that are not yet what `to_zeros` makes."""
    return instructions_of(module, lambda c, i, instruction: not is_zero(c, instruction))


def is_zero(computation: Computation, instruction: Instruction) -> bool:
    """Whether an instruction is already what `to_zeros` makes."""
    if instruction.opcode in SIMPLEST:
        return True
    below = [computation.instructions[i] for i in instruction.operands]
    return instruction.opcode == "broadcast" and all(y.opcode == "constant" for y in below)


def to_zeros(module: Module, keys: Sequence[Key]) -> Module:
    """Replace instructions by zeros."""

    def edit(draft: Draft, i: int, instruction: Instruction, _: Key) -> None:
        draft.place[i] = draft.zero(instruction.shape)

    return edited(module, keys, edit)


def operand_choices(module: Module) -> list[Key]:
    """List operands that have the shape of their user."""
    keys = []
    for computation in module.computations:
        for instruction in reversed(computation.instructions):
            shapes = [computation.instructions[i].shape for i in instruction.operands]
            keys += [
                Key(computation.name, instruction.name, n)
                for n, shape in enumerate(shapes)
                if compatible(shape, instruction.shape)
            ]
    return keys


def to_operands(module: Module, keys: Sequence[Key]) -> Module:
    """Replace instructions by one of their operands each, the first that is named."""

    def edit(draft: Draft, i: int, instruction: Instruction, key: Key) -> None:
        draft.place[i] = draft.place[instruction.operands[key.choice]]

    return edited(module, tuple(reversed(keys)), edit)


def dead_instructions(module: Module) -> list[Key]:
    """List instructions that nothing uses."""
    return instructions_of(
        module,
        lambda c, i, instruction: (
            not c.users[i] and i != c.root and instruction.parameter_number < 0
        ),
    )


def drop_instructions(module: Module, keys: Sequence[Key]) -> Module:
    """Leave instructions out that nothing uses."""
    return edited(module, keys, lambda *_: None)


def uncalled_computations(module: Module) -> list[Key]:
    """List computations that nothing calls."""
    sites = call_sites(module)
    return [Key(c.name, "") for c in module.computations if not sites[c.name] and c != module.entry]


def drop_computations(module: Module, keys: Sequence[Key]) -> Module:
    """Leave computations out that nothing calls."""
    names = {k.computation for k in keys}
    remaining = tuple(c for c in module.computations if c.name not in names)
    position = [c.name for c in remaining].index(module.entry.name)
    return replace(module, computations=remaining, entry_position=position)


DECORATIONS = (
    "sharding", "frontend_attributes", "control-predecessors", "parameter_replication",
    "statistics", "origin", "original_value", "debug_attributes", "result_accuracy",
    "operand_precision", "algorithm", "output_to_operand_aliasing", "indices_are_sorted",
    "unique_indices",
)  # fmt: skip
"""Attributes that an instruction can do without, by choice of an item, after its metadata."""


def decorated(module: Module) -> list[Key]:
    """List instructions with metadata, backend configurations or attributes to spare."""
    return instructions_of(
        module,
        lambda c, i, instruction: bool(
            instruction.metadata or instruction.backend_config or spare_attributes(instruction)
        ),
    )


def spare_attributes(instruction: Instruction) -> list[str]:
    """Return which attributes an instruction can do without."""
    required = OPS[instruction.opcode].required if instruction.opcode in OPS else frozenset()
    return [key for key in DECORATIONS if key in instruction.attributes and key not in required]


def drop_decorations(module: Module, keys: Sequence[Key]) -> Module:
    """Leave metadata and spare attributes out."""

    def edit(draft: Draft, i: int, instruction: Instruction, _: Key) -> None:
        attributes = without(instruction.attributes, spare_attributes(instruction))
        draft.copy(i, metadata="", backend_config="", attributes=attributes)

    return edited(module, keys, edit)


def header_items(module: Module) -> list[Key]:
    """List the header's attributes, and its stack tables as one more."""
    keys = [Key("", name) for name in module.attributes]
    return [*keys, Key("", "")] if module.stack_tables else keys


def drop_header_items(module: Module, keys: Sequence[Key]) -> Module:
    """Leave attributes out of the header."""
    names = {k.instruction for k in keys}
    tables = "" if "" in names else module.stack_tables
    return replace(module, attributes=without(module.attributes, names), stack_tables=tables)
