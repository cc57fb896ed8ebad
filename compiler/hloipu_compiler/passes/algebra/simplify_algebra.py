"""The passes that rewrite op by op, by tables of rules; only some sums change their order."""

from collections.abc import Mapping
from typing import ClassVar

from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.passes.algebra.arithmetic import ARITHMETIC_RULES, commutative_region
from hloipu_compiler.passes.algebra.expand_bitcasts import bitcasts_expanded
from hloipu_compiler.passes.algebra.fold_transposes import KERNEL_RULES, TRANSPOSE_RULES
from hloipu_compiler.passes.algebra.indexing import INDEXING_RULES
from hloipu_compiler.passes.algebra.movement import (
    MOVEMENT_RULES,
    WINDOW_RULES,
    became,
    same_value_shape,
    static,
)
from hloipu_compiler.passes.algebra.reshape_rules import RESHAPE_RULES
from hloipu_compiler.passes.framework.attribute_edits import CONTROL, without
from hloipu_compiler.passes.framework.constant_values import scalar_constant
from hloipu_compiler.passes.framework.pass_base import (
    NO_BITCASTS,
    NO_DEAD_CODE,
    TRIP_COUNTS,
    Facts,
    Pass,
)
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import (
    Draft,
    Rule,
    rewritten,
    with_each,
    with_operands,
)
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.element_types import Kind
from hloipu_runtime.frozen import dataclass


def _reduce(draft: Draft, x: Instruction) -> Instruction | None:
    """Reduce no elements to the start; one element each by one op with the start."""
    shape = static(x.shape)
    if shape is None or len(x.operands) != 2:
        return None
    source = static(draft.shape(x.operands[0]))
    if source is None:
        return None
    if source.element_count == 0 and shape.element_count:
        return became(x, "broadcast", x.operands[1:], dimensions=())
    if source.element_count != shape.element_count:
        return None
    opcode = commutative_region(draft.module.computation[x.attributes.called[0]])
    if opcode is None or source.element_type is not shape.element_type:
        return None
    start = draft.add(x, "broadcast", shape, x.operands[1:], Attributes({"dimensions": ()}))
    only = draft.add(x, "reshape", shape, x.operands[:1])
    return became(x, opcode, (start, only))


def _sort(draft: Draft, x: Instruction) -> int | None:
    shape = static(x.shape)
    dimensions = x.attributes.integers("dimensions") or (0,)
    if shape is None or not shape.dimensions or shape.dimensions[dimensions[0]] > 1:
        return None
    return x.operands[0] if same_value_shape(draft, x, x.operands[0]) else None


_MOST_TURNS, _MOST_WRITTEN, _LEAST_OPS = 8, 256, 8
"""Of loops that are written out: turns, ops of all of them, and ops of one, to be worth it."""
_ROUND = frozenset("parameter constant tuple get-tuple-element slice reshape broadcast".split())


def _while(draft: Draft, x: Instruction) -> int | None:
    """Put its start in the place of a loop that never runs, and its rounds in that of a short one.

    Short are few turns of elementwise ops alone, such as the rounds of a hash: written out they
    become a few kernels, where in a loop each turn's results are stored and brought back.
    """
    old = draft.old
    from hloipu_compiler.analysis.trip_count import counted_loop

    loop = counted_loop(draft.module, old, old[x.name])
    if loop is None or "sharding" in x.attributes:
        return None
    state = x.operands[0]
    if not loop.trips:
        return state
    body = draft.module.computation[x.attributes.text("body")]
    ops = [y for y in body.instructions if Trait.ELEMENTWISE in OPS[y.opcode].traits]
    if (
        CONTROL in x.attributes
        or loop.trips > _MOST_TURNS
        or not _LEAST_OPS <= len(ops) <= _MOST_WRITTEN // loop.trips
        or any(y.opcode not in _ROUND for y in body.instructions if y not in ops)
    ):
        return None
    for _ in range(loop.trips):
        state = spliced(draft, x, body, (state,))
    return state


def conditional_rule(module: Module) -> Rule:
    """Return the rule that writes out a branch that is always taken, where nobody else runs it.

    A branch that many run would be copied many times, and copies of copies grow as powers.
    """
    sites: dict[str, int] = {}
    for computation in module.computations:
        for y in computation.instructions:
            for name in y.attributes.called:
                sites[name] = sites.get(name, 0) + 1
    return lambda draft, x: _conditional(draft, x, sites)


def _conditional(draft: Draft, x: Instruction, sites: Mapping[str, int]) -> int | None:
    value = scalar_constant(draft.made[x.operands[0]])
    names = x.attributes.called
    if value is None or value.ndim:
        return None
    shape = draft.shape(x.operands[0])
    chosen = int(value)
    if isinstance(shape, ArrayShape) and shape.element_type.kind is Kind.PREDICATE:
        chosen = 0 if chosen else 1
    elif not 0 <= chosen < len(names):
        chosen = len(names) - 1
    branch = draft.module.computation[names[chosen]]
    if len(branch.parameters) != 1 or sites[branch.name] > 1:
        return None
    return spliced(draft, x, branch, (x.operands[1 + chosen],))


def spliced(draft: Draft, x: Instruction, callee: Computation, arguments: tuple[int, ...]) -> int:
    """Write a computation out in place of the instruction that runs it; return its root."""
    place: list[int] = []
    for y in callee.instructions:
        if y.parameter_number >= 0:
            place.append(arguments[y.parameter_number])
            continue
        moved = with_operands(y, tuple([place[i] for i in y.operands]))
        attributes = without(y.attributes, {CONTROL})
        place.append(
            draft.append(
                moved._replace(
                    name=draft.fresh_name(y.name),
                    attributes=attributes,
                    metadata=y.metadata or x.metadata,
                )
            )
        )
    return place[callee.root]


CONTROL_RULES: dict[str, Rule] = {"reduce": _reduce, "sort": _sort, "while": _while}


RULES: dict[str, Rule] = {
    **MOVEMENT_RULES, **KERNEL_RULES, **INDEXING_RULES, **ARITHMETIC_RULES, **CONTROL_RULES,
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
    {**_joined(RESHAPE_RULES, TRANSPOSE_RULES), **WINDOW_RULES},
)


@register
@dataclass(frozen=True, slots=True)
class AbsorbViews(Pass):
    """Moves reshapes behind elementwise ops and reductions, takes moves into what reads them."""

    name: ClassVar[str] = "absorb-views"
    breaks: ClassVar[Facts] = frozenset({NO_DEAD_CODE})

    enabled: bool = True

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module with its views absorbed."""
        if not self.enabled:
            return module, plan
        return with_each(module, lambda c: rewritten(module, c, _RULES)), plan
