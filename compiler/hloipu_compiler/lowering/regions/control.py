"""Lowering of loops and conditionals.

What makes an array of the next iteration's state goes behind all that reads this iteration's, where
nothing that reads it needs the new one: then it is written over the old one, and no copy brings it
home. Poplar's users reach the same by ordering their program (graphcore/poplibs: in-place variants
of popops elementwise ops).
"""

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from hloipu_compiler.analysis.live_bytes import unchanged_elements
from hloipu_compiler.analysis.order import has_side_effect
from hloipu_compiler.ir.graph import Computation, control_predecessors
from hloipu_compiler.ir.shapes import TupleShape, leaf_range
from hloipu_compiler.layout.layout import InitialLayout
from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.lowering import lower_computation
from hloipu_compiler.lowering.core.values import TileTensor, Token, Value
from hloipu_compiler.lowering.ops.randomness import check_condition, draws, state_in
from hloipu_compiler.passes.framework.rewriting import in_order
from hloipu_runtime.program import steps as s
from hloipu_runtime.reached import reached

_HANDED_ON = frozenset("copy broadcast reshape bitcast opt-barrier add-dependency".split())
"""Ops whose result may be a view of the operand, read when their users are."""


def order_for_state(body: Computation) -> Computation:
    """Return a loop's body in an order that lets state be overwritten; the same one if it is so."""
    edges = _waiting(body)
    if not edges:
        return body
    order = _sorted(body, edges)
    if order is None or order == list(range(len(order))):
        return body
    return in_order(body, order)


def _waiting(body: Computation) -> dict[int, set[int]]:
    """Return, for each op that makes new state, the ops that must have read the old state."""
    root = body.instructions[body.root]
    if root.opcode != "tuple" or len(body.parameters) != 1:
        return {}
    shape = body.instructions[body.parameters[0]].shape
    if not isinstance(shape, TupleShape):
        return {}
    readers = _readers(body)
    waiting: dict[int, set[int]] = {}
    reached: Mapping[int, int] | None = None
    for number, position in enumerate(root.operands):
        reading = readers.get(number, set()) - {position, body.root}
        late = {p for p in reading if p > position}
        if not late or root.operands.count(position) > 1:
            continue
        if reached is None:
            reached = _makers(body, root.operands)
        # Bit n of `reached`: whether the new state n is needed.
        if not any(reached[p] >> number & 1 for p in late):
            waiting[position] = late
    return waiting


def _readers(body: Computation) -> dict[int, set[int]]:
    """Return, by number of an array of the state, the positions that read it or a view of it."""
    users = body.users
    readers: dict[int, set[int]] = {}
    for position in users[body.parameters[0]]:
        instruction = body.instructions[position]
        if instruction.opcode != "get-tuple-element":
            continue
        readers.setdefault(instruction.attributes.integer("index"), set()).update(
            reached(
                users[position],
                lambda i: users[i] if body.instructions[i].opcode in _HANDED_ON else (),
            )
        )
    return readers


def _makers(body: Computation, positions: tuple[int, ...]) -> dict[int, int]:
    """Return, for each position, the set of new state that it needs, as bits."""
    bits: dict[int, int] = {}
    own: dict[int, int] = {}
    for number, position in enumerate(positions):
        own[position] = own.get(position, 0) | 1 << number
    for position, instruction in enumerate(body.instructions):
        maker = own.get(position, 0)
        for i in instruction.operands:
            maker |= bits[i]
        bits[position] = maker
    return bits


def _sorted(body: Computation, edges: Mapping[int, set[int]]) -> list[int] | None:
    """Return positions with those of `edges` behind what they wait for, else as they stand.

    None where they wait for each other, or where effects or control would change their order.
    """
    instructions = body.instructions
    if any(has_side_effect(op) or control_predecessors(op) for op in instructions):
        return None
    waits = [len(set(op.operands)) + len(edges.get(n, ())) for n, op in enumerate(instructions)]
    followers: list[list[int]] = [list(users) for users in body.users]
    for late, before in edges.items():
        for position in before:
            followers[position].append(late)
    ready = [n for n, count in enumerate(waits) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        position = heappop(ready)
        order.append(position)
        for user in followers[position]:
            waits[user] -= 1
            if not waits[user]:
                heappush(ready, user)
    return order if len(order) == len(instructions) else None


@lowers("while")
def _while(context: LoweringContext) -> Sequence[Value]:
    condition, body = (context.module.computation[name] for name in context.attributes.called)
    if context.attributes.text("condition") not in ("", condition.name):
        condition, body = body, condition
    builder = context.builder
    initial = context.operands[0]
    count = len(initial)
    if draws(context.module, context.attributes.called):
        check_condition(context.module, condition.name, context.instruction.name)
        initial = (*initial, state_in(builder))
    kept = _unchanged(body)
    carried = [n for n, leaf in enumerate(initial) if n not in kept and not isinstance(leaf, Token)]
    settled = [
        builder.layout.initial_layouts.get((context.computation.name, context.instruction.name, n))
        for n in carried
    ]
    there = _ipus(context, carried)
    storages = _storages(
        builder, [builder.tile_tensor(initial[n]) for n in carried], settled, there
    )
    in_loop = {n: builder.loop_value(tensor) for n, tensor in zip(carried, storages, strict=True)}
    state: list[Value] = [in_loop.get(n, leaf) for n, leaf in enumerate(initial)]
    trips = context.plan.trips(context.computation.name, context.instruction.name)
    predicate: TileTensor | None = None
    with builder.block(repeats=True) as condition_scope:
        if trips is None:
            (leaf,) = lower_computation(context, condition, [state], frozenset())
            predicate = builder.tile_tensor(leaf)
    with builder.block(repeats=True) as body_scope:
        body_scope.owned.update(tensor.variable for tensor in storages)
        if len(initial) > count:
            builder.random_state = in_loop[count]
        ordered = order_for_state(body)
        outside, builder.iterations = (
            builder.iterations,
            builder.iterations * (trips or s.UNKNOWN_ITERATIONS),
        )
        after = lower_computation(context, ordered, [state], frozenset(in_loop.values()), in_loop)
        builder.iterations = outside
        if len(initial) > count:
            after.append(state_in(builder))
        following = copied_to_storage(
            builder, [(builder.tile_tensor(after[n]), in_loop[n]) for n in carried]
        )
    finals = [
        TileTensor(
            builder.value(tensor.element_type, tensor.shape),
            tensor.variable,
            tensor.element_type,
            tensor.shape,
        )
        for tensor in storages
    ]
    records = tuple(
        s.Carried(storage.variable, storage.value, in_loop[n].value, value, final.value)
        for n, storage, value, final in zip(carried, storages, following, finals, strict=True)
    )
    name = context.instruction.name
    inner = s.Sequence(tuple(body_scope.steps))
    if predicate is None:
        builder.emit(s.Repeat(trips or 0, inner, records, name))
    else:
        test = s.Sequence(tuple(condition_scope.steps))
        builder.emit(s.RepeatWhile(test, predicate.variable, predicate.value, inner, records, name))
    results = dict(zip(carried, finals, strict=True))
    if len(initial) > count:
        builder.random_state = results[count]
    return [results.get(n, leaf) for n, leaf in enumerate(initial[:count])]


def _unchanged(body: Computation) -> frozenset[int]:
    """Return the leaves of a loop's state that every iteration hands on as they are."""
    shape = body.instructions[body.parameters[0]].shape
    if not isinstance(shape, TupleShape):
        return frozenset()
    ranges = [leaf_range(shape, number) for number in unchanged_elements(body)]
    return frozenset(n for places in ranges for n in range(places.start, places.stop))


def _ipus(context: LoweringContext, leaves: Sequence[int]) -> list[int | None]:
    """Return the IPU of each of some leaves of a loop's or branch's result, where it is settled."""
    ipu_by_place, where = (
        context.plan.held_ipus,
        (context.computation.name, context.instruction.name),
    )
    return [ipu_by_place.get((*where, n)) for n in leaves]


def _storages(
    builder: Builder,
    leaves: Sequence[TileTensor],
    settled: Sequence[InitialLayout | None],
    ipus: Sequence[int | None],
) -> list[TileTensor]:
    """Return variables of the loop's own that hold its first state, where that was settled."""
    storages = []
    transfers, definitions = [], []
    here = builder.ipu
    for leaf, storage, ipu in zip(leaves, settled, ipus, strict=True):
        lying = builder.variables[leaf.variable]
        mapping = storage.mapping if storage else lying.mapping
        builder.ipu = lying.ipu if ipu is None else ipu
        own = builder.variable(leaf.element_type, leaf.shape, mapping)
        transfer, definition = builder.plain_copy(builder.nearest(leaf, builder.ipu), own)
        transfers.append(transfer)
        definitions.append(definition)
        storages.append(TileTensor(leaf.value, own, leaf.element_type, leaf.shape))
    builder.ipu = here
    if transfers:
        builder.exchange(transfers, definitions)
    return storages


def copied_to_storage(
    builder: Builder, pairs: Sequence[tuple[TileTensor, TileTensor]]
) -> list[int]:
    """Copy what an iteration leaves into the loop's variables, all at once; return the values."""
    storages = {storage.variable for _, storage in pairs}
    staged: list[TileTensor] = []
    transfers, definitions = [], []
    here = builder.ipu
    for leaf, storage in pairs:
        if leaf.variable != storage.variable and leaf.variable in storages:
            mapping = builder.variables[leaf.variable].mapping
            builder.ipu = builder.variables[leaf.variable].ipu
            aside = builder.variable(leaf.element_type, leaf.shape, mapping)
            transfer, definition = builder.plain_copy(leaf, aside)
            transfers.append(transfer)
            definitions.append(definition)
            leaf = TileTensor(leaf.value, aside, leaf.element_type, leaf.shape)
        staged.append(leaf)
    builder.ipu = here
    if transfers:
        builder.exchange(transfers, definitions)
    transfers, definitions = [], []
    for leaf, (_, storage) in zip(staged, pairs, strict=True):
        if leaf.variable != storage.variable:
            leaf = builder.nearest(leaf, builder.variables[storage.variable].ipu)
            transfer, definition = builder.plain_copy(leaf, storage.variable)
            transfers.append(transfer)
            definitions.append(definition)
    if transfers:
        builder.exchange(transfers, definitions)
    return [leaf.value for leaf in staged]


@lowers("conditional")
def _conditional(context: LoweringContext) -> Sequence[Value]:
    builder = context.builder
    selector = context.tile_tensor(0)
    names = context.attributes.called
    blocks: list[s.Sequence] = []
    shared: list[TileTensor] = []
    branch_values: list[list[int]] = []
    tokens = [kind == "token" for kind, _ in context.results]
    count = len(tokens)
    before = state_in(builder) if draws(context.module, names) else None
    if before is not None:
        tokens.append(False)
    for number, name in enumerate(names):
        with builder.block() as scope:
            if before is not None:
                builder.random_state = before
            leaves = lower_computation(
                context,
                context.module.computation[name],
                [context.operands[number + 1]],
                frozenset(),
            )
            if before is not None:
                leaves.append(state_in(builder))
            tensors = [
                builder.tile_tensor(x) for x, token in zip(leaves, tokens, strict=True) if not token
            ]
            if not number:
                array_numbers = [n for n, token in enumerate(tokens) if not token]
                shared = _shared(builder, tensors, _ipus(context, array_numbers))
            scope.owned.update(tensor.variable for tensor in shared)
            branch_values.append(
                copied_to_storage(builder, list(zip(tensors, shared, strict=True)))
            )
        blocks.append(s.Sequence(tuple(scope.steps)))
    results = [
        TileTensor(
            builder.value(tensor.element_type, tensor.shape),
            tensor.variable,
            tensor.element_type,
            tensor.shape,
        )
        for tensor in shared
    ]
    merged = tuple(
        s.Merged(tensor.variable, tuple(values[n] for values in branch_values), tensor.value)
        for n, tensor in enumerate(results)
    )
    name = context.instruction.name
    if selector.element_type == "pred":
        builder.emit(s.If(selector.variable, selector.value, blocks[0], blocks[1], merged, name))
    else:
        builder.emit(s.Switch(selector.variable, selector.value, tuple(blocks), merged, name))
    if before is not None:
        builder.random_state = results[-1]
    remaining = iter(results)
    return [Token() if token else next(remaining) for token in tokens[:count]]


def _shared(
    builder: Builder, results: Sequence[TileTensor], ipus: Sequence[int | None]
) -> list[TileTensor]:
    """Return variables of the enclosing block for the results of all branches."""
    inner = builder.scopes.pop()
    shared = []
    here = builder.ipu
    for leaf, ipu in zip(results, ipus, strict=True):
        mapping = builder.variables[leaf.variable].mapping
        builder.ipu = builder.variables[leaf.variable].ipu if ipu is None else ipu
        variable = builder.variable(leaf.element_type, leaf.shape, mapping)
        shared.append(TileTensor(-1, variable, leaf.element_type, leaf.shape))
    builder.ipu = here
    builder.scopes.append(inner)
    return shared
