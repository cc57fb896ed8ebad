"""Finds row regions in text order.

That is, if nothing outside of the region is on a path from the region to it. So a region can be
computed at one moment: after all that it reads, and before all that reads it. Ops with effects end
all regions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from hloipu_compiler.analysis.order import has_side_effect
from hloipu_compiler.ir.graph import Computation, Instruction, Module, control_predecessors
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.passes.fusion.fuse_elementwise import FUSIBLE

Sizes = tuple[int, ...]

_MOST_OPEN = 4
"""Regions of one kind that may still grow; more would be looked at in vain."""


class Kind(NamedTuple):
    """What regions have in common."""

    space: Sizes
    dimensions: Sizes
    ipu: int = -1
    """That the ops run on; -1: that of whoever runs them."""

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


class RowFinder:
    """One walk over a computation, in text order."""

    def __init__(
        self,
        module: Module,
        computation: Computation,
        effects: frozenset[str],
        most_ops: int,
        ipus: Mapping[tuple[str, str], int] = MappingProxyType({}),
    ) -> None:
        self.module = module
        self.computation = computation
        self.effects = effects
        self.most_ops = most_ops
        self.ipus = ipus
        self.kinds = _kinds(computation, ipus)
        self.regions: list[_Region] = []
        self.open: dict[Kind, list[_Region]] = {}
        self.open_bits = 0
        self.region_of: dict[int, _Region] = {}
        self.after: list[int] = []

    def member_lists(self) -> list[list[int]]:
        """Return the members of each region, in text order; broadcasts are no members."""
        if not self.kinds or any(map(control_predecessors, self.computation.instructions)):
            return []
        for position, op in enumerate(self.computation.instructions):
            if has_side_effect(op) or not self.effects.isdisjoint(op.attributes.called):
                for regions in self.open.values():
                    for region in tuple(regions):
                        self._close(region)
            mask = self._outside(op)
            kind = self._kind(position, op)
            if kind is not None:
                self._join(position, op, kind, mask)
            self.after.append(mask & self.open_bits)
        return [part for region in self.regions for part in self._connected(region)]

    def _sources(self, op: Instruction) -> list[int]:
        """Return the operands, seen through broadcasts, which regions make for themselves."""
        instructions = self.computation.instructions
        sources = []
        for operand in op.operands:
            while is_broadcast(instructions[operand]):
                operand = instructions[operand].operands[0]
            sources.append(operand)
        return sources

    def _kind(self, position: int, op: Instruction) -> Kind | None:
        sizes = sizes_of(op)
        ipu = self.ipus.get((self.computation.name, op.name), -1)
        if op.opcode == "reduce":
            return _kind_of_reduction(self.computation, op, ipu)
        if not _is_elementwise(self.computation, op) or sizes is None:
            return None
        for operand in self._sources(op):
            region = self.region_of.get(operand)
            if region is not None and sizes and sizes == region.kind.rows:
                return region.kind if region.kind.ipu == ipu else None
        if (sizes, ipu) not in self.kinds:
            return None
        readers = {
            _kind_of_reduction(self.computation, self.computation.instructions[user], ipu)
            if self.computation.instructions[user].opcode == "reduce"
            else None
            for user in self.computation.users[position]
        }
        if len(readers) == 1 and (only := readers.pop()) is not None:
            return only
        return self.kinds[sizes, ipu]

    def _join(self, position: int, op: Instruction, kind: Kind, mask: int) -> None:
        """Put an op into the newest region that it can be in, or a new one."""
        regions = self.open.setdefault(kind, [])
        is_rows = sizes_of(op) == kind.rows and op.opcode != "reduce"
        for region in reversed(regions):
            own = self._outside(op, region)
            if own & region.bit or len(region.members) >= self.most_ops:
                continue
            if is_rows and all(self.region_of.get(o) is not region for o in self._sources(op)):
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

    def _outside(self, op: Instruction, region: _Region | None = None) -> int:
        """Return the regions that an op must come after, its operands' own ones, but for one."""
        mask = 0
        for operand in self._sources(op):
            other = self.region_of.get(operand)
            if other is not None and other is region:
                continue
            mask |= self.after[operand] if other is None else other.after | other.bit
        return mask

    def regions_of(self, bits: int) -> list[_Region]:
        """Return the regions with these bits."""
        regions = []
        while bits:
            low = bits & -bits
            regions.append(self.regions[low.bit_length() - 1])
            bits ^= low
        return regions

    def _close(self, region: _Region) -> None:
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
                elif sizes_of(instructions[operand]) == region.kind.space:
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


def _kinds(
    computation: Computation, ipus: Mapping[tuple[str, str], int]
) -> dict[tuple[Sizes, int], Kind]:
    """Return for each space and IPU the dimensions that most of its reductions run along."""
    count: dict[Kind, int] = {}
    for op in computation.instructions:
        if op.opcode == "reduce":
            ipu = ipus.get((computation.name, op.name), -1)
            kind = _kind_of_reduction(computation, op, ipu)
            if kind is not None:
                count[kind] = count.get(kind, 0) + 1
    best: dict[tuple[Sizes, int], Kind] = {}
    for kind in sorted(count, key=lambda k: (count[k], k.dimensions)):
        best[kind.space, kind.ipu] = kind
    return best


def _kind_of_reduction(computation: Computation, op: Instruction, ipu: int) -> Kind | None:
    """Return the kind of a reduction of one array from a constant number, or None."""
    if len(op.operands) != 2 or not isinstance(op.shape, ArrayShape):
        return None
    array, init = (computation.instructions[i] for i in op.operands)
    sizes = sizes_of(array)
    if sizes is None or init.opcode != "constant":
        return None
    dimensions = tuple(sorted(op.attributes.integers("dimensions")))
    return Kind(sizes, dimensions, ipu) if dimensions else None


def _is_elementwise(computation: Computation, op: Instruction) -> bool:
    if op.opcode == "fusion":
        return op.attributes.text("kind") == "kLoop" and isinstance(op.shape, ArrayShape)
    sizes = sizes_of(op)
    return (
        op.opcode in FUSIBLE
        and sizes is not None
        and all(sizes_of(computation.instructions[i]) == sizes for i in op.operands)
    )


def is_broadcast(op: Instruction) -> bool:
    """Whether an op repeats its operand: regions have copies of such."""
    return op.opcode == "broadcast"


def sizes_of(op: Instruction) -> Sizes | None:
    """Return the sizes of an array, None where they are not known or there is no array."""
    if not isinstance(op.shape, ArrayShape) or not op.shape.is_static:
        return None
    return op.shape.dimensions
