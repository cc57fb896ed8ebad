"""Exchange buffers: memory in which one end rearranges data during an exchange."""

from collections.abc import Mapping
from typing import NamedTuple

from hloipu_runtime.memory.liveness import Ranges, merged
from hloipu_runtime.memory.regions import Region
from hloipu_runtime.program.collective import Collective
from hloipu_runtime.program.mapping import Tiles
from hloipu_runtime.program.steps import Exchange, Step, VariableId


class Message(NamedTuple):
    """Messages of one transfer at one of its ends."""

    step: Exchange | Collective
    tiles: Tiles
    size_bytes: int
    """On each tile, at most."""
    destination: VariableId
    """The variable that they go to."""
    ranges: Ranges
    """Points at which it takes memory."""
    address: int = -1
    """On all tiles."""


def points_of(region: Region, steps: Mapping[int, Step]) -> dict[int, Ranges]:
    """Return the points of some leaves, by their identity; functions count at every call."""
    points_by_step: dict[int, list[tuple[int, int]]] = {identity: [] for identity in steps}
    if steps:
        holds: dict[int, bool] = {}
        _walk(region, 0, points_by_step, holds)
    return {identity: merged(ranges) for identity, ranges in points_by_step.items()}


def _walk(
    region: Region,
    base: int,
    points_by_step: dict[int, list[tuple[int, int]]],
    holds: dict[int, bool],
) -> bool:
    """Add the points of a region's exchanges; regions that hold none are looked into once."""
    if not holds.get(id(region), True):
        return False
    any_here = False
    for item in region.items:
        point = base + item.offset
        if not item.children:
            points = points_by_step.get(id(item.step))
            if points is not None:
                points.append((point, point + item.length - 1))
                any_here = True
        for _, child in item.children:
            any_here |= _walk(child, point, points_by_step, holds)
            point += child.length
    holds[id(region)] = any_here
    return any_here
