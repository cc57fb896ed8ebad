"""The three batch-norm operations.

Source: openxla/xla `xla/service/shape_inference.cc`.
"""

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.elementwise import check_kind
from hloipu_compiler.inference.relations import dynamic_at, make_array, same_sizes, sizes_agree
from hloipu_compiler.inference.site import RULES, Site, array_operand, check_range
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_runtime.element_types import Kind

_FLOAT = frozenset({Kind.FLOAT})


@RULES.register("batch-norm-training")
def batch_norm_training(site: Site) -> Shape:
    """Return (normalised operand, mean, variance); the last two have one number a feature."""
    operand, features = _checked(site, (1, 2))
    return TupleShape((operand, features, features))


@RULES.register("batch-norm-inference")
def batch_norm_inference(site: Site) -> Shape:
    """Return the operand's shape."""
    return _checked(site, (1, 2, 3, 4))[0]


@RULES.register("batch-norm-grad")
def batch_norm_grad(site: Site) -> Shape:
    """Return the gradients of (operand, scale, offset)."""
    operand, features = _checked(site, (1, 2, 3))
    gradient = array_operand(site, 4)
    check_kind(site, gradient, 4, _FLOAT)
    if not same_sizes(operand, gradient):
        raise faults.SIZE_MISMATCH(
            f"gradient {gradient} of {operand}", expected=f"the sizes of {operand}", operand=4
        )
    return TupleShape((operand, features, features))


def _checked(site: Site, per_feature: tuple[int, ...]) -> tuple[ArrayShape, ArrayShape]:
    operand, index = array_operand(site, 0), site.attributes.integer("feature_index")
    check_range(site, "feature_index", (index,), operand.rank)
    check_kind(site, operand, 0, _FLOAT)
    count = operand.dimensions[index]
    for number in per_feature:
        shape = array_operand(site, number)
        check_kind(site, shape, number, _FLOAT)
        if shape.rank != 1 or not sizes_agree(shape.dimensions[0], count):
            raise faults.SIZE_MISMATCH(
                f"operand {number} of {site.opcode} is {shape}",
                expected=f"{operand.element_type.name}[{count}], one number for each feature",
                operand=number,
            )
    return operand, make_array(operand.element_type, [count], [dynamic_at(operand, index)])
