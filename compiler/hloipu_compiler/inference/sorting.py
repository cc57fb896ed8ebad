"""Operations that order elements: sort and topk.

Sources: openxla/xla `xla/service/hlo_verifier.cc` (`HandleSort`), `xla/service/shape_inference.cc`.
"""

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.reducers import check_same_sizes, scalar_parameter
from hloipu_compiler.inference.relations import dynamic_flags, make_array, with_type
from hloipu_compiler.inference.site import RULES, Site, array_operand, array_operands, check_range
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape, compatible
from hloipu_runtime.element_types import PRED, S32


@RULES.register("sort")
def sort(site: Site) -> Shape:
    """Return the operands' shapes, as a tuple where there are several.

    The comparator takes two elements of each operand (a1, b1, a2, b2…) and returns pred[]; dumps
    from before 2019 have none and sort the first operand in ascending order.
    """
    shapes = array_operands(site)
    check_same_sizes(site, shapes)
    if site.verifying:
        check_range(site, "dimensions", site.attributes.integers("dimensions"), shapes[0].rank)
        if "to_apply" in site.attributes:
            _check_comparator(site, shapes)
    return shapes[0] if len(shapes) == 1 else TupleShape(site.operands)


def _check_comparator(site: Site, shapes: list[ArrayShape]) -> None:
    program = site.callee("to_apply")
    wanted = [shape.element_type for shape in shapes for _ in range(2)]
    fits = len(program.parameters) == len(wanted) and all(
        map(scalar_parameter, program.parameters, wanted)
    )
    if not fits or not compatible(program.result, ArrayShape(PRED)):
        shown = ", ".join(map(str, program.parameters))
        needed = ", ".join(f"{element_type.name}[]" for element_type in wanted)
        raise faults.REDUCER(
            f"the comparator is ({shown}) -> {program.result}",
            expected=f"({needed}) -> pred[]",
            attribute="to_apply",
        )


@RULES.register("topk")
def topk(site: Site) -> Shape:
    """Return (values, s32 indices) with k elements in the last dimension."""
    operand, k = array_operand(site, 0), site.attributes.integer("k")
    last = operand.dimensions[-1] if operand.dimensions else 0
    if not operand.dimensions or not 0 <= k <= last:
        raise faults.OUT_OF_BOUNDS(
            f"the {k} largest of {operand}",
            expected=f"k from 0 to {last} and rank at least 1",
            attribute="k",
        )
    flags = (*dynamic_flags(operand)[:-1], False)
    values = make_array(operand.element_type, (*operand.dimensions[:-1], k), flags)
    return TupleShape((values, with_type(values, S32)))
