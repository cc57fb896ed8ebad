"""Inputs that reach the edges: NaN, infinities, -0, subnormals, extremes; the same everywhere.

Only the raw stream of PCG64 is used, and exact arithmetic on it.
"""

from collections.abc import Callable
from functools import cache
from math import prod
from zlib import crc32

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES, Kind
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.rounding import round_to
from hloipu_runtime.kernels.core.storage import from_bits, from_storage, to_storage, user_dtype
from tools.conformance.case import Case, Input

Source = np.random.PCG64


def inputs_of(case: Case, participant: int = 0) -> list[Array]:
    """Return a case's arguments in the user's dtypes; each participant has its own."""
    source = np.random.PCG64(crc32(f"{case.name}#{participant}".encode()))
    return [array_of(x, source) for x in case.inputs]


def array_of(wanted: Input, source: Source) -> Array:
    """Draw one array in the user's dtype."""
    values = STYLES[wanted.style](wanted, source)
    shaped = np.ascontiguousarray(values).reshape(wanted.dimensions)
    if shaped.dtype == user_dtype(wanted.element_type):
        return shaped
    return from_storage(shaped, wanted.element_type)


def raw(source: Source, count: int) -> Array:
    """Draw 64-bit words."""
    return np.asarray(source.random_raw(count), np.uint64).reshape(count)


def uniform(source: Source, count: int) -> Array:
    """Draw multiples of 2**-23 from [-1, 1)."""
    return (raw(source, count) >> np.uint64(40)).astype(np.float64) / 2**23 - 1


@cache
def edge_values(element_type: str) -> Array:
    """Return the edges of a type in storage form: one array of one dimension."""
    element = ELEMENT_TYPES[element_type]
    if element.kind is Kind.PREDICATE:
        return np.array([False, True])
    if element.is_integer:
        signed = element.kind is Kind.SIGNED
        low = -(1 << (element.bits - 1)) if signed else 0
        high = (1 << (element.bits - signed)) - 1
        wanted = [0, 1, 2, 3, 5, 7, 10, -1, -2, -3, -7, high, high - 1, low, low + 1, high // 2]
        wanted += [1 << s for s in range(3, element.bits - 1, 7)]
        wanted += [element.bits - 1, element.bits, element.bits + 1, 63, 64, 100]
        kept = sorted({w for w in wanted if low <= w <= high})
        return np.array(kept, dtype=element.storage)
    if element.is_complex:
        part = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.25, 3.0, 1e3, 1e-3, np.inf, -np.inf, np.nan])
        grid = np.empty((len(part), len(part)), np.complex128)
        grid.real, grid.imag = part[:, None], part[None, :]
        return grid.reshape(-1).astype(element.storage)
    if element.bits <= 8:
        return from_bits(np.arange(1 << element.bits, dtype=np.uint8), element_type)
    smallest = 2.0 ** (2 - 2 ** (element.exponent_bits - 1))
    largest = float(np.finfo(np.float64 if element_type == "f64" else np.float32).max)
    largest = {"f16": 65504.0, "bf16": 3.3895313892515355e38}.get(element_type, largest)
    epsilon = 2.0**-element.mantissa_bits
    positive = [
        0.0, smallest, smallest * epsilon, smallest * (1 - epsilon), smallest * 1.5, 1.0,
        1 + epsilon, 1 - epsilon / 2, 0.5, 1.5, 2.0, 2.5, 3.0, np.pi, np.pi / 2, np.e, 0.1, 7.75,
        10.0, 88.5, 127.5, 1000.0, 2049.0, 60000.0, largest, largest / 2, largest / 3,
        1 / largest, epsilon, np.sqrt(largest), 2.0**23 + 1, 2.0**31, 2.0**63, np.inf,
    ]  # fmt: skip
    with np.errstate(all="ignore"):
        values = np.array([*positive, *(-x for x in positive), np.nan]).astype(element.storage)
        return round_to(values, element_type) if element.bits < 32 else values


def _edges(wanted: Input, source: Source) -> Array:
    """Edges first, then a mix of edges, moderate and wildly scaled values."""
    element, count = ELEMENT_TYPES[wanted.element_type], prod(wanted.dimensions)
    edges = edge_values(wanted.element_type)
    picked = edges[(raw(source, count) % np.uint64(len(edges))).astype(np.intp)]
    if not (element.is_float or element.is_complex):
        bits = from_words(raw(source, count), wanted.element_type)
        return np.where(raw(source, count) >> np.uint64(63) > 0, picked, bits)
    if element.bits <= 8 or count == 0:
        return picked
    moderate = _rounded(uniform(source, count) * 4, wanted.element_type)
    if element.is_complex:
        moderate = (moderate + 1j * uniform(source, count) * 4).astype(element.storage)
    scaled = moderate if element.is_complex else _scaled(wanted.element_type, source, count)
    which = raw(source, count) % np.uint64(4)
    return np.where(which == 0, picked, np.where(which == 1, scaled, moderate))


def _scaled(element_type: str, source: Source, count: int) -> Array:
    """Draw values of any exponent."""
    element = ELEMENT_TYPES[element_type]
    reach = 2 ** (element.exponent_bits - 1) - 2
    exponents = (raw(source, count) % np.uint64(2 * reach)).astype(np.int64) - reach
    return _rounded(np.ldexp(uniform(source, count), exponents), element_type)


def _rounded(values: Array, element_type: str) -> Array:
    element = ELEMENT_TYPES[element_type]
    with np.errstate(all="ignore"):
        stored = values.astype(element.storage)
        return round_to(stored, element_type) if element.bits < 32 else stored


def from_words(words: Array, element_type: str) -> Array:
    """Return values whose bits are the top bits of 64-bit words; for integers and pred."""
    element = ELEMENT_TYPES[element_type]
    if element.kind is Kind.PREDICATE:
        return words >> np.uint64(63) > 0
    unsigned = np.dtype(f"u{element.byte_width}")
    return from_bits((words >> np.uint64(64 - element.bits)).astype(unsigned), element_type)


def _moderate(wanted: Input, source: Source) -> Array:
    """Numbers of modulus about one, integers small; sums do not overflow f16."""
    element, count = ELEMENT_TYPES[wanted.element_type], prod(wanted.dimensions)
    if element.kind is Kind.PREDICATE:
        return raw(source, count) >> np.uint64(63) > 0
    if element.is_integer:
        span = min(7, (1 << (element.bits - 1)) - 1)
        drawn = (raw(source, count) % np.uint64(2 * span + 1)).astype(np.int64)
        return (drawn - span if element.kind is Kind.SIGNED else drawn % (span + 1)).astype(
            element.storage
        )
    values = uniform(source, count)
    if element.is_complex:
        return (values + 1j * uniform(source, count)).astype(element.storage)
    if wanted.element_type == "f8e8m0fnu":
        values = np.abs(values) + 0.25
    return _rounded(values, wanted.element_type)


def _positive(wanted: Input, source: Source) -> Array:
    values = np.abs(uniform(source, prod(wanted.dimensions))) + 0.5
    return _rounded(values, wanted.element_type)


def _whole(wanted: Input, source: Source) -> Array:
    """Small whole numbers, many of them equal: ties for sorts and arg reductions."""
    element, count = ELEMENT_TYPES[wanted.element_type], prod(wanted.dimensions)
    drawn = (raw(source, count) % np.uint64(4)).astype(np.int64)
    return drawn.astype(bool) if element.name == "pred" else drawn.astype(element.storage)


def _indices(wanted: Input, source: Source) -> Array:
    count = prod(wanted.dimensions)
    drawn = (raw(source, count) % np.uint64(wanted.bound + 4)).astype(np.int64) - 2
    element = ELEMENT_TYPES[wanted.element_type]
    if element.kind is Kind.UNSIGNED:
        drawn = np.abs(drawn)
    return drawn.astype(element.storage)


def _below(wanted: Input, source: Source) -> Array:
    drawn = raw(source, prod(wanted.dimensions)) % np.uint64(max(1, wanted.bound))
    return drawn.astype(ELEMENT_TYPES[wanted.element_type].storage)


def _distinct(wanted: Input, source: Source) -> Array:
    """0, 1, 2… in a drawn order."""
    order = np.argsort(raw(source, prod(wanted.dimensions)), kind="stable")
    return order.astype(ELEMENT_TYPES[wanted.element_type].storage)


def _ascending(wanted: Input, source: Source) -> Array:
    return np.sort(_below(wanted, source).reshape(wanted.dimensions), axis=0)


def _extreme_indices(wanted: Input, source: Source) -> Array:
    edges = edge_values(wanted.element_type)
    return edges[(raw(source, prod(wanted.dimensions)) % np.uint64(len(edges))).astype(np.intp)]


def _all_codes(wanted: Input, source: Source) -> Array:
    """Every value of a type of up to 16 bits, over and over; edges for wider ones."""
    element, count = ELEMENT_TYPES[wanted.element_type], prod(wanted.dimensions)
    if element.bits > 16 or element.name == "pred":
        edges = edge_values(wanted.element_type)
        values = _edges(wanted, source)
        values[: len(edges)] = edges[:count]
        return values
    codes = np.arange(count) % (1 << element.bits)
    return from_bits(codes.astype(f"u{element.byte_width}"), wanted.element_type)


def _pair(wanted: Input, source: Source, *, inner: bool) -> Array:
    """Edges along one of two axes of a square, so that a pair of these holds every pair."""
    edges = edge_values(wanted.element_type)
    side = wanted.dimensions[0]
    line = edges[np.linspace(0, len(edges) - 1, side).astype(np.intp)]
    return np.broadcast_to(line[None, :] if inner else line[:, None], (side, side))


def _definite(wanted: Input, source: Source) -> Array:
    plain = to_storage(_moderate(wanted, source).reshape(wanted.dimensions), wanted.element_type)
    size = wanted.dimensions[-1]
    hermitian = (plain + np.conj(np.swapaxes(plain, -1, -2))) / 2 + size * np.eye(size)
    return (
        _rounded(hermitian, wanted.element_type)
        if not np.iscomplexobj(plain)
        else (hermitian.astype(plain.dtype))
    )


def _triangular(wanted: Input, source: Source) -> Array:
    plain = _moderate(wanted, source).reshape(wanted.dimensions) / max(1, wanted.dimensions[-1])
    dominant = plain + np.eye(wanted.dimensions[-1])
    return (
        _rounded(dominant, wanted.element_type)
        if not np.iscomplexobj(plain)
        else (dominant.astype(ELEMENT_TYPES[wanted.element_type].storage))
    )


def _words(wanted: Input, source: Source) -> Array:
    return from_words(raw(source, prod(wanted.dimensions)), wanted.element_type)


def _zeros(wanted: Input, source: Source) -> Array:
    return np.zeros(wanted.dimensions, ELEMENT_TYPES[wanted.element_type].storage)


def _ones(wanted: Input, source: Source) -> Array:
    return np.ones(wanted.dimensions, ELEMENT_TYPES[wanted.element_type].storage)


def identity(element_type: str, combiner: str) -> Array:
    """Return what a combiner leaves every value as it is with, in storage form."""
    element = ELEMENT_TYPES[element_type]
    signed = element.kind is Kind.SIGNED
    low = -(1 << (element.bits - 1)) if signed else 0
    high = (1 << (element.bits - signed)) - 1
    value: float | int = {"multiply": 1, "and": -1 if signed else high}.get(combiner, 0)
    if combiner in ("maximum", "minimum") and element.is_float:
        value = -np.inf if combiner == "maximum" else np.inf
        if element_type.endswith(("fn", "fnuz")):
            value = float(np.nanmax(edge_values(element_type))) * (-1 if value < 0 else 1)
    elif combiner in ("maximum", "minimum"):
        value = low if combiner == "maximum" else high
    return np.full((), value).astype(element.storage)


def _identity(combiner: str) -> Callable[[Input, Source], Array]:
    return lambda wanted, _: identity(wanted.element_type, combiner)


STYLES: dict[str, Callable[[Input, Source], Array]] = {
    "edges": _edges, "moderate": _moderate, "positive": _positive, "whole": _whole,
    "indices": _indices, "below": _below, "distinct": _distinct, "ascending": _ascending,
    "extreme": _extreme_indices, "all": _all_codes,
    "pair_rows": lambda x, s: _pair(x, s, inner=False),
    "pair_columns": lambda x, s: _pair(x, s, inner=True),
    "definite": _definite, "triangular": _triangular, "words": _words, "zeros": _zeros,
    "ones": _ones,
    **{
        f"identity {name}": _identity(name)
        for name in ("add", "multiply", "maximum", "minimum", "and", "or", "xor")
    },
}  # fmt: skip
"""How values are drawn, by name."""
