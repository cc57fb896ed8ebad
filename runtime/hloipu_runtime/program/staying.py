"""Transfers that stay on their tiles, in closed form.

Where a tile's part of some dimensions is a run of their row-major order, it begins at a number of
elements that grows evenly along each axis of the grid. Two layouts are the same if these numbers
are, however their axes are split and their dimensions cut.
"""

from functools import lru_cache
from typing import NamedTuple

from hloipu_runtime.program.mapping import Box, Mapping, Sizes, extent_of, volume, whole_box
from hloipu_runtime.program.program import Variable
from hloipu_runtime.program.relation import dimension_groups, has_parts
from hloipu_runtime.program.steps import Transfer


class _Axis(NamedTuple):
    """Tiles in a row, and by how many elements their runs begin further on."""

    stride: int
    extent: int
    steps: Sizes
    """Of each group of dimensions."""


class _Layout(NamedTuple):
    """The run of each group of dimensions on every tile."""

    first: int
    axes: tuple[_Axis, ...]
    runs: tuple[tuple[int, int], ...]
    """Where the first tile's begins, and how long it is; cut off at the ends of the group."""


class _Run(NamedTuple):
    """A mapping's part of a group of dimensions."""

    start: int
    length: int
    steps: dict[int, int]
    """Along grid axes."""


def stays_on_tiles(transfer: Transfer, source: Variable, destination: Variable) -> bool:
    """Whether each tile already has, in the source, all that it receives.

    Never wrongly true; false also for some transfers of boxes, and where tiles have more than that.
    """
    if not volume(transfer.box):
        return True
    if source.ipu != destination.ipu or transfer.tiles != destination.mapping.tiles:
        return False
    if transfer.spans != destination.mapping.spans or any(transfer.shift):
        return False
    return _lie_alike(
        source.mapping, source.shape, destination.mapping, transfer.view, transfer.box
    )


@lru_cache(1 << 12)
def _lie_alike(source: Mapping, shape: Sizes, destination: Mapping, view: Sizes, box: Box) -> bool:
    if box != whole_box(view):
        return False
    if source == destination and shape == view:
        return True
    groups = dimension_groups(view, shape)
    source_layout = _layout(source, shape, [sources for _, sources in groups])
    return source_layout is not None and source_layout == _layout(
        destination, view, [targets for targets, _ in groups]
    )


def _layout(mapping: Mapping, shape: Sizes, groups: list[list[int]]) -> _Layout | None:
    """Return the runs of a mapping; None where its parts are none."""
    for span, size in zip(mapping.spans, shape, strict=True):
        if size == 1 and has_parts(span, size):
            return None
    runs = [_run(mapping, shape, group) for group in groups]
    whole_runs = [run for run in runs if run is not None]
    if len(whole_runs) < len(runs):
        return None
    tiles = mapping.tiles
    axes = sorted(
        _Axis(stride, extent, tuple(run.steps.get(number, 0) for run in whole_runs))
        for number, (stride, extent) in enumerate(zip(tiles.strides, tiles.extents, strict=True))
    )
    return _Layout(tiles.first, _joined(axes), tuple((run.start, run.length) for run in whole_runs))


def _run(mapping: Mapping, shape: Sizes, group: list[int]) -> _Run | None:
    """Return what every tile has of some dimensions; None where that is no run of their order."""
    start, length, inner = 0, 1, 1
    steps: dict[int, int] = {}
    is_cut = False
    for place in reversed(group):
        span, size = mapping.spans[place], shape[place]
        if is_cut and span.size != 1:
            return None
        if has_parts(span, size):
            end = (extent_of(mapping.tiles, span) - 1) * span.step + span.offset + span.size
            if place != group[0] and (span.offset < 0 or end > size):
                return None  # a part cut short would end the run early
            is_cut = True
            start += span.offset * inner
            length *= span.size
            if span.axis >= 0:
                steps[span.axis] = span.step * inner
        else:
            length *= size
        inner *= size
    return _Run(start, length, steps)


def _joined(axes: list[_Axis]) -> tuple[_Axis, ...]:
    """Return axes, finest first, with those joined that go on where the one before ends."""
    joined: list[_Axis] = []
    for axis in axes:
        if joined:
            last = joined[-1]
            further = tuple(last.extent * step for step in last.steps)
            if axis.stride == last.extent * last.stride and axis.steps == further:
                joined[-1] = last._replace(extent=last.extent * axis.extent)
                continue
        joined.append(axis)
    return tuple(joined)
