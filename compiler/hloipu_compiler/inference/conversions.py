"""Operations that change how elements are represented: conversions, rounding, bit casts.

Sources: openxla/xla `xla/service/shape_inference.cc`, `xla/service/hlo_verifier.cc`.
"""

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.elementwise import check_kind
from hloipu_compiler.inference.relations import make_array, same_form, with_type
from hloipu_compiler.inference.site import (
    RULES,
    Site,
    array_operand,
    declared_array,
    declared_shape,
)
from hloipu_compiler.ir.shapes import ArrayShape, Shape, leaves
from hloipu_runtime.element_types import Kind


@RULES.register("convert")
def convert(site: Site) -> Shape:
    """Return the operand's sizes with the declared element type."""
    return with_type(array_operand(site, 0), declared_array(site).element_type)


@RULES.register("stochastic-convert")
def stochastic_convert(site: Site) -> Shape:
    """Return the operand's sizes with the declared type; random bits are as wide as the operand."""
    operand, random = array_operand(site, 0), array_operand(site, 1)
    check_kind(site, operand, 0, frozenset({Kind.FLOAT}))
    check_kind(site, random, 1, frozenset({Kind.UNSIGNED}))
    if random.element_type.bits != operand.element_type.bits:
        raise faults.ELEMENT_TYPE(
            f"{random.element_type.bits} random bits for {operand.element_type.name}",
            expected=f"u{operand.element_type.bits}",
            operand=1,
        )
    if not same_form(random, operand):
        raise faults.SIZE_MISMATCH(
            f"random numbers {random} for {operand}",
            expected=f"the sizes and layout of {operand}",
            operand=1,
        )
    return with_type(operand, declared_array(site).element_type)


@RULES.register("reduce-precision")
def reduce_precision(site: Site) -> Shape:
    """Return the shape of the float operand; at least 1 exponent bit, 0 mantissa bits."""
    operand = array_operand(site, 0)
    check_kind(site, operand, 0, frozenset({Kind.FLOAT}))
    for attribute, fewest in (("exponent_bits", 1), ("mantissa_bits", 0)):
        bits = site.attributes.integer(attribute)
        if bits < fewest:
            raise faults.ATTRIBUTE_VALUE(
                f"{attribute}={bits}", expected=f"at least {fewest}", attribute=attribute
            )
    return operand


@RULES.register("bitcast-convert")
def bitcast_convert(site: Site) -> Shape:
    """Return the operand's bits read as the declared type.

    A narrower type adds a minor dimension, a wider one absorbs it; its size is the ratio of widths.
    """
    operand, old = array_operand(site, 0), array_operand(site, 0).element_type
    new = declared_array(site).element_type
    if old.is_complex != new.is_complex:
        raise faults.ELEMENT_TYPE(
            f"bitcast-convert from {old.name} to {new.name}",
            expected="both types complex, or both real",
            operand=0,
            hint="use complex(…), real(…) and imag(…)",
        )
    wide, narrow = max(old.bits, new.bits), min(old.bits, new.bits)
    if wide % narrow:
        raise faults.ELEMENT_TYPE(
            f"bitcast-convert from {old.bits} to {new.bits} bits",
            expected="one width a multiple of the other",
            operand=0,
        )
    if old.bits == new.bits:
        return with_type(operand, new)
    ratio, flags = wide // narrow, operand.dynamic or ()
    if old.bits > new.bits:
        return make_array(new, (*operand.dimensions, ratio), (*flags, False) if flags else ())
    if operand.dimensions[-1:] != (ratio,):
        raise faults.SIZE_MISMATCH(
            f"bitcast-convert of {operand} to {new.name}",
            expected=f"a last dimension of size {ratio}",
            operand=0,
        )
    return make_array(new, operand.dimensions[:-1], flags[:-1])


@RULES.register("bitcast")
def bitcast(site: Site) -> Shape:
    """Return the declared shape, which must hold as many bytes as the operand.

    Widths below a byte may be packed or not. Padded layouts (tiles) are not judged: XLA compares
    physical sizes there, which depend on the backend.
    """
    declared, operand = declared_shape(site), site.operands[0]
    pair = declared, operand
    if all(isinstance(s, ArrayShape) and _is_plain(s) for s in pair):
        if _byte_counts(declared).isdisjoint(_byte_counts(operand)):
            raise faults.ELEMENT_COUNT(
                f"bitcast of {operand} to {declared} changes the number of bytes",
                expected=f"{min(_byte_counts(operand))} bytes",
                operand=0,
            )
    elif any(isinstance(s, ArrayShape) and not s.element_type.is_array for s in pair):
        raise faults.OPERAND_KIND(
            f"bitcast of {operand} to {declared}", expected="arrays", operand=0
        )
    return declared


def _is_plain(shape: ArrayShape) -> bool:
    return (
        shape.element_type.is_array
        and shape.is_static
        and (shape.layout is None or not shape.layout.extension)
    )


def _byte_counts(shape: Shape) -> set[int]:
    counts: set[int] = set()
    for _, leaf in leaves(shape):
        array = leaf if isinstance(leaf, ArrayShape) else leaf.contents
        counts |= {array.byte_count, array.element_count * array.element_type.byte_width}
    return counts
