"""Rewrites computations instruction by instruction, with rules that see one op.

A rule sees operands that the rules have been through already. Where no rule finds anything, the
old computation itself comes back, so that whoever asked can tell by identity.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hloipu_compiler.ir.attributes import NO_ATTRIBUTES, Attributes
from hloipu_compiler.ir.graph import (
    Computation,
    Instruction,
    Module,
    control_predecessors,
    element_of,
)
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import Shape, TupleShape
from hloipu_compiler.passes.framework.attribute_edits import CONTROL
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.plan.plan import Plan

Rule = Callable[["Draft", Instruction], "int | Instruction | None"]
"""From an instruction with its operands' new positions to: the position of what its value is, the
instruction to put in its place, or None to leave it."""


def with_operands(op: Instruction, operands: tuple[int, ...]) -> Instruction:
    """Return an instruction with other operands; faster than `_replace`, which passes live on."""
    name, opcode, shape, _, attributes, metadata, config, literal, number, start, end = op
    fields = (
        name, opcode, shape, operands, attributes, metadata, config, literal, number, start, end,
    )  # fmt: skip
    return tuple.__new__(Instruction, fields)


class Rewriting:
    """A computation being written anew, instruction by instruction."""

    __slots__ = ("_names", "made", "old", "place")

    def __init__(self, old: Computation) -> None:
        self.old: Computation = old
        self.made: list[Instruction] = []
        self.place: list[int] = []
        """For each position in the old computation that has been looked at: the new one."""
        self._names: Names | None = None

    def element(self, like: Instruction, whole: int, index: int) -> int:
        """Append what reads one element of a tuple, which helps to make `like`."""
        shape = self.made[whole].shape
        assert isinstance(shape, TupleShape)
        name = self.fresh_name(like.name)
        return self.append(element_of(name, whole, index, shape.elements[index], like.metadata))

    def append(self, op: Instruction) -> int:
        """Append an instruction as it stands."""
        self.made.append(op)
        return len(self.made) - 1

    def moved(self, op: Instruction) -> Instruction:
        """Return an old instruction on the new positions of its operands."""
        place, operands = self.place, op.operands
        return with_operands(op, tuple([place[i] for i in operands])) if operands else op

    def keep(self, op: Instruction) -> int:
        """Append the old instruction whose turn it is, its operands moved; return its place."""
        op = self.moved(op)
        self.place.append(len(self.made))
        self.made.append(op)
        return self.place[-1]

    def fresh_name(self, stem: str) -> str:
        """Return a name that no instruction of the old or the new computation has."""
        if self._names is None:
            self._names = Names(op.name for op in self.old.instructions)
        return self._names.fresh(stem)

    def shape(self, position: int) -> Shape:
        """Return the shape of a new instruction."""
        return self.made[position].shape

    def finish(self) -> Computation:
        """Return the new computation, which stands for the old one in the text."""
        root = self.place[self.old.root]
        new = replace(self.old, instructions=tuple(self.made), root=root)
        return with_control_names(new, self._moved_names())

    def _moved_names(self) -> dict[str, str]:
        new = self.made
        old = self.old.instructions
        return {
            op.name: new[at].name
            for op, at in zip(old, self.place, strict=True)
            if new[at].name != op.name
        }


class Draft(Rewriting):
    """A computation of a module being written anew by rules."""

    __slots__ = ("module",)

    def __init__(self, module: Module, old: Computation) -> None:
        super().__init__(old)
        self.module: Module = module

    def add(
        self,
        like: Instruction,
        opcode: str,
        shape: Shape,
        operands: Sequence[int] = (),
        attributes: Attributes = NO_ATTRIBUTES,
        literal: Literal | None = None,
    ) -> int:
        """Append an instruction that helps to make `like`, whose name and metadata it follows."""
        self.made.append(
            Instruction(
                self.fresh_name(like.name), opcode, shape, tuple(operands), attributes,
                like.metadata, "", literal,
            )
        )  # fmt: skip
        return len(self.made) - 1


def with_control_names(computation: Computation, moved: Mapping[str, str]) -> Computation:
    """Return a computation whose control predecessors have the names that they go by now."""
    if not moved:
        return computation
    controlled = [i for i, op in enumerate(computation.instructions) if CONTROL in op.attributes]
    if not controlled:
        return computation
    instructions = list(computation.instructions)
    known = computation.position
    for i in controlled:
        op = instructions[i]
        names = dict.fromkeys(moved.get(name, name) for name in control_predecessors(op))
        names.pop(op.name, None)
        kept = tuple(name for name in names if name in known)
        values = {key: value for key, value in op.attributes.items() if key != CONTROL}
        if kept:
            values[CONTROL] = kept
        instructions[i] = op._replace(attributes=Attributes(values, op.attributes.called))
    return replace(computation, instructions=tuple(instructions))


def in_order(computation: Computation, order: Sequence[int]) -> Computation:
    """Return a computation with its instructions, all of them, in another order."""
    place = [0] * len(order)
    for new, at in enumerate(order):
        place[at] = new
    old = computation.instructions
    moved = tuple(with_operands(old[at], tuple(place[i] for i in old[at].operands)) for at in order)
    return replace(computation, instructions=moved, root=place[computation.root])


def rewritten(module: Module, computation: Computation, rules: Mapping[str, Rule]) -> Computation:
    """Return a computation after its rules, by opcode; the same one where none does anything."""
    instructions = computation.instructions
    if not any(op.opcode in rules for op in instructions):
        return computation
    draft = Draft(module, computation)
    written, place = draft.made, draft.place
    changed = False
    for op in instructions:
        operands = op.operands
        # A rule that does nothing may have written ops that help it all the same.
        if operands and (changed or len(written) != len(place)):
            moved = tuple([place[i] for i in operands])
            if moved != operands:
                op = with_operands(op, moved)
        rule = rules.get(op.opcode)
        if rule is not None:
            outcome = rule(draft, op)
            if outcome is not None:
                changed = True
                if isinstance(outcome, int):
                    place.append(outcome)
                    continue
                op = outcome
        place.append(len(written))
        written.append(op)
    return draft.finish() if changed else computation


def rewritten_in_place(
    module: Module, plan: Plan, rules_of: Callable[[Computation], Mapping[str, Rule]]
) -> tuple[Module, Plan]:
    """Return a module after rules, and the plan with new ops on the IPUs of those they replace."""
    ipus = dict(plan.ipus)

    def placed(computation: Computation, rule: Rule) -> Rule:
        def applied(draft: Draft, op: Instruction) -> int | Instruction | None:
            before = len(draft.made)
            outcome = rule(draft, op)
            ipu = ipus.get((computation.name, op.name))
            if ipu is not None:
                for new in draft.made[before:]:
                    ipus[computation.name, new.name] = ipu
            return outcome

        return applied

    def changed(computation: Computation) -> Computation:
        rules = rules_of(computation)
        if plan.ipus:
            rules = {opcode: placed(computation, rule) for opcode, rule in rules.items()}
        return rewritten(module, computation, rules)

    changed_module = with_each(module, changed)
    return changed_module, plan if len(ipus) == len(plan.ipus) else replace(plan, ipus=ipus)


def with_each(module: Module, change: Callable[[Computation], Computation]) -> Module:
    """Return the module with each computation changed; the same one where none is."""
    computations = tuple([change(c) for c in module.computations])
    if all(new is old for new, old in zip(computations, module.computations, strict=True)):
        return module
    return replace(module, computations=computations)
