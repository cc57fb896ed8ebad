"""The `scan` op: a body called along one dimension, carrying values on."""

from collections.abc import Callable, Sequence

import numpy as np

from hloipu_runtime.kernels.core.blocks import Array


def scan(
    inputs: Sequence[Array],
    carries: Sequence[Array],
    dimension: int,
    body: Callable[..., Sequence[Array]],
    outputs: Sequence[tuple[Sequence[int], np.dtype[np.generic]]],
    *,
    length: int,
    is_reverse: bool = False,
) -> tuple[list[Array], list[Array]]:
    """Call `body(slices.., carries..) -> (outs.., carries..)` at each place of `dimension`.

    `outputs` gives the stacked shape and storage dtype of each out. Returns the outs, stacked along
    `dimension`, and the last carries. In reverse both the reading and the writing run backwards.
    """
    stacked = [np.empty(tuple(shape), dtype) for shape, dtype in outputs]
    current = list(carries)
    sources = [np.moveaxis(x, dimension, 0) for x in inputs]
    targets = [np.moveaxis(x, dimension, 0) for x in stacked]
    for place in reversed(range(length)) if is_reverse else range(length):
        results = body(*(x[place, ...] for x in sources), *current)
        for target, value in zip(targets, results[: len(targets)], strict=True):
            target[place] = value
        current = list(results[len(targets) :])
    return stacked, current
