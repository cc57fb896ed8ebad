"""Samples of configurations in which every two values of different dimensions come together.

Rows are made greedily, as in Cohen, Dalal, Fredman and Patton, The AETG system (IEEE Transactions
on Software Engineering 23, 1997): each begins with a pair that no row has yet, and takes in every
other dimension the value that brings most new pairs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Row = dict[str, Any]
_TRIES = 10
"""Fillings of a row from which the best is taken."""
_FRUITLESS = 1000
"""Rows drawn in vain after which there are no more."""


def covering(
    dimensions: Mapping[str, Sequence[Any]],
    count: int,
    seed: int = 0,
    admits: Callable[[Row], bool] = lambda _: True,
) -> list[Row]:
    """Return `count` different rows, or fewer where there are no more.

    Pairs come first; once all are there, rows are drawn. `admits` says which rows can be; a pair
    that is in none of the rows tried for it is left out.
    """
    maker = _Maker(dimensions, seed)
    rows: dict[tuple[int, ...], Row] = {}
    fruitless = 0
    while len(rows) < count and fruitless < _FRUITLESS:
        pair = maker.pair()
        tried = [maker.filled(pair) for _ in range(_TRIES if pair else 1)]
        found = {x: row for x in tried if x not in rows and admits(row := maker.row(x))}
        if found:
            best = max(found, key=maker.gain)
            rows[best] = found[best]
            maker.cover(best)
            fruitless = 0
        else:
            maker.drop(pair)
            fruitless += 1
    return list(rows.values())


class _Maker:
    """Values numbered through, and the pairs of them that are still to come."""

    def __init__(self, dimensions: Mapping[str, Sequence[Any]], seed: int) -> None:
        self.dimensions = dimensions
        self.random = np.random.default_rng(seed)
        sizes = [len(values) for values in dimensions.values()]
        self.values = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
        self.owner = np.repeat(np.arange(len(sizes)), sizes)
        self.left = self.owner[:, None] != self.owner[None, :]

    def pair(self) -> tuple[int, ...]:
        places = np.argwhere(self.left)
        return tuple(self.random.choice(places).tolist()) if len(places) else ()

    def filled(self, pair: tuple[int, ...]) -> tuple[int, ...]:
        found = np.full(len(self.values), -1)
        for value in pair:
            found[self.owner[value]] = value
        for dimension in self.random.permutation(np.flatnonzero(found < 0)):
            values = self.values[dimension]
            gains = self.left[values][:, found[found >= 0]].sum(1)
            found[dimension] = self.random.choice(values[gains == gains.max()])
        return tuple(found.tolist())

    def row(self, places: tuple[int, ...]) -> Row:
        firsts = [values[0] for values in self.values]
        return {
            name: self.dimensions[name][place - first]
            for name, place, first in zip(self.dimensions, places, firsts, strict=True)
        }

    def gain(self, places: tuple[int, ...]) -> int:
        return int(self.left[np.ix_(places, places)].sum())

    def cover(self, places: tuple[int, ...]) -> None:
        self.left[np.ix_(places, places)] = False

    def drop(self, pair: tuple[int, ...]) -> None:
        if pair:
            self.left[pair] = self.left[pair[::-1]] = False
