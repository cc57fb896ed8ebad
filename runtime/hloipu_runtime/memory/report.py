"""Memory report: the fullest tile, what fills it, whether it fits."""

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.memory.categories import NOT_VARIABLES, Category
from hloipu_runtime.memory.liveness import Ranges, moment
from hloipu_runtime.memory.plan import IpuMemory, MemoryPlan, kept_bytes, rounded
from hloipu_runtime.memory.remote_parts import RemoteParts
from hloipu_runtime.memory.report_records import (
    Bin,
    CodeCulprit,
    Culprit,
    IpuUse,
    MemoryReport,
    TilePeak,
)
from hloipu_runtime.program.mapping import Tiles
from hloipu_runtime.program.steps import ComputeSet, Exchange, Step, StreamIn, StreamOut

__all__ = ["MemoryReport", "memory_report", "step_name"]

Numbers = NDArray[np.int64]
_BINS = 10


def memory_report(
    plan: MemoryPlan, *, sources: Mapping[str, str] | None = None, culprits: int = 10
) -> MemoryReport:
    """Return the report of a plan; `sources` has the source lines of instructions, by name."""
    on_ipu: list[list[int]] = [[] for _ in plan.ipus]
    for number, variable in enumerate(plan.program.variables):
        if plan.liveness.ranges[number]:
            on_ipu[variable.ipu].append(number)
    parts_of = [parts_by_class(plan, ipu, on_ipu[ipu.ipu]) for ipu in plan.ipus]
    fullest = max(plan.ipus, key=lambda ipu: (int(ipu.needed_bytes.max()), -ipu.ipu))
    most_code = max(plan.ipus, key=lambda ipu: (int(ipu.code_bytes.max()), -ipu.ipu))
    full_class, code_class = int(fullest.needed_bytes.argmax()), int(most_code.code_bytes.argmax())
    largest = _culprits(plan, fullest, full_class, on_ipu[fullest.ipu], sources or {})
    counts = [np.bincount(ipu.classes.of_tile, minlength=ipu.classes.count) for ipu in plan.ipus]
    total = dict.fromkeys(Category, 0)
    for count, parts in zip(counts, parts_of, strict=True):
        for category, sizes in parts.items():
            total[category] += int(sizes @ count)
    return MemoryReport(
        fits=plan.fits,
        code_memory=plan.code_memory,
        available_bytes=plan.available_bytes,
        executable_bytes=plan.machine.memory.executable_bytes,
        remote_available_bytes=plan.machine.remote.remote_bytes,
        peak=_tile_peak(plan, fullest, parts_of[fullest.ipu], full_class),
        code_peak=_tile_peak(plan, most_code, parts_of[most_code.ipu], code_class),
        code_bytes=int(most_code.code_bytes[code_class]),
        culprits=tuple(largest[:culprits]),
        culprits_left_out=max(0, len(largest) - culprits),
        exchange_culprits=_exchange_culprits(fullest, full_class, sources or {}, culprits)
        if plan.code_memory
        else (),
        total_bytes=sum(
            int(ipu.needed_bytes @ count) for ipu, count in zip(plan.ipus, counts, strict=True)
        ),
        parts=total,
        ipus=tuple(
            _ipu_use(ipu, count, remote)
            for ipu, count, remote in zip(plan.ipus, counts, plan.remote_parts, strict=True)
        ),
        histogram=_histogram(plan, counts),
    )


def parts_by_class(plan: MemoryPlan, ipu: IpuMemory, numbers: list[int]) -> dict[Category, Numbers]:
    """Return what each class of tiles is filled with at its own peak."""
    parts = {category: np.zeros(ipu.classes.count, np.int64) for category in Category}
    parts.update(ipu.fixed)
    ranges = plan.liveness.ranges
    alignment = parts[Category.ALIGNMENT]
    alignment += ipu.floor - sum(ipu.fixed[category] for category in NOT_VARIABLES)
    sums: dict[tuple[Tiles, Ranges], dict[Category, int]] = {}
    """Bytes of variables in the same place at the same time."""
    for number in numbers:
        variable = plan.program.variables[number]
        size, category = variable.bytes_per_tile, plan.category(number)
        bytes_by_category = sums.setdefault((variable.mapping.tiles, ranges[number]), {})
        bytes_by_category[category] = bytes_by_category.get(category, 0) + size
        if padding := kept_bytes(variable, plan.machine) - size:
            bytes_by_category[Category.ALIGNMENT] = (
                bytes_by_category.get(Category.ALIGNMENT, 0) + padding
            )
    for (tiles, when), sizes in sums.items():
        members = ipu.classes.members[tiles]
        live = _live_at(ipu.live.peak_point[members], when).astype(np.int64)
        for category, size in sizes.items():
            parts[category][members] += size * live
    for message in ipu.messages:
        members = ipu.classes.members[message.tiles]
        live = _live_at(ipu.live.peak_point[members], message.ranges).astype(np.int64)
        parts[Category.EXCHANGE_BUFFERS][members] += message.size_bytes * live
        padding = rounded(message.size_bytes, plan.machine) - message.size_bytes
        alignment[members] += padding * live
    parts[Category.GAPS] = ipu.gap_bytes
    return parts


def _live_at(points: Numbers, ranges: Ranges) -> NDArray[np.bool_]:
    live = np.zeros(len(points), np.bool_)
    for first, last in ranges:
        live |= (points >= first) & (points <= last)
    return live


def _tile_peak(
    plan: MemoryPlan, ipu: IpuMemory, parts: dict[Category, Numbers], tile_class: int
) -> TilePeak:
    path, step = moment(plan.liveness.region, int(ipu.live.peak_point[tile_class]))
    total = int(ipu.needed_bytes[tile_class])
    always = int(ipu.floor[tile_class] + ipu.live.always_bytes[tile_class])
    return TilePeak(
        ipu=ipu.ipu,
        tile=int(ipu.classes.first_tile[tile_class]),
        total_bytes=total,
        step=path,
        step_name=step_name(step),
        always_live_bytes=always,
        not_always_live_bytes=total - always,
        parts={category: int(parts[category][tile_class]) for category in Category},
        assumed=_assumed(plan, ipu, tile_class),
    )


def _assumed(plan: MemoryPlan, ipu: IpuMemory, tile_class: int) -> dict[Category, int]:
    """Return what of a tile's bytes rests on sizes that no source tells, by what they are for."""
    charges, machine = ipu.charges, plan.machine
    grids_of_tile = ipu.classes.grids_of(tile_class)
    bytes_by_category = {
        Category.VERTEX_STATE: sum(charges.assumed_state[tiles] for tiles in grids_of_tile)
    }
    if plan.code_memory:
        codes = {
            key: size
            for (key, tiles), size in charges.vertex_code.items()
            if tiles in grids_of_tile and key in charges.assumed_code
        }
        bytes_by_category[Category.VERTEX_CODE] = sum(codes.values())
        for category, key in (
            (Category.CONTROL_CODE, "memory.step_code_bytes"),
            (Category.EXCHANGE_CODE, "memory.exchange_fragment_code_bytes"),
        ):
            is_assumed = machine.rests_on_assumption(key)
            bytes_by_category[category] = int(ipu.fixed[category][tile_class]) if is_assumed else 0
    return bytes_by_category


def step_name(step: Step | None) -> str:
    """Return the instructions that a step comes from."""
    match step:
        case ComputeSet():
            return ", ".join(dict.fromkeys(group.name for group in step.groups if group.name))
        case StreamIn() | StreamOut():
            return step.stream
        case None:
            return ""
        case Exchange():
            return step.name
        case _:
            return str(getattr(step, "name", ""))


def _culprits(
    plan: MemoryPlan,
    ipu: IpuMemory,
    tile_class: int,
    numbers: list[int],
    sources: Mapping[str, str],
) -> list[Culprit]:
    """Return what is live on a tile at its peak, the largest first."""
    point = int(ipu.live.peak_point[tile_class])
    grids_of_tile = ipu.classes.grids_of(tile_class)
    live = [
        number
        for number in numbers
        if plan.program.variables[number].mapping.tiles in grids_of_tile
        and any(first <= point <= last for first, last in plan.liveness.ranges[number])
    ]
    live.sort(key=lambda n: (-kept_bytes(plan.program.variables[n], plan.machine), n))
    return [_culprit(plan, number, sources) for number in live]


def _exchange_culprits(
    ipu: IpuMemory, tile_class: int, sources: Mapping[str, str], most: int
) -> tuple[CodeCulprit, ...]:
    """Return the instructions whose exchanges need most code on a tile."""
    grids_of_tile = ipu.classes.grids_of(tile_class)
    sizes: Counter[str] = Counter()
    for name, grid, size in ipu.charges.exchanges:
        if grid in grids_of_tile:
            sizes[name] += size
    largest = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    return tuple(CodeCulprit(name, sources.get(name, ""), size) for name, size in largest[:most])


def _culprit(plan: MemoryPlan, number: int, sources: Mapping[str, str]) -> Culprit:
    variable = plan.program.variables[number]
    ranges = plan.liveness.ranges[number]
    return Culprit(
        name=variable.name,
        origin=variable.origin,
        source=sources.get(variable.origin, ""),
        element_type=variable.element_type,
        shape=variable.shape,
        role=variable.role.value,
        size_bytes=kept_bytes(variable, plan.machine),
        always_live=plan.liveness.always(number),
        first_step=moment(plan.liveness.region, ranges[0][0]).path,
        last_step=moment(plan.liveness.region, ranges[-1][1]).path,
    )


def _ipu_use(ipu: IpuMemory, tiles_of_class: Numbers, remote: RemoteParts) -> IpuUse:
    fullest = int(ipu.needed_bytes.argmax())
    return IpuUse(
        ipu=ipu.ipu,
        remote=remote,
        peak_tile=int(ipu.classes.first_tile[fullest]),
        peak_bytes=int(ipu.needed_bytes[fullest]),
        total_bytes=int(ipu.needed_bytes @ tiles_of_class),
        tiles_used=int(tiles_of_class[ipu.live.most_bytes > 0].sum()),
        gap_bytes=int(ipu.gap_bytes[fullest]),
    )


def _histogram(plan: MemoryPlan, counts: list[Numbers]) -> tuple[Bin, ...]:
    """Return how many tiles need how much, in tenths of what there is, and those that need more."""
    edges = [plan.available_bytes * tenth // _BINS for tenth in range(_BINS + 1)]
    tiles_by_bin = np.zeros(_BINS + 1, np.int64)
    for ipu, count in zip(plan.ipus, counts, strict=True):
        places = np.searchsorted(edges, ipu.needed_bytes, side="right") - 1
        # A tile that is full to the last byte still fits.
        places[ipu.needed_bytes == plan.available_bytes] = _BINS - 1
        np.add.at(tiles_by_bin, places, count)
    highs = [*edges[1:], -1]
    return tuple(
        Bin(low, high, int(tiles))
        for low, high, tiles in zip(edges, highs, tiles_by_bin, strict=True)
    )
