"""The dot product of an instruction, placed on its cheapest grid; what was chosen, for people."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.shapes import ArrayShape, Shape
from hloipu_compiler.planners.dot_grids import (
    DEPTH,
    DotGrid,
    DotWork,
    cut_dimension,
    dot_alternatives,
    dot_grid,
)
from hloipu_compiler.planners.placing import Placement
from hloipu_compiler.planners.planned import (
    Choice,
    Cycles,
    PlannedOp,
    losers,
    shape_texts,
    splits_of,
)
from hloipu_compiler.planners.tuning import Tuning
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.dense.dot import Dot
from hloipu_runtime.machine.model import Machine


class PlacedDot(NamedTuple):
    """A dot product on its grid, as one: the codelet, cut if the depth is, and what it makes."""

    plan: DotGrid
    codelet: Dot
    result: Tensor
    """With a leading dimension that counts pieces, if the depth is cut."""
    placement: Placement


def dot_codelet(op: Instruction) -> Dot:
    """Return the dot product that an instruction describes."""
    attributes = op.attributes
    return Dot(
        attributes.integers("lhs_batch_dims"),
        attributes.integers("rhs_batch_dims"),
        attributes.integers("lhs_contracting_dims"),
        attributes.integers("rhs_contracting_dims"),
        op.shape.element_type.name,  # type: ignore[union-attr]
    )


def product_cycles(
    machine: Machine, tuning: Tuning, op: Instruction, operands: Sequence[Shape]
) -> int | None:
    """Return the cycles of an instruction on its cheapest grid; None where it is no dot product."""
    arrays = [shape for shape in (*operands, op.shape) if isinstance(shape, ArrayShape)]
    if op.opcode != "dot" or len(arrays) != 3:
        return None
    lhs, rhs, result = (Tensor(s.element_type.name, s.dimensions) for s in arrays)
    if not all(lhs.shape) or not all(rhs.shape):
        return 0
    return dot_grid(DotWork(machine, dot_codelet(op), lhs, rhs, result, tuning)).cycles


def dot_placement(work: DotWork) -> PlacedDot:
    """Return the cheapest grid for a dot product, or for a slice of it, from tile 0 on."""
    plan, (_, codelet, lhs, _, result, tuning) = dot_grid(work), work
    if not plan.part:
        return PlacedDot(plan, codelet, result, plan.placement)
    kind = tuning.partial_type(result.element_type)
    first = cut_dimension(codelet, lhs)
    cut = replace(
        codelet,
        lhs_contracting=_led_by(codelet.lhs_contracting, first),
        rhs_contracting=_led_by(codelet.rhs_contracting, first),
        element_type=kind,
        part=plan.part,
    )
    depth = lhs.shape[cut.lhs_contracting[0]]
    if plan.sliced == DEPTH and plan.sliced_depth == first:
        depth //= plan.slices
    partial_result = Tensor(kind, (-(-depth // plan.part), *result.shape))
    return PlacedDot(plan, cut, partial_result, plan.placement)


def _led_by(dimensions: tuple[int, ...], first: int) -> tuple[int, ...]:
    """Return contracted dimensions with one of them first, which is the one that a dot cuts."""
    return (dimensions[first], *dimensions[:first], *dimensions[first + 1 :])


def planned_dot(op: str, work: DotWork, chosen: DotGrid) -> PlannedOp:
    """Return the record of a dot product whose grid was chosen."""
    names = _names(work.codelet, len(work.lhs.shape), len(work.rhs.shape))
    partial = work.tuning.partial_type(work.result.element_type)
    one, others = _choice(chosen, names, partial), dot_alternatives(work)
    return PlannedOp(
        op,
        "dot",
        shape_texts([work.lhs, work.rhs]),
        shape_texts([work.result]),
        one,
        losers(one, (_choice(x, names, partial) for x in others), work.budget_bytes),
    )


def _names(codelet: Dot, lhs_rank: int, rhs_rank: int) -> tuple[str, ...]:
    """Return names of the dimensions of the result."""
    batch = len(codelet.lhs_batch)
    rows = lhs_rank - batch - len(codelet.lhs_contracting)
    columns = rhs_rank - batch - len(codelet.rhs_contracting)
    return (*_numbered("batch", batch), *_numbered("rows", rows), *_numbered("columns", columns))


def _numbered(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name} {n}" for n in range(count)]


def _choice(x: DotGrid, names: tuple[str, ...], partial: str) -> Choice:
    words = f"depth in pieces of {x.part:,}" if x.part else "depth whole"
    details: list[tuple[str, str | int]] = [("partials", partial)] if x.part else []
    if x.slices > 1:
        words += f", {x.slices} slices of {x.sliced} one after the other"
    return Choice(
        words,
        splits_of(x.placement, ("pieces", *names) if x.part else names),
        x.placement.tiles.count,
        Cycles(together=x.cycles),
        x.bytes_per_tile,
        tuple(details),
    )
