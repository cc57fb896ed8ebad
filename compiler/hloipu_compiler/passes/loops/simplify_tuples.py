"""Drops tuples that are only taken apart again."""

from typing import ClassVar

from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.shapes import TupleShape, compatible
from hloipu_compiler.passes.algebra.expand_bitcasts import bitcasts_expanded
from hloipu_compiler.passes.framework.pass_base import (
    NO_BITCASTS,
    NO_DEAD_CODE,
    TRIP_COUNTS,
    Facts,
    Pass,
)
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import Draft, Rule, rewritten, with_each
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.frozen import dataclass


def _element(draft: Draft, op: Instruction) -> int | None:
    """Read an element where the tuple was put together."""
    source = draft.made[op.operands[0]]
    if source.opcode != "tuple":
        return None
    return source.operands[op.attributes.integer("index")]


def _rebuilt(draft: Draft, op: Instruction) -> int | None:
    """Take a tuple for the one that all its elements come from, in order."""
    if not op.operands or "sharding" in op.attributes:
        return None
    first = draft.made[op.operands[0]]
    if first.opcode != "get-tuple-element":
        return None
    source = first.operands[0]
    for index, operand in enumerate(op.operands):
        element = draft.made[operand]
        if (
            element.opcode != "get-tuple-element"
            or element.operands[0] != source
            or element.attributes.integer("index") != index
        ):
            return None
    return source if compatible(draft.shape(source), op.shape) else None


def _copied(draft: Draft, op: Instruction) -> int | None:
    """Take a tuple for its copy: values never change."""
    if not isinstance(op.shape, TupleShape) or op.shape.has_buffer or "sharding" in op.attributes:
        return None
    return op.operands[0]


RULES: dict[str, Rule] = {"get-tuple-element": _element, "tuple": _rebuilt, "copy": _copied}


def tuples_simplified(module: Module) -> Module:
    """Return the module without tuples that are made and taken apart; the same one if none are."""
    module = bitcasts_expanded(module)
    return with_each(module, lambda c: rewritten(module, c, RULES))


@register
@dataclass(frozen=True, slots=True)
class SimplifyTuples(Pass):
    """Reads elements of tuples where they were made, and drops copies of tuples."""

    name: ClassVar[str] = "simplify-tuples"
    establishes: ClassVar[Facts] = frozenset({NO_BITCASTS})
    breaks: ClassVar[Facts] = frozenset({NO_DEAD_CODE, TRIP_COUNTS})

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module with fewer tuples."""
        return tuples_simplified(module), plan
