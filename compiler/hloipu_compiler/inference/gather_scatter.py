"""Gather and scatter with their dimension numbers, batching dimensions included.

Source: openxla/xla `xla/service/shape_inference.cc`. Where `index_vector_dim` equals the rank of
the indices, the indices count as having one more dimension of size 1.
"""

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.reducers import check_reducer
from hloipu_compiler.inference.relations import dynamic_flags, make_array, scalar, sizes_agree
from hloipu_compiler.inference.site import (
    RULES,
    Site,
    array_operand,
    braced,
    check_ascending,
    check_range,
    check_unique,
)
from hloipu_compiler.ir.shapes import UNBOUNDED, ArrayShape, Shape, TupleShape

OLD_NAMES = {
    "offset_dims": "output_window_dims",
    "collapsed_slice_dims": "elided_window_dims",
    "start_index_map": "gather_dims_to_operand_dims",
    "slice_sizes": "window_bounds",
}
"""Names of gather's attributes before August 2018."""


@RULES.register("gather")
def gather(site: Site) -> Shape:
    """Return the indices' sizes with the kept sizes of the slices at `offset_dims`."""
    operand, indices = array_operand(site, 0), array_operand(site, 1)
    index_sizes, index_flags = _expanded_indices(site, indices, 1)
    offsets = _numbers(site, "offset_dims")
    hidden = _check_gather_numbers(site, operand, index_sizes, offsets)
    slices = _numbers(site, "slice_sizes")
    _check_slices(operand, slices, hidden)
    vector = site.attributes.integer("index_vector_dim")
    slice_dims = iter([d for d in range(operand.rank) if d not in hidden])
    batch = iter([d for d in range(len(index_sizes)) if d != vector])
    operand_flags, offset_set = dynamic_flags(operand), set(offsets)
    sizes: list[int] = []
    flags: list[bool] = []
    for place in range(len(offsets) + len(index_sizes) - 1):
        if place in offset_set:
            d = next(slice_dims)
            sizes.append(slices[d])
            flags.append(operand_flags[d] and slices[d] == operand.dimensions[d])
        else:
            d = next(batch)
            sizes.append(index_sizes[d])
            flags.append(index_flags[d])
    return make_array(operand.element_type, sizes, flags)


def _numbers(site: Site, name: str) -> tuple[int, ...]:
    numbers = site.attributes.integers(name)
    return (
        numbers if numbers or name in site.attributes else site.attributes.integers(OLD_NAMES[name])
    )


def _expanded_indices(
    site: Site, indices: ArrayShape, number: int
) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    if not indices.element_type.is_integer:
        raise faults.INDEX_OPERAND(
            f"indices {indices} of {site.opcode}", expected="integers", operand=number
        )
    vector = site.attributes.integer("index_vector_dim")
    check_range(site, "index_vector_dim", (vector,), indices.rank + 1)
    if vector < indices.rank:
        return indices.dimensions, dynamic_flags(indices)
    return (*indices.dimensions, 1), (*dynamic_flags(indices), False)


def _check_gather_numbers(
    site: Site, operand: ArrayShape, index_sizes: tuple[int, ...], offsets: tuple[int, ...]
) -> set[int]:
    check_ascending(site, "offset_dims", offsets)
    check_range(site, "offset_dims", offsets, len(offsets) + len(index_sizes) - 1)
    _check_index_map(
        site, "start_index_map", _numbers(site, "start_index_map"), operand, index_sizes
    )
    collapsed = _numbers(site, "collapsed_slice_dims")
    check_range(site, "collapsed_slice_dims", collapsed, operand.rank)
    check_ascending(site, "collapsed_slice_dims", collapsed)
    batching = _check_batching(
        site, ("operand_batching_dims", "start_indices_batching_dims"), operand, index_sizes
    )
    hidden = {*collapsed, *batching}
    if len(offsets) + len(collapsed) + len(batching) != operand.rank or len(hidden) != len(
        collapsed
    ) + len(batching):
        raise faults.DIMENSION_COUNT(
            f"gather names {len(offsets)} offset, {len(collapsed)} collapsed and {len(batching)} "
            f"batching dimensions of {operand}",
            expected=f"each of the {operand.rank} dimensions once",
            attribute="offset_dims",
        )
    return hidden


def _check_index_map(
    site: Site,
    name: str,
    numbers: tuple[int, ...],
    operand: ArrayShape,
    index_sizes: tuple[int, ...],
) -> None:
    length = index_sizes[site.attributes.integer("index_vector_dim")]
    if not sizes_agree(len(numbers), length):
        raise faults.DIMENSION_COUNT(
            f"{name}={braced(numbers)} for index vectors of size {length}",
            expected=f"{length} dimensions",
            attribute=name,
        )
    check_range(site, name, numbers, operand.rank)
    check_unique(site, name, numbers)


def _check_batching(
    site: Site, names: tuple[str, str], operand: ArrayShape, index_sizes: tuple[int, ...]
) -> tuple[int, ...]:
    of_operand, of_indices = map(site.attributes.integers, names)
    if len(of_operand) != len(of_indices):
        raise faults.DIMENSION_COUNT(
            f"{len(of_operand)} {names[0]} and {len(of_indices)} {names[1]}",
            expected="as many of one as of the other",
            attribute=names[0],
        )
    check_range(site, names[0], of_operand, operand.rank)
    check_ascending(site, names[0], of_operand)
    check_range(site, names[1], of_indices, len(index_sizes))
    check_unique(site, names[1], of_indices)
    return of_operand


def _check_slices(operand: ArrayShape, slices: tuple[int, ...], hidden: set[int]) -> None:
    if len(slices) != operand.rank:
        raise faults.DIMENSION_COUNT(
            f"{len(slices)} slice sizes of {operand}",
            expected=f"{operand.rank} sizes",
            attribute="slice_sizes",
        )
    for d, (size, dimension_size) in enumerate(zip(slices, operand.dimensions, strict=True)):
        most = (
            1
            if d in hidden and (dimension_size == UNBOUNDED or dimension_size > 1)
            else dimension_size
        )
        if dimension_size == UNBOUNDED and d not in hidden:
            continue
        if not 0 <= size <= most:
            raise faults.OUT_OF_BOUNDS(
                f"a slice of {size} in dimension {d} of {operand}",
                expected=f"0 to {most}"
                + (", because the dimension is collapsed or batching" if d in hidden else ""),
                attribute="slice_sizes",
            )


@RULES.register("scatter")
def scatter(site: Site) -> Shape:
    """Return the shapes of the arrays that are updated, as a tuple where there are several."""
    count = len(site.operands) // 2
    if len(site.operands) != 2 * count + 1:
        raise faults.OPERAND_NUMBER(
            f"scatter of {len(site.operands)} operands",
            expected="n arrays, the indices and n updates",
        )
    indices = array_operand(site, count)
    index_sizes, _ = _expanded_indices(site, indices, count)
    targets = [array_operand(site, i) for i in range(count)]
    updates = [array_operand(site, count + 1 + i) for i in range(count)]
    for i, (target, update) in enumerate(zip(targets, updates, strict=True)):
        _check_scatter_numbers(site, target, update, index_sizes, count + 1 + i)
        _check_update_sizes(site, target, update, index_sizes, count + 1 + i)
    check_reducer(
        "to_apply",
        site.callee("to_apply"),
        [update.element_type for update in updates],
        [scalar(target.element_type) for target in targets],
    )
    return targets[0] if count == 1 else TupleShape(tuple(targets))


def _check_scatter_numbers(
    site: Site, target: ArrayShape, update: ArrayShape, index_sizes: tuple[int, ...], number: int
) -> None:
    window = site.attributes.integers("update_window_dims")
    inserted = site.attributes.integers("inserted_window_dims")
    rank = len(index_sizes) - 1 + len(window)
    if update.rank != rank:
        raise faults.SIZE_MISMATCH(
            f"updates {update} of rank {update.rank}",
            expected=f"rank {rank}: {len(index_sizes) - 1} of the indices, {len(window)} windows",
            operand=number,
        )
    check_ascending(site, "update_window_dims", window)
    check_range(site, "update_window_dims", window, rank)
    check_ascending(site, "inserted_window_dims", inserted)
    check_range(site, "inserted_window_dims", inserted, target.rank)
    batching = _check_batching(
        site, ("input_batching_dims", "scatter_indices_batching_dims"), target, index_sizes
    )
    named = len(window) + len(inserted) + len(batching)
    if named != target.rank or set(inserted) & set(batching):
        raise faults.DIMENSION_COUNT(
            f"scatter names {len(window)} window, {len(inserted)} inserted and {len(batching)} "
            f"batching dimensions of {target}",
            expected=f"each of the {target.rank} dimensions once",
            attribute="update_window_dims",
        )
    name = "scatter_dims_to_operand_dims"
    _check_index_map(site, name, site.attributes.integers(name), target, index_sizes)


def _check_update_sizes(
    site: Site, target: ArrayShape, update: ArrayShape, index_sizes: tuple[int, ...], number: int
) -> None:
    window = set(site.attributes.integers("update_window_dims"))
    vector = site.attributes.integer("index_vector_dim")
    hidden = {
        *site.attributes.integers("inserted_window_dims"),
        *site.attributes.integers("input_batching_dims"),
    }
    window_dims = iter([d for d in range(target.rank) if d not in hidden])
    batch = iter([d for d in range(len(index_sizes)) if d != vector])
    for place, size in enumerate(update.dimensions):
        if place in window:
            target_size = target.dimensions[next(window_dims)]
            fits, wanted = size <= target_size, f"at most {target_size}"
        else:
            target_size = index_sizes[next(batch)]
            fits, wanted = sizes_agree(size, target_size), f"{target_size}, as in the indices"
        if not fits:
            raise faults.SIZE_MISMATCH(
                f"size {size} in dimension {place} of updates {update}",
                expected=wanted,
                operand=number,
            )
