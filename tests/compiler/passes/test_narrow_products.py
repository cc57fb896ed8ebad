"""`narrow-products`: products of small numbers, against sums of Python's and numpy's integers."""

import numpy as np
import pytest

import hloipu
from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.passes.algebra.products import NarrowProducts
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.core.storage import from_bits, user_dtype
from tests.support.passes import entry, opcodes, parsed

RNG = np.random.default_rng(3)
DOT = """\
  x = {left}[6,{depth}] parameter(0)
  y = {right}[{depth},5] parameter(1)
  ROOT p = {result}[6,5] dot(x, y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"""


def _numbers(kind: str, shape: tuple[int, int]) -> np.ndarray:
    bounds = np.iinfo(kind.replace("s", "int").replace("u", "uint"))
    drawn = RNG.integers(bounds.min, bounds.max, shape, endpoint=True)
    # Rows and columns of the largest magnitude: sums that f32 is just about to round.
    drawn[0], drawn[:, 0] = bounds.min or bounds.max, bounds.min or bounds.max
    return drawn.astype(bounds.dtype)


@pytest.mark.parametrize("depth", [1, 1024, 1025, 4100])
@pytest.mark.parametrize(
    ("left", "right", "result"),
    [("s8", "s8", "s32"), ("s8", "s8", "u32"), ("u8", "s8", "s32"), ("u8", "u8", "s8"),
     ("s8", "s8", "s16"), ("s8", "u8", "s64")],
)  # fmt: skip
def test_sums_of_integers_are_exact(left: str, right: str, result: str, depth: int) -> None:
    text = DOT.format(left=left, right=right, result=result, depth=depth)
    made, _ = NarrowProducts().run(parsed(entry(text)), Plan())
    dots = [x for x in made.entry.instructions if x.opcode == "dot"]
    assert {str(x.shape) for x in dots} == {"f32[6,5]"}
    x, y = _numbers(left, (6, depth)), _numbers(right, (depth, 5))
    wanted = (x.astype(np.int64) @ y.astype(np.int64)).astype(
        result.replace("s", "int").replace("u", "uint")
    )
    (found,) = evaluate_everywhere(made, x, y)
    np.testing.assert_array_equal(found, wanted)


def test_tiles_have_the_same_numbers() -> None:
    text = entry(DOT.format(left="s8", right="s8", result="s32", depth=1100))
    x, y = _numbers("s8", (6, 1100)), _numbers("s8", (1100, 5))
    program = hloipu.compile(text, target="tiny")
    (found,) = program.run(x, y, mode="exact").outputs
    np.testing.assert_array_equal(found, x.astype(np.int64) @ y.astype(np.int64))


@pytest.mark.parametrize(
    "kind", sorted(k for k, e in ELEMENT_TYPES.items() if e.bits == 8 and e.is_float)
)
def test_floats_are_multiplied_as_f16_where_it_holds_them(kind: str) -> None:
    """Of a type's 256 numbers, numpy's f16 says which it holds."""
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = from_bits(np.arange(256, dtype=np.uint8), kind).astype(np.float64)
        is_held = np.array_equal(numbers.astype(np.float16), numbers, equal_nan=True)
    module = parsed(entry(DOT.format(left=kind, right=kind, result="f32", depth=8)))
    made, _ = NarrowProducts().run(module, Plan())
    assert (made is not module) == is_held == (opcodes(made).count("convert") == 2)


def _complex(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)).astype(np.complex64)


def test_many_complex_products_are_four_of_their_parts() -> None:
    text = entry("""\
  x = c64[3,90,128] parameter(0)
  y = c64[3,128,70] parameter(1)
  ROOT p = c64[3,90,70] dot(x, y), lhs_batch_dims={0}, rhs_batch_dims={0}, \
lhs_contracting_dims={2}, rhs_contracting_dims={1}""")
    made, _ = NarrowProducts().run(parsed(text), Plan())
    dots = [x for x in made.entry.instructions if x.opcode == "dot"]
    assert [str(x.shape) for x in dots] == ["f32[3,90,70]"] * 4
    x, y = _complex(3, 90, 128), _complex(3, 128, 70)
    (found,) = evaluate_everywhere(made, x, y)
    np.testing.assert_allclose(found, x.astype(np.complex128) @ y, atol=1e-4)


def test_many_complex_products_of_a_convolution() -> None:
    text = entry("""\
  x = c64[2,500,30] parameter(0)
  w = c64[3,30,40] parameter(1)
  ROOT p = c64[2,498,40] convolution(x, w), window={size=3}, dim_labels=b0f_0io->b0f""")
    made, _ = NarrowProducts().run(parsed(text), Plan())
    assert opcodes(made).count("convolution") == 4
    x, w = _complex(2, 500, 30), _complex(3, 30, 40)
    (found,) = evaluate_everywhere(made, x, w)
    wanted = sum(x[:, n : n + 498].astype(np.complex128) @ w[n] for n in range(3))
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_few_complex_products_stay() -> None:
    text = entry("""\
  x = c64[6,20] parameter(0)
  y = c64[20,5] parameter(1)
  ROOT p = c64[6,5] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}""")
    made, _ = NarrowProducts().run(parsed(text), Plan())
    assert opcodes(made) == ["dot"]


@pytest.mark.parametrize(
    ("left", "right", "taken"),
    [("f16", "f16", "f16"), ("f16", "s8", "f16"), ("pred", "f8e4m3fn", "f16"),
     ("f16", "bf16", "f32"), ("f16", "s16", "f32"), ("bf16", "bf16", "f32")],
)  # fmt: skip
def test_what_was_converted_to_f32_is_multiplied_as_it_was(
    left: str, right: str, taken: str
) -> None:
    """Numbers that f16 does not hold, of either side, leave the product as it is."""
    text = entry(f"""\
  x = {left}[8,6] parameter(0)
  y = {right}[2,8,5] parameter(1)
  a = f32[8,6] convert(x)
  at = f32[6,8] transpose(a), dimensions={{1,0}}
  b = f32[2,8,5] convert(y)
  bs = f32[1,8,5] slice(b), slice={{[1:2], [0:8], [0:5]}}
  br = f32[8,5] reshape(bs)
  ROOT p = f32[6,5] dot(at, br), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}""")
    module = parsed(text)
    made, _ = NarrowProducts().run(module, Plan())
    (dot,) = (x for x in made.entry.instructions if x.opcode == "dot")
    kinds = [str(made.entry.instructions[at].shape).split("[")[0] for at in dot.operands]
    assert kinds == [taken] * 2
    assert str(dot.shape).startswith("f32[6,5]")
    x, y = RNG.integers(0, 2, (8, 6)), RNG.integers(0, 2, (2, 8, 5))
    given = [n.astype(user_dtype(kind)) for n, kind in ((x, left), (y, right))]
    (found,) = evaluate_everywhere(made, *given)
    np.testing.assert_array_equal(found, (x.T @ y[1]).astype(np.float32))


def test_products_of_halves_are_exact_in_f32() -> None:
    """The largest and the least numbers of f16 among them."""
    text = entry("""\
  x = f16[4,1] parameter(0)
  y = f16[1,4] parameter(1)
  a = f32[4,1] convert(x)
  b = f32[1,4] convert(y)
  ROOT p = f32[4,4] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}""")
    x = np.array([65504, 2.0**-24, -1.0009765625, 3], np.float16)
    program = hloipu.compile(text, target="tiny")
    (found,) = program.run(x[:, None], x[None], mode="exact").outputs
    np.testing.assert_array_equal(found, np.outer(x.astype(np.float32), x.astype(np.float32)))
