"""The pass that leaves few reshapes and transposes, which move data and part what would join."""

from collections.abc import Mapping
from typing import ClassVar

from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.passes.algebra.fold_transposes import TRANSPOSE_RULES
from hloipu_compiler.passes.algebra.movement import MOVEMENT_RULES
from hloipu_compiler.passes.algebra.reshape_rules import RESHAPE_RULES
from hloipu_compiler.passes.framework.pass_base import NO_DEAD_CODE, Facts, Pass
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import Draft, Rule, rewritten, with_each
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.frozen import dataclass


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
