"""Expands the borders of manually sharded regions: cuts blocks out and joins them again.

Into a region each partition cuts its own block out of the whole value, at starts that a table has
for its number. Out of a region the owners of a value's blocks gather them all, and a transpose puts
them in their places. What borders mean is `evaluate.manual_sharding`'s to say.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from hloipu_compiler.ir.annotations import GSPMD_IN, SHARDY_IN, is_border
from hloipu_compiler.ir.attributes import Attributes, ReplicaGroups, Value
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_compiler.passes.algebra.expand_bitcasts import plain, reshaped, transposed
from hloipu_compiler.passes.framework.pass_base import NO_DEAD_CODE, TRIP_COUNTS, Facts, Pass
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import Draft, Rule, rewritten, with_each
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.frozen import dataclass

if TYPE_CHECKING:
    from hloipu_compiler.interpret.planning.device_blocks import DeviceBlocks

_S32, _U32 = ELEMENT_TYPES["s32"], ELEMENT_TYPES["u32"]


def borders_expanded(module: Module) -> Module:
    """Return the module without border calls; the same one where there are none.

    Raises UnsupportedError E0462 where a border's sharding cannot be followed.
    """
    if not any(is_border(op) for c in module.computations for op in c.instructions):
        return module
    from hloipu_compiler.interpret.participants import participants_of

    replicas, partitions = participants_of(module)
    borders = _Borders(module, replicas, partitions, _next_channel(module))
    expanded = with_each(module, borders.expanded)
    header = {**dict(module.attributes.items()), "num_partitions": partitions}
    return replace(expanded, attributes=Attributes(header, module.attributes.called))


def _next_channel(module: Module) -> int:
    channels = (op.attributes.integer("channel_id") for c in module.computations
                for op in c.instructions)  # fmt: skip
    return 1 + max(channels, default=0)


class _Leaf(NamedTuple):
    """One array at a border, as each partition sees it."""

    whole: ArrayShape
    part: ArrayShape
    devices: "Sequence[DeviceBlocks]"


@dataclass
class _Borders:
    """Writes borders out."""

    module: Module
    replicas: int
    partitions: int
    channel: int

    def expanded(self, computation: Computation) -> Computation:

        def rule(draft: Draft, op: Instruction) -> int | Instruction | None:
            return self._written_out(computation, draft, op) if is_border(op) else None

        rules: dict[str, Rule] = {"custom-call": rule}
        return rewritten(self.module, computation, rules)

    def _written_out(self, computation: Computation, draft: Draft, op: Instruction) -> int:
        from hloipu_compiler.interpret.ops.manual_sharding import border_fault
        from hloipu_compiler.interpret.planning.site import array_leaves

        old = computation.instructions[computation.position[op.name]]
        enters = op.attributes.text("custom_call_target") in (SHARDY_IN, GSPMD_IN)
        outer = [leaf for i in old.operands
                 for leaf in array_leaves(computation.instructions[i].shape)]  # fmt: skip
        inner = array_leaves(op.shape)
        wholes, parts = (outer, inner) if enters else (inner, outer)
        if len(op.operands) != len(outer):
            raise border_fault(op, "an operand is a tuple")
        written = [
            (self._block if enters else self._joined)(draft, op, operand, leaf)
            for operand, leaf in zip(op.operands, self._leaves(computation, old, wholes, parts),
                                     strict=True)
        ]  # fmt: skip
        if not isinstance(op.shape, TupleShape):
            return written[0]
        return draft.add(op, "tuple", op.shape, written)

    def _leaves(
        self,
        computation: Computation,
        op: Instruction,
        wholes: Sequence[ArrayShape],
        parts: Sequence[ArrayShape],
    ) -> list[_Leaf]:
        from hloipu_compiler.interpret.ops.manual_sharding import border_fault, border_shardings
        from hloipu_compiler.interpret.planning.device_blocks import BlockFault, device_blocks

        shardings = border_shardings(self.module, computation, op)
        if not shardings:
            from hloipu_compiler.hlo.attributes.sharding_value import Sharding, ShardingKind

            shardings = (Sharding(ShardingKind.REPLICATED),) * len(parts)
        if not len(shardings) == len(parts) == len(wholes):
            raise border_fault(op, f"{len(shardings)} shardings stand for {len(parts)} values")
        leaves = []
        for sharding, whole, part in zip(shardings, wholes, parts, strict=True):
            try:
                devices = [
                    device_blocks(sharding, device, whole.dimensions, part.dimensions)
                    for device in range(self.partitions)
                ]
            except BlockFault as error:
                raise border_fault(op, str(error)) from error
            leaves.append(_Leaf(whole, part, devices))
        return leaves

    def _block(self, draft: Draft, op: Instruction, operand: int, leaf: _Leaf) -> int:
        sizes = leaf.part.dimensions
        if sizes == leaf.whole.dimensions:
            return operand
        me = draft.add(op, "partition-id", plain(_U32, ()))
        starts = []
        for d, size in enumerate(sizes):
            numbers = [blocks.mine[d] * size for blocks in leaf.devices]
            starts.append(_looked_up(draft, op, me, numbers))
        return draft.add(
            op,
            "dynamic-slice",
            plain(leaf.whole.element_type, sizes),
            (operand, *starts),
            Attributes({"dynamic_slice_sizes": sizes}),
        )

    def _joined(self, draft: Draft, op: Instruction, operand: int, leaf: _Leaf) -> int:
        """Gather the blocks of all owners, and put them in their places."""
        kind, sizes = leaf.whole.element_type, leaf.part.dimensions
        grid = leaf.devices[0].owners.shape
        count = leaf.devices[0].owners.size
        if count == 1:
            return operand
        owners = {tuple(map(int, blocks.owners.reshape(-1))) for blocks in leaf.devices}
        groups = tuple(
            tuple(replica * self.partitions + device for device in group)
            for replica in range(self.replicas)
            for group in sorted(owners)
        )
        channel, self.channel = self.channel, self.channel + 1
        attributes: dict[str, Value] = {
            "channel_id": channel,
            "replica_groups": ReplicaGroups(groups),
            "dimensions": (0,),
            "use_global_device_ids": True,
        }
        at = draft.add(op, "reshape", plain(kind, (1, *sizes)), (operand,))
        gathered = plain(kind, (count, *sizes))
        at = draft.add(op, "all-gather", gathered, (at,), Attributes(attributes))
        at = draft.add(op, "reshape", plain(kind, (*grid, *sizes)), (at,))
        rank = len(sizes)
        order = tuple(place for d in range(rank) for place in (d, rank + d))
        spread = (*grid, *sizes)
        at = transposed(draft, op, at, plain(kind, spread), order)
        return reshaped(draft, op, at, plain(kind, leaf.whole.dimensions))


def _looked_up(draft: Draft, op: Instruction, me: int, numbers: Sequence[int]) -> int:
    """Return the number that a table has for this partition."""
    if len(set(numbers)) == 1:
        return draft.add(op, "constant", plain(_S32, ()), literal=Literal(str(numbers[0])))
    table = Literal(array=np.array(numbers, np.int32))
    at = draft.add(op, "constant", plain(_S32, (len(numbers),)), literal=table)
    one = Attributes({"dynamic_slice_sizes": (1,)})
    at = draft.add(op, "dynamic-slice", plain(_S32, (1,)), (at, me), one)
    return draft.add(op, "reshape", plain(_S32, ()), (at,))


@register
@dataclass(frozen=True, slots=True)
class ExpandBorders(Pass):
    """Writes the borders of manually sharded regions out as slices and gathers."""

    name: ClassVar[str] = "expand-borders"
    breaks: ClassVar[Facts] = frozenset({NO_DEAD_CODE, TRIP_COUNTS})

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module without borders."""
        return borders_expanded(module), plan
