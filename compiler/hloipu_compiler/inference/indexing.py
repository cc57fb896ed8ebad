"""Slices at run-time positions: dynamic-slice and dynamic-update-slice.

Source: openxla/xla `xla/service/shape_inference.cc`. Positions are one scalar for each dimension,
or, in dumps from before 2019, one array of rank 1.
"""

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.faults import ShapeFault
from hloipu_compiler.inference.relations import (
    dynamic_at,
    dynamic_flags,
    make_array,
    same_type,
    with_dynamic,
)
from hloipu_compiler.inference.site import RULES, Site, array_operand
from hloipu_compiler.ir.shapes import UNBOUNDED, ArrayShape, BufferShape, Shape, compatible


@RULES.register("dynamic-slice")
def dynamic_slice(site: Site) -> Shape:
    """Return `dynamic_slice_sizes`, each at most the operand's size."""
    operand, sizes = array_operand(site, 0), site.attributes.integers("dynamic_slice_sizes")
    _check_starts(site, 1, operand.rank)
    if len(sizes) != operand.rank:
        raise faults.DIMENSION_COUNT(
            f"{len(sizes)} slice sizes of {operand}",
            expected=f"{operand.rank} sizes",
            attribute="dynamic_slice_sizes",
        )
    flags = []
    for d, (size, dimension_size) in enumerate(zip(sizes, operand.dimensions, strict=True)):
        if size < 0 or (dimension_size != UNBOUNDED and size > dimension_size):
            raise faults.OUT_OF_BOUNDS(
                f"a slice of {size} in dimension {d} of {operand}",
                expected=f"0 to {dimension_size}",
                attribute="dynamic_slice_sizes",
            )
        flags.append(size > 1 and size == dimension_size and dynamic_at(operand, d))
    return make_array(operand.element_type, sizes, flags)


@RULES.register("dynamic-update-slice")
def dynamic_update_slice(site: Site) -> Shape:
    """Return the shape of the array or buffer that is updated; the update fits into it."""
    updated = site.operands[0]
    target = updated.contents if isinstance(updated, BufferShape) else array_operand(site, 0)
    update = array_operand(site, 1)
    _check_starts(site, 2, target.rank)
    if not same_type(target.element_type, update.element_type):
        raise faults.ELEMENT_TYPES_DIFFER(
            f"an update of {update} to {target}", expected=target.element_type.name, operand=1
        )
    if update.rank != target.rank:
        raise faults.SIZE_MISMATCH(
            f"an update {update} of rank {update.rank} to {target}",
            expected=f"rank {target.rank}",
            operand=1,
        )
    for d, (part, size) in enumerate(zip(update.dimensions, target.dimensions, strict=True)):
        if size != UNBOUNDED and part > size:
            raise faults.OUT_OF_BOUNDS(
                f"an update of {part} in dimension {d} of {target}",
                expected=f"at most {size}",
                operand=1,
            )
    if update.dynamic is None or isinstance(updated, BufferShape):
        return updated
    return _with_updated_flags(target, update)


def _with_updated_flags(target: ArrayShape, update: ArrayShape) -> ArrayShape:
    flags = [
        before or (after and part == size)
        for before, after, part, size in zip(
            dynamic_flags(target),
            dynamic_flags(update),
            update.dimensions,
            target.dimensions,
            strict=True,
        )
    ]
    return with_dynamic(target, flags)


def _check_starts(site: Site, first: int, rank: int) -> None:
    starts = site.operands[first:]
    if len(starts) == 1 and isinstance(starts[0], ArrayShape) and starts[0].rank == 1:
        fits = starts[0].element_type.is_integer and starts[0].dimensions == (rank,)
        if not fits:
            raise _index_fault(site, first, f"{starts[0]}", f"an integer array of size {rank}")
        return
    if len(starts) != rank:
        raise _index_fault(site, first, f"{len(starts)} start indices", f"{rank}, one a dimension")
    for number, start in enumerate(starts, first):
        shaped = isinstance(start, ArrayShape) and not start.dimensions
        if not shaped or not start.element_type.is_integer:  # type: ignore[union-attr]
            raise _index_fault(site, number, f"start index {start}", "one integer")
        if start is not starts[0] and not compatible(start, starts[0]):
            raise _index_fault(site, number, f"start index {start}", f"{starts[0]}, as the first")


def _index_fault(site: Site, number: int, problem: str, expected: str) -> ShapeFault:
    inside = number if number < len(site.operands) else None
    return faults.INDEX_OPERAND(f"{site.opcode} with {problem}", expected=expected, operand=inside)
