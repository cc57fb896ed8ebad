"""The phase of every op, given gradients and state; non-trainable state that is read forward.

A weight has a derivative: it goes into the loss by floats alone, and its new value comes of what
goes backward, where the dump names that. State that micro-batches make anew often lacks one or the
other: a bias by which experts are chosen, a centre of features, codes that are moving averages.

A moving average is a share of the old and the rest of something else; a count adds the same in
each step. An update by a gradient keeps all of a weight, or all but a decay that has nothing to do
with the factor of the gradient. An average keeps c and adds 1 - c, as constants say or an op that
subtracts.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import isclose, prod
from typing import NamedTuple

from hloipu_compiler.ir.dimension_rules import rule_in
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.partition.training.carried_state import MovingState, has_slope
from hloipu_compiler.partition.training.gradient_walk import GradientWalk
from hloipu_compiler.partition.training.marks import names_backward_ops
from hloipu_compiler.partition.training.reach import Mask, ancestors, dependants
from hloipu_compiler.partition.training.step_phases import BACKWARD, FORWARD, FREE, UPDATE
from hloipu_compiler.passes.framework.constant_values import constant_array, scalar_constant
from hloipu_runtime.reached import reached

_MOVING = frozenset({"reshape", "bitcast", "copy", "transpose", "convert", "opt-barrier"})
_SUMS = frozenset({"reduce", "dot", "reduce-window", "scatter"})
_NEAR = 1e-5


class _Term(NamedTuple):
    """A factor that is known, one that is not, and what they are factors of."""

    number: float
    other: int
    """Position of a number that is no constant; -1: none."""
    value: int


def is_moving_average(entry: Computation, own: Set[int], result: int) -> bool:
    """Return whether state at `own` is made an average with something else.

    c * old + (1 - c) * new, or old + c * (new - old). Of a sum the factor may have the count in it,
    as 0.1 * sum / 8 has.
    """
    op = entry.instructions[_behind_moves(entry, result)]
    if op.opcode not in ("add", "subtract"):
        return False
    first, second = (_term(entry, i) for i in op.operands)
    sign = 1.0 if op.opcode == "add" else -1.0
    if first.value not in own:
        first, second = second, first
        if op.opcode == "subtract":
            return False
    if first.value not in own or second.value in own:
        return False
    if first.number == 1 and first.other < 0:
        return _goes_back(entry, own, second, sign)
    return sign > 0 and _make_up_one(entry, first, second)


def _goes_back(entry: Computation, own: Set[int], term: _Term, sign: float) -> bool:
    """Whether a term takes from old state as much as it gives of new: c * (new - old)."""
    op = entry.instructions[term.value]
    if op.opcode != "subtract":
        return False
    first, second = (_term(entry, i) for i in op.operands)
    plain = second if sign * term.number > 0 else first
    return plain.value in own and plain.number == 1 and plain.other < 0


def _make_up_one(entry: Computation, old: _Term, new: _Term) -> bool:
    if old.other < 0 and new.other < 0:
        summed = entry.instructions[new.value]
        counts = {1, _summed(entry, summed)}
        share = new.number * _factor_within(entry, summed)
        return 0 < old.number < 1 and any(
            isclose(old.number + share * n, 1, rel_tol=_NEAR) for n in counts
        )
    return any(_is_rest(entry, a.other, b.other) for a, b in ((old, new), (new, old)))


def _factor_within(entry: Computation, op: Instruction) -> float:
    """Return the factor that all terms of a sum have, as (0.1 * chosen) @ values has."""
    factor = 1.0
    for i in op.operands[: {"dot": 2, "reduce": 1}.get(op.opcode, 0)]:
        factor *= _term(entry, i).number
    return factor


def _is_rest(entry: Computation, share: int, rest: int) -> bool:
    """Whether a number is 1 less another."""
    if share < 0 or rest < 0 or entry.instructions[rest].opcode != "subtract":
        return False
    one, less = (_behind_broadcasts(entry, i) for i in entry.instructions[rest].operands)
    return _constant(entry.instructions[one]) == 1 and less == share


def _term(entry: Computation, position: int) -> _Term:
    """Take numbers out of a product."""
    number, other = 1.0, -1
    while True:
        position = _behind_moves(entry, position)
        op = entry.instructions[position]
        if op.opcode == "negate":
            number, position = -number, op.operands[0]
            continue
        if op.opcode not in ("multiply", "divide"):
            return _Term(number, other, position)
        factors = [_behind_broadcasts(entry, i) for i in op.operands]
        known = [_constant(entry.instructions[i]) for i in factors]
        if known[1]:
            number = number * known[1] if op.opcode == "multiply" else number / known[1]
            position = op.operands[0]
        elif op.opcode == "multiply" and known[0]:
            number, position = number * known[0], op.operands[1]
        elif op.opcode == "multiply" and other < 0 and any(_is_number(entry, i) for i in factors):
            last = _is_number(entry, factors[1])
            other, position = factors[last], op.operands[not last]
        else:
            return _Term(number, other, position)


def _behind_moves(entry: Computation, position: int) -> int:
    while entry.instructions[position].opcode in _MOVING:
        position = entry.instructions[position].operands[0]
    return position


def _behind_broadcasts(entry: Computation, position: int) -> int:
    while entry.instructions[position].opcode in (*_MOVING, "broadcast"):
        position = entry.instructions[position].operands[0]
    return position


def _is_number(entry: Computation, position: int) -> bool:
    shape = entry.instructions[position].shape
    return isinstance(shape, ArrayShape) and prod(shape.dimensions) == 1


def _constant(op: Instruction) -> float | None:
    if op.opcode != "constant":
        return None
    array = constant_array(op)
    if array is None or not array.size or array.dtype.kind in "iub":
        return None
    first = array.reshape(-1)[0]
    value = complex(first)
    return value.real if not value.imag and (array == first).all() else None


def _summed(entry: Computation, op: Instruction) -> int:
    """Return how many elements each element of a sum is made of; 1: it is no sum."""
    if op.opcode not in _SUMS:
        return 1
    given = entry.instructions[op.operands[0]].shape
    if not isinstance(given, ArrayShape) or not isinstance(op.shape, ArrayShape):
        return 1
    if op.opcode == "dot":
        return rule_in(entry, op).summed()
    return max(1, prod(given.dimensions) // max(1, prod(op.shape.dimensions)))


def counts_by(entry: Computation, own: Set[int], result: int) -> float | None:
    """Return what is added to a number to make its new value; None where it is no constant."""
    x = entry.instructions[result]
    if x.opcode not in ("add", "subtract") or own.isdisjoint(x.operands):
        return None
    if not isinstance(x.shape, ArrayShape) or x.shape.element_count != 1:
        return None
    values = [scalar_constant(entry.instructions[i]) for i in x.operands]
    return next((float(x.item()) for x in values if x is not None and x.dtype.kind in "iuf"), None)


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
        update = set(self.walk.update) | self._late_ancestors(self._places(self.late_results()))
        each = [*self.each, *self._places(self.early_results())]
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

    def _places(self, numbers: Sequence[int]) -> list[int]:
        return [p for n in numbers if (p := self.results[n]) is not None]

    def _late_ancestors(self, positions: Sequence[int]) -> set[int]:
        def late(positions: Sequence[int]) -> list[int]:
            return [i for i in positions if self.late[i] and i not in self.walk.gradients]

        return set(reached(late(positions), lambda i: late(self.entry.instructions[i].operands)))


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
