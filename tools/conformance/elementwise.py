"""Cases of the elementwise ops: every opcode, element type and rank, on all edges."""

from collections.abc import Iterator, Sequence

from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_runtime.element_types import ELEMENT_TYPES
from tools.conformance.case import Case, Dimensions, Input, of_one_op, shape_text
from tools.conformance.types import (
    ALL,
    ARITHMETIC,
    COMPLEX,
    FLOATS,
    FLOATS_8,
    INTEGERS,
    PACKED,
    RANKS,
    SCALES,
    SIGNED,
    WIDE_FLOATS,
)

TRANSCENDENTAL = tuple(sorted(n for n, op in OPS.items() if Trait.ACCURACY in op.traits))
ROUNDINGS = ("ceil", "floor", "round-nearest-afz", "round-nearest-even")
UNARY_TYPES: dict[str, Sequence[str]] = {
    **dict.fromkeys(TRANSCENDENTAL, (*FLOATS, *FLOATS_8, *COMPLEX)),
    **dict.fromkeys(ROUNDINGS, (*FLOATS, *FLOATS_8)),
    "cbrt": (*FLOATS, *FLOATS_8),
    "erf": (*FLOATS, *FLOATS_8),
    "abs": (*FLOATS, *FLOATS_8, *SIGNED, *COMPLEX, "s4", "s2"),
    "negate": (*ARITHMETIC, *FLOATS_8, *PACKED),
    "sign": (*FLOATS, *FLOATS_8, *SIGNED, *COMPLEX, "s4"),
    "is-finite": (*FLOATS, *FLOATS_8),
    "not": ("pred", *INTEGERS, *PACKED),
    "popcnt": (*INTEGERS, *PACKED),
    "count-leading-zeros": (*INTEGERS, *PACKED),
    "real": (*COMPLEX, "f32"),
    "imag": (*COMPLEX, "f32"),
}
UNIMPLEMENTED = frozenset("acos acosh asin asinh atanh cosh sinh".split())
"""Opcodes that XLA:CPU does not compile for any type (StableHLO has them decomposed)."""

ARITHMETIC_8 = (*ARITHMETIC, *FLOATS_8, *PACKED)
BINARY_TYPES: dict[str, Sequence[str]] = {
    "add": ("pred", *ARITHMETIC_8),
    "multiply": ("pred", *ARITHMETIC_8),
    "subtract": ARITHMETIC_8,
    "divide": ARITHMETIC_8,
    "remainder": (*FLOATS, *INTEGERS, *FLOATS_8, *PACKED),
    "maximum": ("pred", *FLOATS, *INTEGERS, *FLOATS_8, *PACKED),
    "minimum": ("pred", *FLOATS, *INTEGERS, *FLOATS_8, *PACKED),
    "power": (*ARITHMETIC, *FLOATS_8),
    "atan2": (*FLOATS, *COMPLEX, *FLOATS_8),
    **dict.fromkeys(("and", "or", "xor"), ("pred", *INTEGERS, *PACKED)),
    "shift-left": (*INTEGERS, *PACKED),
    "shift-right-arithmetic": (*INTEGERS, *PACKED),
    "shift-right-logical": (*INTEGERS, *PACKED),
    "complex": WIDE_FLOATS,
    "mulhi": ("s32", "u32"),
}
SIDE = 40
"""Edges on each side of the square that pairs them."""


def result_type(opcode: str, element_type: str) -> str:
    """Return the element type of an elementwise result."""
    if opcode == "is-finite":
        return "pred"
    if opcode in ("abs", "real", "imag"):
        return {"c64": "f32", "c128": "f64"}.get(element_type, element_type)
    if opcode == "complex":
        return {"f32": "c64", "f64": "c128"}[element_type]
    return element_type


def unary_cases() -> Iterator[Case]:
    """Yield the ops of one operand; 16-bit types and narrower go through all their values."""
    for opcode, types in UNARY_TYPES.items():
        for element_type in types:
            result = result_type(opcode, element_type)
            operand = element_type if result != element_type else None
            for dimensions in RANKS[1:2] if opcode in UNIMPLEMENTED else RANKS:
                style, sizes = "edges", dimensions
                if len(dimensions) == 1:
                    style, sizes = (
                        "all",
                        (65536 if ELEMENT_TYPES[element_type].bits == 16 else 511,),
                    )
                yield of_one_op(
                    opcode, [Input(element_type, sizes, style)], shape_text(result, sizes),
                    operand_type=operand,
                )  # fmt: skip


def binary_cases() -> Iterator[Case]:
    """Yield the ops of two operands; rank 2 holds every pair of edges."""
    for opcode, types in BINARY_TYPES.items():
        for element_type in types:
            result = result_type(opcode, element_type)
            for dimensions in RANKS[:1] if opcode == "mulhi" else RANKS:
                inputs = [Input(element_type, dimensions), Input(element_type, dimensions)]
                yield of_one_op(opcode, inputs, shape_text(result, dimensions))
            if opcode == "mulhi":
                continue  # no way through StableHLO, which has no such op
            square = (SIDE, SIDE)
            inputs = [Input(element_type, square, f"pair_{side}") for side in ("rows", "columns")]
            yield of_one_op(opcode, inputs, shape_text(result, square), variant="pairs")


def compare_cases() -> Iterator[Case]:
    """Yield comparisons in every direction, type and order."""
    for element_type in ALL:
        element = ELEMENT_TYPES[element_type]
        orders = ["", ", type=TOTALORDER"] if element.is_float else [""]
        if element.is_integer:
            orders.append(", type=SIGNED" if element_type.startswith("s") else ", type=UNSIGNED")
        directions = ("EQ", "NE") if element.is_complex else ("EQ", "NE", "LT", "LE", "GT", "GE")
        shapes: list[tuple[Dimensions, str, str]] = [((24, 24), "pair_rows", "pair_columns")]
        shapes += [(d, "edges", "edges") for d in ((), (0, 3), (2, 1, 3, 2, 3))]
        for order in orders:
            for direction in directions:
                for sizes, left, right in shapes[: 4 if direction in ("EQ", "LT") else 1]:
                    yield of_one_op(
                        "compare",
                        [Input(element_type, sizes, left), Input(element_type, sizes, right)],
                        shape_text("pred", sizes),
                        f"direction={direction}{order}",
                        variant=f"{direction}{order.replace(', type=', ' ')}",
                    )


def ternary_cases() -> Iterator[Case]:
    """Yield select and clamp, with scalar and whole first operands."""
    for element_type in ALL:
        for sizes in RANKS:
            x = Input(element_type, sizes)
            for chooser in {sizes, ()}:
                yield of_one_op(
                    "select", [Input("pred", chooser), x, x], shape_text(element_type, sizes),
                    element_type=element_type,
                )  # fmt: skip
            if element_type in ("pred", *SCALES) or ELEMENT_TYPES[element_type].is_complex:
                continue
            for bounds in {sizes, ()}:
                limit = Input(element_type, bounds)
                yield of_one_op("clamp", [limit, x, limit], shape_text(element_type, sizes))


def convert_cases() -> Iterator[Case]:
    """Yield conversions between all pairs of types."""
    for before in ALL:
        for after in ALL:
            if ELEMENT_TYPES[before].is_complex and not ELEMENT_TYPES[after].is_complex:
                continue
            count = 65536 if ELEMENT_TYPES[before].bits == 16 else 600
            for sizes, style in (((count,), "all"), ((2, 3, 0), "edges"), ((), "edges")):
                yield of_one_op(
                    "convert", [Input(before, sizes, style)], shape_text(after, sizes),
                    element_type=after,
                )  # fmt: skip


def bitcast_cases() -> Iterator[Case]:
    """Yield bitcast-converts between types of one width, and between widths."""
    kept = [t for t in ALL if t != "pred"]
    for before in kept:
        for after in kept:
            ours, theirs = ELEMENT_TYPES[before].bits, ELEMENT_TYPES[after].bits
            complexes = (ELEMENT_TYPES[before].is_complex, ELEMENT_TYPES[after].is_complex)
            if any(complexes):
                continue
            for lead in ((), (3,), (2, 0), (2, 1, 3, 2)):
                if ours > theirs:
                    source, target = lead, (*lead, ours // theirs)
                elif ours < theirs:
                    source, target = (*lead, theirs // ours), lead
                else:
                    source = target = lead
                if ours == theirs or len(lead) in (1, 4):
                    yield of_one_op(
                        "bitcast-convert", [Input(before, source)], shape_text(after, target),
                        element_type=after, variant="",
                    )  # fmt: skip


def precision_cases() -> Iterator[Case]:
    """Yield reduce-precision over types, widths and ranks."""
    for element_type in (*FLOATS, *FLOATS_8):
        element = ELEMENT_TYPES[element_type]
        for exponent, mantissa in (
            (5, 10),
            (8, 7),
            (4, 3),
            (5, 2),
            (8, 23),
            (11, 52),
            (2, 0),
            (1, 1),
        ):
            if exponent > element.exponent_bits or mantissa > element.mantissa_bits:
                continue
            for sizes in ((8192 * (8 if element.bits == 16 else 1),), (), (0, 3), (2, 3, 1, 5)):
                yield of_one_op(
                    "reduce-precision",
                    [Input(element_type, sizes, "all" if len(sizes) == 1 else "edges")],
                    shape_text(element_type, sizes),
                    f"exponent_bits={exponent}, mantissa_bits={mantissa}",
                    variant=f"e{exponent}m{mantissa}",
                )


def cases() -> Iterator[Case]:
    """Yield all elementwise cases."""
    yield from unary_cases()
    yield from binary_cases()
    yield from compare_cases()
    yield from ternary_cases()
    yield from convert_cases()
    yield from bitcast_cases()
    yield from precision_cases()
