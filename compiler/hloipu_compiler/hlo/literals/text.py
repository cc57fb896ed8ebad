"""Arrays to literal text, as XLA prints them: shortest digits that read back to the same bits.

Source: openxla/xla `xla/literal.cc` (DenseArrayPrintHelper), `xla/util.cc` (RoundTripFpToString):
f32 and f64 try 6 and 15 digits and fall back to 9 and 17; narrower floats always use the digits
that tell all their values apart.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.hlo.literals.rounding import PAYLOAD_BITS
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.ir.shapes import ArrayShape, BufferShape, Shape, TupleShape
from hloipu_runtime.element_types import F32, F64, ElementType, Kind

_DIGITS = {
    "f16": 5, "bf16": 4, "f8e5m2": 2, "f8e5m2fnuz": 2, "f8e8m0fnu": 2, "f4e2m1fn": 2, "f6e3m2fn": 2,
    "f8e4m3": 3, "f8e4m3fn": 3, "f8e4m3b11fnuz": 3, "f8e4m3fnuz": 3, "f8e3m4": 3, "f6e2m3fn": 3,
}  # fmt: skip
"""C++'s max_digits10 of each narrow type; f8e4m3's 4 bits and f6e3m2's 3 make the difference."""

ArrayTree = NDArray[np.generic] | Sequence["ArrayTree"]


def literal_text(values: ArrayTree, shape: Shape) -> str:
    """Return the text that goes between the parentheses of `constant(…)`.

    `values` is in storage form (`hloipu_runtime.kernels`), a sequence of such for a tuple. The text
    reads back to the same bits, signs and payloads of nans included.
    Raises TextFault where the values do not have the shape.
    """
    if isinstance(shape, TupleShape):
        if len(values) != len(shape.elements):
            raise TextFault("E0141", f"{len(values)} values for the shape {shape}")
        parts = [
            literal_text(value, element)
            for value, element in zip(values, shape.elements, strict=True)
        ]
        return f"( {', '.join(parts)} )" if parts else "( )"
    array_shape = shape.contents if isinstance(shape, BufferShape) else shape
    array = np.asarray(values)
    if array.shape != array_shape.dimensions:
        raise TextFault("E0141", f"the values have sizes {array.shape}, the shape is {shape}")
    elements = element_texts(array.reshape(-1), array_shape)
    if not array_shape.dimensions:
        return elements[0]
    return _nested(elements, array_shape)


def element_texts(flat: NDArray[np.generic], shape: ArrayShape) -> list[str]:
    """Return the text of each element of a flat array."""
    element_type = shape.element_type
    if element_type.kind is Kind.PREDICATE:
        words = ("0", "1") if shape.dimensions else ("false", "true")
        return [words[bool(v)] for v in flat.tolist()]
    if element_type.is_integer:
        return list(map(str, flat.tolist()))
    if element_type.is_complex:
        part = F32 if element_type.name == "c64" else F64
        real, imaginary = _floats(flat.real, part), _floats(flat.imag, part)
        return [f"({re}, {im})" for re, im in zip(real, imaginary, strict=True)]
    return _floats(flat, element_type)


def _floats(flat: NDArray[np.generic], element_type: ElementType) -> list[str]:
    name = element_type.name
    values: list[float] = flat.tolist()
    if name == "f32":
        texts = _shortest_single(values)
    elif name == "f64":
        texts = [s if float(s := f"{v:.15g}") == v else f"{v:.17g}" for v in values]
    else:
        digits = _DIGITS[name]
        texts = [f"{v:.{digits}g}" for v in values]
        if name == "f8e8m0fnu":  # two digits do not tell 2**-127 from 2**-126
            texts = [
                f"{v:.4g}" if v < 1e-38 else text for v, text in zip(values, texts, strict=True)
            ]
    if "-0" in texts:  # XLA prints it so, and reads it back as +0
        texts = ["-0.0" if text == "-0" else text for text in texts]
    nans = np.isnan(flat)
    if nans.any():
        wide = np.ascontiguousarray(flat)
        for i in np.flatnonzero(nans).tolist():
            texts[i] = _nan_text(wide[i : i + 1], element_type)
    return texts


def _shortest_single(values: list[float]) -> list[str]:
    texts = [f"{v:.6g}" for v in values]
    with np.errstate(over="ignore"):
        parsed = np.array(texts, dtype=np.float64).astype(np.float32)
    for i in np.flatnonzero(parsed != np.array(values, dtype=np.float32)).tolist():
        texts[i] = f"{values[i]:.9g}"
    return texts


def _nan_text(element: NDArray[np.generic], element_type: ElementType) -> str:
    """Return `nan`, with its sign, and with its payload where that is not the plain one."""
    bits, mantissa = (
        (element.view(np.uint64), 52) if element.itemsize == 8 else (element.view(np.uint32), 23)
    )
    word = int(bits[0])
    sign = "-" if word >> (8 * element.itemsize - 1) else ""
    payload_bits = PAYLOAD_BITS.get(element_type.name)
    if payload_bits is None:
        return f"{sign}nan"
    payload = (word & ((1 << mantissa) - 1)) >> (mantissa - payload_bits)
    plain = payload in (0, 1 << (payload_bits - 1))
    return f"{sign}nan" if plain else f"{sign}nan({payload:#x})"


def _nested(elements: list[str], shape: ArrayShape) -> str:
    """Return the elements in braces, with XLA's blanks and, above rank 3, its index comments."""
    dimensions = shape.dimensions
    rank = len(dimensions)
    rows = elements
    for depth in reversed(range(rank)):
        size = dimensions[depth]
        outer = 1
        for n in dimensions[:depth]:
            outer *= n
        opening, closing = _braces(rank, depth, size)
        starts = range(0, outer * size, size) if size else [0] * outer
        commented = rank > 3 and 0 < depth < rank - 1
        rows = [
            _opening(opening, depth, i, dimensions, size, commented=commented)
            + ", ".join(rows[at : at + size])
            + closing
            for i, at in enumerate(starts)
        ]
    return rows[0]


def _braces(rank: int, depth: int, size: int) -> tuple[str, str]:
    if rank == 1:
        return "{", "}"
    if depth == rank - 1:
        return ("{", "}") if size <= 1 else ("{ ", " }")
    return "{ ", " }"


def _opening(
    brace: str, depth: int, number: int, dimensions: tuple[int, ...], size: int, *, commented: bool
) -> str:
    if not commented:
        return brace
    index = number % dimensions[depth - 1]
    return f"{{ /*i{depth - 1}={index}*/{' ' if size else ''}"
