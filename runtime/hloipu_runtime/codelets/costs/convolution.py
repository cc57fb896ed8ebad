"""Cycles of convolutions on one tile: the cheapest of the vertices that can compute them.

Formulas: graphcore/poplibs: lib/poplin/PerformanceEstimation.hpp (nx1, SLIC, vertical and
horizontal multiply-accumulate vertices).
"""

from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.codelets.costs.amp import (
    Product,
    Products,
    arithmetic_type,
    conversions,
    conversions_cycles,
    horizontal_mac_cycles,
    product_table_bytes,
    product_work,
    products_cycles,
    zeroing_cycles,
)
from hloipu_runtime.machine.charges import Amount, over
from hloipu_runtime.machine.costs import TileWork, rearrange_on_tile
from hloipu_runtime.machine.model import Machine

_NX1_LOADS = {1: 15, 2: 46, 4: 60}
"""Cycles beside the load of weights, by how many kernel rows one pass takes in."""

_WORD_BYTES = 8
"""Channels fill words of this many bytes where patches are laid side by side."""


class ConvolutionShape(NamedTuple):
    """What a tile convolves; or what many do, each an entry of these arrays."""

    groups: Amount
    rows: Amount
    """Rows of output positions in a group, over all batch elements, where taps meet elements."""
    row: Amount
    """Positions of a row."""
    in_features: Amount
    """Of one group."""
    out_features: Amount
    taps: tuple[Amount, ...]
    """Sizes of the kernel."""
    stride: int
    """Along rows."""
    batch: Amount = 0
    """Elements of the batch, along which rows may go as well; 0: not known.

    Images of one position each are their own patches."""
    spread: int = 1
    """Elements of the result for each position that meets elements and no holes."""


def convolution_work(
    machine: Machine,
    shape: ConvolutionShape,
    operand_types: tuple[str, str],
    result_type: str,
    *,
    half_partials: bool = False,
) -> TileWork:
    """Return the work of a convolution; a kernel of one tap is a matrix product.

    `half_partials`: results of f16 are partial sums, which are not cast.
    """
    taps, positions = int(prod(shape.taps)), int(shape.rows * shape.row)
    groups, out_features = int(shape.groups), int(shape.out_features)
    if min(groups, positions, out_features) <= 0:
        return TileWork(0)
    product = Product(groups, positions, int(shape.in_features) * taps, out_features)
    arithmetic = arithmetic_type(operand_types)
    half_partials = half_partials and arithmetic == result_type == "f16"
    as_product = product_work(
        machine, product, operand_types, result_type, half_partials=half_partials
    )
    if taps <= 1 or arithmetic is None:
        return as_product
    unfolded = as_product
    if positions != shape.batch:
        rearranged = rearrange_on_tile(
            machine, int(_patch_bytes(shape, half=arithmetic == "f16")), _WORD_BYTES
        )
        unfolded = TileWork(
            as_product.cycles + rearranged.cycles,
            as_product.assumed_cycles + rearranged.assumed_cycles,
        )
    operands, results = _counts(shape)
    counts = int(operands[0]), int(operands[1])
    cast, assumed = conversions(machine, operand_types, counts, result_type, int(results))
    cycles = (
        int(_direct_cycles(machine, shape, half=arithmetic == "f16", half_partials=half_partials))
        + assumed
    )
    direct = TileWork(cycles if half_partials else cycles + cast, assumed)
    return min(direct, unfolded, key=lambda work: work.cycles)


def convolutions_cycles(
    machine: Machine,
    shape: ConvolutionShape,
    operand_types: tuple[str, str],
    result_type: str,
    *,
    half_partials: bool = False,
) -> NDArray[np.int64]:
    """Return the cycles of convolutions of many sizes, as `convolution_work` has them; none is 0.

    The kernels of all have more than one tap, or all have one.
    """
    taps = prod(shape.taps)
    sizes = Products(
        shape.groups, shape.rows * shape.row, shape.in_features * taps, shape.out_features
    )
    arithmetic = arithmetic_type(operand_types)
    half_partials = half_partials and arithmetic == result_type == "f16"
    kinds = result_type, result_type
    second = np.asarray(half_partials)
    as_product = products_cycles(machine, sizes, operand_types, kinds, second)
    if arithmetic is None or int(np.max(taps)) <= 1:
        return as_product
    half = arithmetic == "f16"
    tile = machine.tile
    rearranged = tile.rearrange_call_cycles + over(
        _patch_bytes(shape, half=half) * tile.rearrange_8_byte_runs_millicycles_per_byte, 1000
    )
    operands, results = _counts(shape)
    direct = _direct_cycles(
        machine, shape, half=half, half_partials=half_partials
    ) + conversions_cycles(
        machine, operand_types, operands, result_type, 0 if half_partials else results
    )
    is_patch = np.asarray(shape.rows * shape.row == shape.batch)
    found = np.minimum(as_product + np.where(is_patch, 0, rearranged), direct)
    return np.asarray(np.where(taps > 1, found, as_product), np.int64)


def convolution_table_bytes(
    machine: Machine, shape: ConvolutionShape, operand_types: tuple[str, str]
) -> Amount:
    """Return the bytes of the tables of convolutions by the AMP unit, in the smallest form.

    Patches laid side by side are multiplied as one position, of more channels. A pass that takes in
    several rows of a kernel has one position for all of them, and groups of fewer channels.
    """
    size = Products(shape.groups, shape.rows * shape.row, shape.in_features, shape.out_features)
    taps: Amount = prod(shape.taps)
    found = product_table_bytes(machine, size._replace(depth=size.depth * taps), operand_types)
    inner, outer = prod(shape.taps[1:]), shape.taps[0] if shape.taps else 1
    for height in _NX1_LOADS if arithmetic_type(operand_types) == "f16" else (1,):
        one = size._replace(depth=size.depth * height)
        positions = np.maximum(1, inner * over(outer, height))
        found = np.minimum(found, product_table_bytes(machine, one, operand_types, positions))
    return found


def _counts(shape: ConvolutionShape) -> tuple[tuple[Amount, Amount], Amount]:
    """Return the elements of the operands and of the result that are converted."""
    taps: Amount = prod(shape.taps)
    positions: Amount = shape.rows * shape.row
    # Each position's window begins a stride further on.
    image: Amount = shape.groups * positions * shape.stride * shape.in_features
    kernel: Amount = shape.groups * taps * shape.in_features * shape.out_features
    results: Amount = shape.groups * positions * shape.spread * shape.out_features
    return (image, kernel), results


def _patch_bytes(shape: ConvolutionShape, *, half: bool) -> Amount:
    """Return the bytes of the patches of all taps laid side by side, for one product."""
    words = over(shape.in_features * (2 if half else 4), _WORD_BYTES)
    return shape.groups * shape.rows * shape.row * prod(shape.taps) * words * _WORD_BYTES


def _direct_cycles(
    machine: Machine, shape: ConvolutionShape, *, half: bool, half_partials: bool
) -> Amount:
    """Return the cycles of the cheapest vertex that takes the image as it lies."""
    taps, positions = prod(shape.taps), shape.rows * shape.row
    one_tap = Products(shape.groups, positions, shape.in_features, shape.out_features)
    found: Amount = horizontal_mac_cycles(
        machine, one_tap, half, half_partials=half_partials, taps=taps
    )
    for height in (1, 2, 4) if half else (1,):
        found = np.minimum(found, _nx1_cycles(machine, shape, half, height))
    most = np.maximum(shape.in_features, shape.out_features)
    if np.any(most == 1):
        vertical = _vertical_mac_cycles(machine, shape, half)
        found = np.where(most == 1, np.minimum(found, vertical), found)
    if half and shape.stride <= 2 and np.any(most <= 4):
        slic = _slic_cycles(machine, shape, half_partials=half_partials)
        found = np.where(most <= 4, np.minimum(found, slic), found)
    return found


def _nx1_cycles(machine: Machine, shape: ConvolutionShape, half: bool, height: int) -> Amount:
    """Return the cycles of the nx1 vertex that takes `height` kernel rows in one pass.

    Workers share the positions; a row costs its start and every position a step.
    """
    amp, contexts = machine.amp, machine.tile.worker_contexts
    units = amp.f16_to_f32_conv_units if half else amp.f32_conv_units
    group = amp.f16_channels_per_group if half else amp.f32_channels_per_group
    step = amp.f16_position_slots if half else amp.f32_position_slots
    in_groups = np.maximum(1, over(shape.in_features, max(1, group // height)))
    out_groups = over(shape.out_features, units)
    load = over(units * amp.weights_per_unit_bytes, amp.weight_load_bytes_per_cycle)
    outer, inner = over(shape.taps[0], height), prod(shape.taps[1:])
    positions = over(shape.rows * shape.row, contexts)
    # The batch is a dimension of positions as others are, with a kernel of one element.
    rows = -(-positions // np.maximum(shape.row, shape.batch))
    row_start = 3 + (34 if half else 45) - 3 * step
    worker = 18 - 9 + rows * max(0, row_start) + positions * step
    each = 12 + load + _NX1_LOADS[height] + 3 + contexts * worker
    kernel = outer * (14 + inner * each)
    fixed = 109 + 2 * contexts * 9
    # Sums are zeroed before: lines 694 to 713 of the source, lib/poplin/ConvModel.cpp, line 338.
    zeroing = zeroing_cycles(machine, shape.groups * out_groups, shape.rows * shape.row * units)
    looping = shape.groups * (23 * out_groups + 1) - 5
    found = shape.groups * (16 + in_groups * (14 + out_groups * (14 + kernel)))
    return np.asarray(fixed + zeroing + looping + found, np.int64)


def _vertical_mac_cycles(machine: Machine, shape: ConvolutionShape, half: bool) -> Amount:
    """Return the cycles of the vertex for one channel a group: eight halves side by side."""
    lanes = 8 if half else 4
    positions = over(shape.rows * shape.row, machine.tile.worker_contexts)
    each = 15 + 3 * prod(shape.taps)
    worker = 25 + over(shape.groups, lanes) * positions * each
    # supervisor + contexts * slots, as `shared_vertex_cycles` has it.
    found: Amount = 100 + 24 * over(shape.groups, lanes) + machine.tile.worker_contexts * worker
    return found


def _slic_cycles(machine: Machine, shape: ConvolutionShape, *, half_partials: bool) -> Amount:
    """Return the cycles of the vertex for few channels a group: four taps of a row at a time.

    Source: graphcore/poplibs: lib/poplin/PerformanceEstimation.hpp, lines 1085 to 1365. With f16
    sums four chains of units take in the image once, with f32 sums two chains do so twice.
    """
    contexts = machine.tile.worker_contexts
    blocks = prod(shape.taps[:-1]) * over(shape.taps[-1], 4)
    positions = over(shape.rows * shape.row, contexts)
    rows, last = positions // shape.row, positions % shape.row
    worker = [
        17
        + rows * _slic_row_slots(shape.row, shape.stride, first, half_partials)
        + np.where(last, _slic_row_slots(last, shape.stride, first, half_partials), 0)
        for first in (True, False)
    ]
    found: Amount = np.iinfo(np.int64).max
    most = np.maximum(shape.in_features, shape.out_features)
    for channels, load in ((1, 21 + 10 * contexts), (2, 21 + 12 * contexts), (4, 18)):
        groups = over(shape.groups, 4 // channels)
        supervisor = 28 + 21 * groups - 5 + (load + 16 + 20 + 6) * blocks - 5
        cycles = supervisor + contexts * groups * (worker[0] + (blocks - 1) * worker[1])
        found = np.where(most <= channels, np.minimum(found, cycles), found)
    return found


def _slic_row_slots(row: Amount, stride: int, first: bool, half_partials: bool) -> Amount:
    """Return a worker's slots for positions of a row: the first block of taps zeroes sums.

    Where the source has five positions and more cost less than four, they are charged as much.
    """
    if stride == 2:
        slots = np.where(row < 3, np.where(row == 1, 13, 15), 15 + 2 * (row - 3))
    else:
        few = 13 if first else 17
        short = np.where(row > 1, few + row, 13)
        slots = np.where(row < 5, short, np.maximum(few + 4, 10 + row))
    passes = slots if half_partials else 3 + 2 * (slots - 1)
    return 10 + int(first) + passes
