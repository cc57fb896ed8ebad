"""Recomputation block by block: backward ops read values that are made again from block inputs.

The forward ops of a stage are divided in the order of the text where few bytes go on: at the inputs
of blocks, as a person would put checkpoints (Chen et al.: Training Deep Nets with Sublinear Memory
Cost, 2016). What goes from one block to another is kept; what else a backward op reads is made
again from that by a copy of the forward ops, shortly before. The last block of the last stage keeps
what it has. Ops and their operands are the same, so values are, bit by bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from hloipu_compiler.analysis.live_bytes import FORWARDING
from hloipu_compiler.ir.graph import Computation, Instruction, Module, with_computation
from hloipu_compiler.ir.shapes import TupleShape, byte_count
from hloipu_compiler.partition.stages.assignment import Stages
from hloipu_compiler.partition.stages.recomputing import FULL, recomputable
from hloipu_compiler.partition.training.step_phases import BACKWARD, FORWARD, Phases
from hloipu_compiler.passes.framework.rewriting import Rewriting, with_operands

_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
"""Of blocks, to be tried for a stage."""
_SMALL = 1000
"""What is less than a part so small of a stage's values is kept: sums, means and the like."""


class WithBlocks(NamedTuple):
    """A step in which values are made again."""

    module: Module
    phases: Phases
    ahead: Mapping[int, int]
    """The stage of each forward and backward op, those that are made again among them."""
    origin: Sequence[int]
    """The position in the step before of each op, or of the one that it is a copy of."""


def with_blocks_again(module: Module, phases: Phases, stages: Stages, count: int) -> WithBlocks:
    """Return a step of so many stages with a copy of what backward ops need of each block.

    `stages`: of every position. Time grows with the ops, and their operands.
    """
    entry = module.entry
    before: dict[int, list[int]] = {}
    for old, reader in made_again_before(entry, phases, stages, count).items():
        before.setdefault(reader, []).append(old)
    draft = Rewriting(entry)
    place = draft.place
    origin: list[int] = []
    phase: list[str] = []
    again: dict[int, int] = {}
    """Old position -> where it is made again."""

    def add(op: Instruction, old: int, kind: str) -> int:
        origin.append(old)
        phase.append(kind)
        return draft.append(op)

    def source(old: int) -> int:
        return again.get(old, place[old])

    ahead: dict[int, int] = {}
    for position, op in enumerate(entry.instructions):
        is_behind = phases.phase[position] == BACKWARD
        for old in before.get(position, ()):
            like = entry.instructions[old]
            copy = with_operands(like, tuple(source(i) for i in like.operands))
            again[old] = add(copy._replace(name=draft.fresh_name(like.name)), old, BACKWARD)
            ahead[again[old]] = stages[old]
        operands = tuple(source(i) if is_behind else place[i] for i in op.operands)
        place.append(add(with_operands(op, operands), position, phases.phase[position]))
        if phases.phase[position] in (FORWARD, BACKWARD):
            # Backward ops stay, too: what they read no longer tells where its forward ops are.
            ahead[place[-1]] = stages[position]
    gradients = tuple(g._replace(position=place[g.position]) for g in phases.gradients)
    return WithBlocks(
        with_computation(module, draft.finish()),
        replace(phases, phase=tuple(phase), gradients=gradients),
        ahead,
        origin,
    )


def made_again_before(
    entry: Computation, phases: Phases, stages: Stages, count: int
) -> dict[int, int]:
    """Return the forward ops that are made again, each with the backward op that it comes before.

    In the order in which they are made again.
    """
    block = _blocks(entry, phases, stages, count)
    kept = _kept(entry, block, recomputable(entry, phases, FULL), stages)
    reader_by_op: dict[int, int] = {}
    for position, op in enumerate(entry.instructions):
        if phases.phase[position] == BACKWARD:
            needed = _needed(entry, op.operands, block, kept, reader_by_op)
            reader_by_op.update(dict.fromkeys(needed, position))
    return reader_by_op


def _needed(
    entry: Computation,
    read: Sequence[int],
    block: Mapping[int, int],
    kept: frozenset[int],
    again: Mapping[int, int],
) -> list[int]:
    """Return what must be made again for what an op reads, in order."""
    needed: set[int] = set()
    waiting = list(read)
    while waiting:
        i = waiting.pop()
        if i in block and i not in kept and i not in again and i not in needed:
            needed.add(i)
            waiting += entry.instructions[i].operands
    return sorted(needed)


def _kept(
    entry: Computation, block: Mapping[int, int], fit: Sequence[int], stages: Stages
) -> frozenset[int]:
    """Return the values of blocks that are not made again: small ones, and what others read.

    That is other blocks, and backward ops of other stages: a copy would draw these to its own.
    """
    total = sum(_bytes(entry.instructions[i]) for i in block)
    kept: set[int] = set()
    for position, number in block.items():
        op = entry.instructions[position]
        if isinstance(op.shape, TupleShape):
            if not fit[position]:
                kept.add(position)
            continue
        # What only hands on is there wherever its operand is.
        is_small = op.opcode not in FORWARDING and _bytes(op) * _SMALL <= total
        goes_on = any(
            block.get(user, number) != number or stages[user] > stages[position]
            for user in entry.users[position]
        )
        if goes_on or is_small or not fit[position]:
            kept.add(position)
    return frozenset(kept)


def _blocks(entry: Computation, phases: Phases, stages: Stages, count: int) -> dict[int, int]:
    block_by_op: dict[int, int] = {}
    first = 0
    for stage in range(count):
        ops = [n for n, kind in enumerate(phases.phase) if kind == FORWARD and stages[n] == stage]
        ends = _ends(entry, phases, ops)
        for number, op in enumerate(ops):
            block = sum(end <= number for end in ends)
            if stage < count - 1 or block < len(ends):
                block_by_op[op] = first + block
            else:
                block_by_op[op] = -1
        first += len(ends) + 1
    return {op: block for op, block in block_by_op.items() if block >= 0}


def _ends(entry: Computation, phases: Phases, ops: Sequence[int]) -> list[int]:
    """Return how many of a stage's forward ops come before each cut: least is kept and made."""
    number = {op: n for n, op in enumerate(ops)}
    crossing = [0] * (len(ops) + 1)
    inside = [0] * (len(ops) + 1)
    for n, op in enumerate(ops):
        size = _bytes(entry.instructions[op])
        last = max((number.get(user, -1) for user in _readers(entry, op)), default=-1)
        if last > n:
            crossing[n + 1] += size
            crossing[last + 1] -= size
        if any(phases.phase[user] == BACKWARD for user in _readers(entry, op)):
            inside[n + 1] = size
    crossing = list(accumulate(crossing))
    inside = list(accumulate(inside))
    best: tuple[int, list[int]] = (1 << 62, [])
    for blocks in _COUNTS:
        ends, most = _divided(crossing, inside, -(-inside[-1] // blocks))
        best = min(best, (most + sum(crossing[end] for end in ends), ends))
    return best[1]


def _divided(crossing: Sequence[int], inside: Sequence[int], most: int) -> tuple[list[int], int]:
    """Return where to cut so that no block keeps much more, and what the fullest one keeps."""
    ends: list[int] = []
    begin = fullest = 0
    last = len(crossing) - 1
    while inside[last] - inside[begin] > most:
        ahead = [
            n for n in range(begin + 1, last) if most < 2 * (inside[n] - inside[begin]) <= 2 * most
        ]
        ahead = ahead or [n for n in range(begin + 1, last) if inside[n] > inside[begin]][:1]
        if not ahead:
            break
        end = min(ahead, key=lambda n: (crossing[n], -n))
        ends.append(end)
        fullest = max(fullest, inside[end] - inside[begin])
        begin = end
    return ends, max(fullest, inside[last] - inside[begin])


def _readers(entry: Computation, op: int) -> list[int]:
    """Return what reads a value, what only hands it on looked through."""
    readers: list[int] = []
    waiting = list(entry.users[op])
    while waiting:
        user = waiting.pop()
        readers.append(user)
        if entry.instructions[user].opcode in FORWARDING:
            waiting += entry.users[user]
    return readers


def _bytes(op: Instruction) -> int:
    return 0 if op.opcode in FORWARDING | {"constant", "tuple"} else byte_count(op.shape)
