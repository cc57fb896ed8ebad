"""Cycles of matrix products on one tile: by the AMP unit, by dot products, by plain arithmetic.

Formulas: graphcore/poplibs: lib/poplin/PerformanceEstimation.hpp (1x1 and horizontal
multiply-accumulate vertices) and lib/poplin/poplinCycleEstimators.cpp.
"""

from functools import lru_cache
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.element_types import ELEMENT_TYPES, Kind
from hloipu_runtime.machine.charges import Amount, over
from hloipu_runtime.machine.costs import TileWork, shared_vertex_cycles
from hloipu_runtime.machine.model import Machine


class Product(NamedTuple):
    """Matrix products on one tile: `groups` of [rows, depth] times [depth, columns]."""

    groups: int
    rows: int
    depth: int
    columns: int


class Products(NamedTuple):
    """Products of many sizes, each an entry of these arrays."""

    groups: Amount
    rows: Amount
    depth: Amount
    columns: Amount


def products_cycles(
    machine: Machine,
    sizes: Products,
    operand_types: tuple[str, str],
    result_types: tuple[str, str],
    second: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Return the cycles of products of many sizes, as `product_work` has them; no size is 0.

    Results are of the second type where `second` says so.
    """
    arithmetic = arithmetic_type(operand_types)
    if arithmetic is None:
        slots = [
            max(multiply_add_slots(machine, name) for name in (*operand_types, result))
            for result in result_types
        ]
        results = over(sizes.groups * sizes.rows * sizes.columns, machine.tile.worker_contexts)
        worker = 20 + results * (7 + sizes.depth * np.where(second, slots[1], slots[0]))
        plain = machine.tile.supervisor_vertex_cycles + machine.tile.worker_contexts * worker
        return np.asarray(plain, np.int64)
    fastest = _fastest(machine, sizes, arithmetic, half_partials=False)
    counts = (sizes.groups * sizes.rows * sizes.depth, sizes.groups * sizes.depth * sizes.columns)
    results = sizes.groups * sizes.rows * sizes.columns
    ends = [fastest + conversion_cycles(machine, name, results) for name in result_types]
    if result_types[1] == "f16" and arithmetic == "f16":
        ends[1] = _fastest(machine, sizes, arithmetic, half_partials=True)
    fastest = np.where(second, ends[1], ends[0])
    for name, count in zip(operand_types, counts, strict=True):
        if name != arithmetic:
            fastest = fastest + conversion_cycles(machine, name, count)
    return np.asarray(fastest, np.int64)


def _fastest(
    machine: Machine, size: Product | Products, arithmetic: str, *, half_partials: bool
) -> Amount:
    """Return the cycles of the cheapest vertex, with either operand in the AMP unit."""
    half = arithmetic == "f16"
    turned = Products(size.groups, size.columns, size.depth, size.rows)
    fastest = _amp_1x1(machine, size, half, half_partials=half_partials)
    fastest = np.minimum(fastest, _amp_1x1(machine, turned, half, half_partials=half_partials))
    for way in (size, turned):
        fastest = np.minimum(
            fastest, horizontal_mac_cycles(machine, way, half, half_partials=half_partials)
        )
    return fastest


def product_work(
    machine: Machine,
    size: Product,
    operand_types: tuple[str, str],
    result_type: str,
    *,
    half_partials: bool = False,
) -> TileWork:
    """Return the work of products, by the cheapest vertex that knows the types.

    Either operand may be the one whose channels stay in the AMP unit. Types that it lacks are
    converted (narrow floats) or computed by plain arithmetic, at assumed prices. `half_partials`:
    products of f16 are f16 partial sums, which are not cast.
    """
    if min(size.groups, size.rows, size.columns) <= 0:
        return TileWork(0)
    arithmetic = arithmetic_type(operand_types)
    if arithmetic is None:
        return _plain_work(machine, size, operand_types, result_type)
    half_partials = half_partials and arithmetic == result_type == "f16"
    cycles = int(_fastest(machine, size, arithmetic, half_partials=half_partials))
    results = size.groups * size.rows * size.columns
    if size.depth == 0:
        cycles = min(cycles, _zero_cycles(machine, results))
    counts = (size.groups * size.rows * size.depth, size.groups * size.depth * size.columns)
    cast, assumed = conversions(machine, operand_types, counts, result_type, results)
    cycles += assumed if half_partials else cast + assumed
    return TileWork(cycles, cycles if _amp_is_assumed(machine) else assumed)


def conversions(
    machine: Machine,
    operand_types: tuple[str, str],
    counts: tuple[int, int],
    result_type: str,
    results: int,
) -> tuple[int, int]:
    """Return the cycles of converting operands to, and f32 sums from, the type multiplied in.

    First those that rest on a source, then those that are assumed.
    """
    arithmetic = arithmetic_type(operand_types)
    assumed = 0
    for element_type, count in zip(operand_types, counts, strict=True):
        if element_type != arithmetic:
            assumed += conversion_cycles(machine, element_type, count)
    if result_type == "f16":
        return cast_cycles(machine, results), assumed
    return 0, assumed + conversion_cycles(machine, result_type, results)


def conversions_cycles(
    machine: Machine,
    operand_types: tuple[str, str],
    counts: tuple[Amount, Amount],
    result_type: str,
    results: Amount,
) -> Amount:
    """Return the cycles of the conversions of many sizes, as `conversions` has them in sum."""
    arithmetic = arithmetic_type(operand_types)
    cycles: Amount = 0
    for element_type, count in zip(operand_types, counts, strict=True):
        if element_type != arithmetic:
            cycles = cycles + conversion_cycles(machine, element_type, count)
    if result_type == "f16":
        return cycles + (cast_cycles(machine, results) if np.any(results) else 0)
    return cycles + conversion_cycles(machine, result_type, results)


def arithmetic_type(operand_types: tuple[str, ...]) -> str | None:
    """Return the type in which the AMP unit multiplies operands of these types; None: it cannot.

    Floats of 8 bits or less are f16 values, f16 with a wider type and bf16 are f32 values.
    """
    found = "f16"
    for name in operand_types:
        element = ELEMENT_TYPES[name]
        if not element.is_float or element.bits > 32:
            return None
        if element.exponent_bits > ELEMENT_TYPES["f16"].exponent_bits:
            found = "f32"
    return found


def _amp_1x1(
    machine: Machine, size: Product | Products, half: bool, *, half_partials: bool = False
) -> Amount:
    """Return the cycles of the 1x1 vertex for one product, or for each of many sizes."""
    amp = machine.amp
    units = amp.f16_to_f32_conv_units if half else amp.f32_conv_units
    units = amp.f16_to_f16_conv_units if half_partials else units
    depth_group = amp.f16_channels_per_group if half else amp.f32_channels_per_group
    in_groups = np.maximum(1, over(size.depth, depth_group))
    out_groups = over(size.columns, units)
    load = over(units * amp.weights_per_unit_bytes, amp.weight_load_bytes_per_cycle)
    zeroing = _inner_1x1_cycles(machine, size.rows, half, zeroing=True)
    adding = _inner_1x1_cycles(machine, size.rows, half, zeroing=False)
    contexts, groups = machine.tile.worker_contexts, size.groups
    retained = contexts * (7 + 3 * (in_groups * groups - 1)) if half else 0
    later = (in_groups - 1) * (15 + out_groups * (19 + 6 + load + adding))
    first = out_groups * (18 + 7 + load + zeroing)
    cycles: Amount = 50 + retained + groups * (13 + later + 11 + first)
    return cycles


def _inner_1x1_cycles(machine: Machine, rows: Amount, half: bool, *, zeroing: bool) -> Amount:
    """Return the cycles of one pass of all workers over the positions."""
    if isinstance(rows, int):
        return _inner_1x1_of_one(machine, rows, half, zeroing=zeroing)
    return _inner_1x1_of_many(machine, rows, half, zeroing=zeroing)


@lru_cache(1 << 12)
def _inner_1x1_of_one(machine: Machine, rows: int, half: bool, *, zeroing: bool) -> int:
    return int(_inner_1x1_of_many(machine, rows, half, zeroing=zeroing))


def _inner_1x1_of_many(machine: Machine, rows: Amount, half: bool, *, zeroing: bool) -> Amount:
    contexts = machine.tile.worker_contexts
    most, least = over(rows, contexts), rows // contexts
    slowest = _worker_1x1_slots(machine, most, half, zeroing=zeroing)
    fastest = _worker_1x1_slots(machine, least, half, zeroing=zeroing)
    slots: Amount = np.maximum(contexts * slowest, contexts * fastest + 14)
    return slots


def _worker_1x1_slots(machine: Machine, positions: Amount, half: bool, *, zeroing: bool) -> Amount:
    """Return one worker's slots for a pass.

    Where the source has fewer positions cost more than three, they are all charged the most: a
    larger part never costs less.
    """
    beyond = np.maximum(0, positions - 3)
    slots: Amount
    if half:
        one, two, three = (32, 41, 37) if zeroing else (33, 42, 38)
        many = np.maximum(two, three + machine.amp.f16_position_slots * beyond)
        slots = np.where(positions > 1, many, np.where(positions == 1, one, 20)) - 7
        return slots
    step = machine.amp.f32_position_slots
    zeroes = 2 + step * positions if zeroing else 0
    slots = np.where(positions > 0, np.maximum(47, 46 + step * beyond) + zeroes, 24)
    return slots


def horizontal_mac_cycles(
    machine: Machine,
    size: Product | Products,
    half: bool,
    *,
    half_partials: bool = False,
    taps: Amount = 1,
) -> Amount:
    """Return the cycles of one dot product after the other, for one product or many sizes.

    `rows` are the positions of a convolution of so many taps, in one row. Source:
    graphcore/poplibs: lib/poplin/PerformanceEstimation.hpp, lines 25 to 42 and 79 to 245; with f16
    sums two columns at a time.
    """
    contexts, width = machine.tile.worker_contexts, machine.tile.load_bytes_per_cycle // 2
    width = max(1, width if half else width // 2)
    # The vertex for one tap knows f16 operands and f32 sums only.
    is_1x1 = half and not half_partials and np.all(np.asarray(taps) == 1)
    retained = 15 if is_1x1 else (6 if half else 0)
    columns = over(size.columns, 2) if half_partials else size.columns
    dot = over(size.depth, width) + (10 if half_partials else 6 if half else 7)
    rows = over(size.rows, contexts)
    each = rows * (7 + columns * dot)
    if is_1x1:
        each = np.where(np.asarray(columns) == 1, 1 + rows * (2 + dot), each)
    worker = taps * (16 - retained + (13 if is_1x1 else 19) + each) + 16
    first = (10 if half_partials else 9) + (15 if is_1x1 else 6 if half_partials else 0)
    supervisor = (65 if half else 58) - (10 if is_1x1 else 0) + contexts * first
    cycles: Amount = supervisor + size.groups * (23 + 15 + 10 + contexts * worker)
    is_zeroed = np.asarray(not is_1x1) | (np.asarray(size.columns) > 1)
    zeroing = zeroing_cycles(machine, size.groups, size.rows * size.columns)
    return cycles + np.where(is_zeroed, zeroing, 0)


def zeroing_cycles(machine: Machine, groups: Amount, results: Amount) -> Amount:
    """Return the cycles of zeroing so many results of each group before products are added.

    (graphcore/poplibs: lib/poplin/PerformanceEstimation.hpp, lines 163 to 180 and 1912 to 1929.)
    """
    contexts = machine.tile.worker_contexts
    width = max(1, machine.tile.store_bytes_per_cycle // 4)
    return contexts * groups * (5 + over(over(results, contexts), width))


@overload
def cast_cycles(machine: Machine, elements: int) -> int: ...
@overload
def cast_cycles(machine: Machine, elements: Amount) -> Amount: ...
def cast_cycles(machine: Machine, elements: Amount) -> Amount:
    """Return the cycles of rounding f32 partials to f16, two a load."""
    width = max(1, machine.tile.load_bytes_per_cycle // 4)
    each = over(over(elements, machine.tile.worker_contexts), width)
    return machine.tile.worker_contexts * (26 + each)


@overload
def conversion_cycles(machine: Machine, element_type: str, elements: int) -> int: ...
@overload
def conversion_cycles(machine: Machine, element_type: str, elements: Amount) -> Amount: ...
def conversion_cycles(machine: Machine, element_type: str, elements: Amount) -> Amount:
    """Return the assumed cycles of converting elements to or from the type that stands in."""
    element = ELEMENT_TYPES[element_type]
    each = over(elements, machine.tile.worker_contexts)
    if element.bits < 8:
        slots = machine.emulation.sub_byte_convert_slots
    elif element.is_float and element.bits == 8:
        slots = machine.emulation.f8_convert_slots
    elif element_type == "bf16":
        slots = machine.emulation.bf16_convert_slots
    elif element_type == "f16":
        return cast_cycles(machine, elements)
    else:
        return 0
    return machine.tile.worker_contexts * (26 + each * slots)


def _zero_cycles(machine: Machine, elements: int) -> int:
    """Return the cycles of zeroing f32 partials, 64 bits a slot."""
    width = max(1, machine.tile.store_bytes_per_cycle // 4)
    each = over(over(elements, machine.tile.worker_contexts), width)
    return 12 + machine.tile.worker_contexts * (5 + each)


def _plain_work(
    machine: Machine, size: Product, operand_types: tuple[str, str], result_type: str
) -> TileWork:
    """Return the assumed work of multiplying and adding one product after the other."""
    slots = max(multiply_add_slots(machine, name) for name in (*operand_types, result_type))
    results = over(size.groups * size.rows * size.columns, machine.tile.worker_contexts)
    worker = 20 + results * (7 + size.depth * slots)
    cycles = shared_vertex_cycles(machine, machine.tile.supervisor_vertex_cycles, worker)
    counts = (size.rows * size.depth, size.depth * size.columns)
    for element_type, count in zip(operand_types, counts, strict=True):
        if ELEMENT_TYPES[element_type].bits < 8:
            cycles += conversion_cycles(machine, element_type, size.groups * count)
    return TileWork(cycles, cycles)


def multiply_add_slots(machine: Machine, element_type: str) -> int:
    """Return the assumed slots of one multiply-add outside of the AMP unit."""
    element, emulation = ELEMENT_TYPES[element_type], machine.emulation
    # Two f32 lanes multiply and add in two slots; integers load, multiply and add one by one.
    if element.kind is Kind.FLOAT:
        return emulation.f64_factor if element.bits == 64 else 1
    if element.kind is Kind.COMPLEX:
        return emulation.c128_factor if element.bits == 128 else emulation.c64_factor
    return 4 * (emulation.integer_64_factor if element.bits == 64 else 1)


def _amp_is_assumed(machine: Machine) -> bool:
    return machine.rests_on_assumption(
        "amp.f16_position_slots", "amp.f32_position_slots", "amp.weight_load_bytes_per_cycle"
    )


_SHORT_BYTES = 2
_WORK_NUMBERS = 3
_SIZES = 10


@overload
def product_table_bytes(
    machine: Machine, size: Product, operand_types: tuple[str, str], positions: int = 1
) -> int: ...
@overload
def product_table_bytes(
    machine: Machine, size: Products, operand_types: tuple[str, str], positions: Amount = 1
) -> Amount: ...
def product_table_bytes(
    machine: Machine,
    size: Product | Products,
    operand_types: tuple[str, str],
    positions: Amount = 1,
) -> Amount:
    """Return the bytes of a vertex's tables, for so many positions of a kernel; of many, arrays.

    Zero for types that the unit does not multiply.

    Source: graphcore/poplibs: lib/poplin/codelets/ConvPartial1x1Out.cpp and ConvPartialnx1.cpp,
    the versions with limited sizes, as lib/poplin/ConvVertices.cpp connects them. An operand is
    a list of 4-byte pointers, one to each group of channels of each convolution group; weights
    have one for each pair of groups, all positions of the kernel together. A work list has
    three 16-bit numbers for each worker and each position. Besides, there are a pointer to that
    list and up to ten 16-bit sizes and strides.
    """
    kind = arithmetic_type(operand_types)
    if kind is None:
        return 0
    amp, pointer_bytes = machine.amp, machine.memory.edge_pointer_bytes
    channels = amp.f16_channels_per_group if kind == "f16" else amp.f32_channels_per_group
    units = amp.f16_to_f32_conv_units if kind == "f16" else amp.f32_conv_units
    depth, columns = over(size.depth, channels), over(_in_unit(machine, size, kind), units)
    pointers: Amount = size.groups * (depth + columns + depth * columns)
    shorts: Amount = _SIZES + positions * machine.tile.worker_contexts * _WORK_NUMBERS
    table_bytes: Amount = (pointers + 1) * pointer_bytes
    return table_bytes + shorts * _SHORT_BYTES


def _in_unit(machine: Machine, size: Product | Products, kind: str) -> Amount:
    """Return how many channels of results have their weights in the unit, the cheaper way."""
    turned = Products(size.groups, size.columns, size.depth, size.rows)
    cycles, turned_cycles = (
        _amp_1x1(machine, way, kind == "f16", half_partials=False) for way in (size, turned)
    )
    if isinstance(size, Product):
        return size.columns if cycles <= turned_cycles else size.rows
    return np.where(cycles <= turned_cycles, size.columns, size.rows)
