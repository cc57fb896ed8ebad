"""Relations between shapes, and constructors of array shapes.

Sources: openxla/xla `xla/shape.cc` (`Shape::Equal`), `xla/shape_util.cc`, `xla/primitive_util.h`.
Sizes agree when they are equal or one of them is unbounded (`?`).
"""

from collections.abc import Sequence

from hloipu_compiler.inference import faults
from hloipu_compiler.ir.shapes import UNBOUNDED, ArrayShape, BufferShape, Shape, TupleShape
from hloipu_runtime.element_types import C64, C128, F32, F64, PRED, ElementType, Kind

MOST_BYTES = 2**63 - 1
"""XLA counts the bytes of a shape in signed 64 bits."""

OVERFLOW_EXPONENTS = {
    "f64": 1024, "f32": 128, "bf16": 128, "f8e8m0fnu": 128, "f16": 16, "f8e5m2": 16,
    "f8e5m2fnuz": 16, "f8e4m3fn": 9, "f8e4m3": 8, "f8e4m3fnuz": 8, "f8e4m3b11fnuz": 5,
    "f6e3m2fn": 5, "f8e3m4": 4, "f4e2m1fn": 3, "f6e2m3fn": 3,
}  # fmt: skip
"""Exponent of the smallest power of two that each format cannot hold."""

Flags = tuple[bool, ...]


def sizes_agree(a: int, b: int) -> bool:
    """Whether two sizes are equal or one is unbounded."""
    return a == b or UNBOUNDED in (a, b)


def same_sizes(a: ArrayShape, b: ArrayShape) -> bool:
    """Whether two arrays have the same rank and agreeing sizes."""
    if a.dimensions == b.dimensions:
        return True
    return len(a.dimensions) == len(b.dimensions) and all(
        map(sizes_agree, a.dimensions, b.dimensions)
    )


def same_type(a: ElementType, b: ElementType) -> bool:
    """Whether two element types are equal, or both floats of whatever precision."""
    return a is b or (a.kind is Kind.FLOAT and b.kind is Kind.FLOAT)


def compatible_up_to_precision(a: Shape, b: Shape) -> bool:
    """Whether two shapes agree in structure, sizes and element types but for float precision."""
    if a is b:
        return True
    if isinstance(a, ArrayShape):
        return (
            isinstance(b, ArrayShape) and same_type(a.element_type, b.element_type)
        ) and same_sizes(a, b)
    if isinstance(a, TupleShape):
        return (
            isinstance(b, TupleShape)
            and len(a.elements) == len(b.elements)
            and all(map(compatible_up_to_precision, a.elements, b.elements))
        )
    return isinstance(b, BufferShape) and compatible_up_to_precision(a.contents, b.contents)


def component_type(element_type: ElementType) -> ElementType:
    """Return the type of a complex type's parts, or a real type itself."""
    if element_type is C64:
        return F32
    return F64 if element_type is C128 else element_type


def complex_type(element_type: ElementType) -> ElementType | None:
    """Return the complex type whose parts have this type; None where there is none."""
    if element_type is F32:
        return C64
    return C128 if element_type is F64 else None


def wider_type(a: ElementType, b: ElementType) -> ElementType:
    """Return the type that a result of two operand types has: complex, range, precision, width.

    Two formats of equal range and precision (f8e5m2 and f8e5m2fnuz) have no wider one: a fault.
    """
    if a is b:
        return a
    worth_a, worth_b = _worth(a), _worth(b)
    if worth_a == worth_b:
        raise faults.ELEMENT_TYPES_DIFFER(
            f"neither of {a.name} and {b.name} is the wider type",
            expected="equal element types",
            operand=1,
            hint="convert one operand",
        )
    return a if worth_a > worth_b else b


def _worth(element_type: ElementType) -> tuple[bool, int, int, int, bool]:
    part = component_type(element_type)
    exponent = OVERFLOW_EXPONENTS.get(part.name, -1)
    digits = part.mantissa_bits + 1 if part.is_float else -1
    bits = 1 if part is PRED else part.bits
    return element_type.is_complex, exponent, digits, bits, part.kind is Kind.SIGNED


def dynamic_at(shape: ArrayShape, dimension: int) -> bool:
    """Whether the size of a dimension is only a bound or unknown."""
    return shape.dynamic is not None and shape.dynamic[dimension]


def dynamic_flags(shape: ArrayShape) -> Flags:
    """Return for each dimension whether its size is only a bound or unknown."""
    return shape.dynamic if shape.dynamic is not None else (False,) * shape.rank


def same_form(a: ArrayShape, b: ArrayShape) -> bool:
    """Whether two arrays have equal sizes, dynamic flags and dimension orders in memory."""
    return a.dimensions == b.dimensions and a.dynamic == b.dynamic and _order(a) == _order(b)


def _order(shape: ArrayShape) -> tuple[int, ...]:
    return shape.layout.minor_to_major if shape.layout else tuple(range(shape.rank - 1, -1, -1))


def unbounded(shape: ArrayShape) -> bool:
    """Whether some dimension is written `?`."""
    return shape.dynamic is not None and UNBOUNDED in shape.dimensions


def scalar(element_type: ElementType) -> ArrayShape:
    """Return the shape of one number."""
    return ArrayShape(element_type)


def with_type(shape: ArrayShape, element_type: ElementType) -> ArrayShape:
    """Return a shape with another element type and the same sizes and layout."""
    if shape.element_type is element_type:
        return shape
    return ArrayShape(element_type, shape.dimensions, shape.layout, shape.dynamic)


def with_dynamic(shape: ArrayShape, flags: Sequence[bool]) -> ArrayShape:
    """Return a shape with other dynamic flags."""
    dynamic = tuple(flags) if True in flags else None
    if dynamic == shape.dynamic:
        return shape
    return ArrayShape(shape.element_type, shape.dimensions, shape.layout, dynamic)


def make_array(
    element_type: ElementType, sizes: Sequence[int], flags: Sequence[bool] = ()
) -> ArrayShape:
    """Return a new array shape without a layout, having checked that its bytes can be counted."""
    byte_count = element_type.byte_width
    for size in sizes:
        if size != UNBOUNDED:
            byte_count *= size
            if byte_count > MOST_BYTES or size > MOST_BYTES:
                shown = ",".join(map(str, sizes))
                raise faults.SHAPE_OVERFLOW(
                    f"{element_type.name}[{shown}] has more than 2^63-1 bytes",
                    expected="a shape whose bytes fit 63 bits",
                )
    return ArrayShape(element_type, tuple(sizes), None, tuple(flags) if True in flags else None)
