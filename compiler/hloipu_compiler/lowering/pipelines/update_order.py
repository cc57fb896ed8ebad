"""The order of an update in which what comes from remote memory is on tiles for a short while only.

Results that no later one needs are made one after the other, each with all that it needs right
before it: the new value of a weight, and with it the new state of its optimizer, before anything of
the next weight.
"""

from hloipu_compiler.analysis.order import has_side_effect
from hloipu_compiler.ir.graph import Computation, control_predecessors
from hloipu_compiler.lowering.core.loop_body_order import in_order


def order_by_results(update: Computation) -> Computation:
    """Return an update ordered by its results; the same one where effects keep their order.

    Time grows with the instructions.
    """
    root = update.instructions[update.root]
    if root.opcode != "tuple" or any(
        has_side_effect(x) or control_predecessors(x) for x in update.instructions
    ):
        return update
    seen: set[int] = set()
    last = [n for n in sorted(frozenset(root.operands), reverse=True) if _fresh(update, n, seen)]
    order: list[int] = list(update.parameters)
    placed = set(order)
    for position in reversed(last):
        order += sorted(_fresh(update, position, placed))
    order += [n for n in range(len(update.instructions)) if n not in placed]
    return in_order(update, order)


def _fresh(update: Computation, position: int, known: set[int]) -> list[int]:
    """Return all that an instruction needs, itself included, that is not known; now it is."""
    found: list[int] = []
    waiting = [position]
    while waiting:
        number = waiting.pop()
        if number not in known:
            known.add(number)
            found.append(number)
            waiting += update.instructions[number].operands
    return found
