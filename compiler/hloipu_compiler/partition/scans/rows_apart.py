"""Stacks whose rows are read one by one without a loop, as unrolled scans do.

Stages are found with every row on its own; then rows that lie in one stage are one piece again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.partition.scans.joined_rows import rows_joined
from hloipu_compiler.partition.scans.pieces import InPieces, step_in_pieces
from hloipu_compiler.partition.scans.pieces_following import sliced_range
from hloipu_compiler.partition.stages.pipelining import Cutting
from hloipu_compiler.partition.training.reach import Mask
from hloipu_compiler.partition.training.step_phases import FORWARD
from hloipu_compiler.plan.wrapping import Wrapping


class Rows(NamedTuple):
    """A slice of a stack that is kept on the device."""

    position: int
    begin: int
    end: int


@dataclass(frozen=True)
class RowsApart:
    """A step whose stacks have been cut after the stages that read their rows."""

    pieces: InPieces
    known: Mapping[str, int]
    """The stage of forward ops, by name."""
    lines: tuple[str, ...]
    """What was done, for people."""


def each_row_apart(module: Module, wrapping: Wrapping) -> InPieces:
    """Return a flat step with every row that is read on its own a piece of its stack."""
    entry = module.entry
    stacks = _stacks(entry, _made_of_kept(entry, wrapping))
    names = [entry.instructions[x.position].name for rows in stacks for x in rows]
    if not names:
        return InPieces(module, wrapping, (), None)
    return step_in_pieces(rows_joined(module), wrapping, names)


def rows_apart(module: Module, wrapping: Wrapping, cutting: Cutting) -> RowsApart | None:
    """Return a flat step with its stacks cut where the stage changes; None where it never does.

    `cutting`: stages of the step with each row apart.
    """
    entry = module.entry
    known = {
        cutting.module.entry.instructions[n].name: stage
        for n, stage in cutting.ahead.items()
        if cutting.phases.phase[n] == FORWARD
    }
    kept = _made_of_kept(entry, wrapping)
    cuts: dict[str, list[int]] = {}
    lines = []
    for rows in _stacks(entry, kept):
        stages = _stages(entry, kept, rows, known)
        inner = [b.begin for (a, b), (s, t) in zip(pairwise(rows), pairwise(stages), strict=True)
                 if s != t]  # fmt: skip
        if inner:
            lines.append(_line(entry, rows, stages))
        for x in rows if inner else ():
            cuts[entry.instructions[x.position].name] = inner
    if not cuts:
        return None
    cut_step = step_in_pieces(rows_joined(module), wrapping, cuts)
    return RowsApart(cut_step, known, tuple(lines))


def _made_of_kept(entry: Computation, wrapping: Wrapping) -> Mask:
    """Return the values that are made of state and constants of a run alone."""
    numbers = {*wrapping.constants, *(pair.parameter for pair in wrapping.state)}
    is_made_of_kept = Mask(len(entry.instructions))
    for position, op in enumerate(entry.instructions):
        if op.parameter_number >= 0:
            is_made_of_kept[position] = op.parameter_number in numbers
        elif op.operands and not op.attributes.called:
            is_made_of_kept[position] = all(is_made_of_kept[i] for i in op.operands)
    return is_made_of_kept


def _stacks(entry: Computation, kept: Mask) -> list[list[Rows]]:
    """Return the slices that part a value into equal rows, in order, for each such value."""
    rows_by_source: dict[tuple[int, int], list[Rows]] = {}
    for position, x in enumerate(entry.instructions):
        source = x.operands[0] if x.opcode == "slice" else -1
        if source < 0 or not kept[source]:
            continue
        shape = entry.instructions[source].shape
        taken = sliced_range(x, shape) if isinstance(shape, ArrayShape) else None
        if taken is not None:
            axis, (begin, end, _) = taken
            rows_by_source.setdefault((source, axis), []).append(Rows(position, begin, end))
    return [
        sorted(rows, key=lambda x: x.begin)
        for (source, axis), rows in rows_by_source.items()
        if _parts(rows, _size(entry, source, axis))
    ]


def _size(entry: Computation, position: int, axis: int) -> int:
    shape = entry.instructions[position].shape
    return shape.dimensions[axis] if isinstance(shape, ArrayShape) else 0


def _parts(rows: list[Rows], size: int) -> bool:
    """Whether slices are equal parts of so many rows, side by side."""
    each = rows[0].end - rows[0].begin
    begins = sorted(x.begin for x in rows)
    return begins == list(range(0, size, each)) and all(x.end - x.begin == each for x in rows)


def _stages(
    entry: Computation, kept: Mask, rows: list[Rows], known: Mapping[str, int]
) -> list[int]:
    """Return the first stage that reads each slice; that of its neighbour where none does."""
    first_stages: list[int] = []
    for x in rows:
        stages = []
        waiting, seen = [x.position], {x.position}
        while waiting:
            for user in entry.users[waiting.pop()]:
                name = entry.instructions[user].name
                if name in known:
                    stages.append(known[name])
                elif kept[user] and user not in seen:
                    seen.add(user)
                    waiting.append(user)
        first_stages.append(min(stages, default=first_stages[-1] if first_stages else 0))
    return first_stages


def _line(entry: Computation, rows: list[Rows], stages: list[int]) -> str:
    op = entry.instructions[rows[0].position]
    told = []
    first = 0
    for place in range(1, len(rows) + 1):
        if place == len(rows) or stages[place] != stages[first]:
            begin, end = rows[first].begin, rows[place - 1].end
            told.append(f"rows {begin}-{end - 1} in stage {stages[first]}")
            first = place
    return f"  {entry.instructions[op.operands[0]].name}: {', '.join(told)}"
