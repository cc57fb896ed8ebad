"""Random numbers.

Source: openxla/xla `xla/service/hlo_verifier.cc`. No shape can be inferred; the declared one is
checked.
"""

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.site import (
    RULES,
    Site,
    array_operand,
    declared_array,
    declared_shape,
)
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape, compatible
from hloipu_runtime.element_types import U64, Kind


@RULES.register("rng")
def rng(site: Site) -> Shape:
    """Return the declared shape; both parameters of the distribution are numbers of its type."""
    shape = declared_array(site)
    if len(site.operands) != 2:
        raise faults.OPERAND_NUMBER(
            f"rng of {len(site.operands)} operands",
            expected="2: lower and upper bound, or mean and deviation",
        )
    for number in range(2):
        operand = array_operand(site, number)
        if operand.dimensions or operand.element_type is not shape.element_type:
            code = faults.SIZE_MISMATCH if operand.dimensions else faults.ELEMENT_TYPES_DIFFER
            raise code(
                f"rng of {shape} from {operand}",
                expected=f"{shape.element_type.name}[]",
                operand=number,
            )
    distribution = site.attributes.text("distribution").lower()
    kind = shape.element_type.kind
    if distribution not in ("rng_uniform", "rng_normal"):
        raise faults.ATTRIBUTE_VALUE(
            f"distribution={distribution}",
            expected="rng_uniform or rng_normal",
            attribute="distribution",
        )
    if kind is Kind.COMPLEX or (distribution == "rng_normal" and kind is not Kind.FLOAT):
        raise faults.ELEMENT_TYPE(
            f"{distribution} of {shape.element_type.name}",
            expected="a float type" + ("" if distribution == "rng_normal" else ", integer or pred"),
            operand=0,
        )
    return shape


@RULES.register("rng-bit-generator")
def rng_bit_generator(site: Site) -> Shape:
    """Return the declared shape: the bits, or (new state, bits) with the state as given."""
    shape = declared_shape(site)
    if not isinstance(shape, TupleShape):
        return shape
    if len(shape.elements) != 2 or not compatible(shape.elements[0], site.operands[0]):
        raise faults.DECLARED_STRUCTURE(
            f"rng-bit-generator of {site.operands[0]} is declared as {shape}",
            expected=f"({site.operands[0]}, bits)",
        )
    return shape


@RULES.register("rng-get-and-update-state")
def rng_get_and_update_state(site: Site) -> Shape:
    """Return u64[2], the state of the generator."""
    return ArrayShape(U64, (2,))
