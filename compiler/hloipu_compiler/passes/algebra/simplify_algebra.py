"""The passes that rewrite op by op, bit by bit the same: tables of rules by opcode."""

from collections.abc import Mapping
from typing import ClassVar

from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.passes.algebra.arithmetic import ARITHMETIC_RULES
from hloipu_compiler.passes.algebra.control import CONTROL_RULES, conditional_rule
from hloipu_compiler.passes.algebra.expand_bitcasts import bitcasts_expanded
from hloipu_compiler.passes.algebra.fold_transposes import TRANSPOSE_RULES
from hloipu_compiler.passes.algebra.indexing import INDEXING_RULES
from hloipu_compiler.passes.algebra.movement import MOVEMENT_RULES
from hloipu_compiler.passes.algebra.reshape_rules import RESHAPE_RULES
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


def _first_of(first: Rule, second: Rule) -> Rule:
    """Return the rule that tries one and then another."""

    def rule(draft: Draft, x: Instruction) -> int | Instruction | None:
        found = first(draft, x)
        return second(draft, x) if found is None else found

    return rule


def _joined(first: Mapping[str, Rule], second: Mapping[str, Rule]) -> dict[str, Rule]:
    both = {name: _first_of(first[name], second[name]) for name in first.keys() & second.keys()}
    return {**first, **second, **both}


_RULES = _joined(
    {name: MOVEMENT_RULES[name] for name in ("reshape", "transpose", "broadcast")},
    _joined(RESHAPE_RULES, TRANSPOSE_RULES),
)


@register
@dataclass(frozen=True, slots=True)
class AbsorbViews(Pass):
    """Moves reshapes behind elementwise ops and reductions, takes transposes into products."""

    name: ClassVar[str] = "absorb-views"
    breaks: ClassVar[Facts] = frozenset({NO_DEAD_CODE})

    enabled: bool = True

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module with its views absorbed."""
        if not self.enabled:
            return module, plan
        return with_each(module, lambda c: rewritten(module, c, _RULES)), plan
