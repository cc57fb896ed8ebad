"""The phase of every op, given gradients and state; non-trainable state that is read forward.

A weight has a derivative: it goes into the loss by floats alone, and its new value comes of what
goes backward, where the dump names that. State that micro-batches make anew often lacks one or the
other: a bias by which experts are chosen, a centre of features, codes that are moving averages.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.partition.training.carried_state import MovingState, has_slope
from hloipu_compiler.partition.training.gradient_walk import GradientWalk
from hloipu_compiler.partition.training.marks import names_backward_ops
from hloipu_compiler.partition.training.moving_averages import is_moving_average
from hloipu_compiler.partition.training.reach import Mask, ancestors, dependants
from hloipu_compiler.partition.training.step_phases import BACKWARD, FORWARD, FREE, UPDATE


@dataclass(frozen=True, slots=True)
class OpPhases:
    """What is known of a step's values, by position."""

    entry: Computation
    results: Sequence[int | None]
    """Where each result is made."""
    state: Set[int]
    """Numbers of the results that are new state."""
    each: Sequence[int]
    """New state that each micro-batch makes."""
    walk: GradientWalk
    late: Mask
    """What depends on data through gradients alone."""
    forward: Mask
    """What the loss is made of."""
    varying: Mask
    """What differs by micro-batch."""
    marks: Mapping[int, str]
    """Phases that the text itself names."""

    def late_results(self) -> list[int]:
        """Return the results besides state that are made after all micro-batches."""
        late, gradients = self.late, self.walk.gradients
        return [
            n
            for n, p in self._others()
            if not self.varying[p] or (late[p] and p not in gradients and not self.forward[p])
        ]

    def early_results(self) -> list[int]:
        """Return the results besides state that each micro-batch makes."""
        late = set(self.late_results())
        return [n for n, _ in self._others() if n not in late]

    def phases(self) -> tuple[str, ...]:
        """Return the phase of each position, empty for what nobody needs."""
        entry, gradients = self.entry, self.walk.gradients
        update = set(self.walk.update) | self._late_ancestors(self._made(self.late_results()))
        each = [*self.each, *self._made(self.early_results())]
        ahead = ancestors(entry, each)
        after_gradients = dependants(entry, [i for i in gradients if not self.forward[i]])
        # The loss may be among these beside a metric that is made alike and was taken for it.
        measured = ancestors(entry, [i for i in each if not after_gradients[i]])
        behind = ancestors(entry, gradients)
        needed = ancestors(entry, [p for p in self.results if p is not None])
        phase: list[str] = []
        for position, op in enumerate(entry.instructions):
            if not needed[position] or _is_boundary(entry, position, op):
                phase.append("")
            elif op.opcode == "get-tuple-element" and phase[op.operands[0]]:
                phase.append(phase[op.operands[0]])  # no tuple passes from one phase to another
            elif not self.varying[position]:
                phase.append(FREE)
            elif position in update:
                phase.append(UPDATE)
            elif self.forward[position]:
                phase.append(FORWARD)  # even if named as backward: both had the same op
            elif self.marks.get(position) == "bwd" or any(
                phase[i] == BACKWARD for i in op.operands
            ):
                phase.append(BACKWARD)
            elif measured[position] or (ahead[position] and not behind[position]):
                phase.append(FORWARD)
            else:
                phase.append(BACKWARD)
        return tuple(phase)

    def _others(self) -> list[tuple[int, int]]:
        return [(n, p) for n, p in enumerate(self.results) if n not in self.state and p is not None]

    def _made(self, numbers: Sequence[int]) -> list[int]:
        return [p for n in numbers if (p := self.results[n]) is not None]

    def _late_ancestors(self, positions: Sequence[int]) -> set[int]:
        late: set[int] = set()
        waiting = list(positions)
        while waiting:
            position = waiting.pop()
            if self.late[position] and position not in self.walk.gradients and position not in late:
                late.add(position)
                waiting.extend(self.entry.instructions[position].operands)
        return late


def _is_boundary(entry: Computation, position: int, op: Instruction) -> bool:
    """Whether an op is a parameter, or the tuple of the results."""
    return op.parameter_number >= 0 or (position == entry.root and op.opcode == "tuple")


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
    is_steep = Mask(len(entry.instructions))
    for position in losses:
        is_steep[position] = 1
    for position in range(len(entry.instructions) - 1, -1, -1):
        if is_steep[position]:
            for i in entry.instructions[position].operands:
                if has_slope(entry.instructions[i]):
                    is_steep[i] = 1
    return is_steep
