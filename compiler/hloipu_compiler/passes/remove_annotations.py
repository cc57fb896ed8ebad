"""Ops that only hand their operand on, replaced by it: annotations at once, barriers by a pass.

Annotations are removed before anything is analysed, of every module that is compiled or evaluated,
whatever passes are chosen. An annotation that states an IPU stays, as a copy. What
`CustomSPMDPartitioning` calls is called.
"""

from typing import ClassVar

from hloipu_compiler.ir.annotations import (
    IDENTITY_TARGETS,
    PARTITIONED_TARGET,
    PER_MICRO_BATCH,
    is_border,
)
from hloipu_compiler.ir.attributes import NO_ATTRIBUTES, Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import TupleShape, compatible, holds_buffer
from hloipu_compiler.passes.algebra.expand_bitcasts import bitcasts_expanded
from hloipu_compiler.passes.framework.pass_base import (
    NO_BARRIERS,
    NO_BITCASTS,
    NO_DEAD_CODE,
    TRIP_COUNTS,
    Facts,
    Pass,
)
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import Draft, rewritten, with_each
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.frozen import dataclass

_REMOVED = IDENTITY_TARGETS - {PER_MICRO_BATCH}
_KEPT = ("sharding", "frontend_attributes")


def annotations_removed(module: Module) -> Module:
    """Return the module without calls that only annotate; the same one where there are none.

    What the border of a manually sharded region reads stays: its sharding is that of the region.
    Raises UnsupportedError E0470 for a call that would have to compute something, as its result
    has another shape than its operand.
    """
    return with_each(module, lambda computation: _removed(module, computation))


def _removed(module: Module, computation: Computation) -> Computation:
    borders = [op for op in computation.instructions if is_border(op)]
    read = {computation.instructions[i].name for op in borders for i in op.operands}

    def unannotated(draft: Draft, op: Instruction) -> int | Instruction | None:
        return None if op.name in read else _unannotated(draft, op)

    return rewritten(module, computation, {"custom-call": unannotated})


def _unannotated(draft: Draft, op: Instruction) -> int | Instruction | None:
    target = op.attributes.text("custom_call_target")
    if target == PARTITIONED_TARGET and len(op.attributes.called) == 1:
        (name,) = op.attributes.called
        values = {key: op.attributes[key] for key in _KEPT if key in op.attributes}
        attributes = Attributes({**values, "to_apply": name}, op.attributes.called)
        return op._replace(opcode="call", attributes=attributes, backend_config="")
    if target not in _REMOVED:
        return None
    if isinstance(op.shape, TupleShape) and not op.shape.elements:
        return op._replace(opcode="tuple", operands=(), attributes=NO_ATTRIBUTES, backend_config="")
    if len(op.operands) != 1 or not compatible(draft.shape(op.operands[0]), op.shape):
        error = UnsupportedError(
            "E0470",
            f"custom call {op.name!r}: {target} hands its one operand on, and this call has "
            f"{len(op.operands)} operands and a result that is not like the first",
            hint="print the module again: an annotation changes no shape",
        )
        error.span = draft.module.span(op)
        raise error
    if not _states_ipu(op):
        return op.operands[0]
    attributes = Attributes({key: op.attributes[key] for key in _KEPT if key in op.attributes})
    return op._replace(opcode="copy", attributes=attributes, backend_config="")


def _states_ipu(op: Instruction) -> bool:
    """Whether an annotation tells where the value is made, and not only how it is divided."""
    marks = op.attributes.text("frontend_attributes")
    return "maximal" in op.attributes.text("sharding") or "ipu_" in marks


BARRIERS = ("opt-barrier", "domain", "add-dependency")


def barriers_removed(module: Module) -> Module:
    """Return the module without barriers; the same one where there are none.

    An opt-barrier keeps recomputation from being merged with what it recomputes: its pass comes
    after the merging. Effects need no add-dependency: no pass and no later stage changes the order
    of effects, which is that of the text.
    """
    module = bitcasts_expanded(module)
    rules = dict.fromkeys(BARRIERS, _operand)
    return with_each(module, lambda c: rewritten(module, c, rules))


def _operand(_: Draft, op: Instruction) -> int | None:
    return None if holds_buffer(op.shape) else op.operands[0]


@register
@dataclass(frozen=True, slots=True)
class RemoveBarriers(Pass):
    """Puts operands in the place of opt-barriers, domains and add-dependencies."""

    name: ClassVar[str] = "remove-barriers"
    establishes: ClassVar[Facts] = frozenset({NO_BARRIERS, NO_BITCASTS})
    breaks: ClassVar[Facts] = frozenset({NO_DEAD_CODE, TRIP_COUNTS})

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module without barriers."""
        return barriers_removed(module), plan
