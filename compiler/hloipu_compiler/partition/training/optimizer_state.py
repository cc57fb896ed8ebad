"""What of a step depends on optimizer state: on state that the update alone reads.

A number by which the loss is scaled is not in the loss's own cone, and yet no optimizer state: the
backward pass multiplies cotangents by it, which come together with values of the forward pass
then, as no optimizer state does on its way to a weight.
"""

from collections.abc import Iterable, Sequence

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.partition.training.reach import Mask


def optimizing(
    entry: Computation,
    aside: Sequence[Sequence[int]],
    weights: Iterable[int],
    varying: Mask,
    forward: Mask,
) -> Mask:
    """Return the positions that depend on optimizer state.

    `aside`: where each array of state is taken that the loss does not depend on; `weights`: the
    new values of the state that it does depend on. One walk, with a bit for each array.
    """
    found = [0] * len(entry.instructions)
    for number, positions in enumerate(aside):
        for position in positions:
            found[position] |= 1 << number
    met = 0
    for position, x in enumerate(entry.instructions):
        mine = found[position]
        for i in x.operands:
            mine |= found[i]
        found[position] = mine
        if mine and x.opcode != "tuple" and any(forward[i] and varying[i] for i in x.operands):
            met |= mine
    reaching = 0
    for position in weights:
        reaching |= found[position]
    left = ~(met & reaching)
    return Mask(bool(mine & left) for mine in found)
