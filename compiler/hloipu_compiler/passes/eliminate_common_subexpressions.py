"""Common-subexpression elimination by hashing."""

from dataclasses import replace
from typing import ClassVar

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.analysis.order import effectful_computations
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import COMMUTATIVE, OPS, Trait
from hloipu_compiler.ir.shapes import ArrayShape, Shape, holds_buffer
from hloipu_compiler.passes.framework.attribute_edits import renamed
from hloipu_compiler.passes.framework.constant_values import constant_key
from hloipu_compiler.passes.framework.pass_base import NO_DEAD_CODE, TRIP_COUNTS, Facts, Pass
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import Draft, with_each, with_operands
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.frozen import dataclass

LARGEST = 64
"""Instructions of a region that is compared; those of reductions and sorts have two to ten."""


def equal_regions(module: Module) -> dict[str, str]:
    """Return, for each region that repeats another, the name of the first that says the same."""
    applied = {
        name
        for c in module.computations
        for op in c.instructions
        if op.attributes.called and Trait.APPLIER in OPS[op.opcode].traits
        for name in op.attributes.called
    }
    first: dict[object, str] = {}
    same: dict[str, str] = {}
    for computation in callees_first(module):
        name = computation.name
        if name not in applied or len(computation.instructions) > LARGEST:
            continue
        key = _said(computation, same)
        if key is None:
            continue
        known = first.setdefault(key, name)
        if known != name:
            same[name] = known
    return same


def _said(computation: Computation, same: dict[str, str]) -> object:
    """Return everything about a computation but names and places; None where it is never equal."""
    rows: list[object] = [computation.root, computation.execution_thread]
    for instruction in computation.instructions:
        op = OPS[instruction.opcode]
        if Trait.SIDE_EFFECT in op.traits or instruction.opcode == "custom-call":
            return None
        value = None
        if instruction.literal is not None:
            value = constant_key(instruction)
            if value is None:
                return None
        attributes = (
            renamed(instruction.attributes, same)
            if instruction.attributes.called
            else instruction.attributes
        )
        rows.append(
            (
                instruction.opcode,
                instruction.shape,
                instruction.operands,
                attributes,
                instruction.parameter_number,
                value,
            )
        )
    return tuple(rows)


_NEVER = Trait.SIDE_EFFECT | Trait.COLLECTIVE | Trait.ASYNC_START | Trait.ASYNC_DONE
DISTINCT = frozenset(
    name for name, op in OPS.items() if op.traits & (_NEVER | Trait.ASYNC_UPDATE)
) | {"parameter", "opt-barrier", "domain", "add-dependency", "after-all"}
"""Ops that are never merged: effects, meetings of participants, and what passes must not cross."""

_EXACT = frozenset({"add", "multiply"})
"""Commutative on floats to the last bit; maximum and minimum are not, for zeros of both signs."""


def commutes(opcode: str, shape: Shape) -> bool:
    """Whether the operands of an op may change places without changing a bit of the result."""
    if opcode not in COMMUTATIVE or not isinstance(shape, ArrayShape):
        return False
    kind = shape.element_type
    if kind.is_complex:
        return opcode == "add"
    return opcode in _EXACT or not kind.is_float


def common_subexpressions_eliminated(module: Module) -> Module:
    """Return the module with every pure value computed once; the same one where each is."""
    same = equal_regions(module)
    if same:
        module = _calling_first_regions(module, same)
    effectful = effectful_computations(module)
    owned = {
        name
        for c in module.computations
        for op in c.instructions
        if op.opcode in ("while", "conditional")
        for name in op.attributes.called
    }
    never = effectful | owned  # loops that merge would need one body for two names
    return with_each(module, lambda c: _merged(module, c, never))


def _calling_first_regions(module: Module, same: dict[str, str]) -> Module:
    renamed_by_old: dict[Attributes, Attributes] = {}

    def changed(op: Instruction) -> Instruction:
        new = renamed_by_old.get(op.attributes)
        if new is None:
            new = renamed_by_old[op.attributes] = renamed(op.attributes, same)
        return op if new is op.attributes else op._replace(attributes=new)

    computations = []
    for c in module.computations:
        if any(op.attributes.called for op in c.instructions):
            xs = tuple([changed(op) if op.attributes.called else op for op in c.instructions])
            if any(a is not b for a, b in zip(xs, c.instructions, strict=True)):
                c = replace(c, instructions=xs)
        computations.append(c)
    kept = [c for c in computations if c.name not in same]
    position = [c.name for c in kept].index(module.entry.name)
    return replace(module, computations=tuple(kept), entry_position=position)


def _merged(module: Module, computation: Computation, never: frozenset[str]) -> Computation:
    draft = Draft(module, computation)
    instructions, place = draft.made, draft.place
    first: dict[object, int] = {}
    changed = False
    for op in computation.instructions:
        operands = op.operands
        if changed and operands:
            moved = tuple([place[i] for i in operands])
            if moved != operands:
                op, operands = with_operands(op, moved), moved
        opcode = op.opcode
        if opcode in DISTINCT:
            place.append(len(instructions))
            instructions.append(op)
            continue
        key = key_of_value(op, operands, never)
        if key is not None:
            known = first.setdefault(key, len(instructions))
            if known != len(instructions):
                changed = True
                place.append(known)
                continue
        place.append(len(instructions))
        instructions.append(op)
    return draft.finish() if changed else computation


def key_of_value(op: Instruction, operands: tuple[int, ...], never: frozenset[str]) -> object:
    """Return what an instruction computes, or None where nothing else may stand for it.

    `never`: computations that may not be called once in place of twice. It is for the caller to
    leave out the ops of `DISTINCT`.
    """
    opcode, attributes = op.opcode, op.attributes
    if opcode == "constant":
        value = constant_key(op)
        return None if value is None else (opcode, op.shape, attributes, value)
    if opcode == "custom-call":
        if attributes.flag("custom_call_has_side_effect"):
            return None
        return (opcode, op.shape, attributes, operands, op.backend_config)
    if attributes.called and not never.isdisjoint(attributes.called):
        return None
    if len(operands) == 2 and operands[0] > operands[1] and commutes(opcode, op.shape):
        operands = (operands[1], operands[0])
    if opcode in ("tuple", "get-tuple-element") and holds_buffer(op.shape):
        return None
    return (opcode, op.shape, attributes, operands)


@register
@dataclass(frozen=True, slots=True)
class EliminateCommonSubexpressions(Pass):
    """Computes every pure value once, and keeps one of several regions that say the same."""

    name: ClassVar[str] = "eliminate-common-subexpressions"
    breaks: ClassVar[Facts] = frozenset({NO_DEAD_CODE, TRIP_COUNTS})

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module with common subexpressions merged."""
        return common_subexpressions_eliminated(module), plan
