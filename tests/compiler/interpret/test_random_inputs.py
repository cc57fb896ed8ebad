"""Random arguments: sensible for what reads them, and the same bits on every machine."""

from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from hloipu_compiler.hlo.attributes.shape_text import parse_shape
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.input_roles import InputRole
from hloipu_compiler.interpret.random_inputs import SMALL_INTEGERS, random_arguments, random_leaf
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.core.storage import user_dtype
from tests.support.arrays import Array

NUMBERS = [name for name, element in ELEMENT_TYPES.items() if element.is_array]


def draw(shape: str, role: InputRole | None = None, seed: int = 0) -> Array:
    parsed = parse_shape(shape)
    assert isinstance(parsed, ArrayShape)
    return random_leaf(np.random.PCG64(seed), parsed, role or InputRole())


@pytest.mark.parametrize("element_type", NUMBERS)
def test_every_type_in_the_users_dtype(element_type: str) -> None:
    for sizes in ((), (0,), (1,), (2, 3, 4)):
        shape = f"{element_type}[{','.join(map(str, sizes))}]"
        value = draw(shape)
        assert (value.shape, value.dtype) == (sizes, user_dtype(element_type))
        assert value.tobytes() == draw(shape).tobytes()


def test_seeds_differ() -> None:
    drawn = {draw("f32[100]", seed=seed).tobytes() for seed in range(50)}
    assert len(drawn) == 50


def test_floats_fill_minus_one_to_one() -> None:
    x = draw("f64[100000]")
    assert x.min() >= -1
    assert x.max() < 1
    # Mean and variance of the uniform distribution, to five standard errors.
    assert abs(x.mean()) < 5 * (1 / 3 / x.size) ** 0.5
    assert abs((x * x).mean() - 1 / 3) < 5 * (4 / 45 / x.size) ** 0.5
    assert (x * 2**23 == np.round(x * 2**23)).all()  # on a grid that f32 holds


def test_small_integers() -> None:
    signed, unsigned = draw("s32[5000]"), draw("u8[5000]")
    assert set(signed.tolist()) == set(range(-SMALL_INTEGERS, SMALL_INTEGERS + 1))
    assert set(unsigned.tolist()) == set(range(SMALL_INTEGERS + 1))
    assert set(draw("s2[500]").astype(int).tolist()) == {-2, -1, 0, 1}
    assert set(draw("u4[500]").astype(int).tolist()) == set(range(9))


def test_wide_unsigned_words_use_all_bits() -> None:
    for name, bits in (("u32", 32), ("u64", 64)):
        drawn = draw(f"{name}[200]")
        assert int(np.bitwise_or.reduce(drawn)) == 2**bits - 1


@pytest.mark.parametrize("element_type", ["s32", "u8", "s64", "u32"])
@pytest.mark.parametrize("below", [1, 2, 100])
def test_indices_are_in_range(element_type: str, below: int) -> None:
    x = draw(f"{element_type}[3000]", InputRole(below=below))
    assert set(x.tolist()) == set(range(below))


def test_sorted_and_distinct_indices() -> None:
    x = draw("s32[50,2]", InputRole(below=1000, ascending=True))
    rows = x.tolist()
    assert rows == sorted(rows)
    y = draw("s32[64,1]", InputRole(below=70, distinct=True))
    assert len(set(y.ravel().tolist())) == 64
    assert y.min() >= 0
    assert y.max() < 70
    # There are not enough for that many: only the range is kept.
    z = draw("s32[64]", InputRole(below=5, distinct=True))
    assert set(z.tolist()) <= set(range(5))


@pytest.mark.parametrize(
    "shape", ["f32[6,6]", "f64[3,20,20]", "bf16[8,8]", "c64[5,5]", "c128[1,1]"]
)
def test_positive_definite(shape: str) -> None:
    x = draw(shape, InputRole(positive_definite=True))
    wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    assert (wide == np.conj(np.swapaxes(wide, -1, -2))).all()
    assert np.linalg.eigvalsh(wide).min() > 0


def test_triangular_diagonals_dominate() -> None:
    x = draw("f32[7,7]", InputRole(triangular=True))
    off = np.abs(x - np.diag(np.diag(x))).sum(1)
    assert (np.abs(np.diag(x)) >= 6).all()
    assert (off < np.abs(np.diag(x)) + 1).all()


def test_positive_and_divisors() -> None:
    assert draw("f32[1000]", InputRole(positive=True)).min() >= 0.5
    divisors = draw("f32[1000]", InputRole(divisor=True))
    assert np.abs(divisors).min() >= 0.5
    assert divisors.min() < 0 < divisors.max()
    assert 0 not in draw("s32[1000]", InputRole(divisor=True))


def test_weights_are_scaled_by_the_root_of_their_terms() -> None:
    """To a power of two: 2^-round(log2(n) / 2), so that the draw is the usual one, scaled."""
    plain = draw("f32[1000]")
    for terms, scale in ((0, 1), (1, 1), (4, 0.5), (100, 2**-3), (4096, 2**-6)):
        assert (draw("f32[1000]", InputRole(terms=terms)) == plain * scale).all()


PROGRAM = """HloModule m
ENTRY e {
  a = f32[3,4] parameter(0)
  b = (bf16[5], (s32[2], pred[9])) parameter(1)
  c = c128[2] parameter(2)
  d = f8e4m3fn[4] parameter(3)
  e = u64[2] parameter(4)
  f = s4[6] parameter(5)
  ROOT r = f32[3,4] negate(a)
}
"""


def flat(arguments: list[Any]) -> list[Array]:
    return [leaf for x in arguments for leaf in (x if isinstance(x, list) else [x])]


def test_arguments_have_the_parameters_form() -> None:
    arguments = random_arguments(parse(PROGRAM), 3)
    assert [isinstance(x, list) for x in arguments] == [False, True, False, False, False, False]
    assert [x.shape for x in flat(arguments)] == [
        (3, 4), (5,), (2,), (9,), (2,), (4,), (2,), (6,),
    ]  # fmt: skip


def test_the_bits_of_a_seed_never_change() -> None:
    """`--random SEED` means the same arguments on every machine and in every release."""
    arguments = flat(random_arguments(parse(PROGRAM), 2024))
    joined = b"".join(x.tobytes() for x in arguments)
    assert sha256(joined).hexdigest() == (
        "85a9fbb47a8c55c4a0ff6bfb61234d15450cf27cfad3e7bd58e3a43eaeeb4566"
    )


def test_the_bits_of_constrained_draws_never_change() -> None:
    roles = {
        "s32[40]": InputRole(below=1000, ascending=True),
        "s64[40]": InputRole(below=50, distinct=True),
        "f32[9,9]": InputRole(positive_definite=True),
        "f64[9,9]": InputRole(triangular=True),
        "f16[40]": InputRole(positive=True),
        "bf16[40]": InputRole(divisor=True),
    }
    joined = b"".join(draw(shape, role, 7).tobytes() for shape, role in roles.items())
    assert sha256(joined).hexdigest() == (
        "e60905dd79041d525780a2e0a08aea2efd5956a001037f2ce511bb942619459f"
    )


def test_the_stream_is_the_published_one() -> None:
    """PCG64 seeded with 0 through numpy's SeedSequence; its raw words are promised to stay."""
    words = np.random.PCG64(0).random_raw(2)
    # The first is the 0.6369616873214543 of `numpy.random.default_rng(0).random()`.
    assert [int(x) for x in words] == [11749869230777074271, 4976686463289251617]
    x = draw("f64[2]")
    assert x.tolist() == [(int(w) >> 40) / 2**23 - 1 for w in words]
