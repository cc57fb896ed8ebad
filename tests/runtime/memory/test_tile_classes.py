"""Classes of tiles against their definition: alike is what no grid tells apart."""

from random import Random

import numpy as np
import pytest

from hloipu_runtime.memory import requests
from hloipu_runtime.memory.requests import classes_of
from hloipu_runtime.program.mapping import Tiles

TILES = 24


def drawn(seed: int, count: int) -> list[Tiles]:
    draw = Random(seed)
    found = []
    for _ in range(count):
        extents = tuple(draw.choice([2, 3]) for _ in range(draw.randint(0, 2)))
        strides = tuple(draw.randint(1, 4) for _ in extents)
        room = TILES - Tiles(extents, strides).last
        found.append(Tiles(extents, strides, draw.randrange(room)))
    return found


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("at_once", [4096, 3])
def test_classes(seed: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_GRIDS_AT_ONCE", at_once)
    grids = drawn(seed, 1 + seed)
    tiles_of = [set(grid.numbers.ravel().tolist()) for grid in grids]
    classes = classes_of(grids, TILES)
    marks = [tuple(tile in tiles for tiles in tiles_of) for tile in range(TILES)]
    assert classes.count == len(set(marks))
    for tile in range(TILES):
        alike = [other for other in range(TILES) if marks[other] == marks[tile]]
        number = classes.of_tile[tile]
        assert np.nonzero(classes.of_tile == number)[0].tolist() == alike
        assert classes.first_tile[number] == alike[0]
    for grid, tiles in zip(grids, tiles_of, strict=True):
        members = np.arange(classes.count)[classes.members[grid]]
        assert set(np.nonzero(np.isin(classes.of_tile, members))[0].tolist()) == tiles


def test_no_grids() -> None:
    classes = classes_of([], TILES)
    assert (classes.count, classes.of_tile.tolist()) == (1, [0] * TILES)
