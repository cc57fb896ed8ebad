"""Reductions, what they reduce and what follows from them row by row, as one op.

A region has a space, the sizes of what is reduced, and the dimensions that reductions run along.
To it belong elementwise ops and fusions of that space, reductions of it along those dimensions, and
elementwise ops on what they leave. Softmax is one, a layer norm, the gradient of either.

    m = f32[8] reduce(x, low), dimensions={1}           s = f32[8,9] fusion(x), kind=kInput
    b = f32[8,9] broadcast(m), dimensions={0}
    d = f32[8,9] subtract(x, b)

In text order, an op joins a region if nothing outside of the region lies on a path from the region
to it. So a region can be computed at one moment: between all that it reads and all that reads it.
Ops with effects end all regions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import ClassVar, NamedTuple

from hloipu_compiler.analysis.order import effectful_computations, has_side_effect
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module, control_predecessors
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_compiler.passes.fuse_elementwise import FUSIBLE, running
from hloipu_compiler.passes.names import Names
from hloipu_compiler.passes.pass_base import FLAT_CALLS, NO_DEAD_CODE, Facts, Pass
from hloipu_compiler.passes.registry import register
from hloipu_compiler.passes.rewriting import with_operands
from hloipu_compiler.plan.plan import Plan

Sizes = tuple[int, ...]

_MOST_OPEN = 4
"""Regions of one kind that may still grow; more would be looked at in vain."""


class Kind(NamedTuple):
    """What regions have in common."""

    space: Sizes
    dimensions: Sizes

    @property
    def rows(self) -> Sizes:
        """Sizes of what is left of the space after a reduction."""
        return tuple(n for d, n in enumerate(self.space) if d not in self.dimensions)


@dataclass(eq=False)
class _Region:
    kind: Kind
    bit: int
    members: list[int] = field(default_factory=list)
    after: int = 0
    """Bits of the open regions that must be computed before it."""
    is_open: bool = True


def rows_fused(module: Module, most_ops: int) -> Module:
    """Return the module with regions of rows as fusions; the same one without any."""
    names = Names(c.name for c in module.computations)
    runs = set(running(module))
    effects = effectful_computations(module)
    made: list[Computation] = []
    entry = 0
    changed = False
    for position, computation in enumerate(module.computations):
        if computation.name in runs:
            regions = _Finder(module, computation, effects, most_ops).found()
            if regions:
                computation, inner = _fused(computation, regions, names)
                made += inner
                changed = True
        if position == module.entry_position:
            entry = len(made)
        made.append(computation)
    if not changed:
        return module
    return replace(module, computations=tuple(made), entry_position=entry)


# --- finding --------------------------------------------------------------------------------------


class _Finder:
    """One walk over a computation, in text order."""

    def __init__(
        self, module: Module, computation: Computation, effects: frozenset[str], most_ops: int
    ) -> None:
        self.module = module
        self.computation = computation
        self.effects = effects
        self.most_ops = most_ops
        self.kinds = _kinds(computation)
        self.regions: list[_Region] = []
        self.open: dict[Kind, list[_Region]] = {}
        self.open_bits = 0
        self.region_of: dict[int, _Region] = {}
        self.after: list[int] = []

    def found(self) -> list[list[int]]:
        """Return the members of each region, in text order; broadcasts are no members."""
        if not self.kinds or any(map(control_predecessors, self.computation.instructions)):
            return []
        for position, x in enumerate(self.computation.instructions):
            if has_side_effect(x) or not self.effects.isdisjoint(x.attributes.called):
                for regions in self.open.values():
                    for region in tuple(regions):
                        self._close(region)
            mask = self._after(x)
            kind = self._kind(position, x)
            if kind is not None:
                self._join(position, x, kind, mask)
            self.after.append(mask & self.open_bits)
        return [part for region in self.regions for part in self._connected(region)]

    def _sources(self, x: Instruction) -> list[int]:
        """Return the operands, seen through broadcasts, which regions make for themselves."""
        instructions = self.computation.instructions
        found = []
        for operand in x.operands:
            while instructions[operand].opcode == "broadcast":
                operand = instructions[operand].operands[0]
            found.append(operand)
        return found

    def _after(self, x: Instruction) -> int:
        """Return the regions that an op must come after, its operands' own ones included."""
        mask = 0
        for operand in self._sources(x):
            region = self.region_of.get(operand)
            mask |= self.after[operand] if region is None else region.after | region.bit
        return mask

    def _kind(self, position: int, x: Instruction) -> Kind | None:
        """Return of which kind a region with this op would be."""
        sizes = _sizes(x)
        if x.opcode == "reduce":
            return _kind_of_reduction(self.computation, x)
        if not _is_elementwise(self.computation, x) or sizes is None:
            return None
        for operand in self._sources(x):
            region = self.region_of.get(operand)
            if region is not None and sizes and sizes == region.kind.rows:
                return region.kind
        if sizes not in self.kinds:
            return None
        readers = {
            _kind_of_reduction(self.computation, self.computation.instructions[user])
            if self.computation.instructions[user].opcode == "reduce"
            else None
            for user in self.computation.users[position]
        }
        if len(readers) == 1 and (only := readers.pop()) is not None:
            return only
        return self.kinds[sizes]

    def _join(self, position: int, x: Instruction, kind: Kind, mask: int) -> None:
        """Put an op into the newest region that it can be in, or a new one."""
        regions = self.open.setdefault(kind, [])
        is_rows = _sizes(x) == kind.rows and x.opcode != "reduce"
        for region in reversed(regions):
            own = self._outside(x, region)
            if own & region.bit or len(region.members) >= self.most_ops:
                continue
            if is_rows and all(self.region_of.get(o) is not region for o in self._sources(x)):
                continue
            break
        else:
            if is_rows:
                return
            region = _Region(kind, 1 << len(self.regions))
            self.regions.append(region)
            self.open_bits |= region.bit
            regions.append(region)
            if len(regions) > _MOST_OPEN:
                self._close(regions[0])
            own = region.after = mask & self.open_bits
        # What was computed from the region before does not know what the region now waits for:
        # that must not come to wait for it.
        for other in self.regions_of(own & self.open_bits & ~region.after):
            self._close(other)
        region.after |= own & self.open_bits
        region.members.append(position)
        self.region_of[position] = region

    def _outside(self, x: Instruction, region: _Region) -> int:
        """Return the regions that an op's operands outside of a region come after."""
        mask = 0
        for operand in self._sources(x):
            other = self.region_of.get(operand)
            if other is region:
                continue
            mask |= self.after[operand] if other is None else other.after | other.bit
        return mask

    def regions_of(self, bits: int) -> list[_Region]:
        """Return the regions with these bits."""
        found = []
        while bits:
            low = bits & -bits
            found.append(self.regions[low.bit_length() - 1])
            bits ^= low
        return found

    def _close(self, region: _Region) -> None:
        region.is_open = False
        self.open_bits &= ~region.bit
        self.open[region.kind].remove(region)

    def _connected(self, region: _Region) -> list[list[int]]:
        """Return the parts of a region that share values; those with a reduction of more."""
        parent = {position: position for position in region.members}
        first_reader: dict[int, int] = {}

        def top(position: int) -> int:
            while parent[position] != position:
                parent[position] = parent[parent[position]]
                position = parent[position]
            return position

        instructions = self.computation.instructions
        for position in region.members:
            for operand in self._sources(instructions[position]):
                if operand in parent:
                    parent[top(position)] = top(operand)
                elif _sizes(instructions[operand]) == region.kind.space:
                    other = first_reader.setdefault(operand, position)
                    parent[top(position)] = top(other)
        parts: dict[int, list[int]] = {}
        for position in region.members:
            parts.setdefault(top(position), []).append(position)
        return [
            part
            for part in parts.values()
            if len(part) > 1 and any(instructions[p].opcode == "reduce" for p in part)
        ]


def _kinds(computation: Computation) -> dict[Sizes, Kind]:
    """Return for each space the dimensions that most of its reductions run along."""
    count: dict[Kind, int] = {}
    for x in computation.instructions:
        if x.opcode == "reduce" and (kind := _kind_of_reduction(computation, x)) is not None:
            count[kind] = count.get(kind, 0) + 1
    best: dict[Sizes, Kind] = {}
    for kind in sorted(count, key=lambda k: (count[k], k.dimensions)):
        best[kind.space] = kind
    return best


def _kind_of_reduction(computation: Computation, x: Instruction) -> Kind | None:
    """Return the kind of a reduction of one array from a constant number, or None."""
    if len(x.operands) != 2 or not isinstance(x.shape, ArrayShape):
        return None
    array, init = (computation.instructions[i] for i in x.operands)
    sizes = _sizes(array)
    if sizes is None or init.opcode != "constant":
        return None
    dimensions = tuple(sorted(x.attributes.integers("dimensions")))
    return Kind(sizes, dimensions) if dimensions else None


def _is_elementwise(computation: Computation, x: Instruction) -> bool:
    """Whether an op is a fusion of elementwise ops, or an elementwise op on arrays of its sizes."""
    if x.opcode == "fusion":
        return x.attributes.text("kind") == "kLoop" and isinstance(x.shape, ArrayShape)
    sizes = _sizes(x)
    return (
        x.opcode in FUSIBLE
        and sizes is not None
        and all(_sizes(computation.instructions[i]) == sizes for i in x.operands)
    )


def _sizes(x: Instruction) -> Sizes | None:
    if not isinstance(x.shape, ArrayShape) or not x.shape.is_static:
        return None
    return x.shape.dimensions


# --- writing --------------------------------------------------------------------------------------


def _fused(
    computation: Computation, regions: list[list[int]], names: Names
) -> tuple[Computation, list[Computation]]:
    """Return the computation with fusions, and what these and the fusions in them compute."""
    instructions = computation.instructions
    region_of = {position: n for n, members in enumerate(regions) for position in members}
    bodies = [_Body(computation, members) for members in regions]
    taken = Names(x.name for x in instructions)
    inner: list[Computation] = []
    made: list[Instruction] = []
    place: dict[int, int] = {}
    for unit in _ordered(computation, regions, region_of, bodies):
        if unit < len(instructions):
            x = instructions[unit]
            place[unit] = len(made)
            made.append(with_operands(x, tuple(place[i] for i in x.operands)))
            continue
        body = bodies[unit - len(instructions)]
        name = names.fresh(f"rows.{instructions[body.members[-1]].name}")
        written = body.written(name, names)
        inner += written
        operands = tuple(place[i] for i in body.outside)
        last = instructions[body.members[-1]]
        attributes = Attributes({"kind": "kInput", "calls": name}, (name,))
        own = last.name if len(body.results) == 1 else taken.fresh(f"rows.{last.name}")
        at = len(made)
        made.append(Instruction(own, "fusion", body.shape(), operands, attributes, last.metadata))
        if len(body.results) == 1:
            place[body.results[0]] = at
            made[at] = made[at]._replace(name=instructions[body.results[0]].name)
            continue
        for number, position in enumerate(body.results):
            x = instructions[position]
            place[position] = len(made)
            element = Attributes({"index": number})
            made.append(
                Instruction(x.name, "get-tuple-element", x.shape, (at,), element, x.metadata)
            )
    root = place[computation.root]
    return replace(computation, instructions=tuple(made), root=root), inner


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
    found: set[int] = set()
    for position in sorted({p for body in bodies for p in body.copied}, reverse=True):
        is_broadcast = computation.instructions[position].opcode == "broadcast"
        readers = computation.users[position]
        if (
            is_broadcast
            and position != computation.root
            and all(u in inside or u in found for u in readers)
        ):
            found.add(position)
    return found


class _Body:
    """One region: what it reads, what it copies, what others read of it."""

    def __init__(self, computation: Computation, members: list[int]) -> None:
        self.computation = computation
        self.members = members
        self.inside = set(members)
        self.outside: dict[int, None] = {}
        self.copied: dict[int, None] = {}
        for member in members:
            for operand in computation.instructions[member].operands:
                self._reads(operand)
        self.results = [p for p in members if self._is_result(p)]

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
        x = self.computation.instructions[operand]
        if operand in self.inside:
            return
        if x.opcode == "constant" and not _sizes(x):
            self.copied[operand] = None
        elif x.opcode == "broadcast":
            self._reads(x.operands[0])
            self.copied[operand] = None
        else:
            self.outside[operand] = None

    def shape(self) -> ArrayShape | TupleShape:
        """Return the shape of the fusion's result."""
        shapes = [self.computation.instructions[p].shape for p in self.results]
        found = shapes[0] if len(shapes) == 1 else TupleShape(tuple(shapes))
        if not isinstance(found, ArrayShape | TupleShape):
            raise TypeError(f"a region of rows makes {found}")
        return found

    def written(self, name: str, names: Names) -> list[Computation]:
        """Return the region's computation, after those of reductions with a producer of their own.

        A producer that nothing but its reduction reads makes a fusion with that.
        """
        instructions = self.computation.instructions
        taken = Names(instructions[i].name for i in (*self.members, *self.copied))
        place: dict[int, int] = {}
        made: list[Instruction] = []
        for number, position in enumerate(self.outside):
            place[position] = number
            shape = instructions[position].shape
            parameter = taken.fresh(f"param.{number}")
            made.append(Instruction(parameter, "parameter", shape, parameter_number=number))
        pairs = self._pairs()
        producers = set(pairs.values())
        inner: list[Computation] = []
        for position in sorted((*self.copied, *self.members)):
            if position in producers and len(self.members) > 2:
                continue
            x = instructions[position]
            if position in pairs and len(self.members) > 2:
                pair = _Body(self.computation, [pairs[position], position])
                pair_name = names.fresh(f"rows.{x.name}")
                inner += pair.written(pair_name, names)
                attributes = Attributes({"kind": "kInput", "calls": pair_name}, (pair_name,))
                operands = tuple(place[i] for i in pair.outside)
                x = Instruction(x.name, "fusion", x.shape, operands, attributes, x.metadata)
            else:
                x = with_operands(x, tuple(place[i] for i in x.operands))
            place[position] = len(made)
            made.append(x)
        roots = [place[p] for p in self.results]
        if len(roots) > 1:
            shape = self.shape()
            made.append(Instruction(taken.fresh("results"), "tuple", shape, tuple(roots)))
            roots = [len(made) - 1]
        return [*inner, _without_dead(name, made, roots[0])]

    def _pairs(self) -> dict[int, int]:
        """Return reductions whose operand nothing else reads, with the operand."""
        found = {}
        for position in self.members:
            x = self.computation.instructions[position]
            if x.opcode == "reduce":
                source = x.operands[0]
                alone = set(self.computation.users[source]) == {position}
                if source in self.inside and alone and source != self.computation.root:
                    found[position] = source
        return found


def _without_dead(name: str, made: list[Instruction], root: int) -> Computation:
    """Return a computation without copies that only fusions within it read for themselves."""
    live = bytearray(len(made))
    live[root] = 1
    for position in range(len(made) - 1, -1, -1):
        if made[position].parameter_number >= 0:
            live[position] = 1
        if live[position]:
            for operand in made[position].operands:
                live[operand] = 1
    place: dict[int, int] = {}
    kept: list[Instruction] = []
    for position, x in enumerate(made):
        if live[position]:
            place[position] = len(kept)
            kept.append(with_operands(x, tuple(place[i] for i in x.operands)))
    return Computation(name, tuple(kept), place[root])


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
        return rows_fused(module, self.most_ops), plan
