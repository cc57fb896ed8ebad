"""Concatenation, and the arithmetic of bounded sizes.

Source: openxla/xla `xla/service/shape_inference.cc`. A size is written here as (size, bound):
`5` is (5, None), `<=5` is (5, 5), `?` is (None, None).
"""

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.relations import make_array, same_type, sizes_agree, wider_type
from hloipu_compiler.inference.site import RULES, Site, array_operands, one_dimension
from hloipu_compiler.ir.shapes import UNBOUNDED, ArrayShape, Shape

Measure = tuple[int | None, int | None]


@RULES.register("concatenate")
def concatenate(site: Site) -> Shape:
    """Return the operands' shape with the sizes along one dimension added up."""
    shapes = array_operands(site)
    along = one_dimension(site, shapes[0].rank)
    element_type = shapes[0].element_type
    for number, shape in enumerate(shapes[1:], 1):
        _check_joinable(site, shapes[0], shape, number, along)
        element_type = wider_type(shape.element_type, shapes[0].element_type)
    if all(shape.dynamic is None for shape in shapes):
        sizes = list(shapes[0].dimensions)
        sizes[along] = sum(shape.dimensions[along] for shape in shapes)
        return make_array(element_type, sizes)
    measures = [
        _joined(shapes, d) if d == along else _most_specific(shapes, d)
        for d in range(shapes[0].rank)
    ]
    sizes = [UNBOUNDED if size is None else size for size, _ in measures]
    flags = [bound is not None or size is None for size, bound in measures]
    return make_array(element_type, sizes, flags)


def _check_joinable(
    site: Site, first: ArrayShape, shape: ArrayShape, number: int, along: int
) -> None:
    if not same_type(first.element_type, shape.element_type):
        raise faults.ELEMENT_TYPES_DIFFER(
            f"concatenate of {first} and {shape}", expected=first.element_type.name, operand=number
        )
    agree = first.rank == shape.rank and all(
        d == along or sizes_agree(a, b)
        for d, (a, b) in enumerate(zip(first.dimensions, shape.dimensions, strict=True))
    )
    if not agree:
        raise faults.SIZE_MISMATCH(
            f"{site.opcode} of {first} and {shape} along dimension {along}",
            expected=f"rank {first.rank} and the sizes of {first} but in dimension {along}",
            operand=number,
        )


def _measure(shape: ArrayShape, dimension: int) -> Measure:
    size = shape.dimensions[dimension]
    if size == UNBOUNDED:
        return None, None
    bounded = shape.dynamic is not None and shape.dynamic[dimension]
    return size, size if bounded else None


def _joined(shapes: list[ArrayShape], dimension: int) -> Measure:
    total: Measure = (0, None)
    for shape in shapes:
        size, bound = _measure(shape, dimension)
        total_size = None if total[0] is None or size is None else total[0] + size
        limit = None
        if total[1] is not None or bound is not None:
            left = total[0] if total[1] is None else total[1]
            right = size if bound is None else bound
            limit = None if left is None or right is None else left + right
        total = (total_size, limit)
    return total


def _most_specific(shapes: list[ArrayShape], dimension: int) -> Measure:
    best: Measure = (None, None)
    for number, shape in enumerate(shapes):
        size, bound = _measure(shape, dimension)
        known_size = size if best[0] is None else best[0]
        known_bound = bound if best[1] is None else best[1]
        clash = known_bound is not None and (
            (bound is not None and bound != known_bound)
            or (known_size is not None and known_size != known_bound)
        )
        if clash:
            raise faults.SIZE_MISMATCH(
                f"bounds {known_bound} and {size} in dimension {dimension}",
                expected=f"<={known_bound}",
                operand=number,
            )
        best = (known_size, known_bound)
    return best
