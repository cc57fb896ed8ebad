"""Regions that are written for each device of some axes, inside of a program for all of them.

Inside, arrays are blocks along the manual axes; the other axes divide these further. A border is
thus a move to the axes that it states, and a change of view: (manual + others) outside is (others)
inside. Collectives of a region meet along the manual axes, once for each place along the others.
Sources: openxla/xla `xla/service/spmd/shardy/constants.h`, `xla/service/spmd/spmd_partitioner.cc`
(HandleCustomCall); openxla/shardy `shardy/dialect/sdy/ir/ops.td` (ManualComputationOp).
"""

from collections.abc import Mapping, Sequence

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.ir.annotations import GSPMD_IN, GSPMD_OUT, SHARDY_IN, is_border
from hloipu_compiler.ir.attributes import Attributes, ReplicaGroups
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.ops import COLLECTIVES
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.partition.spmd.axes import AxisSharding, DeviceAxes
from hloipu_compiler.partition.spmd.propagating import Propagated
from hloipu_compiler.partition.spmd.reading import Key
from hloipu_compiler.partition.spmd.resharding import Resharding, Splits
from hloipu_runtime.frozen import dataclass

PER_DEVICE = COLLECTIVES | {"partition-id"}
"""Opcodes that mean something in a region alone."""


@dataclass(frozen=True, slots=True)
class Region:
    """The border of a region: how its values are divided along the manual axes."""

    enters: bool
    manual: int
    """Bits of the manual parts."""
    wholes: tuple[AxisSharding, ...]
    """Of the values outside, leaf by leaf."""

    def nested(self, inside: Splits, arrays: Sequence[ArrayShape], axes: DeviceAxes) -> Splits:
        """Return splits of values inside whose blocks are blocks of those outside as well.

        `arrays`: the values inside. Sizes that do not divide would end in padding once for each
        place along the manual axes, but outside once.
        """
        return tuple(
            tuple(
                axes.even(own, n) if any(self.manual >> p & 1 for p in stated) else own
                for stated, own, n in zip(whole.dimensions, split, array.dimensions, strict=True)
            )
            for whole, split, array in zip(self.wholes, inside, arrays, strict=True)
        )

    def outside(self, inside: Splits) -> Splits | None:
        """Return the splits of values outside; None where manual axes are not the major ones."""
        splits = []
        for whole, split in zip(self.wholes, inside, strict=True):
            split_outside: list[tuple[int, ...]] = []
            for stated, own in zip(whole.dimensions, split, strict=True):
                manual = tuple(p for p in stated if self.manual >> p & 1)
                if stated[: len(manual)] != manual:
                    return None
                split_outside.append(manual + own)
            splits.append(tuple(split_outside))
        return tuple(splits)


def regions_of(module: Module, known: Propagated) -> dict[Key, Region]:
    """Return the borders of all manual regions."""
    stated: dict[Key, list[AxisSharding]] = {}
    for link in known.links.links:
        if link.opcode == "border":
            stated.setdefault(link.key, []).append(known.shardings[link.arrays[-1]])
    region_by_key = {}
    for computation in module.computations:
        for position, op in enumerate(computation.instructions):
            if not is_border(op) or (computation.name, position) not in known.links.results:
                continue
            key, target = (computation.name, position), op.attributes.text("custom_call_target")
            own = known.result(key)
            if target in (GSPMD_IN, GSPMD_OUT):
                other = known.result((computation.name, op.operands[0]))
                enters = target == GSPMD_IN
                inner, wholes = (own, other) if enters else (other, own)
            else:
                enters = target == SHARDY_IN
                others = tuple(stated.get(key, ()))
                inner, wholes = (own, others) if enters else (others, own)
            manual = inner[0].manual if inner else 0
            if target in (GSPMD_IN, GSPMD_OUT) and not manual:
                manual = known.axes.everything
            region_by_key[key] = Region(enters, manual, wholes)
    return region_by_key


def manual_parts(module: Module, regions: Mapping[Key, Region]) -> dict[Key, int]:
    """Return the manual parts of all ops that a region's results follow from, as bits."""
    parts_by_key: dict[Key, int] = {}
    if not regions:
        return parts_by_key
    for computation in reversed(list(callees_first(module, only_reachable=True))):
        name = computation.name
        for position in range(len(computation.instructions) - 1, -1, -1):
            op, own = computation.instructions[position], parts_by_key.get((name, position), 0)
            for callee in op.attributes.called:
                key = callee, module.computation[callee].root
                parts_by_key[key] = parts_by_key.get(key, 0) | own
            region = regions.get((name, position))
            if region is not None:
                own = own & ~region.manual if region.enters else own | region.manual
            for operand in op.operands:
                parts_by_key[name, operand] = parts_by_key.get((name, operand), 0) | own
    return parts_by_key


def meeting_attributes(reshards: Resharding, op: Instruction, manual: int) -> Attributes:
    """Return a collective's attributes, its groups those of devices of the whole mesh."""
    attributes = op.attributes
    channel = attributes.integer("channel_id")
    parts = tuple(p for p in range(len(reshards.axes.sizes)) if manual >> p & 1)
    if channel > 0:
        attributes = attributes.replaced(channel_id=next(reshards.channels))
    if channel <= 0 or manual == reshards.axes.everything or "replica_groups" not in attributes:
        return attributes
    groups = attributes.replica_groups().groups
    count = reshards.axes.extent(parts)
    if sum(map(len, groups)) not in (0, count):
        return attributes
    lines = reshards.lines(parts).tolist()
    each = groups or (tuple(range(count)),)
    lifted = tuple(tuple(line[i] for i in group) for line in lines for group in each)
    changed = attributes.replaced(replica_groups=ReplicaGroups(lifted))
    has_flag = "use_global_device_ids" in attributes
    return changed.replaced(use_global_device_ids=True) if has_flag else changed
