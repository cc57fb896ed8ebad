"""Where backward ops belong, from where forward ops are: stages, or places between forward ops.

Backward values flow down: an op is at most where its cotangents come from. Of what is left it takes
the highest place at which what it reads of the forward pass is at hand. What repeats a forward op,
such as all that `jax.checkpoint` computes again, is at hand where that one is, and is made where it
is needed. A cut in the midst of such a block sends forward values on: what is behind the cut reads
these, so that each place computes its own part of the block again.
"""

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.ir.ops import PRODUCTS
from hloipu_compiler.ir.shapes import Shape, TupleShape, element_count
from hloipu_compiler.memo import Memo, Same
from hloipu_compiler.partition.training.reach import Mask, parameter_positions
from hloipu_compiler.partition.training.step_phases import BACKWARD, FORWARD, FREE, Phases
from hloipu_compiler.passes.eliminate_common_subexpressions import DISTINCT, key_of_value
from hloipu_compiler.passes.framework.rewriting import with_operands

Places = tuple[int, ...]
"""Ascending, where they are those of one value."""

FEW_ELEMENTS = 64
"""Values of no more elements may be read anywhere."""
_RESHAPES = frozenset({"reshape", "bitcast"})
_COSTLY = PRODUCTS | {"rng-bit-generator", "while", "call", "custom-call", "sort"}


class BackwardPlaces(NamedTuple):
    """Where ops are, and what they read there."""

    places: Places
    """Of every forward and backward op; -1 for others."""
    forward_reads: Mapping[tuple[int, int], int]
    """By backward op and operand: the forward value, at hand there, that it reads in place of the
    operand, which computes the same again elsewhere."""
    repeated: Mapping[int, int]
    """By backward op that computes again what a forward op computes: the forward op."""


def backward_places(
    entry: Computation,
    phases: Phases,
    known: Sequence[int],
    last: int,
    marked: Collection[int] = (),
) -> BackwardPlaces:
    """Return the place of every forward and backward op.

    `known`: places of forward ops, and those that marks ask for of the backward ops `marked`; -1
    for others; `last`: the highest place that there is.
    """
    placed, at_hand = list(known), values_at_hand(entry, phases, known)
    key = Same(entry), Same(phases), frozenset(marked)
    repeated = REPEATED_MEMO.of(key, lambda: _repeated(entry, phases, marked))
    for position, op in enumerate(entry.instructions):
        if phases.phase[position] != BACKWARD:
            continue
        if _is_element(entry, phases, position):
            placed[position] = placed[op.operands[0]]
        elif position in repeated:
            placed[position] = placed[repeated[position]]
        else:
            cotangents = [i for i in op.operands if phases.phase[i] == BACKWARD]
            bound = min((placed[i] for i in cotangents if i not in repeated), default=last)
            read = [at_hand[i] for i in op.operands if at_hand[i]]
            here = [bound, *(_highest(places, bound) for places in read)]
            placed[position] = min(bound, known[position]) if position in marked else min(here)
        if position in repeated:
            at_hand[position] = at_hand[repeated[position]]
    forward_reads = _bring_to_readers(entry, phases, repeated, marked, at_hand, placed)
    _bring_to_weights(entry, phases, marked, at_hand, forward_reads, placed)
    return BackwardPlaces(tuple(placed), forward_reads, repeated)


REPEATED_MEMO: Memo[Mapping[int, int]] = Memo(2)
"""Of steps that are cut in many ways."""


def with_forward_reads(entry: Computation, reads: Mapping[tuple[int, int], int]) -> Computation:
    """Return the entry in which ops read forward values as `BackwardPlaces.forward_reads` says."""
    instructions = list(entry.instructions)
    for reader in {reader for reader, _ in reads}:
        op = instructions[reader]
        instructions[reader] = with_operands(
            op, tuple([reads.get((reader, i), i) for i in op.operands])
        )
    return replace(entry, instructions=tuple(instructions))


def values_at_hand(
    entry: Computation, phases: Phases, place: Sequence[int], *, small: bool = False
) -> list[Places]:
    """Return the places at which parameters and forward values are: where forward ops are.

    Values that are at hand everywhere have none, unless `small` ones are asked for, too.
    """
    bound = bound_to_places(entry, phases)
    places_by_value: list[set[int]] = [set() for _ in entry.instructions]
    for position in range(len(entry.instructions) - 1, -1, -1):
        if not (small or bound[position]):
            continue
        places, phase = places_by_value[position], phases.phase[position]
        users = entry.users[position]
        places.update(place[user] for user in users if phases.phase[user] == FORWARD)
        if phase == FORWARD:
            places.add(place[position])
        elif phase == FREE or entry.instructions[position].parameter_number >= 0:
            # What is the same for all micro-batches is where those are that it is made for.
            for user in users:
                if phases.phase[user] == FREE:
                    places |= places_by_value[user]
    return [tuple(sorted(places)) for places in places_by_value]


def bound_to_places(entry: Computation, phases: Phases) -> Sequence[int]:
    """Return the values that are costly to have elsewhere: of micro-batches, and large weights.

    Constants and numbers, and what is made of them alone, are at hand everywhere.
    """
    return BOUND_MEMO.of((Same(entry), Same(phases)), lambda: _bound_to_places(entry, phases))


BOUND_MEMO: Memo[bytes] = Memo(2)
"""As `REPEATED_MEMO`."""


def _bound_to_places(entry: Computation, phases: Phases) -> bytes:
    is_bound = Mask(len(entry.instructions))
    for position, op in enumerate(entry.instructions):
        if op.parameter_number >= 0:
            is_bound[position] = not is_small(op.shape)
        elif phases.phase[position] in (FORWARD, BACKWARD):
            is_bound[position] = 1
        else:
            is_bound[position] = any(is_bound[i] for i in op.operands)
    return bytes(is_bound)


def is_small(shape: Shape) -> bool:
    """Whether an array may be anywhere, such as a number or a bias."""
    return element_count(shape) <= FEW_ELEMENTS


def _is_element(entry: Computation, phases: Phases, position: int) -> bool:
    """Whether an op takes an array out of a tuple that a stage makes: it stays there."""
    op = entry.instructions[position]
    return op.opcode == "get-tuple-element" and bool(phases.phase[op.operands[0]])


def _repeated(entry: Computation, phases: Phases, marked: Collection[int]) -> dict[int, int]:
    """Return, for backward ops that compute what a forward op computes, the forward op.

    A mask that all layers read is made once by the forward pass, and by each layer that a
    checkpoint computes again: that it is made early says nothing of where it is read.
    """
    first: dict[object, int] = {}
    same = list(range(len(entry.instructions)))
    reshaped = list(same)
    """What reshapes of reshapes begin with: passes leave out some of them."""
    repeated: dict[int, int] = {}
    for position, op in enumerate(entry.instructions):
        phase = phases.phase[position]
        if phase not in (FORWARD, FREE, BACKWARD) or position in marked or op.opcode in DISTINCT:
            continue
        if op.opcode in _RESHAPES:
            whole = reshaped[position] = reshaped[same[op.operands[0]]]
            key: object = ("reshape", op.shape, whole)
            if op.shape == entry.instructions[whole].shape:
                first.setdefault(key, whole)
        else:
            key = key_of_value(op, tuple([same[i] for i in op.operands]), frozenset())
        if key is None:
            continue
        if phase != BACKWARD:
            same[position] = first.setdefault(key, position)
        elif key in first:
            same[position] = first[key]
            if phases.phase[same[position]] == FORWARD:
                repeated[position] = same[position]
        elif op.opcode == "get-tuple-element" and op.operands[0] in repeated:
            # The forward pass reads other elements: this one is where these are all the same.
            repeated[position] = repeated[op.operands[0]]
    return repeated


def _highest(places: Places, bound: int) -> int:
    """Return the highest of some places that is not above a bound; the bound if none is."""
    count = bisect_right(places, bound)
    return places[count - 1] if count else bound


def _bring_to_readers(
    entry: Computation,
    phases: Phases,
    repeated: Mapping[int, int],
    marked: Collection[int],
    at_hand: Sequence[Places],
    placed: list[int],
) -> dict[tuple[int, int], int]:
    """Bring ops that need not be where they are to the highest place that reads them.

    Down if everything that they read is there: otherwise a mask, say, would be made a stage too
    early and sent along. What repeats forward ops also up: that place is computed before. Returns
    what reads the forward op in its place, since that is at hand and costly to repeat there.
    """
    costly = _costly_to_repeat(entry, repeated)
    forward_reads: dict[tuple[int, int], int] = {}
    bound_by_marks = set(marked)
    """Marked ops, and what reads them."""
    for position, op in enumerate(entry.instructions):
        if phases.phase[position] == BACKWARD and not bound_by_marks.isdisjoint(op.operands):
            bound_by_marks.add(position)
    for position in range(len(entry.instructions) - 1, -1, -1):
        if phases.phase[position] != BACKWARD or position in bound_by_marks:
            continue
        if _is_element(entry, phases, position) and position not in repeated:
            continue
        users = [i for i in entry.users[position] if phases.phase[i] == BACKWARD]
        forward = repeated.get(position, position)
        shapes = [entry.instructions[i].shape for i in (position, forward)]
        if position in costly and not any(isinstance(shape, TupleShape) for shape in shapes):
            there = {place for place in at_hand[position] if place > placed[forward]}
            forward_reads |= {(i, position): forward for i in users if placed[i] in there}
            users = [i for i in users if placed[i] not in there]
        goal = max([placed[i] for i in users], default=placed[position])
        if goal < placed[position]:
            operands = entry.instructions[position].operands
            mine = [i for i in operands if phases.phase[i] == BACKWARD]
            if any(placed[i] < goal for i in mine) or any(
                goal not in at_hand[i] for i in operands if at_hand[i] and i not in mine
            ):
                continue
        elif position not in repeated and entry.instructions[position].opcode not in _RESHAPES:
            continue
        placed[position] = goal
    for position in repeated:
        if _is_element(entry, phases, position):
            placed[position] = placed[entry.instructions[position].operands[0]]
    return forward_reads


def _bring_to_weights(
    entry: Computation,
    phases: Phases,
    marked: Collection[int],
    at_hand: Sequence[Places],
    forward_reads: Mapping[tuple[int, int], int],
    placed: list[int],
) -> None:
    """Bring gradients that sum up cotangents alone, those of biases, to where the weights are.

    If the cotangents pass there anyway, and no gradient before reads the sums. Elsewhere the update
    would wait for another IPU's sums.
    """
    parameters = parameter_positions(entry)
    for gradient in phases.gradients:
        first = gradient.position
        if first in marked or phases.phase[first] != BACKWARD:
            continue
        there = {
            n for number in gradient.parameters for i in parameters[number] for n in at_hand[i]
        }
        goal = max((n for n in there if n <= placed[first]), default=-1)
        if 0 <= goal < placed[first]:
            for position in _summed_at(
                goal, first, entry, phases, marked, at_hand, forward_reads, placed
            ):
                placed[position] = goal


def _summed_at(
    goal: int,
    gradient: int,
    entry: Computation,
    phases: Phases,
    marked: Collection[int],
    at_hand: Sequence[Places],
    forward_reads: Mapping[tuple[int, int], int],
    placed: Sequence[int],
) -> set[int]:
    """Return a gradient and the ops for it alone, if they can be at a lower place; else nothing."""
    if any(placed[user] > goal for user in entry.users[gradient]):
        return set()
    moved, waiting = {gradient}, [gradient]
    while waiting:
        reader = waiting.pop()
        for operand in entry.instructions[reader].operands:
            i = forward_reads.get((reader, operand), operand)
            if phases.phase[i] != BACKWARD:
                if at_hand[i] and goal not in at_hand[i]:
                    return set()
                continue
            if placed[i] <= goal or i in moved:
                continue
            others = [n for n in entry.users[i] if n not in moved]
            if not others and i not in marked:
                moved.add(i)
                waiting.append(i)
            elif all(phases.phase[n] != BACKWARD or placed[n] > goal for n in others):
                return set()  # nothing sends the cotangent there
    return moved


def _costly_to_repeat(entry: Computation, repeated: Mapping[int, int]) -> set[int]:
    """Return repeated ops that products or random bits are repeated for, unlike most masks."""
    costly: set[int] = set()
    for position in sorted(repeated):
        op = entry.instructions[position]
        if op.opcode in _COSTLY or not costly.isdisjoint(op.operands):
            costly.add(position)
    return costly
