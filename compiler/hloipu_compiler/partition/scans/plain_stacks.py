"""Undoes transposes that only move the layer axis first.

    before: t = f32[32,8,6] transpose(w), dimensions={1,0,2}; the loop reads t[i]
    after:  the loop reads w[:,i], and reshapes that

A row has one element along its axis, so that it takes no work to put that axis elsewhere, while a
turned stack would be kept beside the one that it is made of.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_compiler.partition.scans.loop_form import READ, StackedLoop
from hloipu_compiler.partition.scans.weight_loops import LayerLoop
from hloipu_compiler.passes.eliminate_dead_code import dead_code_eliminated
from hloipu_compiler.passes.framework.rewriting import Rewriting, with_operands

_GTE = "get-tuple-element"
Turned = Mapping[int, tuple[int, tuple[int, ...]]]
"""Element of a loop's state -> where the stack stands that it is turned from, and how."""


def with_plain_stacks(module: Module, loops: Sequence[LayerLoop]) -> Module:
    """Return a flat module whose loops over layers read stacks that are not turned before.

    The same one where none are.
    """
    turned = {loop.loop.position: _turned(module.entry, loop.loop) for loop in loops}
    turned = {position: stacks for position, stacks in turned.items() if stacks}
    if not turned:
        return module
    computations = dict(module.computation)
    entry = module.entry
    draft = Rewriting(entry)
    place = draft.place
    for position, x in enumerate(entry.instructions):
        operands = tuple([place[i] for i in x.operands])
        stacks = turned.get(position)
        if stacks is not None:
            old = entry.instructions[x.operands[0]]
            given = [place[stacks[n][0]] if n in stacks else place[i]
                     for n, i in enumerate(old.operands)]  # fmt: skip
            shape = TupleShape(tuple(map(draft.shape, given)))
            start = with_operands(old, tuple(given))
            name = draft.fresh_name(old.name)
            operands = (draft.append(start._replace(name=name, shape=shape)),)
            loop = next(each.loop for each in loops if each.loop.position == position)
            body, condition = x.attributes.text("body"), x.attributes.text("condition")
            computations[body] = _body(module.computation[body], loop, stacks, shape)
            computations[condition] = _with_state(module.computation[condition], shape)
            x = x._replace(shape=shape)
        place.append(draft.append(with_operands(x, operands)))
    computations[entry.name] = draft.finish()
    whole = tuple(computations[c.name] for c in module.computations)
    return dead_code_eliminated(replace(module, computations=whole))


def _turned(entry: Computation, loop: StackedLoop) -> Turned:
    """Return the stacks of which a transpose before the loop moves nothing but the rows' axis."""
    op = entry.instructions[loop.position]
    given = entry.instructions[op.operands[0]].operands
    users = [entry.instructions[user] for user in entry.users[loop.position]]
    if any(user.opcode != _GTE for user in users) or loop.position == entry.root:
        return {}
    taken = {user.attributes.integer("index") for user in users}
    source_and_order = {}
    for index, element in enumerate(loop.elements):
        source = entry.instructions[given[index]]
        if element.kind != READ or index in taken or source.opcode != "transpose":
            continue
        order = source.attributes.integers("dimensions")
        rest = [n for n in order if n != order[element.axis]]
        if rest == sorted(rest):
            source_and_order[index] = (source.operands[0], order)
    return source_and_order


def _with_state(old: Computation, shape: TupleShape) -> Computation:
    instructions = [_reshaped(old, op, shape) for op in old.instructions]
    return replace(old, instructions=tuple(instructions))


def _reshaped(old: Computation, op: Instruction, state: TupleShape) -> Instruction:
    if op.parameter_number >= 0:
        return op._replace(shape=state)
    if op.opcode == _GTE and op.operands[0] == old.parameters[0]:
        return op._replace(shape=state.elements[op.attributes.integer("index")])
    return op


def _body(old: Computation, loop: StackedLoop, turned: Turned, state: TupleShape) -> Computation:
    order = {i: turned[n][1] for n in turned for i in loop.elements[n].accesses}
    draft = Rewriting(old)
    for position, op in enumerate(old.instructions):
        moved = draft.moved(op)
        if position in order:
            row = draft.append(_row(moved, order[position], draft))
            moved = Instruction(op.name, "reshape", op.shape, (row,), metadata=op.metadata)
        is_root = position == old.root
        moved = moved._replace(shape=state) if is_root else _reshaped(old, moved, state)
        draft.place.append(draft.append(moved))
    return draft.finish()


def _row(op: Instruction, order: Sequence[int], draft: Rewriting) -> Instruction:
    """Return the op that reads from the stack the rows that `op` reads from its transpose."""
    sizes = op.attributes.integers("dynamic_slice_sizes")
    at = [order.index(n) for n in range(len(order))]
    own = tuple(sizes[n] for n in at)
    stack = draft.shape(op.operands[0])
    kind = op.shape.element_type if isinstance(op.shape, ArrayShape) else None
    if kind is None or not isinstance(stack, ArrayShape):
        raise TypeError(f"{op.name} is not an array")
    shape = ArrayShape(kind, own, stack.layout)
    indices = tuple(op.operands[1 + n] for n in at)
    attributes = Attributes({"dynamic_slice_sizes": own})
    name = draft.fresh_name(f"{op.name}.row")
    return Instruction(name, op.opcode, shape, (op.operands[0], *indices), attributes, op.metadata)
