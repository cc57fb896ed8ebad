"""Operations on sizes that are known only at run time.

Sources: openxla/xla `xla/service/shape_inference.cc`, `xla/service/hlo_verifier.cc`.
"""

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.movement import check_same_elements
from hloipu_compiler.inference.relations import dynamic_flags, with_dynamic
from hloipu_compiler.inference.site import RULES, Site, array_operand, declared_array, one_dimension
from hloipu_compiler.ir.shapes import ArrayShape, Shape
from hloipu_runtime.element_types import S32

LARGEST_SIZE = 2**31 - 1
"""Sizes are handled as s32."""


def get_dimension_size(site: Site) -> Shape:
    """Return s32[]."""
    _sized_dimension(site)
    return ArrayShape(S32)


def set_dimension_size(site: Site) -> Shape:
    """Return the operand's shape with one dimension dynamic."""
    operand, along = _sized_dimension(site)
    size = array_operand(site, 1)
    if size.dimensions or size.element_type is not S32:
        raise faults.INDEX_OPERAND(f"a size of shape {size}", expected="s32[]", operand=1)
    flags = list(dynamic_flags(operand))
    flags[along] = True
    return with_dynamic(operand, flags)


def _sized_dimension(site: Site) -> tuple[ArrayShape, int]:
    operand = array_operand(site, 0)
    along = one_dimension(site, operand.rank)
    if operand.dimensions[along] > LARGEST_SIZE:
        raise faults.SHAPE_OVERFLOW(
            f"the size of dimension {along} of {operand}",
            expected=f"at most {LARGEST_SIZE}",
            operand=0,
        )
    return operand, along


def dynamic_reshape(site: Site) -> Shape:
    """Return the declared shape, whose sizes are bounds; one s32 operand gives each real size."""
    operand, shape = array_operand(site, 0), declared_array(site)
    check_same_elements(site, operand, shape)
    if len(site.operands) != shape.rank + 1:
        raise faults.OPERAND_NUMBER(
            f"{len(site.operands) - 1} sizes for {shape}",
            expected=f"{shape.rank}, one for each dimension",
        )
    for number in range(1, len(site.operands)):
        size = array_operand(site, number)
        if size.element_type is not S32:
            raise faults.INDEX_OPERAND(f"a size of shape {size}", expected="s32[]", operand=number)
    return shape


RULES.add(
    {
        "get-dimension-size": get_dimension_size,
        "set-dimension-size": set_dimension_size,
        "dynamic-reshape": dynamic_reshape,
    }
)
