"""A random fraction is less than a number just where its bits are less than an integer."""

import numpy as np
import pytest

from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.passes.algebra.simplify_algebra import algebra_simplified
from hloipu_compiler.passes.eliminate_dead_code import dead_code_eliminated
from tests.support.cases import each
from tests.support.passes import entry, opcodes, parsed

TYPES = {
    "f32": ("u32", 23, 0x3F800000),
    "f16": ("u16", 10, 0x3C00),
    "f64": ("u64", 52, 0x3FF << 52),
}


def _text(kind: str, direction: str, limit: str, *, mirrored: bool = False, one: int = 0) -> str:
    """Return bits compared as a fraction, written as JAX's `uniform` is."""
    word, mantissa, exponent = TYPES[kind]
    bits = np.dtype(f"u{int(word[1:]) // 8}").itemsize * 8
    pair = "limits, fraction" if mirrored else "fraction, limits"
    return entry(f"""\
  bits = {word}[64] parameter(0)
  unused = {word}[] constant({bits - mantissa})
  unuseds = {word}[64] broadcast(unused), dimensions={{}}
  mantissa = {word}[64] shift-right-logical(bits, unuseds)
  ones = {word}[] constant({one or exponent})
  oness = {word}[64] broadcast(ones), dimensions={{}}
  both = {word}[64] or(mantissa, oness)
  above = {kind}[64] bitcast-convert(both)
  one = {kind}[] constant(1)
  many = {kind}[64] broadcast(one), dimensions={{}}
  exact = {kind}[64] subtract(above, many)
  zero = {kind}[] constant(0)
  zeros = {kind}[64] broadcast(zero), dimensions={{}}
  sum = {kind}[64] add(exact, zeros)
  fraction = {kind}[64] maximum(zeros, sum)
  limit = {kind}[] constant({limit})
  limits = {kind}[64] broadcast(limit), dimensions={{}}
  ROOT r = pred[64] compare({pair}), direction={direction}""")


@each("kind", TYPES)
@each("direction", ["LT", "LE", "GT", "GE"])
@each("mirrored", [False, True])
def test_bits_are_compared_in_place_of_fractions(kind: str, direction: str, mirrored: bool) -> None:
    """At the limit, one bit below it, one above it, and at both ends; 0.75 is a fraction itself."""
    word, mantissa, _ = TYPES[kind]
    unused = int(word[1:]) - mantissa
    for limit in ("0.75", "0.9", "0.3"):
        module = parsed(_text(kind, direction, limit, mirrored=mirrored))
        after = dead_code_eliminated(algebra_simplified(module))
        assert not {"bitcast-convert", "subtract"} & {*opcodes(after)}
        near = int(float(limit) * 2**mantissa)
        places = [near - 1, near, near + 1, 0, 2**mantissa - 1]
        drawn = [max(0, p << unused) + extra for p in places for extra in (0, 1, 2**unused - 1)]
        bits = np.resize(np.array(drawn, f"u{int(word[1:]) // 8}"), 64)
        fractions = (bits >> np.uint8(unused)).astype(np.float64) / 2**mantissa
        number = float(np.dtype(f"f{int(kind[1:]) // 8}").type(limit))
        pair = (number, fractions) if mirrored else (fractions, number)
        ufunc = {"LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal}
        for each_module in (module, after):
            (found,) = evaluate_everywhere(each_module, bits)
            np.testing.assert_array_equal(np.asarray(found), ufunc[direction](*pair))


@pytest.mark.parametrize("text", [
    _text("f32", "LT", "1.5"),
    _text("f32", "LT", "0"),
    _text("f32", "EQ", "0.5"),
    _text("f32", "LT", "0.5", one=0x3F000000),
    _text("f32", "LT", "nan"),
    _text("f32", "LT", "0.5").replace("constant(9)", "constant(8)"),
    _text("f32", "LT", "0.5").replace("direction=LT", "direction=LT, type=TOTALORDER"),
])  # fmt: skip
def test_other_comparisons_stay(text: str) -> None:
    after = dead_code_eliminated(algebra_simplified(parsed(text)))
    assert opcodes(after).count("subtract") == 1
