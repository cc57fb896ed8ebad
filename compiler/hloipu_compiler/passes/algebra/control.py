"""Simplifies reductions, loops and branches."""

from collections.abc import Mapping

from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import COMMUTATIVE
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.passes.algebra.movement import became, same_value_shape, static
from hloipu_compiler.passes.framework.attribute_edits import CONTROL, without
from hloipu_compiler.passes.framework.constant_values import scalar_constant
from hloipu_compiler.passes.framework.rewriting import Draft, Rule, with_operands
from hloipu_runtime.element_types import Kind


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


def commutative_region(region: Computation) -> str | None:
    """Return the opcode of a region that is one commutative op on its two parameters."""
    root = region.instructions[region.root]
    if len(region.instructions) != 3 or root.opcode not in COMMUTATIVE:
        return None
    operands = [region.instructions[i].parameter_number for i in root.operands]
    shapes = {region.instructions[i].shape for i in (*root.operands, region.root)}
    return root.opcode if sorted(operands) == [0, 1] and len(shapes) == 1 else None


def _sort(draft: Draft, x: Instruction) -> int | None:
    """Sorting along a dimension of one element changes nothing."""
    shape = static(x.shape)
    dimensions = x.attributes.integers("dimensions") or (0,)
    if shape is None or not shape.dimensions or shape.dimensions[dimensions[0]] > 1:
        return None
    return x.operands[0] if same_value_shape(draft, x, x.operands[0]) else None


def _while(draft: Draft, x: Instruction) -> int | None:
    """Put its start in the place of a loop that never runs."""
    old = draft.old
    from hloipu_compiler.analysis.trip_count import counted_loop

    loop = counted_loop(draft.module, old, old[x.name])
    if loop is None or loop.trips or "sharding" in x.attributes:
        return None
    return x.operands[0]


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


CONTROL_RULES: dict[str, Rule] = {
    "reduce": _reduce,
    "sort": _sort,
    "while": _while,
}
