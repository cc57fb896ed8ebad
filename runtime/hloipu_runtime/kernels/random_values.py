"""The stateful `rng`: uniform and normal values from Philox bits.

Formulas: openxla/xla: xla/hlo/builder/lib/prng.cc and xla/service/rng_expander.cc. XLA mixes a
fresh key into every compilation, so its values cannot be had again; for one key ours are the same.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.quiet import quietly
from hloipu_runtime.kernels.core.rounding import round_to
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.random_bits import philox_bits

SMALLEST_LOGARITHM_ARGUMENT = 1.0e-7
"""Below it the Box-Muller transform does not go."""


def rng_get_and_update_state(state: int, delta: int) -> tuple[Array, int]:
    """Return the 128-bit state as u64[2], low half first, and the state advanced by `delta`."""
    words = np.array([state & (1 << 64) - 1, state >> 64], np.uint64)
    return words, (state + delta) % (1 << 128)


def state_units(shape: Sequence[int], element_type: str) -> int:
    """Return how far one `rng` advances the state: the 32-bit words of its result."""
    return prod(shape) * (2 if ELEMENT_TYPES[element_type].bits == 64 else 1)


def rng_uniform(
    low: Array, high: Array, shape: Sequence[int], element_type: str, *, key: int, state: int
) -> Array:
    """Return values uniform in [low, high); f16 and bf16 are drawn as f32 and rounded."""
    element = ELEMENT_TYPES[element_type]
    if element.is_integer:
        return _uniform_integers(low, high, shape, element_type, key, state)
    if not element.is_float:
        raise UnsupportedError(
            "E0457",
            f"rng was asked for uniform {element_type} values; it makes integers and floats",
            hint="draw u32 and convert",
        )
    unit = _unit_floats(shape, element_type, key, state)
    with quietly():
        unit *= high - low
        unit += low
    return round_to(unit, element_type)


def rng_normal(
    mean: Array, deviation: Array, shape: Sequence[int], element_type: str, *, key: int, state: int
) -> Array:
    """Return normal values by Box-Muller; f16 and bf16 are drawn as f32 and rounded."""
    if not ELEMENT_TYPES[element_type].is_float:
        raise UnsupportedError(
            "E0457",
            f"rng was asked for normal {element_type} values; it makes floats",
            hint="draw f32 and convert",
        )
    dims = list(shape) or [1]
    even = [d for d, n in enumerate(dims) if n % 2 == 0]
    split = even[0] if even else dims.index(max(dims))
    half = (dims[split] + 1) // 2
    paired = (prod(dims[:split]), half, 2, prod(dims[split + 1 :]))
    unit = _unit_floats(paired, element_type, key, state)
    dtype = unit.dtype.type
    radius_source = np.maximum(unit[:, :, 0], dtype(SMALLEST_LOGARITHM_ARGUMENT))
    radius = np.sqrt(dtype(-2.0) * np.log(radius_source))
    angle = dtype(2.0 * np.pi) * unit[:, :, 1]
    unit[:, :, 0] = np.sin(angle) * radius
    unit[:, :, 1] = np.cos(angle) * radius
    values = unit.reshape(paired[0], 2 * half, paired[3])[:, : dims[split]].reshape(tuple(shape))
    with quietly():
        return round_to(np.asarray(mean + deviation * values), element_type)


def _unit_floats(shape: Sequence[int], element_type: str, key: int, state: int) -> Array:
    """Return values uniform in [0, 1), of as many random bits as the mantissa has."""
    wide = ELEMENT_TYPES[element_type].bits == 64
    mantissa = 52 if wide else 23
    bits, _ = philox_bits(key, state, shape, 64 if wide else 32)
    dtype = np.float64 if wide else np.float32
    unit: Array = (bits >> bits.dtype.type(bits.itemsize * 8 - mantissa)).astype(dtype)
    unit *= dtype(2.0**-mantissa)
    return unit


def _uniform_integers(
    low: Array, high: Array, shape: Sequence[int], element_type: str, key: int, state: int
) -> Array:
    """Return low + bits mod (high - low), in wrapping arithmetic."""
    storage = storage_dtype(element_type)
    wide = storage.itemsize == 8
    bits, _ = philox_bits(key, state, shape, 64 if wide else 32)
    modulus = (int(high) - int(low)) % (1 << bits.itemsize * 8)
    if modulus:
        bits = bits % bits.dtype.type(modulus)
    offset = bits.dtype.type(int(low) % (1 << bits.itemsize * 8))
    return np.asarray(bits + offset).astype(storage)
