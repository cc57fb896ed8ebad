"""Labels of codelets that treat the rows, or matrices, of a batch one by one; their checks."""

from collections.abc import Collection, Sequence

from hloipu_runtime.codelets.core.codelet import ALL, Index


def require(holds: bool, what: str) -> None:
    """Raise ValueError where a codelet's parameters do not fit its tensors: a file may say so."""
    if not holds:
        raise ValueError(what)


def batch_labels(
    shape: Sequence[int], unsplit: Collection[int]
) -> tuple[tuple[int, ...], tuple[Index, ...]]:
    """Return the sizes of the dimensions that may be split, and the index of each dimension."""
    sizes: list[int] = []
    indices: list[Index] = []
    for dimension, size in enumerate(shape):
        if dimension in unsplit:
            indices.append(ALL)
        else:
            indices.append(Index(len(sizes)))
            sizes.append(size)
    return tuple(sizes), tuple(indices)
