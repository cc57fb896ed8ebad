"""Cost of moving elements within a tile: copies, rearrangements, fills, transposes."""

from collections.abc import Iterable, Sequence

from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.charges import Charge, over
from hloipu_runtime.machine.costs import (
    TileWork,
    copy_on_tile,
    rearrange_on_tile,
    shared_vertex_cycles,
    single_vertices_cycles,
)
from hloipu_runtime.machine.model import Machine

NO_WORK = TileWork(0)

SCALAR_MOVE_CYCLES = 6
"""Tile cycles to load and store one element by itself. Assumed: one slot of each of 6 workers."""


def packed_bytes(element_type: str, elements: int) -> int:
    """Return the bytes that elements take up in a tile's memory, rounded up to a whole one."""
    return over(elements * ELEMENT_TYPES[element_type].bits, 8)


def copy_work(machine: Machine, tensor: Tensor) -> TileWork:
    """Return the work of copying a contiguous tensor."""
    return _work(copy_on_tile(machine, packed_bytes(tensor.element_type, tensor.elements)))


def runs_work(machine: Machine, element_type: str, elements: int, run: int) -> TileWork:
    """Return the work of moving elements that lie together in runs of `run`.

    One rearranging copy, or one plain copy for each run, whichever is cheaper. Elements of less
    than a byte are unpacked and packed again, unless the runs are whole bytes.
    """
    if elements <= 0:
        return NO_WORK
    if run >= elements:
        return copy_work(machine, Tensor(element_type, (elements,)))
    size, run_bytes = packed_bytes(element_type, elements), packed_bytes(element_type, run)
    together = rearrange_on_tile(machine, size, run_bytes)
    singly = copy_on_tile(machine, run_bytes).times(over(elements, run))
    work = _work(min(together, singly))
    if run * ELEMENT_TYPES[element_type].bits % 8:
        slots = machine.emulation.sub_byte_convert_slots * 2 * elements
        return TileWork(work.cycles + slots, work.assumed_cycles + slots)
    return work


def fill_slots(machine: Machine, element_type: str, elements: int) -> int:
    """Return one worker's slots to write one value into a contiguous region.

    The start-up and the width of a store (graphcore/poplibs: lib/popops/PerformanceEstimation.cpp,
    the estimators of Fill).
    """
    size = packed_bytes(element_type, elements)
    stores = over(size, machine.tile.store_bytes_per_cycle)
    bits = ELEMENT_TYPES[element_type].bits
    if bits >= 64:
        return 5 + stores
    if bits == 32:
        return 23 + stores
    if bits == 16:
        return 26 + stores
    return 28 + over(elements, 4) if elements < 64 else 39 + stores


def repeats_work(machine: Machine, element_type: str, rows: int, row_elements: int) -> TileWork:
    """Return the work of filling rows, each with a value of its own."""
    if rows <= 0 or row_elements <= 0:
        return NO_WORK
    contexts = machine.tile.worker_contexts
    if rows < contexts:
        pieces = min(row_elements, contexts // rows)
        rows, row_elements = rows * pieces, over(row_elements, pieces)
    slots = fill_slots(machine, element_type, row_elements)
    return TileWork(single_vertices_cycles(machine, [(rows, slots)]))


def transpose_work(
    machine: Machine, element_type: str, shape: Sequence[int], permutation: Sequence[int]
) -> TileWork:
    """Return the work of permuting dimensions; `shape` is the operand's.

    Dimensions that stay neighbours count as one. What keeps its last dimension moves in runs;
    the rest is transposing matrices, and matrices that do not lie contiguously are charged as if.
    """
    elements = Tensor(element_type, tuple(shape)).elements
    if elements <= 0:
        return NO_WORK
    sizes, order = _merged(shape, permutation)
    if order == tuple(range(len(order))):
        return copy_work(machine, Tensor(element_type, (elements,)))
    if order[-1] == len(order) - 1:
        return runs_work(machine, element_type, elements, sizes[-1])
    rows, columns = sizes[order[-1]], sizes[-1]
    matrices = elements // (rows * columns)
    return _matrices_work(machine, element_type, matrices, rows, columns)


def _merged(
    shape: Sequence[int], permutation: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Drop dimensions of size 1 and merge those that stay neighbours; returns sizes and order."""
    groups: list[list[int]] = []
    before: dict[int, int | None] = {}
    last: int | None = None
    for d, size in enumerate(shape):
        if size != 1:
            before[d] = last
            last = d
    for d in permutation:
        if shape[d] == 1:
            continue
        if groups and before[d] == groups[-1][-1]:
            groups[-1].append(d)
        else:
            groups.append([d])
    in_order = sorted(range(len(groups)), key=lambda g: groups[g][0])
    sizes = tuple(_product(shape[d] for d in groups[g]) for g in in_order)
    place = {g: number for number, g in enumerate(in_order)}
    return sizes, tuple(place[g] for g in range(len(groups)))


def _product(sizes: Iterable[int]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count


def _matrices_work(
    machine: Machine, element_type: str, matrices: int, rows: int, columns: int
) -> TileWork:
    """Return the work of transposing matrices of one size.

    16- and 32-bit elements go in square grains (graphcore/poplibs: lib/popsparse/
    PerformanceEstimation.hpp). Of sizes that the grain does not divide, assumed is: the rest goes
    element by element, or the size is padded, whichever is cheaper. Wider elements are runs of
    their own; of narrower ones each is moved by itself, which is assumed.
    """
    elements = matrices * rows * columns
    bits = ELEMENT_TYPES[element_type].bits
    if bits >= 64:
        return runs_work(machine, element_type, elements, 1)
    if bits < 16:
        cycles = machine.tile.copy_call_cycles + elements * SCALAR_MOVE_CYCLES
        return TileWork(cycles, cycles)
    grain = 4 if bits == 16 else 2
    if rows % grain == 0 and columns % grain == 0:
        return TileWork(_grains_cycles(machine, bits, matrices, rows // grain, columns // grain))
    cycles = min(
        _grains_cycles(machine, bits, matrices, down, across)
        + (elements - matrices * min(rows, down * grain) * min(columns, across * grain))
        * SCALAR_MOVE_CYCLES
        for down in {rows // grain, over(rows, grain)}
        for across in {columns // grain, over(columns, grain)}
    )
    return TileWork(cycles, cycles)


def _grains_cycles(machine: Machine, bits: int, matrices: int, rows: int, columns: int) -> int:
    """Return the cycles of transposing matrices of rows x columns grains."""
    if rows == 0 or columns == 0:
        return 0
    each = over(matrices, machine.tile.worker_contexts)
    price = 4 if bits == 16 else 3
    if rows == 1 and columns == 1:
        slots = 29 if each == 1 else 37 + price * (each - 2)
    elif columns == 1:
        slots = 27 + each * (35 + price * (rows - 2))
    else:
        slots = 29 + each * (18 + rows * (12 + price * (columns - 2)))
    return shared_vertex_cycles(machine, 7, slots)


def multi_slice_slots(machine: Machine, element_type: str, elements: int) -> int:
    """Return one worker's slots to copy one slice of consecutive elements to where an index says.

    graphcore/poplibs: lib/popops/PerformanceEstimation.cpp, MultiSlice, for elements of 1, 2 and 4
    bytes; for others assumed: 8 bytes as two of 4, packed ones as bytes that are packed again.
    """
    bits = ELEMENT_TYPES[element_type].bits
    if bits < 8:
        convert = 2 * machine.emulation.sub_byte_convert_slots * elements
        return 19 + 3 * over(elements, 4) + convert
    if bits == 8:
        return 19 + 3 * over(elements, 4)
    return 19 + 2 * over(elements * max(1, bits // 32), 2)


def _work(charge: Charge) -> TileWork:
    return TileWork(charge.cycles, charge.assumed_cycles)
