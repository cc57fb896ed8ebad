"""Checks and calls of LAPACK routines."""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from hloipu_runtime.element_types import ELEMENT_TYPES, shape_text
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.linear_algebra.lapack import LAPACK_TARGETS
from hloipu_runtime.kernels.linear_algebra.lapack_batches import letter

Sizes = tuple[int, ...]
Typed = tuple[str, Sizes]
"""Element type and sizes of one array."""

_LETTERS = {"s": "f32", "d": "f64", "c": "c64", "z": "c128"}
_VECTORS = (2, 3)
"""Results of gesdd and gesvd that are vectors."""


def element_type_of(target: str) -> str:
    """Return the element type that a target computes in."""
    return _LETTERS[target[len("lapack_")]]


def routine_of(target: str) -> str:
    """Return the name of a target's routine, without the letter of its type."""
    return target.removeprefix("lapack_").removesuffix("_ffi")[1:]


def batch_rank(target: str, shape: Sizes) -> int:
    """Return the number of dimensions before the first operand's matrix, or diagonal."""
    return len(shape) - (1 if routine_of(target) == "gtsv" else 2)


def _makes_no_vectors(target: str, attributes: Mapping[str, object]) -> bool:
    return routine_of(target) in ("gesdd", "gesvd") and letter(attributes, "mode") == "N"


def call_lapack(
    target: str,
    operands: Sequence[Array],
    attributes: Mapping[str, object],
    matrices: Sequence[Sizes],
) -> list[Array]:
    """Call a routine; `matrices` are the sizes of each result without its batch.

    Singular vectors that nobody asked for are zeros of the sizes that the program declares: the
    whole matrices or their first columns and rows.
    """
    results = LAPACK_TARGETS[target](operands, attributes)
    if _makes_no_vectors(target, attributes):
        batch = operands[0].shape[:-2]
        for number in _VECTORS:
            results[number] = np.zeros((*batch, *matrices[number]), results[number].dtype)
    return results


def require_lapack_form(
    target: str,
    attributes: Mapping[str, object],
    operands: Sequence[Typed],
    results: Sequence[Typed],
) -> None:
    """Raise UnsupportedError E0464 where a routine does not take or give arrays of these shapes.

    Raises UsageError E0458 for attributes that cannot be read.
    """
    given = [shape_text(*x) for x in operands]
    wanted = _expected(target, attributes, operands)
    if wanted is None:
        raise UnsupportedError(
            "E0464",
            f"{target} does not take {' and '.join(given) or 'nothing'}",
            hint="compare with a program printed by JAX",
        )
    batch = batch_rank(target, operands[0][1])
    declared = list(results)
    if len(declared) == len(wanted) and _makes_no_vectors(target, attributes):
        m, n = operands[0][1][batch:]
        few = min(m, n)
        economy = {2: (*operands[0][1][:batch], m, few), 3: (*operands[0][1][:batch], few, n)}
        for number, sizes in economy.items():
            if declared[number][1] == sizes:
                declared[number] = wanted[number]
    if declared != wanted:
        raise UnsupportedError(
            "E0464",
            f"{target} of {', '.join(given)} gives ({', '.join(shape_text(*x) for x in wanted)}), "
            f"declared is ({', '.join(shape_text(*x) for x in results)})",
            hint="compare with a program printed by JAX",
        )


def _expected(
    target: str, attributes: Mapping[str, object], operands: Sequence[Typed]
) -> list[Typed] | None:
    """Return what a routine gives, as it does for a batch of no matrices; None: it takes others."""
    element_type = element_type_of(target)
    types = [element_type] * len(operands)
    if routine_of(target) == "geqp3":
        types[1:] = ["s32"] * len(types[1:])
    if not operands or [kind for kind, _ in operands] != types:
        return None
    rank = batch_rank(target, operands[0][1])
    batch = operands[0][1][:rank]
    if rank < 0 or any(sizes[:rank] != batch for _, sizes in operands):
        return None
    empty = [np.zeros((0, *sizes[rank:]), storage_dtype(kind)) for kind, sizes in operands]
    try:
        arrays = LAPACK_TARGETS[target](empty, attributes)
    except ValueError:  # of operands whose number or ranks are others
        return None
    names = {t.storage: t.name for t in ELEMENT_TYPES.values() if t.bits >= 32}
    expected = [(names[x.dtype.name], (*batch, *x.shape[1:])) for x in arrays]
    return expected if _fit_together(target, operands, rank) else None


def _fit_together(target: str, operands: Sequence[Typed], rank: int) -> bool:
    """Whether the matrices of several operands have sizes that go together."""
    sizes = [shape[rank:] for _, shape in operands]
    routine = routine_of(target)
    if routine in ("orgqr", "ungqr"):
        return sizes[0][0] >= sizes[0][1] >= prod(sizes[1])
    if routine in ("ormqr", "unmqr"):
        return sizes[0][0] in sizes[2] and sizes[0][1] >= prod(sizes[1])
    if routine == "gtsv":
        return len({x[0] for x in sizes}) == 1
    if routine == "trsm":
        return sizes[0][0] == sizes[0][1] and sizes[0][0] in sizes[1]
    if routine == "geqp3":
        return sizes[1] == sizes[0][1:]
    return routine in ("getrf", "geqrf", "gesdd", "gesvd") or sizes[0][0] == sizes[0][1]
