"""Custom calls at borders of manually sharded regions: whole arrays to blocks and back.

Outside of a region every participant holds whole values, inside only its block. Two dialects:
Shardy's `xla.sdy.GlobalToLocalShape` and `LocalToGlobalShape`, whose shardings stand in their
frontend attributes, and GSPMD's `SPMDFullToShardShape` (the sharding is the operand's) and
`SPMDShardToFullShape` (it is the result's). Source: openxla/xla
`xla/service/spmd/shardy/constants.h`, `xla/service/spmd/spmd_partitioner.cc` (HandleCustomCall).
"""

from collections.abc import Sequence

import numpy as np

from hloipu_compiler.hlo.attributes.frontend_attributes import read_frontend_attributes
from hloipu_compiler.hlo.attributes.named_sharding import NamedSharding
from hloipu_compiler.hlo.attributes.sharding import read_sharding
from hloipu_compiler.hlo.attributes.sharding_value import Sharding, ShardingKind
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.interpret.ops.custom_calls import register_lowering
from hloipu_compiler.interpret.planning.device_blocks import (
    Array,
    DeviceBlocks,
    device_blocks,
    device_limit,
)
from hloipu_compiler.interpret.planning.plan import Action
from hloipu_compiler.interpret.planning.sdy_text import SdyFault, read_meshes, read_shardings
from hloipu_compiler.interpret.planning.site import Site, array_leaves
from hloipu_compiler.ir.annotations import GSPMD_IN, GSPMD_OUT, SHARDY_IN, SHARDY_OUT
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.errors import UnsupportedError, UsageError

AnySharding = Sharding | NamedSharding


def border_shardings(
    module: Module, computation: Computation, instruction: Instruction
) -> tuple[AnySharding, ...]:
    """Return the shardings outside of the region that a border call states, one for each leaf.

    Empty where it states none. Raises UnsupportedError where they cannot be read.
    """
    target = instruction.attributes.text("custom_call_target")
    try:
        if target in (SHARDY_IN, SHARDY_OUT):
            key = "xla.sdy.in_shardings" if target == SHARDY_IN else "xla.sdy.out_shardings"
            shardings_text = read_frontend_attributes(
                instruction.attributes.text("frontend_attributes")
            ).get(key)
            if shardings_text is None:
                return ()
            header = read_frontend_attributes(module.attributes.text("frontend_attributes"))
            return read_shardings(shardings_text, read_meshes(header.get("xla.sdy.meshes", "{}")))
        sharded_instruction = (
            instruction
            if target == GSPMD_OUT
            else computation.instructions[instruction.operands[0]]
        )
        text = sharded_instruction.attributes.text("sharding")
        sharding = read_sharding(text) if text else None
    except (SdyFault, TextFault) as error:
        raise border_fault(instruction, str(error)) from error
    if sharding is None:
        return ()
    return sharding.elements if sharding.kind is ShardingKind.TUPLE else (sharding,)


def border_device_count(module: Module, computation: Computation, instruction: Instruction) -> int:
    """Return how many partitions the shardings of a border call are written for."""
    return max(map(device_limit, border_shardings(module, computation, instruction)), default=1)


@register_lowering(SHARDY_IN, GSPMD_IN)
def _into_region(site: Site) -> Action:
    """Take the device's own block of each value, as a view."""
    wholes, parts = _operand_leaves(site), array_leaves(site.instruction.shape)
    cuts: list[tuple[slice, ...]] = []
    for part, blocks in zip(parts, _blocks(site, wholes, parts), strict=True):
        sizes = part.dimensions
        starts = [number * size for number, size in zip(blocks.mine, sizes, strict=True)]
        cuts.append(tuple(slice(a, a + size) for a, size in zip(starts, sizes, strict=True)))
    return lambda x: [value[cut] for value, cut in zip(x, cuts, strict=True)]


@register_lowering(SHARDY_OUT, GSPMD_OUT)
def _out_of_region(site: Site) -> Action:
    """Meet the owners of the other blocks, and put the whole value together."""
    block_shapes, full_shapes = _operand_leaves(site), array_leaves(site.instruction.shape)
    joins = [
        _joining(site, number, full_shape, blocks)
        for number, (full_shape, blocks) in enumerate(
            zip(full_shapes, _blocks(site, full_shapes, block_shapes), strict=True)
        )
    ]
    return lambda x: [leaf for i, join in enumerate(joins) for leaf in join([x[i]])]


def _joining(site: Site, number: int, shape: ArrayShape, blocks: DeviceBlocks) -> Action:
    if blocks.owners.size == 1:
        return lambda x: x
    effects = site.effects
    meeting = effects.meeting
    if meeting is None:
        raise _too_few(site, blocks.owners.size)
    first = effects.replica * effects.partitions
    group = tuple(first + device for device in blocks.owners.reshape(-1).tolist())
    me, name = group.index(effects.participant), f"{site.instruction.name}#{number}"
    grid, sizes = blocks.owners.shape, shape.dimensions

    def compute(members: list[list[Array]]) -> list[list[Array]]:
        joined_array = joined([values[0] for values in members], grid, sizes)
        return [[joined_array] for _ in members]

    return lambda x: meeting.attend(name, group, me, list(x), compute)


def joined(blocks: Sequence[Array], grid: tuple[int, ...], sizes: tuple[int, ...]) -> Array:
    """Return one array of `sizes` from its blocks, which stand in row-major order of `grid`."""
    joined_array = np.empty(sizes, blocks[0].dtype)
    for place, block in zip(np.ndindex(grid), blocks, strict=True):
        starts = [number * size for number, size in zip(place, block.shape, strict=True)]
        joined_array[tuple(slice(a, a + n) for a, n in zip(starts, block.shape, strict=True))] = (
            block
        )
    return joined_array


def _blocks(
    site: Site, wholes: Sequence[ArrayShape], parts: Sequence[ArrayShape]
) -> list[DeviceBlocks]:
    instruction = site.instruction
    shardings = border_shardings(site.module, site.computation, instruction)
    if not shardings:
        shardings = (Sharding(ShardingKind.REPLICATED),) * len(parts)
    if not len(shardings) == len(parts) == len(wholes):
        raise border_fault(instruction, f"{len(shardings)} shardings stand for {len(parts)} values")
    blocks_of_values = []
    for sharding, full_shape, block_shape in zip(shardings, wholes, parts, strict=True):
        split = full_shape.dimensions != block_shape.dimensions
        if split:
            _check_devices(site, sharding)
        try:
            blocks = device_blocks(
                sharding, site.effects.partition, full_shape.dimensions, block_shape.dimensions
            )
        except ValueError as error:
            raise border_fault(instruction, str(error)) from error
        blocks_of_values.append(blocks)
    return blocks_of_values


def _check_devices(site: Site, sharding: AnySharding) -> None:
    needed = device_limit(sharding)
    if needed > site.effects.partitions:
        raise _too_few(site, needed)


def _too_few(site: Site, needed: int) -> UsageError:
    return UsageError(
        "E3104",
        f"manual sharding {site.instruction.name!r} needs {needed} partitions, "
        f"{site.effects.partitions} are there",
        hint=f"evaluate with partitions={needed}",
    )


def border_fault(instruction: Instruction, why: str) -> UnsupportedError:
    """Return the error of a border that cannot be followed."""
    return UnsupportedError(
        "E0462",
        f"manual sharding {instruction.name!r} cannot be followed: {why}",
        hint="print the module again with its shardings and meshes",
    )


def _operand_leaves(site: Site) -> list[ArrayShape]:
    return [leaf for shape in site.operand_shapes for leaf in array_leaves(shape)]
