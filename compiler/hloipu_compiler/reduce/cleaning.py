"""Dead-code elimination on every candidate."""

from collections.abc import Collection
from dataclasses import replace

from hloipu_compiler.analysis.call_graph import CallSite, call_sites, callees_first
from hloipu_compiler.ir.graph import Computation, Module, with_computation
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.reduce.rewriting import Draft, without

PASSES_OPERANDS = frozenset({"call", "fusion"})
"""Opcodes whose operands are the parameters of what they call, one for one."""


def cleaned(module: Module) -> Module:
    """Return the module without dead instructions, dead parameters of callees, dead computations.

    The entry keeps its parameters.
    """
    reachable = callees_first(module, only_reachable=True)
    for computation in reachable:
        live = without_dead(module.computation[computation.name])
        module = with_computation(module, live)
        if live.name != module.entry.name:
            module = without_unused_parameters(module, live)
    called_names = {c.name for c in callees_first(module, only_reachable=True)}
    computations = tuple(c for c in module.computations if c.name in called_names)
    names = [c.name for c in computations]
    return replace(module, computations=computations, entry_position=names.index(module.entry.name))


def without_dead(computation: Computation) -> Computation:
    """Return a computation without what neither its root nor an effect needs."""
    alive = [
        i == computation.root or op.parameter_number >= 0 or has_effect(op.opcode)
        for i, op in enumerate(computation.instructions)
    ]
    for i in range(len(alive) - 1, -1, -1):
        if alive[i]:
            for operand in computation.instructions[i].operands:
                alive[operand] = True
    draft = Draft(computation)
    names = {op.name for op, a in zip(computation.instructions, alive, strict=True) if a}
    for i, instruction in enumerate(computation.instructions):
        if alive[i]:
            before = instruction.attributes.get("control-predecessors", ())
            gone = isinstance(before, tuple) and not names.issuperset(before)
            attributes = (
                without(instruction.attributes, {"control-predecessors"})
                if gone
                else instruction.attributes
            )
            draft.copy(i, attributes=attributes)
    return draft.finish()


def has_effect(opcode: str) -> bool:
    """Whether an instruction does something besides making its value."""
    op = OPS.get(opcode)
    return op is not None and Trait.SIDE_EFFECT in op.traits


def without_unused_parameters(module: Module, callee: Computation) -> Module:
    """Drop parameters that nothing in a callee uses, where only calls and fusions call it."""
    sites = call_sites(module)[callee.name]
    if not all(s.caller.instructions[s.position].opcode in PASSES_OPERANDS for s in sites):
        return module
    unused = {
        number
        for number, i in enumerate(callee.parameters)
        if not callee.users[i] and i != callee.root
    }
    if not unused:
        return module
    module = with_computation(module, without_parameters(callee, unused))
    for name in {s.caller.name for s in sites}:
        module = with_computation(module, _without_operands(module, name, sites, unused))
    return module


def without_parameters(computation: Computation, numbers: Collection[int]) -> Computation:
    """Return a computation without some unused parameters, the others renumbered."""
    draft = Draft(computation)
    left = [n for n in range(len(computation.parameters)) if n not in numbers]
    for i, instruction in enumerate(computation.instructions):
        if instruction.parameter_number < 0:
            draft.copy(i)
        elif instruction.parameter_number not in numbers:
            draft.copy(i, parameter_number=left.index(instruction.parameter_number))
    return draft.finish()


def _without_operands(
    module: Module, caller: str, sites: tuple[CallSite, ...], numbers: Collection[int]
) -> Computation:
    computation = module.computation[caller]
    positions = {s.position for s in sites if s.caller.name == caller}
    draft = Draft(computation)
    for i, instruction in enumerate(computation.instructions):
        if i in positions:
            operands = [
                draft.place[o] for n, o in enumerate(instruction.operands) if n not in numbers
            ]
            attributes = without(instruction.attributes, {"output_to_operand_aliasing"})
            draft.copy(i, operands=tuple(operands), attributes=attributes)
        else:
            draft.copy(i)
    return draft.finish()
