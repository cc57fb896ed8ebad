"""Finds non-trainable state that the forward pass reads.

A weight has a derivative: it goes into the loss by floats alone, and its new value comes of what
goes backward, where the dump names that. State that micro-batches make anew often lacks one or the
other: a bias by which experts are chosen, a centre of features, codes that are moving averages.
"""

from collections.abc import Iterable, Mapping, Sequence

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.partition.training.carried_state import MovingState, has_slope
from hloipu_compiler.partition.training.marks import names_backward_ops
from hloipu_compiler.partition.training.moving_averages import is_moving_average
from hloipu_compiler.partition.training.reach import Mask, dependants


class NonTrainableState:
    """What the loss has a derivative by, and what comes of the backward pass, of one step."""

    def __init__(
        self,
        entry: Computation,
        kinds: MovingState,
        marks: Mapping[int, str],
        losses: Iterable[int],
        aside: Sequence[tuple[Sequence[int], int]],
    ) -> None:
        """Look over a step.

        `aside`: where state is taken that the loss is not made of, and its new values.
        """
        self.entry = entry
        floats = [x for x in aside if has_slope(entry.instructions[x[1]])]
        averages = [x for x in floats if is_moving_average(entry, frozenset(x[0]), x[1])]
        others = [x for x in floats if x not in averages]
        self.optimized = dependants(entry, [i for own, _ in floats for i in own])
        self.optimized_otherwise = dependants(entry, [i for own, _ in others for i in own])
        self.kinds = kinds
        self.steep = _steep(entry, losses)
        backward = [position for position, phase in marks.items() if phase == "bwd"]
        self.behind = dependants(entry, backward)
        self.is_named = bool(backward) and names_backward_ops(entry)

    def holds(self, own: Sequence[int], result: int) -> bool:
        """Whether state taken at `own` is no weight.

        Where neither names nor the arithmetic of an average tell, all that its new value is made of
        is looked at, too.
        """
        if not self.kinds.varying[result] or not has_slope(self.entry.instructions[result]):
            return False
        if self.behind[result]:
            return False
        if self.kinds.is_shifted(result, frozenset(own)):
            return True
        if not self.optimized[result] and is_moving_average(self.entry, frozenset(own), result):
            return True  # weights may be averages, too, of what optimizer state has made
        if not any(self.steep[i] for i in own) or self._is_made_of_averages(own, result):
            return True
        return self.is_named and not self.kinds.is_statistic(result)

    def _is_made_of_averages(self, own: Sequence[int], result: int) -> bool:
        """Whether moving averages are what new state comes from, and its old value is not."""
        if not self.optimized[result] or self.optimized_otherwise[result]:
            return False
        return not self.kinds.is_mixed_of(result, frozenset(own))


def _steep(entry: Computation, losses: Iterable[int]) -> Mask:
    """Return what losses depend on by floats alone."""
    found = Mask(len(entry.instructions))
    for position in losses:
        found[position] = 1
    for position in range(len(entry.instructions) - 1, -1, -1):
        if found[position]:
            for i in entry.instructions[position].operands:
                if has_slope(entry.instructions[i]):
                    found[i] = 1
    return found
