"""Edits that put simpler values in the place of instructions."""

from collections.abc import Sequence

from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, Shape, compatible
from hloipu_compiler.reduce.rewriting import Draft, Key, with_computation, without_interface
from hloipu_compiler.reduce.selecting import by_computation, instructions_of

SIMPLEST = frozenset({"parameter", "constant", "after-all"})


def is_zero(computation: Computation, x: Instruction) -> bool:
    """Whether an instruction is already what `zeros` makes."""
    if x.opcode in SIMPLEST:
        return True
    below = [computation.instructions[i] for i in x.operands]
    return x.opcode in ("broadcast", "tuple") and all(is_scalar_zero(y) for y in below)


def is_plain_array(shape: Shape) -> bool:
    """Whether a shape is an array of numbers."""
    return isinstance(shape, ArrayShape) and shape.element_type.is_array


def is_scalar_zero(x: Instruction) -> bool:
    """Whether an instruction makes or repeats a constant."""
    return x.opcode == "constant"


def entry_arrays(module: Module) -> list[Key]:
    """List the entry's arrays that are neither parameters nor as simple."""
    keys = instructions_of(module, lambda c, i, x: not is_zero(c, x) and is_plain_array(x.shape))
    return [k for k in keys if k.computation == module.entry.name]


def to_parameters(module: Module, keys: Sequence[Key]) -> Module:
    """Replace instructions of the entry by parameters."""
    entry, names = module.entry, {k.instruction for k in keys}
    draft, number = Draft(entry), len(entry.parameters)
    for i, x in enumerate(entry.instructions):
        if x.name in names:
            draft.place[i] = draft.add("arg", "parameter", x.shape, parameter_number=number)
            number += 1
        else:
            draft.copy(i)
    return without_interface(with_computation(module, draft.finish()))


def to_zeros(module: Module, keys: Sequence[Key]) -> Module:
    """Replace instructions by zeros."""
    for name, wanted in by_computation(keys).items():
        draft = Draft(module.computation[name])
        for i, x in enumerate(draft.old.instructions):
            if x.name in wanted:
                draft.place[i] = draft.zero(x.shape)
            else:
                draft.copy(i)
        module = with_computation(module, draft.finish())
    return module


def operand_choices(module: Module) -> list[Key]:
    """List operands that have the shape of their user."""
    keys = []
    for computation in module.computations:
        for x in reversed(computation.instructions):
            shapes = [computation.instructions[i].shape for i in x.operands]
            keys += [
                Key(computation.name, x.name, n)
                for n, shape in enumerate(shapes)
                if compatible(shape, x.shape)
            ]
    return keys


def to_operand(module: Module, key: Key) -> Module:
    """Replace an instruction by one of its operands."""
    draft = Draft(module.computation[key.computation])
    for i, x in enumerate(draft.old.instructions):
        if x.name == key.instruction and key.choice < len(x.operands):
            draft.place[i] = draft.place[x.operands[key.choice]]
        else:
            draft.copy(i)
    return with_computation(module, draft.finish())
