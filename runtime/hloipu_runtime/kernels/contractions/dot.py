"""The dot family: dot_general, ragged_dot and scaled_dot.

Semantics: StableHLO specification, `dot_general`; openxla/xla: ragged_dot_rewriter.cc and
scaled_dot_rewriter.cc. Products and sums are formed in the widest of the three types concerned
(narrow floats: in float32), and rounded to the result's type once.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product as index_product
from math import prod
from typing import Any

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.contractions.blas_threads import (
    ALWAYS_ONE_THREAD_FLOPS,
    SMALL_PRODUCTS,
    blas_matmul,
)
from hloipu_runtime.kernels.contractions.contraction import DotDimensions, contract, free_dims
from hloipu_runtime.kernels.contractions.matmul import exact_integer, is_cheap_in_integers
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.quiet import quietly
from hloipu_runtime.kernels.core.rounding import Take, is_narrow, round_to, rounding_calls
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.elementwise.convert import convert

_UNROUNDED = frozenset({"f32", "f64", "c64", "c128"})


def dot_general(lhs: Array, rhs: Array, dims: DotDimensions, element_type: str) -> Array:
    """Contract two arrays; the result has batch dims, free dims of lhs, free dims of rhs.

    Operands are in storage form and may differ in type from each other and from the result, whose
    `element_type` decides the arithmetic: integers exact modulo 2^bits, pred as or-of-ands.
    """
    storage = np.dtype(ELEMENT_TYPES[element_type].storage)
    if storage.kind not in "fc":
        return _integer_dot(lhs, rhs, dims, element_type, storage)
    lhs, rhs = float_operands(lhs, rhs, storage)
    with quietly():
        result = contract(lhs, rhs, dims)
    return round_result(result, element_type, storage)


def float_operands(lhs: Array, rhs: Array, storage: np.dtype[Any]) -> tuple[Array, Array]:
    """Return both operands in the dtype in which a product with this result storage is computed."""
    if lhs.dtype == rhs.dtype == storage:
        return lhs, rhs
    dtype = np.result_type(lhs.dtype, rhs.dtype, storage)
    if lhs.dtype.kind not in "fc" or rhs.dtype.kind not in "fc":
        # An integer operand is converted to the result's type, as XLA does, not to numpy's choice.
        dtype = storage
    return lhs.astype(dtype, copy=False), rhs.astype(dtype, copy=False)


def round_result(result: Array, element_type: str, storage: np.dtype[Any]) -> Array:
    """Round a float result to the grid of its element type and put it in storage form.

    Of complex numbers as floats the real part is left.
    """
    if result.dtype.kind == "c" != storage.kind:
        result = result.real
    with quietly():
        result = result.astype(storage, copy=False)
    if element_type in _UNROUNDED:
        return result
    rounded: Array = round_to(result, element_type)
    return rounded


def truncate_to_integer(x: Array, storage: np.dtype[Any]) -> Array:
    """Convert floats to integers (or bools) as `convert` does: toward zero, clamped, NaN to 0."""
    if storage.kind == "b":
        return np.asarray(x != 0)
    limits = np.iinfo(storage)
    clean = np.nan_to_num(x.real.astype(np.float64), posinf=np.inf, neginf=-np.inf)
    # float(max) of 64-bit types rounds up to 2^bits, which would wrap.
    top = clean >= float(limits.max)
    floor = np.where(top, 0, np.maximum(clean, float(limits.min)))
    return np.where(top, np.asarray(limits.max, storage), floor.astype(storage))


def wrap_integer(result: Array, element_type: str) -> Array:
    """Reduce integers of sub-byte types to their width, sign-extending the signed ones."""
    bits = ELEMENT_TYPES[element_type].bits
    if bits >= 8:
        return result
    if result.dtype.kind == "u":
        return np.asarray(result & np.uint8((1 << bits) - 1))
    spare = np.int8(8 - bits)
    return np.asarray((result << spare) >> spare)


def _integer_dot(
    lhs: Array, rhs: Array, dims: DotDimensions, element_type: str, storage: np.dtype[Any]
) -> Array:
    if lhs.dtype.kind in "fc" or rhs.dtype.kind in "fc":
        dtype = np.result_type(lhs.dtype, rhs.dtype, np.float32)
        with quietly():
            inexact = contract(lhs.astype(dtype, copy=False), rhs.astype(dtype, copy=False), dims)
        return truncate_to_integer(inexact, storage)
    if storage.kind == "b":
        counts = contract(lhs.astype(np.float32), rhs.astype(np.float32), dims)
        return counts.astype(np.bool_)
    terms = prod(lhs.shape[d] for d in dims.lhs_contracting)
    matrices = prod(lhs.shape[d] for d in dims.lhs_batch)
    per_lhs_row = max(terms * matrices, 1)
    if is_cheap_in_integers(lhs.size // per_lhs_row, terms, rhs.size // per_lhs_row, matrices):
        wrapped = contract(lhs.astype(storage, copy=False), rhs.astype(storage, copy=False), dims)
    else:
        wrapped = exact_integer(lambda a, b: contract(a, b, dims), lhs, rhs, terms, storage)
    return wrap_integer(wrapped, element_type)


@dataclass(frozen=True, slots=True)
class RaggedDotDimensions:
    """A dot's dimensions, the ragged dimension of lhs, and the group dimension of rhs if any."""

    dot: DotDimensions
    lhs_ragged: int
    rhs_group: int | None = None


def ragged_dot(
    lhs: Array, rhs: Array, group_sizes: Array, dims: RaggedDotDimensions, element_type: str
) -> Array:
    """Multiply groups of consecutive rows (or contracted columns, or batches) of lhs.

    Let g be the number of groups. A ragged free dim of lhs multiplies each group of rows by its own
    matrix of rhs ([m,k] [g,k,n] -> [m,n], rows past the last group zero); a ragged contracted
    dim sums each group apart ([m,k] [k,n] -> [g,m,n]); a ragged batch dim is a plain dot.
    `group_sizes` is [g], or [..., g] with the dims of lhs outside the ragged one, in the order
    batch dims, then dims of the ragged one's own kind.
    """
    dot = dims.dot
    if dims.lhs_ragged in dot.lhs_batch:
        return dot_general(lhs, rhs, dot, element_type)
    if dims.lhs_ragged in dot.lhs_contracting:
        return _ragged_contracting(lhs, rhs, group_sizes, dims, element_type)
    return _ragged_free(lhs, rhs, group_sizes, dims, element_type)


def _ragged_free(
    lhs: Array, rhs: Array, group_sizes: Array, dims: RaggedDotDimensions, element_type: str
) -> Array:
    dot = dims.dot
    group_dim = 0 if dims.rhs_group is None else dims.rhs_group
    lhs_free = free_dims(lhs.ndim, dot.lhs_batch, dot.lhs_contracting)
    rhs_free = free_dims(rhs.ndim, (*dot.rhs_batch, group_dim), dot.rhs_contracting)
    # Without the group dim, the later dims of rhs move down by one.
    one_group = DotDimensions(
        dot.lhs_batch,
        tuple(d - (d > group_dim) for d in dot.rhs_batch),
        dot.lhs_contracting,
        tuple(d - (d > group_dim) for d in dot.rhs_contracting),
    )
    kept = (*dot.lhs_batch, *lhs_free)
    shape = [lhs.shape[d] for d in kept] + [rhs.shape[d] for d in rhs_free]
    result = np.zeros(shape, ELEMENT_TYPES[element_type].storage)
    outer = (*dot.lhs_batch, *lhs_free[: lhs_free.index(dims.lhs_ragged)])
    for prefix, starts, stops in _groups(lhs, group_sizes, outer, dims.lhs_ragged):
        lhs_at = [slice(None)] * lhs.ndim
        rhs_at: list[slice | int] = [slice(None)] * rhs.ndim
        for d, i in prefix.items():
            lhs_at[d] = slice(i, i + 1)
            if d in dot.lhs_batch:
                rhs_at[dot.rhs_batch[dot.lhs_batch.index(d)]] = slice(i, i + 1)
        for group, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            if start < stop:
                lhs_at[dims.lhs_ragged] = slice(start, stop)
                rhs_at[group_dim] = group
                part = dot_general(lhs[tuple(lhs_at)], rhs[tuple(rhs_at)], one_group, element_type)
                result[tuple(lhs_at[d] for d in kept)] = part
    return result


def _ragged_contracting(
    lhs: Array, rhs: Array, group_sizes: Array, dims: RaggedDotDimensions, element_type: str
) -> Array:
    dot, ragged = dims.dot, dims.lhs_ragged
    position = dot.lhs_contracting.index(ragged)
    rhs_ragged = dot.rhs_contracting[position]
    rhs_of = dict(zip(dot.lhs_batch, dot.rhs_batch, strict=True))
    rhs_of.update(zip(dot.lhs_contracting, dot.rhs_contracting, strict=True))
    outer = (*dot.lhs_batch, *dot.lhs_contracting[:position])
    pieces: dict[tuple[int, ...], list[list[tuple[Array, Array]]]] = {}
    count = group_sizes.shape[-1]
    for prefix, starts, stops in _groups(lhs, group_sizes, outer, ragged):
        batch = tuple(prefix[d] for d in dot.lhs_batch if d in prefix)
        by_group = pieces.setdefault(batch, [[] for _ in range(count)])
        lhs_at, rhs_at = [slice(None)] * lhs.ndim, [slice(None)] * rhs.ndim
        for d, i in prefix.items():
            lhs_at[d] = rhs_at[rhs_of[d]] = slice(i, i + 1)
        for group, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            lhs_at[ragged] = rhs_at[rhs_ragged] = slice(start, max(start, stop))
            by_group[group].append((lhs[tuple(lhs_at)], rhs[tuple(rhs_at)]))
    batch_rank = len(dot.lhs_batch)
    sizes = [lhs.shape[d] for d in dot.lhs_batch]
    sizes += [lhs.shape[d] for d in free_dims(lhs.ndim, dot.lhs_batch, dot.lhs_contracting)]
    sizes += [rhs.shape[d] for d in free_dims(rhs.ndim, dot.rhs_batch, dot.rhs_contracting)]
    result = np.zeros((count, *sizes), ELEMENT_TYPES[element_type].storage)
    for batch, by_group in pieces.items():
        at = tuple(slice(i, i + 1) for i in batch) or (slice(None),) * batch_rank
        for group, parts in enumerate(by_group):
            left = _joined([a for a, _ in parts], ragged)
            right = _joined([b for _, b in parts], rhs_ragged)
            result[(group, *at)] = dot_general(left, right, dot, element_type)
    return result


def _joined(parts: list[Array], dim: int) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, dim)


def _groups(
    lhs: Array, group_sizes: Array, outer: tuple[int, ...], ragged: int
) -> list[tuple[dict[int, int], list[int], list[int]]]:
    """Return, per index of the outer dims, the first row of each group and the row after its last.

    Where all outer positions share one list of sizes there is one entry, with an empty index.
    """
    limit = lhs.shape[ragged]
    ends = np.clip(np.cumsum(group_sizes.astype(np.int64), axis=-1), 0, limit)
    starts = np.zeros_like(ends)
    starts[..., 1:] = ends[..., :-1]
    if group_sizes.ndim == 1:
        return [({}, starts.tolist(), ends.tolist())]
    return [
        (dict(zip(outer, at, strict=True)), starts[at].tolist(), ends[at].tolist())
        for at in index_product(*(range(size) for size in group_sizes.shape[:-1]))
    ]


@dataclass(frozen=True, slots=True)
class ScaledOperand:
    """An operand of a scaled dot, its block scales, and the element types of both.

    `scale` has the operand's rank; each of its sizes divides the operand's. A scalar scale, which
    is how HLO writes an absent one, changes nothing.
    """

    values: Array
    element_type: str
    scale: Array
    scale_type: str


def scaled_dot(
    lhs: ScaledOperand, rhs: ScaledOperand, dims: DotDimensions, element_type: str
) -> Array:
    """Dequantise both operands (value * scale of its block) and contract them as a plain dot.

    The products are rounded to bf16 where value and scale are both narrower than 16 bits, else to
    the wider of their types, and to f32 for two different types of one width.
    """
    return dot_general(_dequantised(lhs), _dequantised(rhs), dims, element_type)


def _dequantised(operand: ScaledOperand) -> Array:
    values, scale = operand.values, operand.scale
    if scale.ndim == 0:
        return values
    # One extra dim per operand dim: blocks, then the elements inside a block.
    split = [
        size
        for dim, blocks in zip(values.shape, scale.shape, strict=True)
        for size in (blocks, dim // blocks if blocks else 0)
    ]
    blocks = scale.reshape([size for dim in scale.shape for size in (dim, 1)])
    target = _dequantised_type(operand.element_type, operand.scale_type)
    storage = np.dtype(ELEMENT_TYPES[target].storage)
    if ELEMENT_TYPES[target].is_integer:  # a fraction is cut off before it scales
        values = convert(values, operand.element_type, target)
        blocks = convert(blocks, operand.scale_type, target)
    with quietly():
        scaled = np.multiply(values.reshape(split), blocks, dtype=storage)
    return round_result(scaled.reshape(values.shape), target, storage)


def _dequantised_type(element_type: str, scale_type: str) -> str:
    value_bits = ELEMENT_TYPES[element_type].bits
    scale_bits = ELEMENT_TYPES[scale_type].bits
    if value_bits < 16 and scale_bits < 16:
        return "bf16"
    if value_bits == scale_bits:
        return element_type if element_type == scale_type else "f32"
    return element_type if value_bits > scale_bits else scale_type


Sizes = tuple[int, ...]
_F32 = np.dtype(np.float32)
Prepare = Callable[[Sequence[Array], Array, Take], list[Callable[[], object]] | None]
Product = Callable[..., Array]
"""From two operands, and perhaps an array `out` for the result, to the result.

For one call of BLAS `out` is row-major; in other products it may be left alone.
"""


def dotting(lhs: Sizes, rhs: Sizes, dims: DotDimensions, element_type: str) -> Product:
    """Return `dot_general` for operands of these shapes; floating-point warnings are off."""

    def general(a: Array, b: Array, out: Array | None = None) -> Array:
        return dot_general(a, b, dims, element_type)

    if is_narrow(element_type) and is_matrix_product(lhs, rhs, dims, "f32"):
        return RoundedProduct(_of_matrices(lhs, rhs, dims, _F32, general), element_type)
    if element_type not in ("f32", "f64"):
        return general
    if not is_matrix_product(lhs, rhs, dims, element_type):
        dtype = storage_dtype(element_type)

        def of_floats(a: Array, b: Array, out: Array | None = None) -> Array:
            return contract(a, b, dims, out) if a.dtype is b.dtype is dtype else general(a, b)

        return of_floats
    return _of_matrices(lhs, rhs, dims, storage_dtype(element_type), general)


def is_matrix_product(lhs: Sizes, rhs: Sizes, dims: DotDimensions, element_type: str) -> bool:
    """Whether `dotting` is one call of BLAS, which may write to `out`: a vector may be one side."""
    if sorted((len(lhs), len(rhs))) not in ([1, 2], [2, 2]):
        return False
    if len(dims.lhs_contracting) != 1 or dims.lhs_batch:
        return False
    return element_type in ("f32", "f64") and lhs[dims.lhs_contracting[0]] > 1


def _of_matrices(
    lhs: Sizes, rhs: Sizes, dims: DotDimensions, dtype: np.dtype[Any], general: Product
) -> "MatrixProduct":
    """Return the product by one call of BLAS, where the matrices' layout is one for it."""
    flops = 2.0 * prod(lhs) * prod(rhs) / lhs[dims.lhs_contracting[0]]
    turns = dims.lhs_contracting[0] == 0, dims.rhs_contracting[0] == 1
    return MatrixProduct(dtype, turns, flops, general)


def _small(a: Array) -> Callable[..., Array]:
    """Return what multiplies an array with another one, and may be given where to.

    It calls the same functions of BLAS as `np.matmul`, on matrices that lie as these, and is there
    in a third of the time: 0.3 us against 0.9 (measured on x86-64).
    """
    return a.dot


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """The product of two matrices, or of a matrix and a vector, by one call of BLAS."""

    dtype: np.dtype[Any]
    turns: tuple[bool, bool]
    """Whether operands are transposed."""
    flops: float
    general: Product

    def __call__(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """Multiply."""
        dtype = self.dtype
        if a.dtype is not dtype or b.dtype is not dtype or not (a.flags.forc and b.flags.forc):
            return self.general(a, b)
        turns_lhs, turns_rhs = self.turns
        a, b = a.T if turns_lhs else a, b.T if turns_rhs else b
        if self.flops <= ALWAYS_ONE_THREAD_FLOPS and (out is None or out.flags.c_contiguous):
            return _small(a)(b, out)
        return blas_matmul(a, b, self.flops, out)

    def on_arrays(
        self, arguments: Sequence[Array], out: Array, take: object
    ) -> list[Callable[[], object]] | None:
        """Return numpy's own call on these arrays; None where more is around it."""
        return self._numpys(arguments, out, ALWAYS_ONE_THREAD_FLOPS)

    def on_one_thread(
        self, arguments: Sequence[Array], out: Array, take: object
    ) -> list[Callable[[], object]] | None:
        """Return the same for calls while BLAS uses one thread."""
        return self._numpys(arguments, out, 2 * SMALL_PRODUCTS)

    def _numpys(
        self, arguments: Sequence[Array], out: Array, most_flops: float
    ) -> list[Callable[[], object]] | None:
        if self.flops > most_flops:
            return None
        if not all(x.dtype is self.dtype and x.flags.forc for x in arguments):
            return None
        a, b = (x.T if turns else x for x, turns in zip(arguments, self.turns, strict=True))
        if out.flags.c_contiguous:
            return [partial(_small(a), b, out)]
        return [partial(np.matmul, a, b, out)]


@dataclass(frozen=True, slots=True)
class RoundedProduct:
    """A product of matrices of a narrow float, summed in f32 and rounded once."""

    exact: MatrixProduct
    element_type: str

    def __call__(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """Multiply."""
        return round_to(self.exact(a, b), self.element_type)

    def on_arrays(
        self, arguments: Sequence[Array], out: Array, take: Take
    ) -> list[Callable[[], object]] | None:
        """Return calls on these arrays; see `MatrixProduct`."""
        return self._rounded(self.exact.on_arrays, arguments, out, take)

    def on_one_thread(
        self, arguments: Sequence[Array], out: Array, take: Take
    ) -> list[Callable[[], object]] | None:
        """Return the same for calls while BLAS uses one thread."""
        return self._rounded(self.exact.on_one_thread, arguments, out, take)

    def _rounded(
        self, prepare: Prepare, arguments: Sequence[Array], out: Array, take: Take
    ) -> list[Callable[[], object]] | None:
        exact = take(out.shape, _F32)
        product = prepare(arguments, exact, take)
        if product is None:
            return None
        return [*product, *rounding_calls(exact, self.element_type, out, "any", take)]
