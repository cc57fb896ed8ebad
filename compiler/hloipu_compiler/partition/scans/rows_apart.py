"""Stacks whose rows are read one by one without a loop, as unrolled scans do.

Stages are found with every row on its own; then rows that lie in one stage are one piece again.
Sums of zero-padded rows become concatenations:

    before: a = f32[3,8] pad(da, zero), padding=0_2x0_0
            b = f32[3,8] pad(db, zero), padding=1_1x0_0
            g = f32[3,8] add(a, b)
    after:  g = f32[3,8] concatenate(da, db, zeros), dimensions={0}

That is how the gradient of an array is printed whose rows were read one by one. Only the sign of
zeros can change: -0 + 0 is 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from hloipu_compiler.ir.attributes import Attributes, PaddingDimension
from hloipu_compiler.ir.graph import Computation, Instruction, Module, with_computation
from hloipu_compiler.ir.shapes import ArrayShape, array_shape
from hloipu_compiler.partition.scans.pieces import InPieces, step_in_pieces
from hloipu_compiler.partition.scans.pieces_following import sliced_range
from hloipu_compiler.partition.stages.pipelining import Cutting
from hloipu_compiler.partition.training.reach import Mask
from hloipu_compiler.partition.training.step_phases import FORWARD
from hloipu_compiler.passes.algebra.arithmetic import filled
from hloipu_compiler.passes.eliminate_dead_code import dead_code_eliminated
from hloipu_compiler.passes.framework.constant_values import scalar_constant
from hloipu_compiler.passes.framework.rewriting import Draft
from hloipu_compiler.plan.wrapping import Wrapping
from hloipu_runtime.reached import reached


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
    names = [op.name for op in entry.instructions]
    first_stages: list[int] = []
    for x in rows:
        within = reached(
            [x.position],
            lambda at: [i for i in entry.users[at] if kept[i] and names[i] not in known],
        )
        stages = [known[names[i]] for at in within for i in entry.users[at] if names[i] in known]
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


class _Part(NamedTuple):
    """A value with zeros before and after it along an axis."""

    axis: int
    begin: int
    end: int
    source: int


def rows_joined(module: Module) -> Module:
    """Return a module whose entry has no sums of rows that lie apart; the same one if it has none.

    Sums are taken that part an axis into at least two ranges.
    """
    entry = module.entry
    parts = {n: part for n, op in enumerate(entry.instructions) if (part := _part(entry, op))}
    if len(parts) < 2:
        return module
    sums = _sums(entry, parts)
    rows_by_sum = {
        n: rows for n, axis in sums.items() if (rows := _rows(entry, n, axis, sums, parts))
    }
    if not rows_by_sum:
        return module
    draft = Draft(module, entry)
    for position, op in enumerate(entry.instructions):
        if position in rows_by_sum:
            draft.place.append(_concatenated(draft, op, rows_by_sum[position]))
        else:
            draft.keep(op)
    new = draft.finish()
    return dead_code_eliminated(with_computation(module, new))


def _part(entry: Computation, op: Instruction) -> _Part | None:
    """Return what a pad with zeros along one axis has in them."""
    if op.opcode != "pad" or not isinstance(op.shape, ArrayShape):
        return None
    value = scalar_constant(entry.instructions[op.operands[1]])
    rows = op.attributes.padding()
    axes = [axis for axis, row in enumerate(rows) if row != PaddingDimension(0, 0)]
    if value is None or value.any() or len(axes) != 1:
        return None
    (axis,) = axes
    row = rows[axis]
    if row.interior or min(row.low, row.high) < 0:
        return None
    return _Part(axis, row.low, op.shape.dimensions[axis] - row.high, op.operands[0])


def _sums(entry: Computation, parts: dict[int, _Part]) -> dict[int, int]:
    """Return the additions, of parts and of one another, with the axis of their parts."""
    axis_by_sum: dict[int, int] = {}
    for position, op in enumerate(entry.instructions):
        if op.opcode == "add":
            axes = {parts[i].axis if i in parts else axis_by_sum.get(i, -1) for i in op.operands}
            alone = all(len(entry.users[i]) == 1 for i in op.operands if i in axis_by_sum)
            if len(axes) == 1 and -1 not in axes and alone:
                axis_by_sum[position] = axes.pop()
    return axis_by_sum


def _rows(
    entry: Computation, position: int, axis: int, sums: dict[int, int], parts: dict[int, _Part]
) -> list[_Part] | None:
    """Return the parts of a whole sum, in order; None where two have a row in common."""
    if any(user in sums for user in entry.users[position]):
        return None  # a sum within another
    rows, waiting = [], [position]
    while waiting:
        at = waiting.pop()
        if at in parts:
            rows.append(parts[at])
        else:
            waiting.extend(entry.instructions[at].operands)
    rows.sort(key=lambda x: x.begin)
    end = 0
    for part in rows:
        if part.begin < end or part.end <= part.begin:
            return None
        end = part.end
    return rows


def _concatenated(draft: Draft, op: Instruction, rows: list[_Part]) -> int:
    """Write the parts side by side, with zeros between them."""
    axis, shape = rows[0].axis, array_shape(op.shape)
    operands, end = [], 0
    for part in (*rows, _Part(axis, shape.dimensions[axis], shape.dimensions[axis], -1)):
        if part.begin > end:
            sizes = list(shape.dimensions)
            sizes[axis] = part.begin - end
            gap = ArrayShape(shape.element_type, tuple(sizes))
            operands.append(filled(draft, op, gap, 0))
        if part.source >= 0:
            operands.append(draft.place[part.source])
        end = part.end
    along = {"dimensions": (axis,)}
    kept = {k: v for k, v in op.attributes.items() if k == "frontend_attributes"}
    return draft.append(
        op._replace(
            opcode="concatenate", operands=tuple(operands), attributes=Attributes(along | kept),
            backend_config="", start=-1, end=-1,
        )
    )  # fmt: skip
