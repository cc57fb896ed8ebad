"""Evaluation of ops that move elements, by views where possible."""

import numpy as np

from hloipu_compiler.interpret.planning.plan import Action, Array, may_overwrite
from hloipu_compiler.interpret.planning.site import Site, lowers
from hloipu_runtime.kernels.core import movement


@lowers("iota")
def _iota(site: Site) -> Action:
    value = movement.iota(
        site.sizes(), site.attributes.integer("iota_dimension"), site.element_type()
    )
    return lambda _: (value,)


@lowers("broadcast")
def _broadcast(site: Site) -> Action:
    sizes, dimensions = site.sizes(), site.attributes.integers("dimensions")
    dtype = np.dtype(site.array_shape(0).element_type.storage)
    strides, step = [0] * len(sizes), dtype.itemsize
    for dimension, size in reversed(list(zip(dimensions, site.sizes(0), strict=True))):
        strides[dimension] = step if size > 1 else 0
        step *= size

    def run(x: list[Array]) -> tuple[Array]:
        (source,) = x
        if not source.flags.c_contiguous or source.dtype != dtype or not source.size:
            return (movement.broadcast(source, sizes, dimensions),)
        # The same view, made at a fifth of the price: small programs are full of these.
        view = np.ndarray(sizes, dtype, source, 0, strides)
        view.flags.writeable = False
        return (view,)

    return run


@lowers("reshape", "dynamic-reshape")
def _reshape(site: Site) -> Action:
    sizes = site.sizes()
    return lambda x: (movement.reshape(x[0], sizes),)


@lowers("bitcast")
def _bitcast(site: Site) -> Action:
    """Read memory in the operand's layout as the result's shape in the result's layout."""
    before, after = site.array_shape(0), site.array_shape()
    to_memory = _memory_order(before.layout.minor_to_major if before.layout else None, before.rank)
    order = _memory_order(after.layout.minor_to_major if after.layout else None, after.rank)
    stored_sizes = tuple(after.dimensions[d] for d in order)
    back = tuple(sorted(range(after.rank), key=order.__getitem__))
    source, target = before.element_type.name, after.element_type.name

    from hloipu_runtime.kernels.elementwise.convert import bitcast_convert

    def run(x: list[Array]) -> tuple[Array]:
        stored = movement.transpose(x[0], to_memory)
        if source != target:
            stored = bitcast_convert(stored, source, target)
        return (movement.transpose(movement.reshape(stored, stored_sizes), back),)

    return run


def _memory_order(minor_to_major: tuple[int, ...] | None, rank: int) -> tuple[int, ...]:
    return tuple(reversed(minor_to_major)) if minor_to_major else tuple(range(rank))


@lowers("transpose")
def _transpose(site: Site) -> Action:
    dimensions = site.attributes.integers("dimensions")
    return lambda x: (movement.transpose(x[0], dimensions),)


@lowers("reverse")
def _reverse(site: Site) -> Action:
    dimensions = site.attributes.integers("dimensions")
    return lambda x: (movement.reverse(x[0], dimensions),)


@lowers("slice")
def _slice(site: Site) -> Action:
    ranges = site.attributes.slice_ranges()
    starts, limits = [r.start for r in ranges], [r.limit for r in ranges]
    strides = [r.stride for r in ranges]
    return lambda x: (movement.slice_(x[0], starts, limits, strides),)


@lowers("concatenate")
def _concatenate(site: Site) -> Action:
    (dimension,) = site.attributes.integers("dimensions")
    return lambda x: (movement.concatenate(x, dimension),)


@lowers("pad")
def _pad(site: Site) -> Action:
    padding = site.attributes.padding()
    return lambda x: (movement.pad(x[0], x[1], padding),)


@lowers("dynamic-slice")
def _dynamic_slice(site: Site) -> Action:
    sizes = site.attributes.integers("dynamic_slice_sizes")
    if _starts_are_one_vector(site, 1):
        return lambda x: (movement.dynamic_slice(x[0], list(x[1]), sizes),)
    return lambda x: (movement.dynamic_slice(x[0], x[1:], sizes),)


@lowers("dynamic-update-slice")
def _dynamic_update_slice(site: Site) -> Action:
    vector = _starts_are_one_vector(site, 2)

    def run(x: list[Array]) -> tuple[Array]:
        starts = list(x[2]) if vector else x[2:]
        # Writing into a dead operand makes a loop over a growing array linear, not quadratic.
        out = x[0] if may_overwrite(x, 0) else None
        return (movement.dynamic_update_slice(x[0], x[1], starts, out),)

    return run


def _starts_are_one_vector(site: Site, first: int) -> bool:
    """Whether the starts come as one rank-1 operand, as dumps before 2019 print them."""
    return len(site.operand_shapes) == first + 1 and len(site.sizes(first)) == 1


@lowers("gather")
def _gather(site: Site) -> Action:
    integers = site.attributes.integers
    from hloipu_runtime.kernels.gather import GatherDimensions, gather

    dims = GatherDimensions(
        integers("offset_dims"),
        integers("collapsed_slice_dims"),
        integers("start_index_map"),
        site.attributes.integer("index_vector_dim"),
        integers("operand_batching_dims"),
        integers("start_indices_batching_dims"),
    )
    sizes = integers("slice_sizes")
    return lambda x: (gather(x[0], x[1], dims, sizes),)


@lowers("get-dimension-size")
def _get_dimension_size(site: Site) -> Action:
    """Sizes are static here: the run-time size is the size."""
    (dimension,) = site.attributes.integers("dimensions")
    value = np.asarray(site.sizes(0)[dimension], np.int32)
    return lambda _: (value,)
