"""Dead-code elimination: instructions, loop state, computations."""

from collections.abc import Set
from dataclasses import replace
from typing import ClassVar

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.analysis.order import effectful_computations, live_positions
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.passes.framework.pass_base import NO_DEAD_CODE, TRIP_COUNTS, Facts, Pass
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import Draft, with_operands
from hloipu_compiler.passes.loops.loop_state import (
    elements_read,
    is_divisible,
    part_of,
    renumbered,
    state_needed,
    with_narrow_parameter,
    with_narrow_root,
    without_dead,
)
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.frozen import dataclass

Kept = tuple[int, ...]


def dead_code_eliminated(module: Module) -> Module:
    """Return the module without dead code; the same one where there is none.

    Parameters stay. Loops and branches lose elements only where they own their computations.
    """
    work = _Elimination(module)
    for computation in reversed(callees_first(module, only_reachable=True)):
        work.visit(computation.name)
    reached = work.reached()
    if len(reached) == len(module.computations) and all(
        new is old for new, old in zip(reached, module.computations, strict=True)
    ):
        return module
    names = [c.name for c in reached]
    return replace(
        module, computations=tuple(reached), entry_position=names.index(module.entry.name)
    )


class _Elimination:
    """The computations as they stand, callers before those that they call."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.effectful: Set[str] = effectful_computations(module)
        self.now: dict[str, Computation] = dict(module.computation)
        self.sites: dict[str, int] = {}
        for c in module.computations:
            for op in c.instructions:
                for name in op.attributes.called:
                    self.sites[name] = self.sites.get(name, 0) + 1

    def visit(self, name: str) -> None:
        """Clean one computation, and narrow what its loops and branches carry."""
        computation = self._cleaned(self.now[name])
        narrow: dict[int, tuple[Kept, Kept]] = {}
        branches: dict[int, list[Kept | None]] = {}
        for at, op in enumerate(computation.instructions):
            if op.opcode == "while" and is_divisible(op) and self._owns(op):
                kept = self._narrow_loop(computation, at)
                if kept is not None:
                    narrow[at] = (kept, kept)
            elif op.opcode == "conditional" and self._owns(op):
                kept_by_branch = self._narrow_branches(computation, at)
                if kept_by_branch is not None:
                    branches[at] = kept_by_branch
        if narrow or branches:
            computation = self._cleaned(_narrowed(self.module, computation, narrow, branches))
        self.now[name] = computation

    def reached(self) -> list[Computation]:
        """Return what the entry still reaches, in the order of the old module."""
        computations = tuple(self.now[c.name] for c in self.module.computations)
        whole = replace(self.module, computations=computations)
        names = {c.name for c in callees_first(whole, only_reachable=True)}
        return [c for c in computations if c.name in names]

    def _cleaned(self, computation: Computation) -> Computation:
        return without_dead(computation, live_positions(computation, self.effectful))

    def _owns(self, op: Instruction) -> bool:
        return all(self.sites[name] == 1 for name in op.attributes.called)

    def _narrow_loop(self, caller: Computation, at: int) -> Kept | None:
        """Narrow a loop's computations; return the elements that stay, None where all do."""
        op = caller.instructions[at]
        condition = self._cleaned(self.now[op.attributes.text("condition")])
        body = self._cleaned(self.now[op.attributes.text("body")])
        outside = elements_read(caller, at)
        if outside is None:
            return None
        needed = state_needed(condition, body, outside, self.effectful)
        whole = len(body.instructions[body.root].operands)
        if not needed or len(needed) == whole:
            return None
        kept = tuple(sorted(needed))
        body = self._cleaned(with_narrow_root(body, kept))
        self.now[body.name] = with_narrow_parameter(body, kept)
        self.now[condition.name] = with_narrow_parameter(condition, kept)
        return kept

    def _narrow_branches(self, caller: Computation, at: int) -> list[Kept | None] | None:
        """Narrow a conditional's branches: what stays of the result, then of each operand."""
        op = caller.instructions[at]
        kept: list[Kept | None] = [None]
        read = elements_read(caller, at) if is_divisible(op) else None
        names = op.attributes.called
        roots = [self.now[name].instructions[self.now[name].root] for name in names]
        if read and len(read) < len(part_elements(op)) and all(map(is_divisible, roots)):
            result = kept[0] = tuple(sorted(read))
            for name in names:
                self.now[name] = self._cleaned(with_narrow_root(self.now[name], result))
        for name in names:
            kept.append(self._narrow_branch_parameter(name))
        return kept if any(k is not None for k in kept) else None

    def _narrow_branch_parameter(self, name: str) -> Kept | None:
        branch = self._cleaned(self.now[name])
        if len(branch.parameters) != 1:
            return None
        parameter = branch.instructions[branch.parameters[0]]
        read = elements_read(branch, branch.parameters[0]) if is_divisible(parameter) else None
        if read is None or len(read) == len(part_elements(parameter)):
            return None
        kept = tuple(sorted(read))
        self.now[name] = with_narrow_parameter(branch, kept)
        return kept


def part_elements(op: Instruction) -> tuple[int, ...]:
    """Return the indices of a tuple's elements."""
    return tuple(range(len(getattr(op.shape, "elements", ()))))


def _narrowed(
    module: Module,
    computation: Computation,
    loops: dict[int, tuple[Kept, Kept]],
    branches: dict[int, list[Kept | None]],
) -> Computation:
    """Return a caller whose loops and branches take and give the elements that stay."""
    draft = Draft(module, computation)
    reads: dict[int, Kept] = {}
    """Position of a narrowed value -> the elements that it has."""
    for at, op in enumerate(computation.instructions):
        operands = tuple([draft.place[i] for i in op.operands])
        if op.opcode == "get-tuple-element" and op.operands[0] in reads:
            kept = reads[op.operands[0]]
            op = renumbered(op, {old: new for new, old in enumerate(kept)})
        elif at in loops:
            kept = reads[at] = loops[at][0]
            operands = (_narrow_operand(draft, op, operands[0], kept),)
            op = op._replace(shape=part_of(op.shape, kept))
        elif at in branches:
            result, *arguments = branches[at]
            operands = (
                operands[0],
                *(
                    operand if kept is None else _narrow_operand(draft, op, operand, kept)
                    for operand, kept in zip(operands[1:], arguments, strict=True)
                ),
            )
            if result is not None:
                reads[at] = result
                op = op._replace(shape=part_of(op.shape, result))
        draft.place.append(draft.append(with_operands(op, operands)))
    return draft.finish()


def _narrow_operand(draft: Draft, like: Instruction, at: int, kept: Kept) -> int:
    """Append a tuple of some elements of another."""
    source = draft.made[at]
    shape = part_of(source.shape, kept)
    if source.opcode == "tuple":
        elements = [source.operands[i] for i in kept]
    else:
        elements = [draft.element(like, at, i) for i in kept]
    return draft.add(like, "tuple", shape, elements)


@register
@dataclass(frozen=True, slots=True)
class EliminateDeadCode(Pass):
    """Drops instructions, loop and branch elements and computations that serve nothing."""

    name: ClassVar[str] = "eliminate-dead-code"
    establishes: ClassVar[Facts] = frozenset({NO_DEAD_CODE})
    breaks: ClassVar[Facts] = frozenset({TRIP_COUNTS})

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module without dead code."""
        return dead_code_eliminated(module), plan
