"""Cost of sorting rows on one tile, and of finding the k best: by a heap, by groups, by merging."""

from functools import lru_cache
from math import lgamma, log
from typing import NamedTuple

from hloipu_runtime.codelets.costs.combining import EXTREMUM_SLOTS
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.charges import over
from hloipu_runtime.machine.costs import TileWork, shared_vertex_cycles, single_vertices_cycles
from hloipu_runtime.machine.model import Machine

_PROLOGUE = 35
_STORED_SLOTS = 8
"""Of a worker, for each result: its value and its place."""
_TAKEN_SLOTS = 10
"""Of a worker, to take the best candidate: value and place kept, the next one of its piece read."""
_COMPARED_SLOTS = 5
"""Of a worker, to compare the best with one piece's: read, compared, chosen."""
_LOOK_SLOTS = {True: 13, False: 18}
"""Around a loop that finds an extremum and its place, of floats and others: ReduceMaxClassSparse
without the vertex's own (graphcore/poplibs: lib/popnn/popnnCycleEstimators.cpp)."""


def selecting_work(machine: Machine, element_type: str, rows: int, length: int, k: int) -> TileWork:
    """Return the work of the k best of rows and their places: the cheapest of four ways.

    A worker takes whole rows, or all of them share each row, whose bests one of them merges. It
    keeps the best in a heap, or selects them by groups. Only rows to workers and heaps rest on a
    source.
    """
    if rows == 0 or length == 0 or k == 0:
        return TileWork(0)
    floating = ELEMENT_TYPES[element_type].is_float
    heap = single_vertices_cycles(machine, [(rows, _heap_slots(length, k))])
    groups = single_vertices_cycles(machine, [(rows, _group_slots(floating, length, k))])
    workers = machine.tile.worker_contexts
    share = over(length, workers)
    some = min(k, share)
    each = min(_heap_slots(share, some), _group_slots(floating, share, some))
    last = min(_heap_slots(workers * some, k), _merge_slots(workers, k))
    team = rows * (
        shared_vertex_cycles(machine, _SUPERVISOR_CYCLES, each)
        + single_vertices_cycles(machine, [(1, last)])
    )
    assumed = min(groups, team)
    return TileWork(heap) if heap <= assumed else TileWork(assumed, assumed)


def merging_work(
    machine: Machine, element_type: str, groups: int, pieces: int, candidates: int, k: int
) -> TileWork:
    """Return the work of the k best of each group of sorted pieces: merged, or as of any rows."""
    selected = selecting_work(machine, element_type, groups, pieces * candidates, k)
    merged = single_vertices_cycles(machine, [(groups, _merge_slots(pieces, k))])
    return selected if selected.cycles <= merged else TileWork(merged, merged)


def _merge_slots(pieces: int, k: int) -> int:
    """Return the slots of one worker to merge sorted pieces: of all that are left, the best.

    Assumed.
    """
    return _PROLOGUE + k * (_TAKEN_SLOTS + _COMPARED_SLOTS * pieces)


def _heap_slots(length: int, k: int) -> int:
    """Return the slots of one worker to keep the k best of a row in a heap and to sort them.

    At worst every element is pushed: 13 + 20 ln(i) slots into a heap of i, and 10 + 20 ln(i) to
    take one out (graphcore/poplibs: lib/popnn/popnnCycleEstimators.cpp, ReduceMaxNClassSparse).
    """
    k = min(k, length)
    pushes = 13 * (k - 1) + 20 * lgamma(k) + (length - k) * (13 + 20 * log(k))
    pops = 10 * k + 20 * lgamma(k + 1)
    return _PROLOGUE + _STORED_SLOTS * k + round(pushes + pops)


@lru_cache(1 << 12)
def _group_slots(floating: bool, length: int, k: int) -> int:
    """Return the slots of one worker to select the k best of a row by groups of neighbours.

    The best of each group is found first. Then k times the best of these is taken, and its group
    gone through for the best of those behind the one taken: two comparisons an element. Whatever
    the values are, it takes as long. Of sizes of groups, powers of two, the fastest. Assumed, put
    together from loops that find an extremum.
    """
    k = min(k, length)
    one, around = EXTREMUM_SLOTS[floating], _LOOK_SLOTS[floating]
    slots_by_size: list[int] = []
    size = 1
    while not slots_by_size or size < 2 * length:
        groups = over(length, size)
        first = groups * around + length * one
        best = groups * one + around
        next_best = 2 * min(size, length) * one + around
        slots_by_size.append(first + k * (best + _STORED_SLOTS) + (k - 1) * next_best)
        size *= 2
    return _PROLOGUE + min(slots_by_size)


_SUPERVISOR_CYCLES = 19
_NODE_SLOTS = 5
"""Assumed, for each operation of a comparator: its operands loaded, itself, its result kept."""
_OPERAND_SLOTS = 4
"""Assumed, for each operand beyond a key and a value: two loads and two stores."""


class SortShape(NamedTuple):
    """What a tile sorts."""

    rows: int
    length: int
    operands: int
    keys: tuple[str, ...]
    """Element types of the keys; without keys, of what the comparator looks at."""
    comparator_nodes: int
    """Operations of a comparator that is called; 0: compared by keys."""
    rises_and_falls: bool


class _Pair(NamedTuple):
    """Slots of comparing and swapping pairs on one worker."""

    pair: int
    entry: int
    """Of one entry of the list of work, its first pair included."""
    overhead: int


# By (floating point, operands up to 2, keys up to 2).
_PAIRS = {
    (True, 1, 1): _Pair(13, 17 + 3, 40),
    (False, 1, 1): _Pair(12, 22 + 3, 42),
    (True, 2, 1): _Pair(11, 4 + 11, 23),
    (False, 2, 1): _Pair(17, 30 + 5, 43),
    (True, 2, 2): _Pair(25, 30 + 6, 45),
    (False, 2, 2): _Pair(27, 30 + 7, 49),
}


def sort_work(machine: Machine, shape: SortShape) -> TileWork:
    """Return the work of a bitonic network by all workers; none for rows of one element.

    Pairs are compared and swapped in log2(n) (log2(n) + 1) / 2 stages, or log2(n) for rows that
    rise and fall once (graphcore/poplibs: lib/popops/popopsCycleEstimators.cpp,
    CompareAndSwapAtDistance; its HeapSort is dearer for any length). Assumed are other types than
    f32 and 32-bit integers, more than two operands or keys, and comparators.
    """
    if shape.rows == 0 or shape.length < 2:
        return TileWork(0)
    extra, assumed = _extra_slots(machine, shape)
    floating = ELEMENT_TYPES[shape.keys[0]].is_float
    operands, keys = min(shape.operands, 2), min(len(shape.keys), shape.operands, 2)
    slots = _PAIRS[floating, operands, keys]
    levels = (shape.length - 1).bit_length()
    stages = levels if shape.rises_and_falls else levels * (levels + 1) // 2
    pairs = shape.rows * ((shape.length + 1) // 2)
    share = -(-pairs // machine.tile.worker_contexts)
    worker = slots.overhead + slots.entry + share * (slots.pair + extra)
    cycles = stages * shared_vertex_cycles(machine, _SUPERVISOR_CYCLES, worker)
    return TileWork(cycles, cycles if assumed else 0)


def _extra_slots(machine: Machine, shape: SortShape) -> tuple[int, bool]:
    """Return the slots that comparing two elements takes beyond the known cases."""
    extra = _NODE_SLOTS * shape.comparator_nodes
    extra += _OPERAND_SLOTS * (max(0, shape.operands - 2) + max(0, len(shape.keys) - 2))
    known = extra == 0
    for key in shape.keys:
        added = _conversion_slots(machine, key)
        known = known and key in ("f32", "s32", "u32")
        extra += 2 * added
    return extra, not known


def _conversion_slots(machine: Machine, key: str) -> int:
    """Return the slots by which comparing one element is dearer than comparing one word."""
    element, emulation = ELEMENT_TYPES[key], machine.emulation
    if element.bits < 8:
        return emulation.sub_byte_convert_slots
    if element.is_float and element.bits == 8:
        return emulation.f8_convert_slots
    if key == "bf16":
        return emulation.bf16_convert_slots
    return _NODE_SLOTS * (emulation.integer_64_factor - 1) if element.bits > 32 else 0
