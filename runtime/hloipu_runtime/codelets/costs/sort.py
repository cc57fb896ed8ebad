"""Cost of sorting rows on one tile."""

from typing import NamedTuple

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.costs import TileWork, shared_vertex_cycles
from hloipu_runtime.machine.model import Machine

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
