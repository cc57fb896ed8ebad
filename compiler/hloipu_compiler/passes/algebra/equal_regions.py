"""Computations that ops apply to elements and that say the same: one of them serves for all."""

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.passes.framework.attribute_edits import renamed
from hloipu_compiler.passes.framework.constant_values import constant_key

LARGEST = 64
"""Instructions of a region that is compared; those of reductions and sorts have two to ten."""


def equal_regions(module: Module) -> dict[str, str]:
    """Return, for each region that repeats another, the name of the first that says the same."""
    applied = {
        name
        for c in module.computations
        for x in c.instructions
        if x.attributes.called and Trait.APPLIER in OPS[x.opcode].traits
        for name in x.attributes.called
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
    for x in computation.instructions:
        op = OPS[x.opcode]
        if Trait.SIDE_EFFECT in op.traits or x.opcode == "custom-call":
            return None
        value = None
        if x.literal is not None:
            value = constant_key(x)
            if value is None:
                return None
        attributes = renamed(x.attributes, same) if x.attributes.called else x.attributes
        rows.append((x.opcode, x.shape, x.operands, attributes, x.parameter_number, value))
    return tuple(rows)
