"""Counter-based random bits: ThreeFry 2x32 and Philox 4x32-10, bit for bit as XLA expands them.

Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011); how counters are
laid out over a result: openxla/xla: xla/hlo/builder/lib/prng.cc.
"""

from collections.abc import Sequence
from math import prod
from typing import Literal

import numpy as np

from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.native.random_words import Philox, ThreeFry, words_natively

Algorithm = Literal["rng_default", "rng_three_fry", "rng_philox"]

_U32 = np.uint32
_U64 = np.uint64
_BLOCK_COUNTERS = 1 << 14
"""Counters run through all rounds at once: a handful of 64 KiB arrays."""

_THREE_FRY = ThreeFry(rotations=((13, 15, 26, 6), (17, 29, 16, 24)), parity=0x1BD11BDA)
_PHILOX = Philox(
    multipliers=(0xD2511F53, 0xCD9E8D57), key_steps=(0x9E3779B9, 0xBB67AE85), rounds=10
)
_MASK32 = (1 << 32) - 1
_MASK64 = (1 << 64) - 1
_MASK128 = (1 << 128) - 1


def states_of(algorithm: str) -> tuple[int, ...]:
    """Return the numbers of 64-bit words that an algorithm's state may have."""
    return (2,) if algorithm == "rng_three_fry" else (2, 3)


def rng_bit_generator(
    state: Array, shape: Sequence[int], bits: int, algorithm: Algorithm
) -> tuple[Array, Array]:
    """Return the state after, and unsigned integers of `bits` (up to 64) in the given shape.

    `state` is u64[2] (key, counter), or for Philox u64[3] (key, 128-bit counter, low half first).
    `rng_default` is Philox, as on XLA:CPU. Of results narrower than 32 bits each holds the low
    bits of a 32-bit one; those below 8 bits come in uint8.
    """
    words = [int(w) for w in state]
    key, counters = words[0], words[1:]
    if algorithm == "rng_three_fry":
        values, counter = three_fry_bits(key, counters[0], shape, bits)
        return np.array([key, counter], _U64), values
    # A short state counts with its key as the upper half, and only the lower half is handed on.
    counter = counters[0] | (counters[1] if len(counters) > 1 else key) << 64
    values, counter = philox_bits(key, counter, shape, bits)
    after = [key, counter & _MASK64, counter >> 64][: len(words)]
    return np.array(after, _U64), values


def three_fry_bits(key: int, counter: int, shape: Sequence[int], bits: int) -> tuple[Array, int]:
    """Return ThreeFry bits in the given shape and the 64-bit counter after them.

    A counter yields two words. For 64 bits they are the halves of one element, low first. For
    fewer they are neighbours along the first even dimension, or along the longest if all are odd.
    """
    if bits == 64:
        count = prod(shape)
        words = _words(_THREE_FRY, key, counter, (count, 1))
        return words.reshape(-1).view(_U64).reshape(tuple(shape)), (counter + count) & _MASK64
    dims = list(shape) or [1]
    even = [d for d, n in enumerate(dims) if n % 2 == 0]
    split = even[0] if even else dims.index(max(dims))
    half = (dims[split] + 1) // 2
    outer, inner = prod(dims[:split]), prod(dims[split + 1 :])
    words = _words(_THREE_FRY, key, counter, (outer * half, inner))
    whole = words.reshape(outer, 2 * half, inner)[:, : dims[split]].reshape(tuple(shape))
    return _narrowed(whole, bits), (counter + outer * half * inner) & _MASK64


def philox_bits(key: int, counter: int, shape: Sequence[int], bits: int) -> tuple[Array, int]:
    """Return Philox bits in the given shape and the 128-bit counter after them.

    A counter yields four words: four elements of up to 32 bits, or two of 64, low word first.
    """
    count = prod(shape)
    counters = -(-count // (2 if bits == 64 else 4))
    words = _words(_PHILOX, key, counter, (counters, 1)).reshape(-1)
    values = words.view(_U64) if bits == 64 else words
    shaped = values[:count].reshape(tuple(shape))
    return shaped if bits == 64 else _narrowed(shaped, bits), (counter + counters) & _MASK128


def _words(method: ThreeFry | Philox, key: int, counter: int, sizes: tuple[int, int]) -> Array:
    """Return the words of counters from `counter` on, as u32[rows, words, columns].

    Counters go along the columns, then along the rows; `sizes` are those of rows and columns.
    Philox has one column.
    """
    rows, columns = sizes
    out = np.empty((rows, method.words, columns), _U32)
    if words_natively(method, key, counter, out):
        return out
    if isinstance(method, ThreeFry):
        for place, word in enumerate(three_fry_words(key, counter, rows * columns)):
            out[:, place] = word.reshape(sizes)
        return out
    flat = out.reshape(-1, method.words)
    for start in range(0, len(flat), _BLOCK_COUNTERS):
        block = flat[start : start + _BLOCK_COUNTERS]
        for place, word in enumerate(_philox_words(key, counter + start, len(block))):
            block[:, place] = word
    return out


def three_fry_words(key: int, counter: int, count: int) -> Array:
    """Return both words of `count` counters from `counter` on, as u32[2, count]."""
    key_words = [key & _MASK32, key >> 32]
    schedule = [_U32(k) for k in (*key_words, key_words[0] ^ key_words[1] ^ _THREE_FRY.parity)]
    words = np.empty((2, count), _U32)
    scratch = np.empty(min(count, _BLOCK_COUNTERS), _U32)
    for start in range(0, count, _BLOCK_COUNTERS):
        block = words[:, start : start + _BLOCK_COUNTERS]
        size = block.shape[1]
        counters = np.arange(size, dtype=_U64)
        counters += _U64((counter + start) & _MASK64)
        block[0] = counters.astype(_U32)
        block[1] = counters >> _U64(32)
        _three_fry_rounds(block[0], block[1], schedule, scratch[:size])
    return words


def _three_fry_rounds(x: Array, y: Array, schedule: Sequence[np.uint32], scratch: Array) -> None:
    """Run the 20 rounds of ThreeFry 2x32 in place."""
    x += schedule[0]
    y += schedule[1]
    for group in range(5):
        for distance in _THREE_FRY.rotations[group % 2]:
            np.add(x, y, out=x)
            np.right_shift(y, _U32(32 - distance), out=scratch)
            np.left_shift(y, _U32(distance), out=y)
            np.bitwise_or(y, scratch, out=y)
            np.bitwise_xor(y, x, out=y)
        x += schedule[(group + 1) % 3]
        y += schedule[(group + 2) % 3]
        y += _U32(group + 1)


def _philox_words(key: int, counter: int, count: int) -> list[Array]:
    """Return the four words of `count` counters, each a u64 array of 32-bit values."""
    low = counter & _MASK64
    lows = np.arange(count, dtype=_U64)
    lows += _U64(low)
    highs = np.full(count, (counter >> 64) & _MASK64, _U64)
    if low + count > _MASK64:
        highs[lows < _U64(low)] += _U64(1)
    mask, half = _U64(_MASK32), _U64(32)
    state = [lows & mask, lows >> half, highs & mask, highs >> half]
    keys = [key & _MASK32, key >> 32]
    for _ in range(_PHILOX.rounds):
        first = state[0] * _U64(_PHILOX.multipliers[0])
        second = state[2] * _U64(_PHILOX.multipliers[1])
        state[1] ^= second >> half
        state[1] ^= _U64(keys[0])
        state[3] ^= first >> half
        state[3] ^= _U64(keys[1])
        second &= mask
        first &= mask
        state = [state[1], second, state[3], first]
        keys = [(k + step) & _MASK32 for k, step in zip(keys, _PHILOX.key_steps, strict=True)]
    return state


def _narrowed(words: Array, bits: int) -> Array:
    """Keep the low bits of 32-bit words, in the narrowest unsigned storage."""
    if bits == 32:
        return words
    if bits == 16:
        return words.astype(np.uint16)
    narrow = words.astype(np.uint8)
    return narrow if bits == 8 else narrow & np.uint8((1 << bits) - 1)
