"""The order of an update in which what comes from remote memory is on tiles for a short while only.

Results that need most are made first, each with all that it needs right before it: the new value of
a weight, and with it the new state of its optimizer, before anything of the next weight.
"""

from hloipu_compiler.analysis.order import has_side_effect
from hloipu_compiler.codegen.turn_order import in_order
from hloipu_compiler.ir.graph import Computation, control_predecessors


def order_by_results(update: Computation) -> Computation:
    """Return an update ordered by its results; the same one where effects keep their order.

    Work: instructions times results.
    """
    root = update.instructions[update.root]
    if root.opcode != "tuple" or any(
        has_side_effect(x) or control_predecessors(x) for x in update.instructions
    ):
        return update
    needs = {position: _needed(update, position) for position in dict.fromkeys(root.operands)}
    order: list[int] = list(update.parameters)
    placed = set(order)
    for position in sorted(needs, key=lambda n: (-len(needs[n]), n)):
        fresh = [n for n in sorted(needs[position]) if n not in placed]
        order += fresh
        placed.update(fresh)
    order += [n for n in range(len(update.instructions)) if n not in placed]
    return in_order(update, order)


def _needed(update: Computation, position: int) -> set[int]:
    """Return all that an instruction needs, itself included."""
    found: set[int] = set()
    waiting = [position]
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting += update.instructions[number].operands
    return found
