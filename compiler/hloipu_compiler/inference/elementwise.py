"""Elementwise operations of one, two and three operands.

Sources: openxla/xla `xla/service/shape_inference.cc`, `xla/service/hlo_verifier.cc`. A text may not
broadcast implicitly; XLA's parser nevertheless infers a broadcast shape for an instruction that
prints none, and so does `binary` while nothing is declared.
"""

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.faults import ShapeFault
from hloipu_compiler.inference.relations import (
    compatible_up_to_precision,
    complex_type,
    component_type,
    dynamic_flags,
    make_array,
    same_sizes,
    same_type,
    unbounded,
    wider_type,
    with_dynamic,
    with_type,
)
from hloipu_compiler.inference.site import RULES, Site, array_operand
from hloipu_compiler.ir.shapes import UNBOUNDED, ArrayShape, Shape
from hloipu_runtime.element_types import PRED, ElementType, Kind

K = Kind

_FLOAT = frozenset({K.FLOAT})
_INTEGER = frozenset({K.SIGNED, K.UNSIGNED})
_FLOAT_OR_COMPLEX = frozenset({K.FLOAT, K.COMPLEX})
_SIGNED_NUMBER = frozenset({K.SIGNED, K.FLOAT, K.COMPLEX})
_NUMBER = frozenset({K.SIGNED, K.UNSIGNED, K.FLOAT, K.COMPLEX})
_BITS = frozenset({K.PREDICATE, K.SIGNED, K.UNSIGNED})
_ANY = _NUMBER | _BITS

UNARY_KINDS: dict[str, frozenset[Kind]] = {
    **dict.fromkeys(
        ("floor", "ceil", "cbrt", "erf", "round-nearest-afz", "round-nearest-even", "is-finite"),
        _FLOAT,
    ),
    **dict.fromkeys(
        (
            "acos", "acosh", "asin", "asinh", "atanh", "cosh", "cosine", "exponential",
            "exponential-minus-one", "log", "log-plus-one", "logistic", "rsqrt", "sine", "sinh",
            "sqrt", "tan", "tanh", "real", "imag",
        ),
        _FLOAT_OR_COMPLEX,
    ),
    **dict.fromkeys(("abs", "sign"), _SIGNED_NUMBER),
    **dict.fromkeys(("count-leading-zeros", "popcnt"), _INTEGER),
    "negate": _NUMBER,
    "not": _BITS,
}  # fmt: skip
"""Kinds of elements that each operation of one operand takes."""

BINARY_KINDS: dict[str, frozenset[Kind]] = {
    **dict.fromkeys(("add", "maximum", "minimum", "multiply", "mulhi", "compare"), _ANY),
    **dict.fromkeys(
        (
            "subtract", "power", "divide", "remainder", "shift-left", "shift-right-arithmetic",
            "shift-right-logical",
        ),
        _NUMBER,
    ),
    **dict.fromkeys(("and", "or", "xor"), _BITS),
    "atan2": _FLOAT_OR_COMPLEX,
    "complex": _FLOAT,
}  # fmt: skip
"""Kinds of elements that each operation of two operands takes; XLA lets floats be shifted."""


@RULES.register(*UNARY_KINDS)
def unary(site: Site) -> Shape:
    """Return the operand's shape; `is-finite` gives pred, `abs real imag` of complex a float."""
    operand = array_operand(site, 0)
    check_kind(site, operand, 0, UNARY_KINDS[site.opcode])
    if site.opcode == "is-finite":
        return with_type(operand, PRED)
    if site.opcode in ("abs", "real", "imag"):
        return with_type(operand, component_type(operand.element_type))
    return operand


@RULES.register(*(BINARY_KINDS.keys() - {"complex", "compare"}))
def binary(site: Site) -> Shape:
    """Return the common shape of two operands of equal sizes."""
    left, right = array_operand(site, 0), array_operand(site, 1)
    kinds = BINARY_KINDS[site.opcode]
    if left.element_type.kind not in kinds or right.element_type.kind not in kinds:
        check_kind(site, left, 0, kinds)
        check_kind(site, right, 1, kinds)
    if left is right:
        return left
    _check_same_type(site, left, right, 1)
    if left.dimensions == right.dimensions and not unbounded(left):
        result = with_type(left, wider_type(left.element_type, right.element_type))
        if right.dynamic is None:
            return result
        flags = zip(dynamic_flags(left), dynamic_flags(right), strict=True)
        return with_dynamic(result, [a or b for a, b in flags])
    if site.verifying:
        if not same_sizes(left, right):
            raise _broadcast_fault(site, 1, right, left)
        return _merge_equal_ranks(site, left, right)
    return _broadcast(site, left, right)


@RULES.register("complex")
def complex_pair(site: Site) -> Shape:
    """Return the complex shape made of two f32 or two f64 arrays."""
    left, right = array_operand(site, 0), array_operand(site, 1)
    element_type = complex_type(left.element_type)
    for number, part in ((0, left), (1, right)):
        if element_type is None or part.element_type is not left.element_type:
            raise faults.ELEMENT_TYPE(
                f"complex of {left.element_type.name} and {right.element_type.name}",
                expected="two arrays of f32, or two of f64",
                operand=number,
            )
    shape = binary(site)
    return (
        with_type(shape, element_type) if element_type and isinstance(shape, ArrayShape) else shape
    )


@RULES.register("compare")
def compare(site: Site) -> Shape:
    """Return a pred array; `type=` must fit the operands' elements."""
    shape = binary(site)
    if site.verifying:
        _check_comparison_type(site, array_operand(site, 1).element_type)
    return with_type(shape, PRED) if isinstance(shape, ArrayShape) else shape


@RULES.register("select")
def select(site: Site) -> Shape:
    """Return the shape of the choices; the predicate has the same sizes or is one pred."""
    chooser, on_true, on_false = (array_operand(site, i) for i in range(3))
    if not compatible_up_to_precision(on_true, on_false):
        raise faults.SIZE_MISMATCH(
            f"select chooses between {on_true} and {on_false}", expected=f"{on_true}", operand=2
        )
    if chooser.element_type is not PRED:
        raise faults.ELEMENT_TYPE(
            f"the predicate of select is {chooser}",
            expected="elements of type pred",
            operand=0,
            hint="make one with compare(…), direction=NE",
        )
    if chooser.dimensions and not same_sizes(chooser, on_true):
        raise _broadcast_fault(site, 0, chooser, on_true)
    element_type = wider_type(on_true.element_type, on_false.element_type)
    if chooser.dynamic is None and on_true.dynamic is None and on_false.dynamic is None:
        return with_type(on_true if not chooser.dimensions else chooser, element_type)
    return _dynamic_choice(chooser, on_true, on_false, element_type)


@RULES.register("clamp")
def clamp(site: Site) -> Shape:
    """Return the middle operand's shape; each bound has the same shape or is one number."""
    low, operand, high = (array_operand(site, i) for i in range(3))
    for number, bound in ((0, low), (2, high)):
        _check_same_type(site, operand, bound, number)
        if bound.dimensions and not same_sizes(bound, operand):
            raise _broadcast_fault(site, number, bound, operand)
    return operand


def check_kind(site: Site, shape: ArrayShape, number: int, kinds: frozenset[Kind]) -> None:
    """Check that the elements of an operand are of one of the kinds."""
    if shape.element_type.kind not in kinds:
        names = " or ".join(sorted(kind.value for kind in kinds))
        raise faults.ELEMENT_TYPE(
            f"{site.opcode} of {shape.element_type.name}",
            expected=f"elements of kind {names}",
            operand=number,
            hint="convert the operand first",
        )


def _check_same_type(site: Site, first: ArrayShape, other: ArrayShape, number: int) -> None:
    if not same_type(first.element_type, other.element_type):
        raise faults.ELEMENT_TYPES_DIFFER(
            f"{site.opcode} of {first.element_type.name} and {other.element_type.name}",
            expected=first.element_type.name,
            operand=number,
            hint="convert one operand",
        )


def _broadcast_fault(site: Site, number: int, operand: ArrayShape, other: ArrayShape) -> ShapeFault:
    hint = "HLO has no implicit broadcast: write it, x = … broadcast(a), dimensions={…}"
    return faults.IMPLICIT_BROADCAST(
        f"{site.opcode} of {operand} and {other}",
        expected=f"an operand with the sizes of {other}",
        operand=number,
        hint=hint,
    )


def _broadcast(site: Site, left: ArrayShape, right: ArrayShape) -> ArrayShape:
    if left.rank == right.rank:
        return _merge_equal_ranks(site, left, right)
    smaller, larger = (left, right) if left.rank < right.rank else (right, left)
    if smaller.dimensions:
        number = 0 if smaller is left else 1
        raise _broadcast_fault(site, number, smaller, larger)
    element_type = wider_type(smaller.element_type, larger.element_type)
    return _merge_equal_ranks(site, with_type(larger, element_type), larger)


def _merge_equal_ranks(site: Site, left: ArrayShape, right: ArrayShape) -> ArrayShape:
    sizes: list[int] = []
    flags: list[bool] = []
    columns = (left.dimensions, dynamic_flags(left), right.dimensions, dynamic_flags(right))
    for a, a_dynamic, b, b_dynamic in zip(*columns, strict=True):
        if a == 1 or b == 1:
            size, dynamic = (b, b_dynamic) if a == 1 else (a, a_dynamic)
        elif a == b:
            size, dynamic = a, a_dynamic or b_dynamic
        elif a == UNBOUNDED or b == UNBOUNDED:
            size, dynamic = (b, b_dynamic) if a == UNBOUNDED else (a, a_dynamic)
        else:
            raise _broadcast_fault(site, 1, right, left)
        sizes.append(size)
        flags.append(dynamic)
    return make_array(wider_type(left.element_type, right.element_type), sizes, flags)


def _dynamic_choice(
    chooser: ArrayShape, on_true: ArrayShape, on_false: ArrayShape, element_type: ElementType
) -> ArrayShape:
    full = chooser if chooser.dimensions else on_true
    sizes = list(full.dimensions)
    flags: list[bool] = []
    rows = zip(
        on_true.dimensions,
        on_false.dimensions,
        dynamic_flags(full),
        dynamic_flags(on_true),
        dynamic_flags(on_false),
        strict=True,
    )
    for i, (a, b, full_dynamic, a_dynamic, b_dynamic) in enumerate(rows):
        if UNBOUNDED in (a, b):
            sizes[i] = b if a == UNBOUNDED else a
            flags.append(a_dynamic and b_dynamic)
        else:
            flags.append(full_dynamic or a_dynamic or b_dynamic)
    return make_array(element_type, sizes, flags)


def _check_comparison_type(site: Site, element_type: ElementType) -> None:
    kind = element_type.kind
    default = "FLOAT" if kind in _FLOAT_OR_COMPLEX else "UNSIGNED"
    allowed = ["SIGNED" if kind is K.SIGNED else default]
    if kind is K.FLOAT:
        allowed.append("TOTALORDER")
    written = site.attributes.text("type", allowed[0])
    if written not in allowed:
        raise faults.COMPARISON_TYPE(
            f"{written} comparison of {element_type.name}",
            expected=" or ".join(allowed),
            attribute="type",
            hint="leave type= out: it follows from the operands",
        )
