import numpy as np
import pytest

from hloipu_compiler.hlo.attributes.shape_text import parse_shape
from hloipu_compiler.hlo.literals.text import literal_text
from hloipu_compiler.hlo.literals.values import literal_array
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.ir.literals import Literal

# The right-hand sides are what XLA's `HloModule::ToString` of 0.10.2 prints for the left ones.
PRINTED = """
f32[] | 0.1 | 0.1
f32[] | 3.4028235e38 | 3.40282347e+38
f32[] | 1e-45 | 1.4013e-45
f64[] | 0.1 | 0.1
f16[] | 0.1 | 0.099976
bf16[] | 0.1 | 0.1001
f8e5m2[] | 57344 | 5.7e+04
c64[] | (1.5, -inf) | (1.5, -inf)
pred[] | 7 | true
pred[2] | {true, 0} | {1, 0}
f32[] | -nan | -nan
f32[] | nan(0x3) | nan(0x3)
s4[2] | {-8, 7} | {-8, 7}
f32[2,2] | {{1,2},{3,4}} | { { 1, 2 }, { 3, 4 } }
f32[1,1] | {{1}} | { {1} }
f32[2,0] | {{},{}} | { {}, {} }
f32[1,1,1,1] | {{{{1}}}} | { { /*i0=0*/ { /*i1=0*/ {1} } } }
(f32[2], s32[]) | ({1,2}, 3) | ( {1, 2}, 3 )
""".strip().splitlines()


@pytest.mark.parametrize("row", PRINTED)
def test_prints_as_xla(row: str) -> None:
    shape_text, source, expected = row.split(" | ")
    shape = parse_shape(shape_text)
    assert literal_text(literal_array(Literal(source), shape), shape) == expected


@pytest.mark.parametrize("name", ["f32", "f64", "c64", "c128"])
def test_any_bits_survive(name: str) -> None:
    shape = parse_shape(f"{name}[500]")
    size = {"f32": 4, "f64": 8, "c64": 8, "c128": 16}[name] * 500
    dtype = {"f32": "f4", "f64": "f8", "c64": "c8", "c128": "c16"}[name]
    array = np.frombuffer(np.random.default_rng(1).bytes(size), dtype)
    if name[0] == "c":  # XLA cannot carry a nan in one part only, nor a largest f32
        array = array[np.isfinite(array) & (abs(array) < 1e38)]
        shape = parse_shape(f"{name}[{len(array)}]")
    text = literal_text(array, shape)
    assert literal_array(Literal(text), shape).tobytes() == array.tobytes()  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_all_half_floats_survive(name: str) -> None:
    words = np.arange(2**16, dtype=np.uint16)
    if name == "f16":
        array = words.view(np.float16).astype(np.float32)
    else:
        array = (words.astype(np.uint32) << 16).view(np.float32)
    array = array[~np.isnan(array)]
    shape = parse_shape(f"{name}[{len(array)}]")
    text = literal_text(array, shape)
    assert literal_array(Literal(text), shape).tobytes() == array.tobytes()  # type: ignore[union-attr]


def test_negative_zero_keeps_its_sign() -> None:
    assert literal_text(np.array(-0.0, np.float32), parse_shape("f32[]")) == "-0.0"


def test_wrong_sizes_are_a_fault() -> None:
    with pytest.raises(TextFault, match="sizes"):
        literal_text(np.zeros(3, np.float32), parse_shape("f32[2]"))
