"""Reachability in one computation, as masks over positions."""

from collections.abc import Iterable, Sequence

from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_compiler.memo import Memo, Same
from hloipu_compiler.plan.wrapping import Wrapping

Mask = bytearray
"""One byte a position: 1 or 0."""


def dependants(computation: Computation, seeds: Iterable[int]) -> Mask:
    """Return the positions that depend on the seeds, themselves included."""
    is_dependant = Mask(len(computation.instructions))
    for seed in seeds:
        is_dependant[seed] = 1
    for position, op in enumerate(computation.instructions):
        if not is_dependant[position]:
            for i in op.operands:
                if is_dependant[i]:
                    is_dependant[position] = 1
                    break
    return is_dependant


def ancestors(computation: Computation, goals: Iterable[int]) -> Mask:
    """Return the positions that the goals depend on, themselves included."""
    is_ancestor = Mask(len(computation.instructions))
    for goal in goals:
        is_ancestor[goal] = 1
    instructions = computation.instructions
    for position in range(len(instructions) - 1, -1, -1):
        if is_ancestor[position]:
            for i in instructions[position].operands:
                is_ancestor[i] = 1
    return is_ancestor


def result_positions(computation: Computation) -> list[int | None]:
    """Return the position that makes each leaf of the result, tuples walked in order.

    None for a leaf within a tuple that an op such as a loop makes whole.
    """
    positions: list[int | None] = []
    waiting = [computation.root]
    while waiting:
        position = waiting.pop()
        op = computation.instructions[position]
        if op.opcode == "tuple":
            waiting.extend(reversed(op.operands))
        elif isinstance(op.shape, TupleShape):
            positions.extend([None] * _leaf_count(op.shape))
        else:
            positions.append(position)
    return positions


def parameter_positions(computation: Computation) -> Sequence[Sequence[int]]:
    """Return where each array of the parameters is taken: the parameter itself, or its elements.

    Tokens do not count.
    """
    return PLACES_MEMO.of(Same(computation), lambda: _parameter_positions(computation))


PLACES_MEMO: Memo[list[list[int]]] = Memo(4)
"""Of steps at hand, which many things are asked of."""


def _parameter_positions(computation: Computation) -> list[list[int]]:
    positions_by_array: list[list[int]] = []
    for position in computation.parameters:
        _add_leaves(computation, [position], computation.instructions[position], positions_by_array)
    return positions_by_array


def data_of(computation: Computation, wrapping: Wrapping) -> tuple[int, ...]:
    """Return the parameters that differ from micro-batch to micro-batch, by number.

    They are what feeds bring. A step that nothing is fed to is made of what is loaded or given, as
    it would be of data: of its arrays, for numbers such as a learning rate are the same for all.
    """
    fed = tuple(place for feed in wrapping.feeds for place in feed.places)
    if fed:
        return fed
    places = parameter_positions(computation)
    arrays = tuple(
        number
        for number in wrapping.lasting
        if any(_is_array(computation.instructions[i].shape) for i in places[number])
    )
    return arrays or wrapping.lasting


def _is_array(shape: Shape) -> bool:
    return isinstance(shape, ArrayShape) and bool(shape.dimensions)


def _add_leaves(
    computation: Computation,
    positions: list[int],
    like: Instruction,
    positions_by_array: list[list[int]],
) -> None:
    """Add the arrays of what stands at these positions, which is the same at all of them."""
    if not isinstance(like.shape, TupleShape):
        if not (isinstance(like.shape, ArrayShape) and like.shape.element_type.name == "token"):
            positions_by_array.append(positions)
        return
    for number, shape in enumerate(like.shape.elements):
        users = [
            user
            for position in positions
            for user in computation.users[position]
            if computation.instructions[user].opcode == "get-tuple-element"
            and computation.instructions[user].attributes.integer("index") == number
        ]
        _add_leaves(computation, users, like._replace(shape=shape), positions_by_array)


def _leaf_count(shape: TupleShape) -> int:
    return sum(_leaf_count(x) if isinstance(x, TupleShape) else 1 for x in shape.elements)


def optimizing(
    entry: Computation,
    aside: Sequence[Sequence[int]],
    weights: Iterable[int],
    varying: Mask,
    forward: Mask,
) -> Mask:
    """Return the positions that depend on optimizer state: on state that the update alone reads.

    A number by which the loss is scaled is not in the loss's own cone, and yet no optimizer state:
    the backward pass multiplies cotangents by it, which come together with values of the forward
    pass then, as no optimizer state does on its way to a weight.

    `aside`: where each array of state is taken that the loss does not depend on; `weights`: the
    new values of the state that it does depend on. One walk, with a bit for each array.
    """
    bits_by_position = [0] * len(entry.instructions)
    for number, positions in enumerate(aside):
        for position in positions:
            bits_by_position[position] |= 1 << number
    met = 0
    for position, op in enumerate(entry.instructions):
        mine = bits_by_position[position]
        for i in op.operands:
            mine |= bits_by_position[i]
        bits_by_position[position] = mine
        if mine and op.opcode != "tuple" and any(forward[i] and varying[i] for i in op.operands):
            met |= mine
    reaching = 0
    for position in weights:
        reaching |= bits_by_position[position]
    left = ~(met & reaching)
    return Mask(bool(mine & left) for mine in bits_by_position)
