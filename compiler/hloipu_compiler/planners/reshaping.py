"""Where a reshaped value stays: on the tiles that have its elements already."""

from hloipu_compiler.planners.layout_propagation import reshaped
from hloipu_runtime.program.mapping import Mapping, Sizes, Tiles


def reshaped_in_place(lying: Mapping, shape: Sizes, new: Sizes) -> Mapping | None:
    """Return a mapping of the new shape that moves nothing from its tile; None without one.

    What is spread over many tiles alone: a value on few tiles is better spread anew.
    """
    if lying.replicated_axes or not lying.tiles.extents:
        return None
    found = reshaped(lying, shape, new)
    return None if found is None else _with_axes_of(found, lying.tiles)


def _with_axes_of(mapping: Mapping, tiles: Tiles) -> Mapping:
    """Return the mapping with its grid axes in the order of another grid, where they are alike."""
    here = mapping.tiles
    axes = list(zip(here.extents, here.strides, strict=True))
    wanted = list(zip(tiles.extents, tiles.strides, strict=True))
    if here == tiles or sorted(axes) != sorted(wanted) or len(set(axes)) != len(axes):
        return mapping
    place = {axis: wanted.index(pair) for axis, pair in enumerate(axes)}
    return Mapping(
        tiles,
        tuple(s._replace(axis=place[s.axis]) if s.axis >= 0 else s for s in mapping.spans),
    )
