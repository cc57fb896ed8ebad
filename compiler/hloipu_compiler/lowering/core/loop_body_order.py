"""Orders a loop body so that new state can overwrite the old.

What makes an array of the next iteration's state goes behind all that reads this iteration's, where
nothing that reads it needs the new one: then it is written over the old one, and no copy brings it
home. Poplar's users reach the same by ordering their program (graphcore/poplibs: in-place variants
of popops elementwise ops).
"""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from hloipu_compiler.analysis.order import has_side_effect
from hloipu_compiler.ir.graph import Computation, control_predecessors
from hloipu_compiler.ir.shapes import TupleShape
from hloipu_compiler.passes.framework.rewriting import in_order

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
        number = instruction.attributes.integer("index")
        waiting = list(users[position])
        seen = readers.setdefault(number, set())
        while waiting:
            reader = waiting.pop()
            if reader in seen:
                continue
            seen.add(reader)
            if body.instructions[reader].opcode in _HANDED_ON:
                waiting += users[reader]
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
