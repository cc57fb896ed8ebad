"""Cycles of convolutions on one tile: the cheapest of the vertices that can compute them.

Formulas: graphcore/poplibs: lib/poplin/PerformanceEstimation.hpp (nx1, SLIC, vertical and
horizontal multiply-accumulate vertices).
"""

from math import prod
from typing import NamedTuple

from hloipu_runtime.codelets.amp import (
    Product,
    arithmetic_type,
    conversions,
    horizontal_mac_cycles,
    product_work,
)
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import TileWork, rearrange_on_tile, shared_vertex_cycles
from hloipu_runtime.machine.model import Machine

_NX1_LOADS = {1: 15, 2: 46, 4: 60}
"""Cycles beside the load of weights, by how many kernel rows one pass takes in."""


class ConvolutionShape(NamedTuple):
    """What a tile convolves."""

    groups: int
    rows: int
    """Rows of output positions in a group, over all batch elements."""
    row: int
    """Positions of a row."""
    in_features: int
    """Of one group."""
    out_features: int
    taps: tuple[int, ...]
    """Sizes of the kernel, as far as taps meet elements and no holes."""
    stride: int
    """Along rows."""


def convolution_work(
    machine: Machine,
    shape: ConvolutionShape,
    operand_types: tuple[str, str],
    result_type: str,
) -> TileWork:
    """Return the work of a convolution; a kernel of one tap is a matrix product."""
    taps, positions = prod(shape.taps), shape.rows * shape.row
    if min(shape.groups, positions, shape.out_features) <= 0:
        return TileWork(0)
    product = Product(shape.groups, positions, shape.in_features * taps, shape.out_features)
    arithmetic = arithmetic_type(operand_types)
    as_product = product_work(machine, product, operand_types, result_type)
    if taps <= 1 or arithmetic is None:
        return as_product
    # The patches of all taps laid side by side, then one product; channels fill 64-bit words.
    words = over(shape.in_features * (2 if arithmetic == "f16" else 4), 8)
    rearranged = rearrange_on_tile(machine, shape.groups * positions * taps * words * 8, 8)
    unfolded = TileWork(
        as_product.cycles + rearranged.cycles, as_product.assumed_cycles + rearranged.assumed_cycles
    )
    one_tap = Product(shape.groups, positions, shape.in_features, shape.out_features)
    half = arithmetic == "f16"
    ways = [_nx1_cycles(machine, shape, half, height) for height in ((1, 2, 4) if half else (1,))]
    ways.append(taps * horizontal_mac_cycles(machine, one_tap, arithmetic))
    if shape.in_features == shape.out_features == 1:
        ways.append(_vertical_mac_cycles(machine, shape, half))
    if half and max(shape.in_features, shape.out_features) <= 4 and shape.stride <= 2:
        ways.append(_slic_cycles(machine, shape))
    operands = (
        # Each position's window begins a stride further on.
        shape.groups * positions * shape.stride * shape.in_features,
        shape.groups * taps * shape.in_features * shape.out_features,
    )
    results = shape.groups * positions * shape.out_features
    cast, assumed = conversions(machine, operand_types, operands, result_type, results)
    direct = TileWork(min(ways) + cast + assumed, assumed)
    return min(direct, unfolded, key=lambda work: work.cycles)


def _nx1_cycles(machine: Machine, shape: ConvolutionShape, half: bool, height: int) -> int:
    """Return the cycles of the nx1 vertex that takes `height` kernel rows in one pass.

    Workers share the positions; a row costs its start and every position a step.
    """
    amp, contexts = machine.amp, machine.tile.worker_contexts
    units = amp.f16_to_f32_conv_units if half else amp.f32_conv_units
    group = amp.f16_channels_per_group if half else amp.f32_channels_per_group
    step = amp.f16_position_slots if half else amp.f32_position_slots
    in_groups = max(1, over(shape.in_features, max(1, group // height)))
    out_groups = over(shape.out_features, units)
    load = over(units * amp.weights_per_unit_bytes, amp.weight_load_bytes_per_cycle)
    outer, inner = over(shape.taps[0], height), prod(shape.taps[1:])
    positions = over(shape.rows * shape.row, contexts)
    rows = over(positions, shape.row)
    row_start = 3 + (34 if half else 45) - 3 * step
    worker = 18 - 9 + rows * max(0, row_start) + positions * step
    each = 12 + load + _NX1_LOADS[height] + 3 + contexts * worker
    kernel = outer * (14 + inner * each)
    fixed = 109 + 2 * contexts * 9
    return fixed + shape.groups * (16 + in_groups * (14 + out_groups * (14 + kernel)))


def _vertical_mac_cycles(machine: Machine, shape: ConvolutionShape, half: bool) -> int:
    """Return the cycles of the vertex for one channel a group: eight halves side by side."""
    lanes = 8 if half else 4
    positions = over(shape.rows * shape.row, machine.tile.worker_contexts)
    each = 15 + 3 * prod(shape.taps)
    worker = 25 + over(shape.groups, lanes) * positions * each
    return shared_vertex_cycles(machine, 100 + 24 * over(shape.groups, lanes), worker)


def _slic_cycles(machine: Machine, shape: ConvolutionShape) -> int:
    """Return the cycles of the vertex for few channels a group: four taps of a row at a time."""
    contexts = machine.tile.worker_contexts
    together = max(1, 4 // max(shape.in_features, shape.out_features))
    blocks = prod(shape.taps[:-1]) * over(shape.taps[-1], 4)
    positions = over(shape.rows * shape.row, contexts)
    rows = over(positions, shape.row)
    worker = rows * 15 + positions * shape.stride
    passes = over(shape.groups, together) * blocks
    return 28 + passes * (25 + 16 + 18 + 2 * contexts * worker)
