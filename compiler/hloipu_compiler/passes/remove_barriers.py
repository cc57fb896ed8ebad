"""Ops that hand their operand on and only keep other passes away from it.

An opt-barrier keeps recomputation from being merged with what it recomputes, so that this pass
comes after the merging. Effects need no add-dependency: no pass and no later stage changes the
order of effects, which is that of the text.
"""

from typing import ClassVar

from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.shapes import holds_buffer
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
from hloipu_runtime.frozen import dataclass

BARRIERS = ("opt-barrier", "domain", "add-dependency")


def barriers_removed(module: Module) -> Module:
    """Return the module without barriers; the same one where there are none."""
    module = bitcasts_expanded(module)
    rules = dict.fromkeys(BARRIERS, _operand)
    return with_each(module, lambda c: rewritten(module, c, rules))


def _operand(_: Draft, x: Instruction) -> int | None:
    return None if holds_buffer(x.shape) else x.operands[0]


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
