"""Ops that come down to simpler ones with the same bits: one table of rules by opcode."""

from typing import ClassVar

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes.algebra.arithmetic import ARITHMETIC_RULES
from hloipu_compiler.passes.algebra.control import CONTROL_RULES, conditional_rule
from hloipu_compiler.passes.algebra.expand_bitcasts import bitcasts_expanded
from hloipu_compiler.passes.algebra.indexing import INDEXING_RULES
from hloipu_compiler.passes.algebra.movement import MOVEMENT_RULES
from hloipu_compiler.passes.framework.pass_base import (
    NO_BITCASTS,
    NO_DEAD_CODE,
    TRIP_COUNTS,
    Facts,
    Pass,
)
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import Rule, rewritten, with_each
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.frozen import dataclass

RULES: dict[str, Rule] = {
    **MOVEMENT_RULES, **INDEXING_RULES, **ARITHMETIC_RULES, **CONTROL_RULES,
}  # fmt: skip


def algebra_simplified(module: Module) -> Module:
    """Return the module after one round of the rules; the same one where none applies."""
    module = bitcasts_expanded(module)
    rules = RULES | {"conditional": conditional_rule(module)}
    return with_each(module, lambda c: rewritten(module, c, rules))


@register
@dataclass(frozen=True, slots=True)
class SimplifyAlgebra(Pass):
    """Replaces ops by simpler ones with the same bits: identities, double moves, fixed branches."""

    name: ClassVar[str] = "simplify-algebra"
    establishes: ClassVar[Facts] = frozenset({NO_BITCASTS})
    breaks: ClassVar[Facts] = frozenset({NO_DEAD_CODE, TRIP_COUNTS})

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module simplified."""
        return algebra_simplified(module), plan
