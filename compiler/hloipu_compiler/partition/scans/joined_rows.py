"""Rewrites sums of zero-padded rows as concatenations.

    before: a = f32[3,8] pad(da, zero), padding=0_2x0_0
            b = f32[3,8] pad(db, zero), padding=1_1x0_0
            g = f32[3,8] add(a, b)
    after:  g = f32[3,8] concatenate(da, db, zeros), dimensions={0}

That is how the gradient of an array is printed whose rows were read one by one. Only the sign of
zeros can change: -0 + 0 is 0.
"""

from typing import NamedTuple

from hloipu_compiler.ir.attributes import Attributes, PaddingDimension
from hloipu_compiler.ir.graph import Computation, Instruction, Module, with_computation
from hloipu_compiler.ir.shapes import ArrayShape, array_shape
from hloipu_compiler.passes.algebra.arithmetic import filled
from hloipu_compiler.passes.eliminate_dead_code import dead_code_eliminated
from hloipu_compiler.passes.framework.constant_values import scalar_constant
from hloipu_compiler.passes.framework.rewriting import Draft, with_operands


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
            place = _concatenated(draft, op, rows_by_sum[position])
        else:
            place = draft.append(with_operands(op, tuple(draft.place[i] for i in op.operands)))
        draft.place.append(place)
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
