"""Memory tile by tile and over program points: the data of memory charts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.memory.categories import Category
from hloipu_runtime.memory.liveness import Ranges, moment
from hloipu_runtime.memory.plan import NO_ADDRESS, IpuMemory, MemoryPlan, kept_bytes, rounded
from hloipu_runtime.memory.report import parts_by_class, step_name

Numbers = NDArray[np.int64]
MOST_TENSORS = 5000
"""Of a tile, the largest first; what smaller ones take is in the curves all the same."""
MOST_POINTS = 20_000
"""Of a curve; of longer ones, the fullest of several points in a row stands for all of them."""


def tiles_record(plan: MemoryPlan) -> list[dict[str, Any]]:
    """Return for each IPU what fills its tiles, each at its own peak, as JSON data.

    `classes` are runs `[class, tiles]` in the order of tiles; tiles of a class have the same
    memory. `parts` has the bytes of each class by category; they add up to `needed_bytes`.
    """
    on_ipu = _variables_by_ipu(plan)
    records = []
    for ipu in plan.ipus:
        parts = parts_by_class(plan, ipu, on_ipu[ipu.ipu])
        always = ipu.floor + ipu.live.always_bytes
        records.append(
            {
                "ipu": ipu.ipu,
                "classes": _runs(ipu.classes.of_tile),
                "needed_bytes": ipu.needed_bytes.tolist(),
                "always_live_bytes": always.tolist(),
                "parts": {category.value: parts[category].tolist() for category in Category},
            }
        )
    return records


def liveness_record(
    plan: MemoryPlan, *, sources: Mapping[str, str], most_tensors: int = MOST_TENSORS
) -> list[dict[str, Any]]:
    """Return for each IPU what is live on its fullest tile over the program, as JSON data.

    Points are leaf steps in the order of the program, loops once. `curve` is runs
    `[first point, bytes]` of what is not always live; `always_live_bytes` are code, vertices and
    all that stays. `tensors`: name, origin, source, role, bytes on this tile, address, `ranges` of
    points. `steps` names the points at which the curve changes.
    """
    on_ipu = _variables_by_ipu(plan)
    return [_live_on_fullest(plan, ipu, on_ipu[ipu.ipu], sources, most_tensors)
            for ipu in plan.ipus]  # fmt: skip


def _variables_by_ipu(plan: MemoryPlan) -> list[list[int]]:
    numbers_by_ipu: list[list[int]] = [[] for _ in plan.ipus]
    for number, variable in enumerate(plan.program.variables):
        if plan.liveness.ranges[number]:
            numbers_by_ipu[variable.ipu].append(number)
    return numbers_by_ipu


def _live_on_fullest(
    plan: MemoryPlan,
    ipu: IpuMemory,
    numbers: Sequence[int],
    sources: Mapping[str, str],
    most_tensors: int,
) -> dict[str, Any]:
    tile_class = int(ipu.needed_bytes.argmax())
    grids = ipu.classes.grids_of(tile_class)
    variables, points = plan.program.variables, plan.liveness.points
    on_tile = [n for n in numbers if variables[n].mapping.tiles in grids]
    sizes = [kept_bytes(variables[n], plan.machine) for n in on_tile]
    ranges = [plan.liveness.ranges[n] for n in on_tile]
    messages = [message for message in ipu.messages if message.tiles in grids]
    sizes_of_messages = [rounded(message.size_bytes, plan.machine) for message in messages]
    all_sizes, all_ranges = (
        sizes + sizes_of_messages,
        ranges + [message.ranges for message in messages],
    )
    is_passing = [r != ((0, points - 1),) for r in all_ranges]
    starts, live = _curve(
        [size for size, passing in zip(all_sizes, is_passing, strict=True) if passing],
        [r for r, passing in zip(all_ranges, is_passing, strict=True) if passing],
        points,
    )
    starts, live = _thinned(starts, live)
    order = sorted(range(len(on_tile)), key=lambda n: (-sizes[n], on_tile[n]))[:most_tensors]
    tensors: list[dict[str, Any]] = [
        {
            "name": variables[on_tile[n]].name,
            "origin": variables[on_tile[n]].origin,
            "source": sources.get(variables[on_tile[n]].origin, ""),
            "type": variables[on_tile[n]].element_type,
            "shape": list(variables[on_tile[n]].shape),
            "category": plan.category(on_tile[n]).value,
            "bytes": sizes[n],
            "address": plan.addresses[on_tile[n]],
            "ranges": [list(r) for r in ranges[n]],
        }
        for n in order
        if plan.addresses[on_tile[n]] != NO_ADDRESS
    ]
    tensors += [
        {
            "name": f"message of {step_name(message.step)}",
            "origin": step_name(message.step),
            "source": sources.get(step_name(message.step), ""),
            "type": "",
            "shape": [],
            "category": Category.EXCHANGE_BUFFERS.value,
            "bytes": size,
            "address": message.address,
            "ranges": [list(r) for r in message.ranges],
        }
        for message, size in zip(messages, sizes_of_messages, strict=True)
    ][: max(0, most_tensors - len(tensors))]
    moments = [moment(plan.liveness.region, point) for point in starts.tolist()]
    return {
        "ipu": ipu.ipu,
        "tile": int(ipu.classes.first_tile[tile_class]),
        "points": points,
        "peak_point": int(ipu.live.peak_point[tile_class]),
        "needed_bytes": int(ipu.needed_bytes[tile_class]),
        "gap_bytes": int(ipu.gap_bytes[tile_class]),
        "fixed_bytes": int(ipu.floor[tile_class]),
        "always_live_bytes": int(ipu.floor[tile_class] + ipu.live.always_bytes[tile_class]),
        "curve": [
            [point, size] for point, size in zip(starts.tolist(), live.tolist(), strict=True)
        ],
        "steps": [[place.path, step_name(place.step)] for place in moments],
        "tensors": tensors,
        "tensors_left_out": len(on_tile) + len(messages) - len(tensors),
    }


def _curve(sizes: Sequence[int], ranges: Sequence[Ranges], end: int) -> tuple[Numbers, Numbers]:
    """Return the points at which the sum of what is live changes, and the sum from there on."""
    changes: dict[int, int] = {0: 0}
    for size, variable_ranges in zip(sizes, ranges, strict=True):
        for first, last in variable_ranges:
            changes[first] = changes.get(first, 0) + size
            changes[last + 1] = changes.get(last + 1, 0) - size
    changes.pop(end, None)
    points = np.array(sorted(changes), np.int64)
    return points, np.cumsum(np.array([changes[point] for point in points.tolist()], np.int64))


def _thinned(points: Numbers, live: Numbers) -> tuple[Numbers, Numbers]:
    """Return at most `MOST_POINTS` of a curve, the fullest of each group."""
    group = -(-len(points) // MOST_POINTS)
    if group <= 1:
        return points, live
    starts = np.arange(0, len(points), group)
    return points[starts], np.maximum.reduceat(live, starts)


def _runs(of_tile: Numbers) -> list[list[int]]:
    starts = np.flatnonzero(np.diff(of_tile, prepend=-1))
    counts = np.diff(np.append(starts, len(of_tile)))
    return [[int(v), int(n)] for v, n in zip(of_tile[starts], counts, strict=True)]
