"""The dot product of an instruction, placed on its cheapest grid."""

from dataclasses import replace
from typing import NamedTuple

from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.planners.dot_grids import DotGrid, dot_grid
from hloipu_compiler.planners.placing import Placement
from hloipu_compiler.planners.tuning import Tuning
from hloipu_runtime.codelets.core.codelet import Tensor
from hloipu_runtime.codelets.dense.dot import Dot
from hloipu_runtime.machine.model import Machine


class PlacedDot(NamedTuple):
    """A dot product on its grid, as one: the codelet, cut if the depth is, and what it makes."""

    plan: DotGrid
    codelet: Dot
    result: Tensor
    """With a leading dimension that counts pieces, if the depth is cut."""
    placement: Placement


def dot_codelet(x: Instruction) -> Dot:
    """Return the dot product that an instruction describes."""
    attributes = x.attributes
    return Dot(
        attributes.integers("lhs_batch_dims"),
        attributes.integers("rhs_batch_dims"),
        attributes.integers("lhs_contracting_dims"),
        attributes.integers("rhs_contracting_dims"),
        x.shape.element_type.name,  # type: ignore[union-attr]
    )


def dot_placement(
    machine: Machine, tuning: Tuning, codelet: Dot, lhs: Tensor, rhs: Tensor, result: Tensor
) -> PlacedDot:
    """Return the cheapest grid for a dot product, or for a slice of it, from tile 0 on."""
    plan = dot_grid(machine, codelet, lhs, rhs, result, tuning)
    if not plan.part:
        return PlacedDot(plan, codelet, result, plan.placement)
    kind = tuning.partial_type(result.element_type)
    cut = replace(codelet, part=plan.part, element_type=kind)
    depth = lhs.shape[codelet.lhs_contracting[0]]
    made = Tensor(kind, (-(-depth // plan.part), *result.shape))
    return PlacedDot(plan, cut, made, plan.placement)
