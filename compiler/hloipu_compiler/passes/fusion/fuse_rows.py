"""Fuses row regions: reductions with what they reduce and what follows row by row.

A region has a space, the sizes of what is reduced, and the dimensions that reductions run along.
To it belong elementwise ops and fusions of that space, reductions of it along those dimensions, and
elementwise ops on what they leave. Softmax is one, a layer norm, the gradient of either.

    m = f32[8] reduce(x, low), dimensions={1}           s = f32[8,9] fusion(x), kind=kInput
    b = f32[8,9] broadcast(m), dimensions={0}
    d = f32[8,9] subtract(x, b)
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from types import MappingProxyType
from typing import ClassVar

from hloipu_compiler.analysis.order import effectful_computations
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module, element_of
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.pass_base import FLAT_CALLS, NO_DEAD_CODE, Facts, Pass
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import with_operands
from hloipu_compiler.passes.fusion.fuse_elementwise import with_fusions
from hloipu_compiler.passes.fusion.row_finding import RowFinder, is_broadcast, sizes_of
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.frozen import dataclass


def rows_fused(
    module: Module, most_ops: int, ipus: Mapping[tuple[str, str], int] = MappingProxyType({})
) -> Module:
    """Return the module with regions of rows as fusions; the same one without any.

    Ops that are to run on different IPUs are not put together.
    """
    effects = effectful_computations(module)

    def fused(computation: Computation, names: Names) -> tuple[Computation, list[Computation]]:
        regions = RowFinder(module, computation, effects, most_ops, ipus).member_lists()
        return with_regions(computation, regions, names) if regions else (computation, [])

    return with_fusions(module, fused)


@register
@dataclass(frozen=True, slots=True)
class FuseRows(Pass):
    """Makes one op of reductions and the elementwise ops around them that work row by row."""

    name: ClassVar[str] = "fuse-rows"
    requires: ClassVar[Facts] = frozenset({NO_DEAD_CODE})
    breaks: ClassVar[Facts] = frozenset({FLAT_CALLS, NO_DEAD_CODE})
    most_ops: int = 64
    """Ops and fusions of one region at most: its code lies on every tile that runs it."""

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module with fusions."""
        return rows_fused(module, self.most_ops, plan.ipus), plan


def with_regions(
    computation: Computation, regions: list[list[int]], names: Names
) -> tuple[Computation, list[Computation]]:
    """Return the computation with fusions, and what these and the fusions in them compute."""
    instructions = computation.instructions
    region_of = {position: n for n, members in enumerate(regions) for position in members}
    bodies = [_Body(computation, members) for members in regions]
    taken = Names(op.name for op in instructions)
    inner: list[Computation] = []
    new_instructions: list[Instruction] = []
    place: dict[int, int] = {}
    for unit in _ordered(computation, regions, region_of, bodies):
        if unit < len(instructions):
            op = instructions[unit]
            place[unit] = len(new_instructions)
            new_instructions.append(with_operands(op, tuple(place[i] for i in op.operands)))
            continue
        body = bodies[unit - len(instructions)]
        name = names.fresh(f"rows.{instructions[body.members[-1]].name}")
        written = body.written(name, names)
        inner += written
        operands = tuple(place[i] for i in body.outside)
        last = instructions[body.members[-1]]
        attributes = Attributes({"kind": "kInput", "calls": name}, (name,))
        own = last.name if len(body.results) == 1 else taken.fresh(f"rows.{last.name}")
        at = len(new_instructions)
        new_instructions.append(
            Instruction(own, "fusion", body.shape(), operands, attributes, last.metadata)
        )
        if len(body.results) == 1:
            place[body.results[0]] = at
            new_instructions[at] = new_instructions[at]._replace(
                name=instructions[body.results[0]].name
            )
            continue
        for number, position in enumerate(body.results):
            op = instructions[position]
            place[position] = len(new_instructions)
            new_instructions.append(element_of(op.name, at, number, op.shape, op.metadata))
    root = place[computation.root]
    return replace(computation, instructions=tuple(new_instructions), root=root), inner


def _ordered(
    computation: Computation,
    regions: list[list[int]],
    region_of: dict[int, int],
    bodies: "Sequence[_Body]",
) -> list[int]:
    """Return positions, and regions numbered behind them, in an order in which operands come first.

    As in the text, but for what has to wait for a region; effects keep their order.
    """
    count = len(computation.instructions)
    units = [count + region_of[p] if p in region_of else p for p in range(count)]
    gone = _only_copied(computation, bodies)
    waits: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    key: dict[int, int] = {}
    for unit in dict.fromkeys(units):
        if unit in gone:
            continue
        if unit < count:
            needed = {units[i] for i in computation.instructions[unit].operands}
            key[unit] = unit
        else:
            body = bodies[unit - count]
            needed = {units[i] for i in body.outside}
            key[unit] = regions[unit - count][-1]
        waits[unit] = len(needed)
        for other in needed:
            readers.setdefault(other, []).append(unit)
    heap = [(key[unit], unit) for unit, n in waits.items() if not n]
    heap.sort()
    order: list[int] = []
    while heap:
        _, unit = heappop(heap)
        order.append(unit)
        for reader in readers.get(unit, ()):
            waits[reader] -= 1
            if not waits[reader]:
                heappush(heap, (key[reader], reader))
    return order


def _only_copied(computation: Computation, bodies: "Sequence[_Body]") -> set[int]:
    """Return the broadcasts that nothing reads any more but regions, which have their own."""
    inside = {position for body in bodies for position in body.inside}
    unread: set[int] = set()
    for position in sorted({p for body in bodies for p in body.copied}, reverse=True):
        readers = computation.users[position]
        if (
            is_broadcast(computation.instructions[position])
            and position != computation.root
            and all(u in inside or u in unread for u in readers)
        ):
            unread.add(position)
    return unread


class _Body:
    """One region: its operands, the ops that it copies, and the results that others read."""

    def __init__(self, computation: Computation, members: list[int]) -> None:
        self.computation = computation
        self.members = members
        self.inside = set(members)
        self.outside: dict[int, None] = {}
        self.copied: dict[int, None] = {}
        for member in members:
            for operand in computation.instructions[member].operands:
                self._reads(operand)
        # What has all elements comes first: it may take the place of an operand.
        rank = max(len(sizes_of(computation.instructions[p]) or ()) for p in members)
        self.results = sorted(
            (p for p in members if self._is_result(p)),
            key=lambda p: (len(sizes_of(computation.instructions[p]) or ()) < rank, -p),
        )

    def _is_result(self, position: int) -> bool:
        """Whether something else reads a value: a broadcast that is copied does not count."""
        if position == self.computation.root:
            return True
        stack = list(self.computation.users[position])
        while stack:
            user = stack.pop()
            if user in self.inside:
                continue
            if user not in self.copied or user == self.computation.root:
                return True
            if any(u not in self.inside for u in self.computation.users[user]):
                stack += [u for u in self.computation.users[user] if u not in self.inside]
        return False

    def _reads(self, operand: int) -> None:
        op = self.computation.instructions[operand]
        if operand in self.inside:
            return
        if op.opcode == "constant" and not sizes_of(op):
            self.copied[operand] = None
        elif is_broadcast(op):
            self._reads(op.operands[0])
            self.copied[operand] = None
        else:
            self.outside[operand] = None

    def shape(self) -> ArrayShape | TupleShape:
        shapes = [self.computation.instructions[p].shape for p in self.results]
        shape = shapes[0] if len(shapes) == 1 else TupleShape(tuple(shapes))
        if not isinstance(shape, ArrayShape | TupleShape):
            raise TypeError(f"a region of rows makes {shape}")
        return shape

    def written(self, name: str, names: Names) -> list[Computation]:
        """Return the region's computation, after those of reductions with a producer of their own.

        A producer that nothing but its reduction reads makes a fusion with that.
        """
        instructions = self.computation.instructions
        taken = Names(instructions[i].name for i in (*self.members, *self.copied))
        place: dict[int, int] = {}
        written: list[Instruction] = []
        for number, position in enumerate(self.outside):
            place[position] = number
            shape = instructions[position].shape
            parameter = taken.fresh(f"param.{number}")
            written.append(Instruction(parameter, "parameter", shape, parameter_number=number))
        pairs = self._pairs()
        producers = set(pairs.values())
        inner: list[Computation] = []
        for position in sorted((*self.copied, *self.members)):
            if position in producers and len(self.members) > 2:
                continue
            op = instructions[position]
            if position in pairs and len(self.members) > 2:
                pair = _Body(self.computation, [pairs[position], position])
                pair_name = names.fresh(f"rows.{op.name}")
                inner += pair.written(pair_name, names)
                attributes = Attributes({"kind": "kInput", "calls": pair_name}, (pair_name,))
                operands = tuple(place[i] for i in pair.outside)
                op = Instruction(op.name, "fusion", op.shape, operands, attributes, op.metadata)
            else:
                op = with_operands(op, tuple(place[i] for i in op.operands))
            place[position] = len(written)
            written.append(op)
        roots = [place[p] for p in self.results]
        if len(roots) > 1:
            shape = self.shape()
            written.append(Instruction(taken.fresh("results"), "tuple", shape, tuple(roots)))
            roots = [len(written) - 1]
        return [*inner, _without_dead(name, written, roots[0])]

    def _pairs(self) -> dict[int, int]:
        """Return reductions whose operand nothing else reads, with the operand."""
        source_by_reduction = {}
        for position in self.members:
            op = self.computation.instructions[position]
            if op.opcode == "reduce":
                source = op.operands[0]
                alone = set(self.computation.users[source]) == {position}
                if source in self.inside and alone and source != self.computation.root:
                    source_by_reduction[position] = source
        return source_by_reduction


def _without_dead(name: str, instructions: list[Instruction], root: int) -> Computation:
    """Return a computation without copies that only fusions within it read for themselves."""
    live = bytearray(len(instructions))
    live[root] = 1
    for position in range(len(instructions) - 1, -1, -1):
        if instructions[position].parameter_number >= 0:
            live[position] = 1
        if live[position]:
            for operand in instructions[position].operands:
                live[operand] = 1
    place: dict[int, int] = {}
    kept: list[Instruction] = []
    for position, op in enumerate(instructions):
        if live[position]:
            place[position] = len(kept)
            kept.append(with_operands(op, tuple(place[i] for i in op.operands)))
    return Computation(name, tuple(kept), place[root])
