"""Fuses trees of elementwise ops, so that no value between them is stored.

Going backwards, an op joins the group of its users if all of them are in one group of its own
sizes. So no path leaves a group and comes back, whatever else the computation does. Broadcasts and
constant numbers that a group reads are copied into it, for they cost nothing there.

    a = f32[9] multiply(p, q)               f = f32[9] fusion(p, q, r), kind=kLoop
    b = f32[9] broadcast(r), dimensions={}
    c = f32[9] add(a, b)
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar

from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module, control_predecessors
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.pass_base import (
    FLAT_CALLS,
    NO_DEAD_CODE,
    Facts,
    Pass,
)
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import with_operands
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.frozen import dataclass

FUSIBLE = frozenset(
    name
    for name, op in OPS.items()
    if Trait.ELEMENTWISE in op.traits and Trait.LEGACY not in op.traits
)


def elementwise_fused(
    module: Module, most_ops: int, ipus: Mapping[tuple[str, str], int] = MappingProxyType({})
) -> Module:
    """Return the module with groups of elementwise ops as fusions; the same one without any.

    Ops that are to run on different IPUs are not put together.
    """
    names = Names(c.name for c in module.computations)
    runs = set(running(module))
    made: list[Computation] = []
    entry = 0
    changed = False
    for position, computation in enumerate(module.computations):
        inner: list[Computation] = []
        if computation.name in runs:
            groups = _groups(computation, most_ops, ipus)
            if groups:
                computation, inner = _fused(computation, groups, names)
                changed = True
        made += inner
        if position == module.entry_position:
            entry = len(made)
        made.append(computation)
    if not changed:
        return module
    return replace(module, computations=tuple(made), entry_position=entry)


def running(module: Module) -> Iterator[str]:
    """Yield the computations that run on arrays: the entry, loops' and branches'."""
    stack = [module.entry]
    seen = {module.entry.name}
    while stack:
        computation = stack.pop()
        yield computation.name
        for x in computation.instructions:
            if x.opcode in ("while", "conditional", "call"):
                for inner in module.called(x):
                    if inner.name not in seen:
                        seen.add(inner.name)
                        stack.append(inner)


def _groups(
    computation: Computation, most_ops: int, ipus: Mapping[tuple[str, str], int]
) -> dict[int, list[int]]:
    """Return groups of two ops and more: position of the last op -> positions, descending."""
    users = computation.users
    group_of: dict[int, int] = {}
    groups: dict[int, list[int]] = {}
    for position in range(len(computation.instructions) - 1, -1, -1):
        x = computation.instructions[position]
        if x.opcode not in FUSIBLE or not _is_plain(computation, x):
            continue
        joined = None
        if position != computation.root:
            found = {group_of.get(user, -1) for user in users[position]}
            if len(found) == 1:
                joined = found.pop()
        if (
            joined is None
            or joined < 0
            or len(groups[joined]) >= most_ops
            or _sizes(x) != _sizes(computation.instructions[joined])
            or _ipu(computation, ipus, position) != _ipu(computation, ipus, joined)
        ):
            joined = position
            groups[joined] = []
        groups[joined].append(position)
        group_of[position] = joined
    return {last: members for last, members in groups.items() if len(members) > 1}


def _ipu(computation: Computation, ipus: Mapping[tuple[str, str], int], position: int) -> int:
    return ipus.get((computation.name, computation.instructions[position].name), -1)


def _sizes(x: Instruction) -> tuple[int, ...]:
    return x.shape.dimensions if isinstance(x.shape, ArrayShape) else (-1,)


def _is_plain(computation: Computation, x: Instruction) -> bool:
    """Whether all operands have the result's sizes, and nothing else holds the op in place."""
    if not isinstance(x.shape, ArrayShape) or not x.shape.is_static or control_predecessors(x):
        return False
    sizes = x.shape.dimensions
    return all(_sizes(computation.instructions[i]) == sizes for i in x.operands)


def _fused(
    computation: Computation, groups: dict[int, list[int]], names: Names
) -> tuple[Computation, list[Computation]]:
    """Return the computation with fusions, and what the fusions compute."""
    members = {position for group in groups.values() for position in group}
    made: list[Instruction] = []
    place: list[int] = []
    inner: list[Computation] = []
    for position, x in enumerate(computation.instructions):
        place.append(len(made))
        if position in groups:
            name = names.fresh(f"fused.{x.name}")
            body, operands = _body(computation, sorted(groups[position]), name)
            inner.append(body)
            attributes = Attributes({"kind": "kLoop", "calls": name}, (name,))
            new = tuple(place[i] for i in operands)
            made.append(Instruction(x.name, "fusion", x.shape, new, attributes, x.metadata))
        elif position not in members:
            made.append(with_operands(x, tuple(place[i] for i in x.operands)))
    root = place[computation.root]
    return replace(computation, instructions=tuple(made), root=root), inner


def _body(computation: Computation, members: list[int], name: str) -> tuple[Computation, list[int]]:
    """Return the computation of one group, and the positions of its operands outside."""
    instructions = computation.instructions
    inside = set(members)
    copied: dict[int, None] = {}
    outside: dict[int, None] = {}
    for member in members:
        for operand in instructions[member].operands:
            if operand in inside:
                continue
            if instructions[operand].opcode == "broadcast":
                source = instructions[operand].operands[0]
                target = copied if _is_number(instructions[source]) else outside
                target[source] = None
                copied[operand] = None
            elif _is_number(instructions[operand]):
                copied[operand] = None
            else:
                outside[operand] = None
    names = Names(instructions[i].name for i in (*members, *copied))
    place: dict[int, int] = {}
    made: list[Instruction] = []
    for number, position in enumerate(outside):
        place[position] = number
        shape = instructions[position].shape
        parameter = names.fresh(f"param.{number}")
        made.append(Instruction(parameter, "parameter", shape, parameter_number=number))
    for position in (*sorted(copied), *members):
        x = instructions[position]
        place[position] = len(made)
        made.append(with_operands(x, tuple(place[i] for i in x.operands)))
    return Computation(name, tuple(made), len(made) - 1), list(outside)


def _is_number(x: Instruction) -> bool:
    return x.opcode == "constant" and isinstance(x.shape, ArrayShape) and not x.shape.dimensions


@register
@dataclass(frozen=True, slots=True)
class FuseElementwise(Pass):
    """Makes one op of elementwise ops whose results only each other read."""

    name: ClassVar[str] = "fuse-elementwise"
    requires: ClassVar[Facts] = frozenset({FLAT_CALLS})
    breaks: ClassVar[Facts] = frozenset({FLAT_CALLS, NO_DEAD_CODE})
    most_ops: int = 64
    """Ops of one group at most: its code lies on every tile that runs it."""

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module with fusions."""
        return elementwise_fused(module, self.most_ops, plan.ipus), plan
