"""Carrying one value less through a loop whose state is a tuple taken apart and put together."""

from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import TupleShape
from hloipu_compiler.reduce.rewriting import (
    Draft,
    Key,
    NotReducibleError,
    calling,
    with_computation,
    without_interface,
)


def state_elements(module: Module) -> list[Key]:
    """List the elements of loops' states, of two elements and more."""
    return [
        Key(c.name, x.name, n)
        for c in module.computations
        for x in c.instructions
        if x.opcode == "while" and isinstance(x.shape, TupleShape) and len(x.shape.elements) > 1
        for n in range(len(x.shape.elements))
    ]


def narrowed_loop(module: Module, key: Key) -> Module:
    """Leave one element out of a loop's state: zero where the loop or what follows reads it.

    Raises NotReducibleError where the state is used as a whole.
    """
    caller = module.computation[key.computation]
    position = caller.position[key.instruction]
    loop = caller.instructions[position]
    if not isinstance(loop.shape, TupleShape) or key.choice >= len(loop.shape.elements):
        raise NotReducibleError
    start = caller.instructions[loop.operands[0]]
    names = {part: loop.attributes.text(part) for part in ("condition", "body")}
    parts = {
        part: _narrowed_callee(module.computation[name], key.choice, part == "body")
        for part, name in names.items()
    }
    fresh = {part: _fresh_name(module, f"{names[part]}.narrow") for part in parts}
    # New names: other loops may call the same computations with the whole state.
    made = [
        Computation(fresh[part], c.instructions, c.root, c.execution_thread)
        for part, c in parts.items()
    ]
    draft = Draft(caller)
    for i, x in enumerate(caller.instructions):
        if i == position:
            tuple_at = _narrowed_tuple(draft, start, key.choice)
            attributes = calling({**loop.attributes, **fresh})
            shape = _narrowed(loop.shape, key.choice)
            draft.copy(i, operands=(tuple_at,), attributes=attributes, shape=shape)
        elif position in x.operands:
            _read_element(draft, i, x, key.choice)
        else:
            draft.copy(i)
    if position == caller.root:
        if caller.name != module.entry.name:
            raise NotReducibleError
        module = without_interface(module)
    module = with_computation(module, draft.finish())
    entry = module.entry_position + len(made)
    computations = (*made, *module.computations)
    return Module(module.name, computations, entry, module.attributes, module.stack_tables)


def _fresh_name(module: Module, stem: str) -> str:
    name, number = stem, 0
    while name in module.computation:
        number += 1
        name = f"{stem}.{number}"
    return name


def _narrowed(shape: TupleShape, index: int) -> TupleShape:
    return TupleShape(tuple(e for n, e in enumerate(shape.elements) if n != index))


def _narrowed_tuple(draft: Draft, x: Instruction, index: int) -> int:
    if x.opcode != "tuple" or not isinstance(x.shape, TupleShape):
        raise NotReducibleError
    operands = [draft.place[o] for n, o in enumerate(x.operands) if n != index]
    return draft.add("state", "tuple", _narrowed(x.shape, index), operands)


def _read_element(draft: Draft, position: int, x: Instruction, index: int) -> None:
    if x.opcode != "get-tuple-element":
        raise NotReducibleError
    read = x.attributes.integer("index")
    if read == index:
        draft.place[position] = draft.zero(x.shape)
    else:
        draft.copy(position, attributes=Attributes({"index": read - (read > index)}))


def _narrowed_callee(computation: Computation, index: int, is_body: bool) -> Computation:
    (state,) = computation.parameters
    draft = Draft(computation)
    for i, x in enumerate(computation.instructions):
        if i == state:
            assert isinstance(x.shape, TupleShape)
            draft.copy(i, shape=_narrowed(x.shape, index))
        elif is_body and i == computation.root:
            draft.place[i] = _narrowed_tuple(draft, x, index)
        elif state in x.operands:
            _read_element(draft, i, x, index)
        else:
            draft.copy(i)
    return draft.finish()
