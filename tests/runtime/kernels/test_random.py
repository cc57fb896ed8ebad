"""Known answers: Random123: kat_vectors; XLA:CPU (jaxlib 0.10.2) for the layout of counters."""

import numpy as np
import pytest
from scipy import stats

from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.random_bits import (
    Algorithm,
    philox_bits,
    rng_bit_generator,
    three_fry_bits,
)
from hloipu_runtime.kernels.random_values import (
    rng_get_and_update_state,
    rng_normal,
    rng_uniform,
    state_units,
)

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "want"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((ONES, ONES), (ONES, ONES), (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_three_fry_known_answers(
    counter: tuple[int, int], key: tuple[int, int], want: tuple[int, int]
) -> None:
    words, _ = three_fry_bits(key[0] | key[1] << 32, counter[0] | counter[1] << 32, (2,), 32)
    assert tuple(words.tolist()) == want


@pytest.mark.parametrize(
    ("counter", "key", "want"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(
    counter: tuple[int, ...], key: tuple[int, int], want: tuple[int, ...]
) -> None:
    start = sum(word << 32 * place for place, word in enumerate(counter))
    words, after = philox_bits(key[0] | key[1] << 32, start, (4,), 32)
    assert tuple(words.tolist()) == want
    assert after == (start + 1) % 2**128


XLA_ANSWERS = [
    ("rng_default", [1, 2], 8, [73, 232, 215, 217, 254], [1, 4]),
    ("rng_default", [1, 2], 16, [42825, 48104, 9175, 9433, 9214], [1, 4]),
    (
        "rng_philox",
        [1, 2],
        32,
        [2100602697, 2847456232, 2074354647, 800269529, 1828267006],
        [1, 4],
    ),
    (
        "rng_philox",
        [1, 2, 3],
        32,
        [4031113034, 1366700262, 495645701, 3051723414, 89414891],
        [1, 4, 3],
    ),
    (
        "rng_philox",
        [1, 2, 3],
        64,
        [
            5869932932755744586,
            13107052260063114245,
            8234580641674714347,
            2641225993340350124,
            1962472297844690804,
        ],
        [1, 5, 3],
    ),
    ("rng_three_fry", [1, 2], 4, [4, 11, 3, 3, 3], [1, 5]),
    (
        "rng_three_fry",
        [1, 2],
        32,
        [43444564, 2150618427, 3979645651, 3745730563, 1672743891],
        [1, 5],
    ),
    (
        "rng_three_fry",
        [1, 2],
        64,
        [
            9236835810183407956,
            16087790271692313299,
            18212823393184779219,
            2658481902456610144,
            16424712389986402477,
        ],
        [1, 7],
    ),
]


@pytest.mark.parametrize(("algorithm", "state", "bits", "want", "after"), XLA_ANSWERS)
def test_five_elements_as_xla_makes_them(
    algorithm: Algorithm, state: list[int], bits: int, want: list[int], after: list[int]
) -> None:
    new, values = rng_bit_generator(np.array(state, np.uint64), (5,), bits, algorithm)
    assert values.tolist() == want
    assert new.tolist() == after


@pytest.mark.parametrize("shape", [(), (1,), (3, 4), (5, 3), (3, 2, 5), (0, 3), (40_000,)])
def test_three_fry_pairs_run_along_the_first_even_or_the_longest_dimension(
    shape: tuple[int, ...],
) -> None:
    values, after = three_fry_bits(7, 2**64 - 3, shape, 32)
    dims = shape or (1,)
    even = [d for d, n in enumerate(dims) if n % 2 == 0]
    axis = even[0] if even else dims.index(max(dims))
    half = [(n + 1) // 2 if d == axis else n for d, n in enumerate(dims)]
    count = int(np.prod(half))
    assert after == (2**64 - 3 + count) % 2**64
    for number, place in list(enumerate(np.ndindex(*half)))[:: max(1, count // 50)]:
        pair, _ = three_fry_bits(7, (2**64 - 3 + number) % 2**64, (2,), 32)
        for word in range(2):
            at = [*place]
            at[axis] = 2 * place[axis] + word
            if at[axis] < dims[axis]:
                assert values.reshape(dims)[tuple(at)] == pair[word]


def test_philox_carries_into_the_upper_counter() -> None:
    start = 2**64 - 2
    whole, after = philox_bits(5, start, (16,), 32)
    assert after == start + 4
    for k in range(4):
        assert whole[4 * k : 4 * k + 4].tolist() == philox_bits(5, start + k, (4,), 32)[0].tolist()
    assert philox_bits(5, 2**128 - 1, (8,), 32)[1] == 1


def test_the_state_steps_by_delta() -> None:
    words, state = rng_get_and_update_state(0x7012395, 3)
    assert words.tolist() == [117515157, 0]
    assert rng_get_and_update_state(state, 1)[0].tolist() == [117515160, 0]
    assert rng_get_and_update_state(2**64 + 5, 1)[0].tolist() == [5, 1]
    assert state_units((3, 4), "f64") == 24


@pytest.mark.parametrize("element_type", ["f32", "f64", "bf16", "f16"])
def test_uniform_and_normal_have_their_distributions(element_type: str) -> None:
    dtype = np.float64 if element_type == "f64" else np.float32
    low, high = np.asarray(dtype(-2)), np.asarray(dtype(6))
    uniform = rng_uniform(low, high, (20_001,), element_type, key=1, state=2)
    normal = rng_normal(
        np.asarray(dtype(1)), np.asarray(dtype(3)), (20_001,), element_type, key=3, state=4
    )
    assert uniform.dtype == dtype
    assert uniform.min() >= -2
    assert uniform.max() <= 6
    assert stats.kstest(uniform, stats.uniform(-2, 8).cdf).pvalue > 1e-4
    assert stats.kstest(normal, stats.norm(1, 3).cdf).statistic < 0.02
    again = rng_uniform(low, high, (20_001,), element_type, key=1, state=2)
    np.testing.assert_array_equal(uniform, again)


@pytest.mark.parametrize(
    ("element_type", "low", "high"), [("s32", -5, 6), ("u64", 2**63, 2**63 + 3)]
)
def test_uniform_integers(element_type: str, low: int, high: int) -> None:
    dtype = {"s32": np.int32, "u64": np.uint64}[element_type]
    got = rng_uniform(
        np.array(low, dtype), np.array(high, dtype), (5000,), element_type, key=9, state=1
    )
    assert got.dtype == dtype
    assert set(got.tolist()) == set(range(low, high))


def test_rng_refuses_what_it_cannot_draw() -> None:
    half = np.zeros((), np.complex64)
    with pytest.raises(UnsupportedError, match="c64"):
        rng_uniform(half, half, (2,), "c64", key=0, state=0)
    with pytest.raises(UnsupportedError, match="s32"):
        rng_normal(np.zeros((), np.int32), np.ones((), np.int32), (2,), "s32", key=0, state=0)
