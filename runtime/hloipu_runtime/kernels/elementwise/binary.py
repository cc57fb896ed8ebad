"""Elementwise operations on two arrays of one shape."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES, ElementType, Kind
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.core.blocks import Array, blocks, compact, like, repeats
from hloipu_runtime.kernels.core.quiet import quietly
from hloipu_runtime.kernels.core.rounding import is_narrow, origin_of, round_block, rounds_in_place
from hloipu_runtime.kernels.core.storage import wrap

RealKernel = Callable[[Array, Array, Array], object]
"""Writes the values for f32 or f64 pieces into `out`, which may be an operand; rounds nothing."""


def maximum(x: Array, y: Array, out: Array) -> None:
    """Write the larger of each pair: NaN wins, and +0 over -0."""
    bits, sign = _sign_bit(out.itemsize)
    signs = _other_choice(np.maximum, x, y, out).view(bits)
    np.bitwise_or(signs, ~sign, out=signs)
    np.bitwise_and(out.view(bits), signs, out=out.view(bits))


def minimum(x: Array, y: Array, out: Array) -> None:
    """Write the smaller of each pair: NaN wins, and -0 over +0."""
    bits, sign = _sign_bit(out.itemsize)
    signs = _other_choice(np.minimum, x, y, out).view(bits)
    np.bitwise_and(signs, sign, out=signs)
    np.bitwise_or(out.view(bits), signs, out=out.view(bits))


def extremum_on_arrays(
    opcode: str, operands: Sequence[Array], out: Array, other: Array
) -> list[Callable[[], object]] | None:
    """Return `maximum` or `minimum` as calls on these arrays; `other` is one of their own.

    None where operands have to be repeated.
    """
    x, y = operands
    if not x.shape == y.shape == out.shape:
        return None
    bits, sign = _sign_bit(out.itemsize)
    signs, made = other.view(bits), out.view(bits)
    if opcode == "maximum":
        return [
            partial(np.maximum, y, x, out=other),
            partial(np.maximum, x, y, out=out),
            partial(np.bitwise_or, signs, np.array(~sign), signs),
            partial(np.bitwise_and, made, signs, made),
        ]
    return [
        partial(np.minimum, y, x, out=other),
        partial(np.minimum, x, y, out=out),
        partial(np.bitwise_and, signs, np.array(sign), signs),
        partial(np.bitwise_or, made, signs, made),
    ]


def _other_choice(choose: np.ufunc, x: Array, y: Array, out: Array) -> Array:
    """Choose in both orders: one answer goes to `out`, the other is returned.

    numpy leaves open which of two equal operands it returns; only zeros of two signs and NaNs show.
    """
    swapped = np.asarray(choose(y, x))
    choose(x, y, out=out)
    return swapped


@lru_cache(maxsize=8)
def _sign_bit(size: int) -> tuple[np.dtype[Any], Any]:
    """Return the unsigned type of so many bytes, and its highest bit."""
    bits = np.dtype(f"u{size}")
    return bits, bits.type(1 << 8 * size - 1)


REAL_KERNELS: dict[str, RealKernel] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "remainder": np.fmod,
    "power": np.power,
    "maximum": maximum,
    "minimum": minimum,
    "atan2": np.arctan2,
}
"""What each opcode computes on f32 and f64 pieces; narrow floats are f32 rounded afterwards."""

_ON_GRID = {"maximum", "minimum"}

_PREDICATE: dict[str, np.ufunc] = {
    "add": np.logical_or,
    "multiply": np.logical_and,
    "maximum": np.logical_or,
    "minimum": np.logical_and,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "subtract": np.logical_xor,
}


def binary_has_meaning(opcode: str, element_type: str) -> bool:
    """Whether `binary` computes an operation on operands of a type."""
    element = ELEMENT_TYPES[element_type]
    if element.is_float:
        return opcode in REAL_KERNELS or opcode == "complex"
    if element.is_integer:
        from hloipu_runtime.kernels.elementwise.integer_arithmetic import INTEGER_BINARY

        return opcode in INTEGER_BINARY
    from hloipu_runtime.kernels.elementwise.complex_binary import COMPLEX_BINARY

    return opcode in (COMPLEX_BINARY if element.is_complex else _PREDICATE)


def binary(opcode: str, x: Array, y: Array, element_type: str, out: Array | None = None) -> Array:
    """Compute the elementwise operation `opcode` on `x` and `y`, both of type `element_type`.

    The result has their shape and type (for `complex`: the complex type made of theirs). `out`
    takes it if given; it may be one of the operands. Raises `UnsupportedError` where the operation
    has no meaning for the type.
    """
    element = ELEMENT_TYPES[element_type]
    if out is None:
        if repeats(x) and repeats(y):
            small = binary(opcode, compact(x), compact(y), element_type)
            return np.broadcast_to(small, np.broadcast_shapes(x.shape, y.shape))
        if opcode == "complex":
            shape = np.broadcast_shapes(x.shape, y.shape)
            return _complex(x, y, np.empty(shape, np.result_type(x.dtype, np.complex64)))
        shape = x.shape if x.shape == y.shape else np.broadcast_shapes(x.shape, y.shape)
        model = x if x.shape == shape and not repeats(x) else y
        whole = model.shape == shape and not repeats(model)
        out = like(model) if whole else np.empty(shape, x.dtype)
    if element.kind is Kind.FLOAT and opcode in REAL_KERNELS:
        return _real(opcode, x, y, element_type, out)
    from hloipu_runtime.kernels.elementwise.integer_arithmetic import INTEGER_BINARY

    if element.is_integer and opcode in INTEGER_BINARY:
        return _integer(opcode, x, y, element, out)
    if element.kind is Kind.PREDICATE and opcode in _PREDICATE:
        _PREDICATE[opcode](x, y, out=out)
        return out
    from hloipu_runtime.kernels.elementwise.complex_binary import COMPLEX_BINARY

    if element.is_complex and opcode in COMPLEX_BINARY:
        with quietly():
            for target, a, b in blocks(out, x, y):
                np.copyto(target, COMPLEX_BINARY[opcode](a, b))
        return out
    if element.is_float and opcode == "complex":
        return _complex(x, y, out)
    raise UnsupportedError(
        "E0457",
        f"{opcode} of {element_type} has no meaning",
        hint="convert the operands to a type that the operation is defined for",
    )


def _complex(real: Array, imag: Array, out: Array) -> Array:
    out.real = real
    out.imag = imag
    return out


def _one_nonzero(x: Array) -> bool:
    """Whether all of `x` is one number other than zero, as far as its strides tell."""
    return not any(x.strides) and x.size > 0 and bool(x.flat[0] != 0)


def _one_positive_zero(x: Array) -> bool:
    """Whether all of `x` is +0, as far as its strides tell."""
    return (
        not any(x.strides)
        and x.size > 0
        and bool(x.flat[0] == 0)
        and not bool(np.signbit(x.flat[0]))
    )


def _real(opcode: str, x: Array, y: Array, element_type: str, out: Array) -> Array:
    kernel = REAL_KERNELS[opcode]
    with quietly():
        if opcode in _ON_GRID:
            if _one_nonzero(y) or _one_nonzero(x):
                # Zeros of two signs cannot meet: numpy's own answer is the right one.
                (np.maximum if opcode == "maximum" else np.minimum)(x, y, out=out)
                return out
            if opcode == "maximum" and (_one_positive_zero(y) or _one_positive_zero(x)):
                # The rectifier: adding +0 makes either zero +0 and changes nothing else.
                np.maximum(x, y, out=out)
                np.add(out, out.dtype.type(0), out=out)
                return out
            for target, a, b in blocks(out, x, y):
                kernel(a, b, target)
        elif not is_narrow(element_type):
            kernel(x, y, out)
        else:
            origin = origin_of(opcode)
            in_place = rounds_in_place(element_type, origin)
            for target, a, b in blocks(out, x, y):
                exact = target if in_place else np.empty(target.shape, np.float32)
                kernel(a, b, exact)
                round_block(exact, element_type, target, origin)
    return out


def _integer(opcode: str, x: Array, y: Array, element: ElementType, out: Array) -> Array:
    from hloipu_runtime.kernels.elementwise.integer_arithmetic import INTEGER_BINARY, NEVER_WRAPS

    with quietly():
        INTEGER_BINARY[opcode](x, y, out, element)
    if element.bits < 8 and opcode not in NEVER_WRAPS:
        wrap(out, element.name, out=out)
    return out
