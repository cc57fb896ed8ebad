"""Conversions of element types: by value, with random rounding, and by bits."""

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES, Kind
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.core.blocks import Array, blocks, compact, like, repeats
from hloipu_runtime.kernels.core.quiet import quietly
from hloipu_runtime.kernels.core.rounding import is_narrow, round_to
from hloipu_runtime.kernels.core.storage import bits_dtype, from_bits, storage_dtype, to_bits, wrap


def convert(x: Array, from_type: str, to_type: str) -> Array:
    """Convert values to another element type, as XLA:CPU does for every pair of types.

    Integers wrap; floats are rounded once, to nearest and ties to even; integers become narrow
    floats by way of f32; floats to integers are cut towards zero and clamped, NaN gives 0; anything
    but zero is true; of a complex number only the real part is kept, but pred looks at both.
    """
    if from_type == to_type:
        return x
    if repeats(x):
        return np.broadcast_to(convert(compact(x), from_type, to_type), x.shape)
    source, target = ELEMENT_TYPES[from_type], ELEMENT_TYPES[to_type]
    if target.kind is Kind.PREDICATE:
        # XLA:CPU reads the bits of bf16, and so sees subnormals that it takes as zero elsewhere.
        return np.asarray((x.view(np.uint32) << 1 if from_type == "bf16" else x) != 0)
    if source.is_complex and not target.is_complex:
        component = "f32" if source.bits == 64 else "f64"
        return convert(x.real, component, to_type)
    if source.is_float and target.is_integer:
        return _float_to_integer(x, to_type)
    if target.is_integer:
        wide = np.asarray(x).astype(storage_dtype(to_type))
        return wrap(wide, to_type, out=wide) if target.bits < 8 else wide
    if from_type == "f8e8m0fnu" and to_type in ("f32", "c64"):
        return _powers_of_two_in_f32(x).astype(storage_dtype(to_type), copy=False)
    if from_type == "f8e8m0fnu":
        x = _exact_powers_of_two(x)
    with quietly():
        if is_narrow(to_type):
            # Integers pass through f32, as in XLA: bf16 and f8e8m0fnu see them rounded twice.
            return round_to(x if x.dtype.kind == "f" else x.astype(np.float32), to_type)
        return x.astype(storage_dtype(to_type), copy=False)


def _powers_of_two_in_f32(x: Array) -> Array:
    """Put f8e8m0fnu's exponents where f32 has them; 2^-127 is half of the smallest normal one."""
    codes = to_bits(x, "f8e8m0fnu").astype(np.uint32)
    bits = np.where(codes == 0, np.uint32(1 << 22), codes << np.uint32(23))
    return np.where(codes == 0xFF, np.float32(np.nan), bits.view(np.float32))


def _exact_powers_of_two(x: Array) -> Array:
    """Widen f8e8m0fnu to f64 by its bits: 2^-127 is subnormal in f32 and may be flushed there."""
    codes = to_bits(x, "f8e8m0fnu")
    exact = (codes.astype(np.uint64) + np.uint64(1023 - 127) << np.uint64(52)).view(np.float64)
    return np.where(codes == 0xFF, np.nan, exact)


def _float_to_integer(x: Array, to_type: str) -> Array:
    element = ELEMENT_TYPES[to_type]
    signed = element.kind is Kind.SIGNED
    low = -(1 << (element.bits - 1)) if signed else 0
    high = (1 << (element.bits - signed)) - 1
    result = like(x, storage_dtype(to_type))
    with quietly():
        for target, piece in blocks(result, x):
            smallest, largest = float(piece.min()), float(piece.max())  # NaN where there is one
            if smallest >= low and largest < high + 1:
                np.copyto(target, piece, casting="unsafe")
            else:
                _clamped(piece, low, high, target, has_nan=smallest != smallest)
    return result


def _clamped(x: Array, low: int, high: int, out: Array, *, has_nan: bool) -> None:
    """Convert with every value that does not fit replaced: NaN by 0, the others by a bound."""
    is_exact = high < 1 << 24
    top = x.dtype.type(high) if is_exact else np.nextafter(x.dtype.type(high + 1), x.dtype.type(0))
    fits = x.clip(x.dtype.type(low), top)
    if has_nan:
        np.copyto(fits, 0, where=np.isnan(x))
    np.copyto(out, fits, casting="unsafe")
    if not is_exact:  # the largest float below the bound is no bound
        np.copyto(out, high, where=x > top)


def bitcast_convert(x: Array, from_type: str, to_type: str) -> Array:
    """Read the bits of `x` as another element type.

    Equal widths keep the shape; a narrower type appends a dimension of the ratio of the widths, a
    wider one takes up the last dimension. The first element has the lowest bits. Raises
    `UnsupportedError` where one width is no multiple of the other.
    """
    if from_type == to_type:
        return x
    source, target = ELEMENT_TYPES[from_type].bits, ELEMENT_TYPES[to_type].bits
    if max(source, target) % min(source, target) or (128 in (source, target)):
        raise UnsupportedError(
            "E0457",
            f"the {source} bits of {from_type} cannot be read as {to_type} of {target} bits",
            hint="one width must be a multiple of the other, 64 bits at most",
        )
    bits = np.asarray(to_bits(x, from_type))
    if source > target:
        bits = _split(bits, source, target)
    elif source < target:
        bits = _merge(bits, source, target)
    return np.asarray(from_bits(bits.astype(bits_dtype(to_type), copy=False), to_type))


def _split(bits: Array, source: int, target: int) -> Array:
    ratio = source // target
    if target >= 8:
        pieces = np.ascontiguousarray(bits).reshape(*bits.shape, 1)
        return pieces.view(f"<u{target // 8}")
    shifts = np.arange(ratio, dtype=bits.dtype) * bits.dtype.type(target)
    return np.asarray((bits[..., None] >> shifts) & bits.dtype.type((1 << target) - 1))


def _merge(bits: Array, source: int, target: int) -> Array:
    if source >= 8:
        return np.ascontiguousarray(bits).view(f"<u{target // 8}")[..., 0]
    dtype = np.dtype(f"u{max(target // 8, 1)}")
    shifts = np.arange(target // source, dtype=dtype) * dtype.type(source)
    return np.asarray(np.bitwise_or.reduce(bits.astype(dtype) << shifts, axis=-1))


def stochastic_convert(x: Array, random: Array, from_type: str, to_type: str) -> Array:
    """Convert floats, rounding up in magnitude as often as uniform `random` bits say.

    `random` holds unsigned integers of the width of `from_type`. A value between two neighbours of
    the target type goes to the larger in magnitude when `random` is below the distance covered, in
    units of 2^width of the gap. Clamping and NaN are as in `convert`.
    """
    width = ELEMENT_TYPES[from_type].bits
    with quietly():
        size = np.absolute(x).astype(np.float64)
        near = _towards_zero(size, to_type)
        far = _next_above(near, to_type)
        fraction = np.where(size > near, (size - near) / (far - near), 0.0)
        # Scaling by a power of two is exact, and so is comparing: both stay below 2^53 or are
        # multiples of a unit that f64 holds.
        threshold = np.floor(np.ldexp(fraction, width))
        rounded = np.where(_below(random, threshold), far, near)
        value = np.copysign(np.where(np.isfinite(size), rounded, size), x)
        return convert(value, "f64", to_type)


def _below(random: Array, threshold: Array) -> Array:
    """Compare unsigned integers with whole f64 numbers, exactly."""
    if random.dtype.itemsize < 8:
        return np.asarray(random < threshold)
    whole = np.where(threshold < 2.0**64, threshold, 0.0).astype(np.uint64)
    return np.asarray((threshold >= 2.0**64) | (random < whole))


def _towards_zero(size: Array, to_type: str) -> Array:
    if ELEMENT_TYPES[to_type].is_integer:
        return np.floor(size)
    rounded = round_to(size, to_type).astype(np.float64)
    # A value that rounds to infinity stays there; only numbers have a neighbour to go back to.
    back = np.isfinite(rounded) & (rounded > size)
    return np.where(back, _next_below(rounded, to_type), rounded)


def _next_above(size: Array, to_type: str) -> Array:
    if ELEMENT_TYPES[to_type].is_integer:
        return size + 1
    bits = to_bits(size.astype(storage_dtype(to_type)), to_type)
    return from_bits(bits + bits.dtype.type(1), to_type).astype(np.float64)


def _next_below(size: Array, to_type: str) -> Array:
    bits = to_bits(size.astype(storage_dtype(to_type)), to_type)
    return from_bits(bits - bits.dtype.type(1), to_type).astype(np.float64)
