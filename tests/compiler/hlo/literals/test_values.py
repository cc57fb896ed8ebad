import ml_dtypes
import numpy as np
import pytest

from hloipu_compiler.hlo.attributes.shape_text import parse_shape
from hloipu_compiler.hlo.literals.values import ElidedConstantError, check_literal, literal_array
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.ir.literals import Literal

ACCEPTED = """
f16[] | 65519
f4e2m1fn[] | 100
f8e4m3fn[] | 464
u64[] | -1
s64[] | 18446744073709551615
pred[] | -7
pred[2] | {true, 0}
f32[3] | {1 2,,3}
f32[3] | 1
f32[2] | {1-2}
f32[] | -.5
f32[] | /*c*/ nan(0x7)
f32[] | ,
f32[0] | {}
f32[2,0] | { {}, {} }
f32[2,2] | {{1,2}{3 4}}
f32[2,2] | {{1,2}, ...}
f32[5] | {...}
c64[2] | {(1, 2), (-inf, nan)}
(f32[2], (s32[], pred[])) | ({1,2} (3, true))
b(f32[]) | 1
f32[2,2] | f32[2,2] { { 1, 2 }, { 3, 4 } }
pred[2,3] | { {101}, {0, 1, 1} }
""".strip().splitlines()

REFUSED = """
f16[] | 65520 | E0142
f16[] | 65519.9999999999 | E0142
f8e4m3fn[] | 465 | E0142
f8e8m0fnu[] | 0 | E0142
s8[] | 128 | E0142
u8[] | -1 | E0142
s32[] | 18446744073709551616 | E0142
f32[] | 1e39 | E0142
f64[] | 1e400 | E0142
f32[] | 100000000000000000000 | E0142
c64[] | (3.40282347e+38, 0) | E0142
f32[] | nan(0x800000) | E0142
f32[] | nan(0x0) | E0142
f8e4m3fn[] | nan(0x1) | E0142
s32[] | 1.5 | E0143
s32[] | inf | E0143
f32[] | true | E0143
c64[] | 1 | E0143
token[] | 1 | E0143
f32[] | .5 | E0140
f32[] | 0x10 | E0140
f32[] | 1_000 | E0140
f32[] | (1, 2) | E0140
f32[] | {1} | E0141
f32[] | ... | E0141
f32[3] | {1, 2} | E0141
f32[3] | {1, 2, 3, 4} | E0141
f32[3] | {1, 2, 3 | E0141
f32[0] | {1} | E0141
f32[2,2] | {1, 2, 3, 4} | E0141
f32[2,2] | {{1, 2, 3}, {4}} | E0141
f32[2,2] | {{...}, {...}} | E0141
f32[] | 1 2 | E0140
""".strip().splitlines()


@pytest.mark.parametrize("row", ACCEPTED)
def test_accepts_what_xla_accepts(row: str) -> None:
    shape, text = row.split(" | ")
    check_literal(text, parse_shape(shape))


@pytest.mark.parametrize("row", REFUSED)
def test_refuses_what_xla_refuses(row: str) -> None:
    shape, text, code = row.split(" | ")
    with pytest.raises(TextFault) as caught:
        check_literal(text, parse_shape(shape))
    assert caught.value.code == code
    assert 0 <= caught.value.offset <= len(text)


def values(shape: str, text: str) -> object:
    return literal_array(Literal(text), parse_shape(shape))


def test_f16_and_bf16_round_by_way_of_f32() -> None:
    just_above_tie = 1 + 2**-11 + 2**-40  # to f32 it is the tie 1 + 2**-11, which rounds to 1
    assert values("f16[]", repr(just_above_tie)) == 1.0
    assert values("f32[]", repr(1 + 2**-24 + 2**-50)) == np.float32(1 + 2**-23)


def test_small_floats_round_at_once() -> None:
    tie = 1.0625 + 2**-40  # half way between 1 and 1.125, and a little more
    assert values("f8e4m3fn[]", repr(tie)) == 1.125
    for text in ("0.1", "300", "-7.3", "2e-3"):
        expected = np.array(float(text)).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        assert values("f8e4m3fn[1]", f"{{{text}}}") == expected


def test_signs_and_payloads_of_nans() -> None:
    bits = values("f32[4]", "{nan, -nan, nan(0x3), -nan(0x400001)}").view(np.uint32)  # type: ignore[attr-defined]
    assert [hex(b) for b in bits] == ["0x7fc00000", "0xffc00000", "0x7f800003", "0xffc00001"]
    narrow = values("bf16[1]", "{nan(0x41)}").view(np.uint32)  # type: ignore[attr-defined]
    assert int(narrow[0]) == (0x7F80 | 0x41) << 16


def test_minus_zero_is_an_integer_without_sign() -> None:
    signs = np.signbit(values("f32[4]", "{-0, -0.0, -0e5, -00}"))  # type: ignore[call-overload]
    assert signs.tolist() == [False, True, True, False]


def test_real_nan_covers_the_imaginary_part() -> None:
    value = values("c64[]", "(nan, 1)")
    assert np.isnan(value.real)  # type: ignore[attr-defined]
    assert np.isnan(value.imag)  # type: ignore[attr-defined]


def test_what_is_left_out_is_zero() -> None:
    assert values("f32[2,2]", "7").tolist() == [[7, 0], [0, 0]]  # type: ignore[attr-defined]


def test_tuples_become_lists() -> None:
    found = values("(s32[2], pred[])", "({1, 2}, true)")
    assert isinstance(found, list)
    assert [part.tolist() for part in found] == [[1, 2], True]


@pytest.mark.parametrize("shape", ["f32[40,50]", "bf16[40,50]", "f64[40,50]", "s64[40,50]"])
def test_printed_form_and_walk_agree(shape: str) -> None:
    parsed = parse_shape(shape)
    numbers = np.random.default_rng(3).integers(-200, 200, (40, 50))
    rows = [", ".join(f"{n}" for n in row) for row in numbers.tolist()]
    printed = "{ " + ", ".join(f"{{ {row} }}" for row in rows) + " }"
    odd = printed.replace(", ", " , , ")
    fast, slow = literal_array(Literal(printed), parsed), literal_array(Literal(odd), parsed)
    assert isinstance(fast, np.ndarray)
    assert isinstance(slow, np.ndarray)
    assert np.array_equal(fast, slow)
    assert np.array_equal(fast, numbers.astype(fast.dtype))


def test_elided_values_are_named() -> None:
    with pytest.raises(ElidedConstantError, match=r"`weights`.*left out"):
        literal_array(Literal("{...}"), parse_shape("f32[9]"), "weights")


def test_a_short_text_may_claim_any_size() -> None:
    with pytest.raises(TextFault):
        check_literal("{1}", parse_shape("f32[1000000,1000000,1000000]"))
