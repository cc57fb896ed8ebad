import pytest

from hloipu_compiler.inference import faults
from hloipu_compiler.ir.attributes import PaddingDimension, SliceRange
from tests.support.shape_rules import infer, refuse


def test_sources_take_the_declared_shape() -> None:
    assert infer("parameter", to="(f32[2], token[])") == "(f32[2], token[])"
    assert infer("constant", to="f32[2]") == "f32[2]"
    refuse(faults.NOT_INFERABLE, "parameter")
    refuse(faults.DECLARED_STRUCTURE, "constant", to="token[]")


def test_iota() -> None:
    assert infer("iota", to="bf16[2,3]", iota_dimension=1) == "bf16[2,3]"
    refuse(faults.DIMENSION_RANGE, "iota", at="iota_dimension", to="s32[2]", iota_dimension=1)
    refuse(faults.DIMENSION_RANGE, "iota", at="iota_dimension", to="s32[2]", iota_dimension=-1)
    refuse(faults.DIMENSION_RANGE, "iota", to="s32[]", iota_dimension=0)
    refuse(faults.ELEMENT_TYPE, "iota", to="pred[2]", iota_dimension=0)
    refuse(faults.DECLARED_STRUCTURE, "iota", to="(s32[2])", iota_dimension=0)


@pytest.mark.parametrize("opcode", ["copy", "opt-barrier", "domain"])
def test_identities_take_anything(opcode: str) -> None:
    assert infer(opcode, "(f32[2], (s32[]))", to="(f32[2], (s32[]))") == "(f32[2], (s32[]))"


def test_broadcast() -> None:
    assert infer("broadcast", "f32[3]", to="f32[2,3]", dimensions=(1,)) == "f32[2,3]"
    assert infer("broadcast", "f32[2,3]", to="f32[3,2]", dimensions=(1, 0)) == "f32[3,2]"
    assert infer("broadcast", "f32[]", to="f32[2]") == "f32[2]"
    refuse(faults.SIZE_MISMATCH, "broadcast", "f32[1]", at=0, to="f32[3]", dimensions=(0,))
    refuse(faults.DIMENSION_RANGE, "broadcast", "f32[3]", to="f32[3]", dimensions=(1,))
    refuse(faults.DIMENSION_RANGE, "broadcast", "f32[3]", to="f32[3]", dimensions=(-1,))
    refuse(faults.DIMENSION_COUNT, "broadcast", "f32[3]", to="f32[3]", dimensions=())
    refuse(faults.DIMENSION_COUNT, "broadcast", "f32[]", to="f32[3]", dimensions=(0,))
    refuse(faults.ELEMENT_TYPES_DIFFER, "broadcast", "f32[]", at=0, to="f16[3]")


def test_the_parser_takes_the_dimensions_of_a_broadcast_as_sizes() -> None:
    assert infer("broadcast", "f32[3]", dimensions=(2,)) == "f32[2,3]"
    assert infer("broadcast", "f32[]") == "f32[]"
    refuse(faults.NOT_INFERABLE, "broadcast", "f32[3]")


def test_reshape() -> None:
    assert infer("reshape", "f32[2,3]", to="f32[6,1]") == "f32[6,1]"
    assert infer("reshape", "f32[0,3]", to="f32[0]") == "f32[0]"
    refuse(faults.ELEMENT_COUNT, "reshape", "f32[2,3]", at=0, to="f32[5]")
    refuse(faults.ELEMENT_TYPES_DIFFER, "reshape", "f32[2]", at=0, to="s32[2]")
    refuse(faults.NOT_INFERABLE, "reshape", "f32[2]")


def test_transpose() -> None:
    assert infer("transpose", "f32[2,<=3,4]", dimensions=(2, 0, 1)) == "f32[4,2,<=3]"
    for order in ((0,), (0, 0), (0, 2), (-1, 0)):
        refuse(faults.DIMENSION_ORDER, "transpose", "f32[2,3]", at="dimensions", dimensions=order)


def test_reverse() -> None:
    assert infer("reverse", "f32[2,3]", dimensions=(1, 0)) == "f32[2,3]"
    refuse(faults.DIMENSION_ORDER, "reverse", "f32[2,3]", at="dimensions", dimensions=(1, 1))
    refuse(faults.DIMENSION_RANGE, "reverse", "f32[2,3]", at="dimensions", dimensions=(2,))


@pytest.mark.parametrize(
    ("operand", "bounds", "result"),
    [
        ("f32[8]", (0, 8, 1), "f32[8]"),
        ("f32[8]", (1, 8, 3), "f32[3]"),
        ("f32[8]", (3, 3, 1), "f32[0]"),
        ("f32[<=8]", (0, 4, 1), "f32[<=4]"),
        ("f32[<=8]", (0, 1, 1), "f32[1]"),
        ("f32[?]", (0, 4, 1), "f32[4]"),
    ],
)
def test_slice(operand: str, bounds: tuple[int, int, int], result: str) -> None:
    assert infer("slice", operand, to=result, slice=(SliceRange(*bounds),)) == result


@pytest.mark.parametrize(
    ("code", "ranges"),
    [
        (faults.OUT_OF_BOUNDS, [(0, 9, 1)]),
        (faults.OUT_OF_BOUNDS, [(-1, 4, 1)]),
        (faults.OUT_OF_BOUNDS, [(5, 4, 1)]),
        (faults.ATTRIBUTE_VALUE, [(0, 4, 0)]),
        (faults.ATTRIBUTE_VALUE, [(0, 4, -1)]),
        (faults.DIMENSION_COUNT, []),
        (faults.DIMENSION_COUNT, [(0, 1, 1), (0, 1, 1)]),
    ],
)
def test_slice_refused(code: str, ranges: list[tuple[int, int, int]]) -> None:
    written = tuple(SliceRange(*r) for r in ranges)
    refuse(code, "slice", "f32[8]", at="slice", to="f32[4]", slice=written)


@pytest.mark.parametrize(
    ("size", "edge", "result"),
    [
        ("3", (1, 2, 0), "f32[6]"),
        ("3", (0, 0, 2), "f32[7]"),
        ("3", (-1, -2, 0), "f32[0]"),
        ("0", (1, 0, 5), "f32[1]"),
        ("<=3", (1, 0, 0), "f32[<=4]"),
        ("?", (1, 0, 0), "f32[?]"),
    ],
)
def test_pad(size: str, edge: tuple[int, int, int], result: str) -> None:
    padding = (PaddingDimension(*edge),)
    assert infer("pad", f"f32[{size}]", "f32[]", to=result, padding=padding) == result


def test_pad_refused() -> None:
    plain = (PaddingDimension(0, 0),)
    refuse(faults.SIZE_MISMATCH, "pad", "f32[3]", "f32[1]", at=1, padding=plain)
    refuse(faults.ELEMENT_TYPES_DIFFER, "pad", "f32[3]", "s32[]", at=1, padding=plain)
    refuse(faults.DIMENSION_COUNT, "pad", "f32[3,3]", "f32[]", at="padding", padding=plain)
    for code, edge in (
        (faults.OUT_OF_BOUNDS, PaddingDimension(-2, -2)),
        (faults.ATTRIBUTE_VALUE, PaddingDimension(0, 0, -1)),
    ):
        refuse(code, "pad", "f32[3]", "f32[]", at="padding", padding=(edge,))


def test_huge_padding_overflows() -> None:
    edge = (PaddingDimension(2**62, 0),)
    refuse(faults.SHAPE_OVERFLOW, "pad", "f32[3]", "f32[]", padding=edge)


def test_tuples() -> None:
    assert infer("tuple") == "()"
    assert infer("tuple", "f32[2]", "(s32[])") == "(f32[2], (s32[]))"
    assert infer("get-tuple-element", "(f32[2], (s32[]))", index=1) == "(s32[])"
    refuse(faults.OUT_OF_BOUNDS, "get-tuple-element", "(f32[])", at="index", index=1)
    refuse(faults.OUT_OF_BOUNDS, "get-tuple-element", "()", at="index", index=0)
    refuse(faults.OUT_OF_BOUNDS, "get-tuple-element", "(f32[])", at="index", index=-1)
    refuse(faults.OPERAND_KIND, "get-tuple-element", "f32[2]", at=0, index=0)
