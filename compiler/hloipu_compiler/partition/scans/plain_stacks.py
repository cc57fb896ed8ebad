"""Loops over layers, and their weights read from stacks as they lie.

Loops, forward and backward, are found by the rows of weights that they read. Weights are floats
that stay on the device and do not differ by micro-batch. A loop over time reads rows of data, and
is left whole. Transposes that only move the layer axis first are undone:

    before: t = f32[32,8,6] transpose(w), dimensions={1,0,2}; the loop reads t[i]
    after:  the loop reads w[:,i], and reshapes that

A row has one element along its axis, so that it takes no work to put that axis elsewhere, while a
turned stack would be kept beside the one that it is made of.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_compiler.partition.scans.loop_form import READ, WRITTEN, StackedLoop, stacked_loop
from hloipu_compiler.partition.training.reach import Mask, dependants, parameter_positions
from hloipu_compiler.passes.eliminate_dead_code import dead_code_eliminated
from hloipu_compiler.passes.framework.rewriting import Rewriting, with_operands
from hloipu_compiler.plan.wrapping import Wrapping

Source = tuple[int, int]
"""What a stack is: an op of the entry and, of a loop, which element of its result; -1: itself."""

_FEW_ELEMENTS = 64
"""Stacks of no more are numbers of layers, such as the rates of dropout."""
_MOST_OPS = 100_000
"""Of trips written out, in all loops together; loops that would make more stay whole."""
_MOVING = frozenset("transpose reshape bitcast copy convert opt-barrier".split())


@dataclass(frozen=True)
class LayerLoop:
    """A loop over layers."""

    loop: StackedLoop
    reads: Mapping[Source, Mapping[int, int]] = field(default_factory=dict)
    """Stack -> row -> the trip that reads it."""
    writes: Mapping[Source, Mapping[int, int]] = field(default_factory=dict)

    @property
    def stacks(self) -> Set[Source]:
        """What it reads and writes rows of."""
        return self.reads.keys() | self.writes.keys()


def layer_loops(module: Module, wrapping: Wrapping) -> list[LayerLoop]:
    """Return the loops of a flat module's entry that run over layers, in order.

    Those that read rows of a stack that another one reads or writes rows of are among them.
    """
    entry = module.entry
    loops = [
        _layer_loop(entry, loop)
        for position, op in enumerate(entry.instructions)
        if op.opcode == "while" and (loop := stacked_loop(module, entry, position)) is not None
    ]
    if not loops:
        return []
    weights = _weights(entry, wrapping)
    chosen = [loop for loop in loops if _is_over_weights(entry, loop, weights)]
    known: set[Source] = set()
    while (
        new := {at for loop in chosen for at in loop.stacks if at[1] >= 0 or weights[at[0]]} - known
    ):
        known |= new
        chosen = [loop for loop in loops if not known.isdisjoint(loop.stacks)]
    return _few(module, chosen)


def _weights(entry: Computation, wrapping: Wrapping) -> Mask:
    """Return what is made of parameters and does not differ by micro-batch."""
    places = parameter_positions(entry)
    fed = [n for feed in wrapping.feeds for n in feed.places]
    data = [at for n in fed or wrapping.inputs for at in places[n]]
    varying = dependants(entry, data)
    begun = dependants(entry, [at for each in places for at in each])
    return Mask(b and not v for b, v in zip(begun, varying, strict=True))


def _is_over_weights(entry: Computation, each: LayerLoop, weights: Mask) -> bool:
    given = entry.instructions[entry.instructions[each.loop.position].operands[0]].operands
    return any(
        element.kind == READ and weights[given[n]] and _is_large_float(entry, given[n])
        for n, element in enumerate(each.loop.elements)
    )


def _few(module: Module, loops: list[LayerLoop]) -> list[LayerLoop]:
    """Return the loops, the first of which do not make too many ops when written out."""
    few, left = [], _MOST_OPS
    for each in loops:
        op = module.entry.instructions[each.loop.position]
        body = module.computation[op.attributes.text("body")]
        left -= each.loop.trips * len(body.instructions)
        if left >= 0:
            few.append(each)
    return few


def _layer_loop(entry: Computation, loop: StackedLoop) -> LayerLoop:
    given = entry.instructions[entry.instructions[loop.position].operands[0]].operands
    reads: dict[Source, Mapping[int, int]] = {}
    writes: dict[Source, Mapping[int, int]] = {}
    for index, element in enumerate(loop.elements):
        if element.kind in (READ, WRITTEN):
            trips = {int(row): n for n, row in enumerate(loop.rows[element.accesses[0]])}
            if element.kind == WRITTEN:
                writes[loop.position, index] = trips
            elif len(trips) == loop.trips:
                reads[_source(entry, given[index])] = trips
    return LayerLoop(loop, reads, writes)


def _source(entry: Computation, position: int) -> Source:
    """Return what a stack is made of by moving and converting alone."""
    op = entry.instructions[position]
    while op.opcode in _MOVING and len(op.operands) == 1:
        position = op.operands[0]
        op = entry.instructions[position]
    if op.opcode == "get-tuple-element":
        return op.operands[0], op.attributes.integer("index")
    return position, -1


def _is_large_float(entry: Computation, position: int) -> bool:
    shape = entry.instructions[position].shape
    if not isinstance(shape, ArrayShape):
        return False
    return shape.element_type.is_float and shape.element_count > _FEW_ELEMENTS


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
