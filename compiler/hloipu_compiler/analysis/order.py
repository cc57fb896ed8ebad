"""Reachability within one computation, and side effects."""

from collections.abc import Set

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import OPS, Trait, with_trait

_EFFECTS = with_trait(Trait.SIDE_EFFECT)
_PLAIN = frozenset(OPS) - _EFFECTS - {"custom-call"}
"""Ops that have none."""


def has_side_effect(instruction: Instruction) -> bool:
    """Whether an instruction must stay although nobody uses its result.

    Calls are not looked into: `effectful_computations` says which callees hide an effect.
    """
    opcode = instruction.opcode
    if opcode == "custom-call":
        return instruction.attributes.flag("custom_call_has_side_effect")
    return opcode in _EFFECTS or opcode not in OPS


def effectful_computations(module: Module) -> frozenset[str]:
    """Return the names of the computations that hold a side effect, or call one that does."""
    effectful: set[str] = set()
    for computation in callees_first(module):
        others = [op for op in computation.instructions if op.opcode not in _PLAIN]
        if any(map(has_side_effect, others)) or not effectful.isdisjoint(computation.called):
            effectful.add(computation.name)
    return frozenset(effectful)


def live_positions(computation: Computation, effectful: Set[str] = frozenset()) -> tuple[bool, ...]:
    """Return, for each position, whether the root, a parameter or a side effect needs it.

    Calling one of the computations named `effectful` is a side effect as well.
    """
    instructions = computation.instructions
    live = bytearray(len(instructions))
    live[computation.root] = 1
    for at in range(len(instructions) - 1, -1, -1):
        op = instructions[at]
        if (
            live[at]
            or op.opcode == "parameter"
            or has_side_effect(op)
            or not effectful.isdisjoint(op.attributes.called)
        ):
            live[at] = 1
            for operand in op.operands:
                live[operand] = 1
    return tuple(map(bool, live))
