"""Edits that shrink loop state."""

from collections.abc import Collection, Sequence

from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module, with_computation
from hloipu_compiler.ir.shapes import TupleShape
from hloipu_compiler.reduce.rewriting import (
    Draft,
    Key,
    NotReducibleError,
    by_computation,
    calling,
    without_interface,
)


def changed_elements(module: Module) -> list[Key]:
    """List the elements of loops' states that their bodies change."""
    keys = []
    for body in _bodies(module):
        root, state = body.instructions[body.root], body.parameters[0]
        for n, operand in enumerate(root.operands):
            instruction = body.instructions[operand]
            handed_on = (
                instruction.opcode == "get-tuple-element" and instruction.operands[0] == state
            )
            if not (handed_on and instruction.attributes.integer("index") == n):
                keys.append(Key(body.name, root.name, n))
    return keys


def _bodies(module: Module) -> list[Computation]:
    """Return the bodies of loops that end by putting their state together."""
    names = dict.fromkeys(
        op.attributes.text("body")
        for c in module.computations
        for op in c.instructions
        if op.opcode == "while"
    )
    bodies = [module.computation[name] for name in names if name in module.computation]
    return [c for c in bodies if c.instructions[c.root].opcode == "tuple"]


def keep_elements(module: Module, keys: Sequence[Key]) -> Module:
    """Pass elements of loop state through bodies unchanged."""
    for name in {k.computation for k in keys}:
        body = module.computation[name]
        unchanged = {k.choice for k in keys if k.computation == name}
        draft = Draft(body)
        for i, instruction in enumerate(body.instructions):
            if i != body.root or not isinstance(instruction.shape, TupleShape):
                draft.copy(i)
                continue
            state = draft.place[body.parameters[0]]
            operands = [
                draft.add(
                    "same", "get-tuple-element", instruction.shape.elements[n], [state],
                    attributes=Attributes({"index": n}),
                )
                if n in unchanged
                else draft.place[o]
                for n, o in enumerate(instruction.operands)
            ]  # fmt: skip
            draft.copy(i, operands=tuple(operands))
        module = with_computation(module, draft.finish())
    return module


def state_elements(module: Module) -> list[Key]:
    """List the elements of loops' states, of two elements and more."""
    return [
        Key(c.name, op.name, n)
        for c in module.computations
        for op in c.instructions
        if op.opcode == "while" and isinstance(op.shape, TupleShape) and len(op.shape.elements) > 1
        for n in range(len(op.shape.elements))
    ]


def narrowed_loops(module: Module, keys: Sequence[Key]) -> Module:
    """Leave elements out of loops' states: zeros where the loop or what follows reads them.

    Raises NotReducibleError where a state is used as a whole.
    """
    for name, wanted in by_computation(keys).items():
        for instruction in wanted:
            place = (name, instruction)
            dropped = {k.choice for k in keys if (k.computation, k.instruction) == place}
            module = _narrowed_loop(module, name, instruction, dropped)
    return module


def _narrowed_loop(module: Module, name: str, instruction: str, dropped: set[int]) -> Module:
    caller = module.computation[name]
    position = caller.position[instruction]
    loop = caller.instructions[position]
    if not isinstance(loop.shape, TupleShape) or len(dropped) >= len(loop.shape.elements):
        raise NotReducibleError
    start = caller.instructions[loop.operands[0]]
    names = {part: loop.attributes.text(part) for part in ("condition", "body")}
    parts = {
        part: _narrowed_callee(module.computation[name], dropped, part == "body")
        for part, name in names.items()
    }
    fresh = {part: _fresh_name(module, names[part]) for part in parts}
    # New names: other loops may call the same computations with the whole state.
    callees = [
        Computation(fresh[part], c.instructions, c.root, c.execution_thread)
        for part, c in parts.items()
    ]
    draft = Draft(caller)
    for i, op in enumerate(caller.instructions):
        if i == position:
            tuple_at = _narrowed_tuple(draft, start, dropped)
            attributes = calling({**loop.attributes, **fresh})
            shape = _narrowed(loop.shape, dropped)
            draft.copy(i, operands=(tuple_at,), attributes=attributes, shape=shape)
        elif position in op.operands:
            _read_element(draft, i, op, dropped)
        else:
            draft.copy(i)
    if position == caller.root:
        if caller.name != module.entry.name:
            raise NotReducibleError
        module = without_interface(module)
    module = with_computation(module, draft.finish())
    entry = module.entry_position + len(callees)
    computations = (*callees, *module.computations)
    return Module(module.name, computations, entry, module.attributes, module.stack_tables)


def _fresh_name(module: Module, old: str) -> str:
    stem, _, _ = old.partition(".narrow")
    name, number = f"{stem}.narrow", 0
    while name in module.computation:
        number += 1
        name = f"{stem}.narrow.{number}"
    return name


def _narrowed(shape: TupleShape, dropped: Collection[int]) -> TupleShape:
    return TupleShape(tuple(e for n, e in enumerate(shape.elements) if n not in dropped))


def _narrowed_tuple(draft: Draft, instruction: Instruction, dropped: Collection[int]) -> int:
    if instruction.opcode != "tuple" or not isinstance(instruction.shape, TupleShape):
        raise NotReducibleError
    operands = [draft.place[o] for n, o in enumerate(instruction.operands) if n not in dropped]
    return draft.add("state", "tuple", _narrowed(instruction.shape, dropped), operands)


def _read_element(
    draft: Draft, position: int, instruction: Instruction, dropped: Collection[int]
) -> None:
    if instruction.opcode != "get-tuple-element":
        raise NotReducibleError
    old_index = instruction.attributes.integer("index")
    if old_index in dropped:
        draft.place[position] = draft.zero(instruction.shape)
    else:
        index = old_index - sum(n < old_index for n in dropped)
        draft.copy(position, attributes=Attributes({"index": index}))


def _narrowed_callee(
    computation: Computation, dropped: Collection[int], is_body: bool
) -> Computation:
    (state,) = computation.parameters
    draft = Draft(computation)
    for i, instruction in enumerate(computation.instructions):
        if i == state:
            assert isinstance(instruction.shape, TupleShape)
            draft.copy(i, shape=_narrowed(instruction.shape, dropped))
        elif is_body and i == computation.root:
            draft.place[i] = _narrowed_tuple(draft, instruction, dropped)
        elif state in instruction.operands:
            _read_element(draft, i, instruction, dropped)
        else:
            draft.copy(i)
    return draft.finish()
