"""The phase of every op, given gradients and state."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.partition.training.gradient_walk import GradientWalk
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
