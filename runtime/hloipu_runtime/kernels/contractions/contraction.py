"""Contraction of two float arrays over any dimensions, as few BLAS calls as possible."""

from functools import lru_cache
from math import prod
from typing import NamedTuple

from hloipu_runtime.frozen import dataclass
from hloipu_runtime.kernels.core.blocks import Array

Dims = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DotDimensions:
    """Which dimensions of the two operands are batch and which are contracted, pairwise."""

    lhs_batch: Dims = ()
    rhs_batch: Dims = ()
    lhs_contracting: Dims = ()
    rhs_contracting: Dims = ()


@lru_cache(maxsize=4096)
def free_dims(rank: int, batch: Dims, contracting: Dims) -> Dims:
    """Return the dimensions of an operand that are neither batch nor contracted, ascending."""
    taken = {*batch, *contracting}
    return tuple(d for d in range(rank) if d not in taken)


def contract(lhs: Array, rhs: Array, dims: DotDimensions, out: Array | None = None) -> Array:
    """Contract float or complex operands of one dtype: batch dims, then free dims of lhs, of rhs.

    The result may be a transposed view of its buffer, where that saves a copy of an operand. It is
    `out`, written, where `out` lies as matrices do.
    """
    from hloipu_runtime.kernels.contractions.matmul import matmul

    if lhs.ndim == 2 and rhs.ndim == 2 and len(dims.lhs_contracting) == 1 and not dims.lhs_batch:
        a = lhs if dims.lhs_contracting[0] == 1 else lhs.T
        return matmul(a, rhs if dims.rhs_contracting[0] == 0 else rhs.T, out)
    left, right, shape, order = arrangement(lhs, rhs, dims)
    a, b = left.of(lhs), right.of(rhs)
    target = None if out is None else seen_as_matrices(out, order, (*a.shape[:-1], b.shape[-1]))
    product = matmul(a, b, target)
    if out is not None and product is target:
        return out
    product = product.reshape(shape)
    return product if order is None else product.transpose(order)


def arrangement(lhs: Array, rhs: Array, dims: DotDimensions) -> "Arrangement":
    """Return how a contraction of operands that lie like these becomes a product of matrices."""
    return _arranged(_Layout(lhs.shape, lhs.strides), _Layout(rhs.shape, rhs.strides), dims)


def seen_as_matrices(out: Array, order: Dims | None, matrices: Dims) -> Array | None:
    """Return a result's memory as the product's matrices, None where they are no view of it."""
    if order is not None:
        back = [0] * len(order)
        for place, source in enumerate(order):
            back[source] = place
        out = out.transpose(back)
    try:
        return out.reshape(matrices, copy=False)
    except ValueError:
        return None


class _Layout(NamedTuple):
    """How an array lies in memory."""

    shape: Dims
    strides: Dims


class Matrices(NamedTuple):
    """How an operand becomes [batch..., row, column]."""

    order: Dims
    shape: Dims
    is_turned: bool
    """Whether rows and columns change places at the end."""

    def of(self, x: Array) -> Array:
        """Return the matrices, copied in their own memory order where they must be."""
        matrices = x.transpose(self.order).reshape(self.shape)
        return matrices.swapaxes(-1, -2) if self.is_turned else matrices


class Arrangement(NamedTuple):
    """How a contraction becomes a product of matrices."""

    left: Matrices
    right: Matrices
    shape: Dims
    """Of the product: batch dims and free dims one by one."""
    order: Dims | None
    """Puts these in order; None: they are."""


@lru_cache(maxsize=4096)
def _arranged(lhs: _Layout, rhs: _Layout, dims: DotDimensions) -> Arrangement:
    lhs_free = free_dims(len(lhs.shape), dims.lhs_batch, dims.lhs_contracting)
    rhs_free = free_dims(len(rhs.shape), dims.rhs_batch, dims.rhs_contracting)
    lhs_k, rhs_k = _contracting_order(lhs, rhs, dims.lhs_contracting, dims.rhs_contracting)
    lhs_m, rhs_n = _free_order(lhs, lhs_free), _free_order(rhs, rhs_free)
    left = _as_matrices(lhs, dims.lhs_batch, lhs_m, lhs_k)
    right = _as_matrices(rhs, dims.rhs_batch, rhs_k, rhs_n)
    batch = tuple(lhs.shape[d] for d in dims.lhs_batch)
    shape = (*batch, *(lhs.shape[d] for d in lhs_m), *(rhs.shape[d] for d in rhs_n))
    if lhs_m == lhs_free and rhs_n == rhs_free:
        return Arrangement(left, right, shape, None)
    first = len(batch)
    second = first + len(lhs_m)
    order = [*range(first)]
    order += [first + lhs_m.index(d) for d in lhs_free]
    order += [second + rhs_n.index(d) for d in rhs_free]
    return Arrangement(left, right, shape, tuple(order))


def mergeable(x: Array, dims: Dims) -> bool:
    """Tell whether the dims, in this order, can be seen as one dim without a copy."""
    return _mergeable(_Layout(x.shape, x.strides), dims)


def _mergeable(x: _Layout, dims: Dims) -> bool:
    expected = -1
    for d in reversed(dims):
        size = x.shape[d]
        if size == 1:
            continue
        if expected >= 0 and x.strides[d] != expected:
            return False
        expected = x.strides[d] * size
    return True


def _by_stride(x: _Layout, dims: Dims) -> Dims:
    return tuple(sorted(dims, key=lambda d: -x.strides[d]))


def _free_order(x: _Layout, dims: Dims) -> Dims:
    if len(dims) < 2 or _mergeable(x, dims):
        return dims
    ordered = _by_stride(x, dims)
    return ordered if _mergeable(x, ordered) else dims


def _contracting_order(lhs: _Layout, rhs: _Layout, lhs_k: Dims, rhs_k: Dims) -> tuple[Dims, Dims]:
    """Choose the common order of the contracted dims that copies the fewest elements."""
    if len(lhs_k) < 2:
        return lhs_k, rhs_k
    orders = [list(range(len(lhs_k)))]
    orders.append(sorted(orders[0], key=lambda i: -lhs.strides[lhs_k[i]]))
    orders.append(sorted(orders[0], key=lambda i: -rhs.strides[rhs_k[i]]))
    best, least = (lhs_k, rhs_k), -1
    for order in orders:
        left = tuple(lhs_k[i] for i in order)
        right = tuple(rhs_k[i] for i in order)
        copied = 0 if _mergeable(lhs, left) else prod(lhs.shape)
        copied += 0 if _mergeable(rhs, right) else prod(rhs.shape)
        if least < 0 or copied < least:
            best, least = (left, right), copied
    return best


def _as_matrices(x: _Layout, batch: Dims, rows: Dims, columns: Dims) -> Matrices:
    """Return how x becomes [batch..., row, column], copied in its own order where it must be."""
    lead = tuple(x.shape[d] for d in batch)
    sizes = (prod(x.shape[d] for d in rows), prod(x.shape[d] for d in columns))
    if not (_mergeable(x, rows) and _mergeable(x, columns)):
        least = [min((abs(x.strides[d]) for d in side), default=0) for side in (rows, columns)]
        if least[0] < least[1]:
            # The rows vary fastest: BLAS takes the transposed copy just as well.
            return Matrices((*batch, *columns, *rows), (*lead, sizes[1], sizes[0]), True)
    return Matrices((*batch, *rows, *columns), (*lead, *sizes), False)
