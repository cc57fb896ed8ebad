"""Random numbers on tiles: the same bits however they are split; bits as published."""

import numpy as np
import pytest

from hloipu_runtime.codelets.core.tensors import Block, Sizes, Tensor
from hloipu_runtime.codelets.ops.random import RngBits, RngState, RngValues
from hloipu_runtime.kernels.random_bits import Algorithm, rng_bit_generator
from hloipu_runtime.kernels.random_values import rng_normal, rng_uniform
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.load import load_machine
from tests.support.cases import each
from tests.support.codelet_law import Given, check_every_split, check_law

TINY = load_machine("tiny")
KEY, POSITION = 0x0123456789ABCDEF, (5 << 64) + 2**64 - 2
STATE = np.array([KEY, POSITION & (2**64 - 1), POSITION >> 64], np.uint64)


def test_three_fry_of_nothing_is_as_published() -> None:
    # Random123's known-answer test of threefry2x32 with 20 rounds: all zeros.
    state = np.zeros(2, np.uint64)
    after, bits = check_law(
        RngBits("rng_three_fry", "u32"),
        [Given("u64", state)],
        [Tensor("u64", (2,)), Tensor("u32", (2,))],
        {0: 1},
    )
    np.testing.assert_array_equal(bits, [0x6B200159, 0x99BA4EFE])
    np.testing.assert_array_equal(after, [0, 1])


@pytest.mark.parametrize("algorithm", ["rng_three_fry", "rng_philox", "rng_default"])
@pytest.mark.parametrize("element_type", ["u32", "u64", "u8", "s16", "u4"])
@pytest.mark.parametrize("shape", [(7, 5), (6, 3)])
def test_bits_are_those_of_the_whole(algorithm: Algorithm, element_type: str, shape: Sizes) -> None:
    words = 2 if algorithm == "rng_three_fry" else 3
    state = STATE[:words]
    after, bits = check_every_split(
        RngBits(algorithm, element_type),
        [Given("u64", state)],
        [Tensor("u64", (words,)), Tensor(element_type, shape)],
    )
    width = int(element_type[1:])
    want_after, want = rng_bit_generator(state, shape, width, algorithm)
    np.testing.assert_array_equal(after, want_after)
    np.testing.assert_array_equal(
        bits.astype(np.uint64) & np.uint64((1 << width) - 1), want.astype(np.uint64)
    )


def test_a_state_of_32_bit_words() -> None:
    state = STATE[:2].view(np.uint32)
    after, bits = check_every_split(
        RngBits("rng_philox", "u32"),
        [Given("u32", state)],
        [Tensor("u32", (4,)), Tensor("u32", (9,))],
    )
    want_after, want = rng_bit_generator(STATE[:2], (9,), 32, "rng_philox")
    np.testing.assert_array_equal(after, want_after.view(np.uint32))
    np.testing.assert_array_equal(bits, want)


def test_a_tile_with_another_state_makes_other_bits() -> None:
    states = np.stack([STATE, STATE, STATE + np.uint64(1)])
    whole = Block(states, (3,), (3,), (0,), (3,))
    results = [
        Block(None, (3,), (3,), (0,), (3,)),
        Block(None, (3,), (4,), (np.array([0, 4, 8]),), (12,)),
    ]
    after, bits = RngBits("rng_philox", "u32").run([whole], results)
    for tile in range(3):
        want_after, want = rng_bit_generator(states[tile], (12,), 32, "rng_philox")
        np.testing.assert_array_equal(bits[tile], want[4 * tile : 4 * tile + 4])
        np.testing.assert_array_equal(after[tile], want_after)


@pytest.mark.parametrize("element_type", ["f32", "bf16", "f64"])
@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_values_are_those_of_the_whole(element_type: str, distribution: str) -> None:
    dtype = np.float64 if element_type == "f64" else np.float32
    low, high = np.array(-1, dtype), np.array(2, dtype)
    codelet = RngValues("uniform" if distribution == "uniform" else "normal", element_type)
    given = [Given(element_type, low), Given(element_type, high), Given("u64", STATE)]
    (values,) = check_every_split(codelet, given, [Tensor(element_type, (7, 5))])
    draw = rng_uniform if distribution == "uniform" else rng_normal
    want = draw(low, high, (7, 5), element_type, key=KEY, state=POSITION)
    np.testing.assert_array_equal(values, want)


def test_the_state_advances_with_carry() -> None:
    before, after = check_law(
        RngState(3), [Given("u64", STATE)], [Tensor("u64", (2,)), Tensor("u64", (3,))], {}
    )
    np.testing.assert_array_equal(before, STATE[1:])
    np.testing.assert_array_equal(after, np.array([KEY, 1, 6], np.uint64))
    last = np.array([KEY, 2**64 - 1, 2**64 - 1], np.uint64)
    (_, wrapped) = check_law(
        RngState(2**64 + 1), [Given("u64", last)], [Tensor("u64", (2,)), Tensor("u64", (3,))], {}
    )
    np.testing.assert_array_equal(wrapped, np.array([KEY, 0, 1], np.uint64))


def test_cycles() -> None:
    scalar, state, part = Tensor("f32", ()), Tensor("u64", (3,)), Tensor("f32", (60,))
    uniform = RngValues("uniform", "f32")
    assert uniform.work(TINY, [scalar, scalar, state], [part]) == TileWork(4 + 6 * (22 + 4 * 5))
    for algorithm, slots in (("rng_philox", 343 * 3), ("rng_three_fry", 114 * 5)):
        bits, cycles = RngBits(algorithm, "u32"), 11 + 6 * (30 + slots)
        assert bits.work(TINY, [state], [state, Tensor("u32", (60,))]) == TileWork(cycles, cycles)


@each(("element_type", "draws"), [("u32", 5), ("u64", 10), ("u16", 3), ("u8", 2)])
def test_the_chip_draws_64_bits_a_slot(element_type: str, draws: int) -> None:
    """As poprand's `Uniform` of whole words, after `SetSeed`; each of 6 workers has 10 elements."""
    state, bits = Tensor("u64", (2,)), Tensor(element_type, (60,))
    found = RngBits("rng_default", element_type).work(TINY, [state], [state, bits])
    assert found == TileWork(4 + 14 + 6 * (22 + 27 + draws))
