"""Ragged exchanges: random ones, and what they give by definition, element by element."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def drawn_members(seed: int, count: int, runs: int, width: int) -> list[list[Array]]:
    """Return each member's six operands; ranges are of 0 to 2 rows, and some members send none."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 3, (count, count, runs))
    sizes[rng.integers(count)] *= seed % 2
    rows, out = (int(sizes.sum(axes).max()) + 2 for axes in ((1, 2), (0, 2)))
    starts, places = np.zeros((2, count, count, runs), int)
    for member in range(count):
        _lay_out(rng, starts[member], sizes[member])
        _lay_out(rng, places[:, member], sizes[:, member])
    return [
        [
            rng.standard_normal((rows, width)).astype(np.float32),
            np.full((out, width), -1, np.float32),
            *(x.ravel().astype(np.int32)
              for x in (starts[m], sizes[m], places[m], sizes[:, m])),
        ]
        for m in range(count)
    ]  # fmt: skip


def _lay_out(rng: np.random.Generator, begins: Array, lengths: Array) -> None:
    """Put ranges one behind the other in a random order, from row 0 or 1 on."""
    at = int(rng.integers(2))
    for index in rng.permutation(lengths.size):
        begins[np.unravel_index(index, lengths.shape)] = at
        at += int(lengths.ravel()[index])


def ragged_results(
    members: Sequence[Sequence[Array]], groups: Sequence[Sequence[int]]
) -> list[Array]:
    """Return each member's result: every row looks for the range of a sender that covers it."""
    results = [operands[1].copy() for operands in members]
    for group in groups:
        for number, receiver in enumerate(group):
            for sender in group:
                rows, _, starts, sizes, places, _ = members[sender]
                runs = len(sizes) // len(group)
                for q in range(len(results[receiver])):
                    for u in range(number * runs, (number + 1) * runs):
                        if places[u] <= q < places[u] + sizes[u]:
                            results[receiver][q] = rows[starts[u] + q - places[u]]
    return results
