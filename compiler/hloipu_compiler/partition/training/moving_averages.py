"""Whether new state is a moving average or a count, told by how it is made of the old.

A moving average is a share of the old and the rest of something else; a count adds the same in
each step. An update by a gradient keeps all of a weight, or all but a decay that has nothing to do
with the factor of the gradient. An average keeps c and adds 1 - c, as constants say or an op that
subtracts.
"""

from collections.abc import Set
from math import isclose, prod
from typing import NamedTuple

from hloipu_compiler.ir.dimension_rules import rule_in
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.passes.framework.constant_values import constant_array, scalar_constant

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
