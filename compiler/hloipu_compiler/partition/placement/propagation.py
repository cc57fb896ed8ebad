"""Propagates IPUs from placed cells to all others, along users and operands.

Graphcore's order (graphcore/tensorflow:
tensorflow/compiler/plugin/poplar/driver/passes/sharding_pass.cc): what says nothing takes the IPU
of its users, then of its operands, and where nothing is left that knows, the one with most users
takes the first IPU. Of several operands' IPUs that one is taken to which fewest bytes have to be
brought, counting what forward ops have brought there already: so gradients, which no annotated op
reads, follow the ops that they are gradients of.
"""

from collections.abc import Sequence

from hloipu_compiler.partition.placement.cells import Cell

_MOST_ROUNDS = 64
"""Of taking from users and operands by turns; each goes through whole chains."""


def propagated(cells: Sequence[Cell]) -> list[int]:
    """Return the IPU of every cell."""
    propagation = _Propagation(cells)
    for _ in range(_MOST_ROUNDS):
        if not (propagation.from_users() or propagation.from_operands() or propagation.first_one()):
            break
    return [ipu or 0 for ipu in propagation.ipu]


class _Propagation:
    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = cells
        self.ipu = [cell.said for cell in cells]
        self.at_hand: list[set[int]] = [set() for _ in cells]
        """Where a value is, or is brought for its users."""
        for number, ipu in enumerate(self.ipu):
            if ipu is not None:
                self._note(number, ipu)

    def from_users(self) -> bool:
        """Place what has users that are placed, last first; return whether there was any."""
        any_placed = False
        for number in range(len(self.cells) - 1, -1, -1):
            if self.ipu[number] is None:
                there = [
                    ipu
                    for user in self.cells[number].users
                    if (ipu := self.ipu[user]) is not None and not self._is_later(number, user)
                ]
                if there:
                    self._place(number, min(set(there), key=lambda n: (-there.count(n), n)))
                    any_placed = True
        return any_placed

    def from_operands(self) -> bool:
        """Place what has operands that are placed, first first; return whether there was any."""
        any_placed = False
        for number, cell in enumerate(self.cells):
            if self.ipu[number] is None:
                ipu = self._nearest(cell)
                if ipu is not None:
                    self._place(number, ipu)
                    any_placed = True
        return any_placed

    def first_one(self) -> bool:
        """Place the cell with most users on the first IPU; return whether there was one."""
        left = [n for n, ipu in enumerate(self.ipu) if ipu is None]
        if left:
            self._place(max(left, key=lambda n: (len(self.cells[n].users), -n)), 0)
        return bool(left)

    def _is_later(self, number: int, user: int) -> bool:
        """Whether a place is made anew by an op: that is not moved to where the place is."""
        return user < number

    def _nearest(self, cell: Cell) -> int | None:
        operands = [o for o in cell.operands if self.ipu[o] is not None]
        if not operands:
            return None
        ipus = list(dict.fromkeys(self.ipu[o] for o in operands))
        ipus += sorted(set().union(*(self.at_hand[o] for o in operands)) - set(ipus))
        best, least = None, -1
        for ipu in ipus:
            brought = sum(self.cells[o].bytes for o in operands if ipu not in self.at_hand[o])
            if best is None or brought < least:
                best, least = ipu, brought
        return best

    def _place(self, number: int, ipu: int) -> None:
        self.ipu[number] = ipu
        self._note(number, ipu)

    def _note(self, number: int, ipu: int) -> None:
        self.at_hand[number].add(ipu)
        for operand in self.cells[number].operands:
            self.at_hand[operand].add(ipu)
