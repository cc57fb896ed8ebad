"""Contractions: dot, ragged-dot and scaled-dot.

Sources: openxla/xla `xla/service/shape_inference.cc`, `xla/service/hlo_verifier.cc`
(`HandleScaledDot`). The result's element type is free: the declared one is taken, and only where
none is declared the wider of the operands'.
"""

from typing import NamedTuple

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.relations import dynamic_at, make_array, sizes_agree, wider_type
from hloipu_compiler.inference.site import RULES, Site, array_operand, array_operands, check_range
from hloipu_compiler.ir.shapes import ArrayShape, Shape
from hloipu_runtime.element_types import ELEMENT_TYPES, ElementType

BF16 = ELEMENT_TYPES["bf16"]


class DotNumbers(NamedTuple):
    """Batch and contracting dimensions of either side."""

    left_batch: tuple[int, ...]
    left_contracting: tuple[int, ...]
    right_batch: tuple[int, ...]
    right_contracting: tuple[int, ...]


@RULES.register("dot")
def dot(site: Site) -> Shape:
    """Return the batch sizes, then the free sizes of the left, then of the right operand."""
    left, right = array_operand(site, 0), array_operand(site, 1)
    numbers = dot_numbers(site, left, right)
    return _contracted(site, left, right, numbers)


def dot_numbers(site: Site, left: ArrayShape, right: ArrayShape) -> DotNumbers:
    """Return the checked dimension numbers: in range, each once, in pairs of agreeing sizes."""
    integers = site.attributes.integers
    numbers = DotNumbers(
        integers("lhs_batch_dims"),
        integers("lhs_contracting_dims"),
        integers("rhs_batch_dims"),
        integers("rhs_contracting_dims"),
    )
    _check_side(site, "lhs", left, numbers.left_batch, numbers.left_contracting)
    _check_side(site, "rhs", right, numbers.right_batch, numbers.right_contracting)
    _check_pairs(
        site, "contracting", left, right, numbers.left_contracting, numbers.right_contracting
    )
    _check_pairs(site, "batch", left, right, numbers.left_batch, numbers.right_batch)
    return numbers


def _check_side(
    site: Site, side: str, shape: ArrayShape, batch: tuple[int, ...], contracting: tuple[int, ...]
) -> None:
    check_range(site, f"{side}_contracting_dims", contracting, shape.rank)
    check_range(site, f"{side}_batch_dims", batch, shape.rank)
    if len({*batch, *contracting}) != len(batch) + len(contracting):
        raise faults.DIMENSION_ORDER(
            f"a dimension of the {side} of {site.opcode} is named twice",
            expected="each dimension either batched, contracted or free",
            attribute=f"{side}_contracting_dims",
        )


def _check_pairs(
    site: Site,
    role: str,
    left: ArrayShape,
    right: ArrayShape,
    of_left: tuple[int, ...],
    of_right: tuple[int, ...],
) -> None:
    attribute = f"lhs_{role}_dims"
    if len(of_left) != len(of_right):
        raise faults.DIMENSION_COUNT(
            f"{len(of_left)} {role} dimensions on the left, {len(of_right)} on the right",
            expected="as many on one side as on the other",
            attribute=attribute,
        )
    for a, b in zip(of_left, of_right, strict=True):
        if not sizes_agree(left.dimensions[a], right.dimensions[b]):
            raise faults.SIZE_MISMATCH(
                f"{role} dimensions {a} of {left} and {b} of {right}",
                expected="equal sizes",
                operand=1,
                attribute=attribute,
            )


def preferred_type(site: Site, left: ArrayShape, right: ArrayShape) -> ElementType:
    """Return the declared element type, or the wider of the operands'."""
    if isinstance(site.declared, ArrayShape) and site.declared.element_type.is_array:
        return site.declared.element_type
    return wider_type(left.element_type, right.element_type)


def _contracted(
    site: Site,
    left: ArrayShape,
    right: ArrayShape,
    numbers: DotNumbers,
    groups: tuple[ArrayShape, int] | None = None,
    right_hidden: tuple[int, ...] = (),
) -> ArrayShape:
    left_free = _free(left, (*numbers.left_batch, *numbers.left_contracting))
    right_free = _free(right, (*numbers.right_batch, *numbers.right_contracting, *right_hidden))
    places = [groups] if groups else []
    places += [(left, d) for d in (*numbers.left_batch, *left_free)]
    places += [(right, d) for d in right_free]
    sizes = [shape.dimensions[d] for shape, d in places]
    flags = [dynamic_at(shape, d) for shape, d in places]
    return make_array(preferred_type(site, left, right), sizes, flags)


def _free(shape: ArrayShape, used_dims: tuple[int, ...]) -> list[int]:
    hidden = set(used_dims)
    return [d for d in range(shape.rank) if d not in hidden]


@RULES.register("scaled-dot")
def scaled_dot(site: Site) -> Shape:
    """Return the shape of the dot of the first two operands; scales divide them into blocks."""
    left, right, left_scale, right_scale = array_operands(site)
    numbers = dot_numbers(site, left, right)
    if site.verifying:
        _check_scale(left, left_scale, numbers.left_contracting, 2)
        _check_scale(right, right_scale, numbers.right_contracting, 3)
        if not left_scale.dimensions and not right_scale.dimensions:
            raise faults.SIZE_MISMATCH(
                "both scales of scaled-dot are scalars",
                expected="at least one scale array",
                operand=2,
                hint="without scales use dot",
            )
    return _contracted(site, left, right, numbers)


def _check_scale(
    operand: ArrayShape, scale: ArrayShape, contracting: tuple[int, ...], number: int
) -> None:
    if operand.element_type is BF16 and scale.element_type is BF16:
        stands_for_none = set(scale.dimensions) <= {1} and set(operand.dimensions) - {1}
        if stands_for_none:
            return
    divides = scale.rank == operand.rank and all(
        part > 0 and size % part == 0
        for size, part in zip(operand.dimensions, scale.dimensions, strict=True)
    )
    if not divides:
        raise faults.SIZE_MISMATCH(
            f"scale {scale} of {operand}",
            expected=f"rank {operand.rank} and sizes that divide those of {operand}",
            operand=number,
        )
    if len(contracting) != 1:
        raise faults.DIMENSION_COUNT(
            f"scaled-dot contracts {len(contracting)} dimensions",
            expected="exactly one",
            attribute="lhs_contracting_dims",
        )


@RULES.register("ragged-dot")
def ragged_dot(site: Site) -> Shape:
    """Return the shape of a dot whose left operand has one dimension cut into groups.

    A ragged free dimension takes one matrix of the right operand for each group; a ragged
    contracting dimension gives one result for each group, in front; a ragged batch changes nothing.
    """
    left, right, group_sizes = array_operands(site)
    numbers = dot_numbers(site, left, right)
    ragged = site.attributes.integers("lhs_ragged_dims")
    if len(ragged) != 1:
        raise faults.DIMENSION_COUNT(
            f"ragged-dot names {len(ragged)} ragged dimensions",
            expected="exactly one",
            attribute="lhs_ragged_dims",
        )
    check_range(site, "lhs_ragged_dims", ragged, left.rank)
    _check_group_sizes(left, group_sizes, numbers, ragged[0])
    hidden = _group_dimensions(site, right, group_sizes, numbers, ragged[0])
    stacked = ragged[0] in numbers.left_contracting
    groups = (group_sizes, group_sizes.rank - 1) if stacked else None
    return _contracted(site, left, right, numbers, groups, hidden)


def _check_group_sizes(
    left: ArrayShape, group_sizes: ArrayShape, numbers: DotNumbers, ragged: int
) -> None:
    free = _free(left, (*numbers.left_batch, *numbers.left_contracting))
    if ragged in numbers.left_batch:
        outer = numbers.left_batch[: numbers.left_batch.index(ragged)]
    elif ragged in numbers.left_contracting:
        before = numbers.left_contracting[: numbers.left_contracting.index(ragged)]
        outer = (*numbers.left_batch, *before)
    else:
        outer = (*numbers.left_batch, *free[: free.index(ragged)])
    wanted = tuple(left.dimensions[d] for d in outer)
    if group_sizes.rank != 1 and (
        not group_sizes.dimensions or group_sizes.dimensions[:-1] != wanted
    ):
        shown = ",".join([*map(str, wanted), "g"])
        raise faults.SIZE_MISMATCH(
            f"group sizes {group_sizes}", expected=f"[g] or [{shown}]", operand=2
        )


def _group_dimensions(
    site: Site, right: ArrayShape, group_sizes: ArrayShape, numbers: DotNumbers, ragged: int
) -> tuple[int, ...]:
    named = site.attributes.integers("rhs_group_dims")
    check_range(site, "rhs_group_dims", named, right.rank)
    free = ragged not in numbers.left_batch and ragged not in numbers.left_contracting
    used_dims = {*numbers.right_batch, *numbers.right_contracting}
    if len(named) != int(free) or used_dims.intersection(named):
        raise faults.DIMENSION_COUNT(
            f"ragged-dot names {len(named)} group dimensions of the right operand",
            expected="one free dimension" if free else "none: no free dimension is ragged",
            attribute="rhs_group_dims",
        )
    if named and not sizes_agree(right.dimensions[named[0]], group_sizes.dimensions[-1]):
        raise faults.SIZE_MISMATCH(
            f"group dimension {named[0]} of {right}",
            expected=f"size {group_sizes.dimensions[-1]}, the number of groups",
            operand=1,
        )
    return named
