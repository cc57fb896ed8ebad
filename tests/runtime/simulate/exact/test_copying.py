"""Transfers: each receiving tile gets what a loop over tiles and elements would give it."""

from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest

from hloipu_runtime.program.mapping import Mapping, Span, Tiles, whole, whole_box
from hloipu_runtime.program.program import Variable
from hloipu_runtime.program.steps import Transfer
from hloipu_runtime.simulate.exact.copying import prepare_transfer
from hloipu_runtime.simulate.exact.storage import TileStorage, allocate, scatter_whole
from hloipu_runtime.simulate.run.faults import TileFault
from tests.support.cases import each
from tests.support.random_programs import random_mapping

SHAPE = (6, 7)


def memory(
    mapping: Mapping, shape: tuple[int, ...] = SHAPE, *, shared: bool = False
) -> TileStorage:
    made = allocate(Variable("x", "s32", shape, mapping), shared=shared)
    made.merged.fill(-1)
    return made


def filled(mapping: Mapping, shape: tuple[int, ...]) -> TileStorage:
    made = memory(mapping, shape)
    size = int(np.prod(shape))
    scatter_whole(made, np.arange(100, 100 + size, dtype=np.int32).reshape(shape))
    return made


def one_by_one(transfer: Transfer, source: np.ndarray, target: TileStorage) -> np.ndarray:
    """Return what tiles hold afterwards, element by element."""
    viewed = source.reshape(transfer.view)
    tiles = target.tiles.copy()
    home = {
        int(n): c for c, n in np.ndenumerate(target.mapping.tiles.numbers)
    }  # tile -> coordinate in the destination's own grid
    for coordinate in product(*(range(low, high) for low, high in transfer.receivers)):
        here = home[int(transfer.tiles.numbers[coordinate])]
        starts = [
            span.offset + (coordinate[span.axis] * span.step if span.axis >= 0 else 0)
            for span in transfer.spans
        ]
        for local in product(*(range(span.size) for span in transfer.spans)):
            place = [s + k for s, k in zip(starts, local, strict=True)]
            inside = zip(place, target.shape, transfer.box, strict=True)
            if all(0 <= i < size and low <= i < high for i, size, (low, high) in inside):
                origin = tuple(i + k for i, k in zip(place, transfer.shift, strict=True))
                tiles[(*here, *local)] = viewed[origin]
    return tiles


def check(transfer: Transfer, source: TileStorage, target: TileStorage) -> None:
    expected = one_by_one(transfer, source.whole(), target)
    prepare_transfer(transfer, source, target, "here")()
    np.testing.assert_array_equal(target.tiles, expected)


def drawn(seed: int) -> tuple[Transfer, TileStorage, TileStorage]:
    draw = Random(seed)
    target = memory(random_mapping(draw, SHAPE, 8))
    mapping = target.mapping
    view = draw.choice([(8, 9), (9, 8), (7, 10), (6, 7)])
    flat = draw.random() < 0.3
    source_shape = (view[0] * view[1],) if flat else view
    source = filled(random_mapping(draw, source_shape, 8), source_shape)
    box, shift = [], []
    for size, extent in zip(SHAPE, view, strict=True):
        low = draw.randrange(size)
        high = draw.randint(low + 1, size)
        box.append((low, high))
        shift.append(draw.randint(-low, extent - high))
    receivers = []
    for extent in mapping.tiles.extents:
        first = draw.choice([0, draw.randrange(extent)])
        receivers.append((first, draw.randint(first + 1, extent) if first else extent))
    made = Transfer(
        0, 1, mapping.tiles, tuple(receivers), mapping.spans, tuple(box), tuple(shift), view, 0
    )
    return made, source, target


@each("seed", range(60))
def test_drawn_transfers_copy_what_they_say(seed: int) -> None:
    check(*drawn(seed))


def test_parts_that_overlap_all_receive() -> None:
    mapping = Mapping(Tiles((3,), (1,)), (Span(0, 2, -1, 4), whole(7)))
    target = memory(mapping)
    source = filled(Mapping(Tiles(), (whole(6), whole(7))), SHAPE)
    receivers = ((0, 3),)
    transfer = Transfer(
        0, 1, mapping.tiles, receivers, mapping.spans, whole_box(SHAPE), (0, 0), SHAPE, 0
    )
    check(transfer, source, target)
    np.testing.assert_array_equal(target.whole(), source.whole())


def test_overlapping_parts_are_read_anew_in_each_run() -> None:
    source = filled(Mapping(Tiles((3,), (1,)), (Span(0, 2, 0, 3), whole(7))), SHAPE)
    target = memory(ROWS)
    copy = prepare_transfer(PLAIN, source, target, "here")
    for value in (source.whole() + 1, source.whole() + 2):
        scatter_whole(source, value)
        copy()
        np.testing.assert_array_equal(target.whole(), value)


def test_memory_that_replicas_share_is_written_once_for_all() -> None:
    mapping = Mapping(Tiles((2, 3), (3, 1)), (Span(0, 3, 0, 3), whole(7)))
    target = memory(mapping, shared=True)
    source = filled(Mapping(Tiles(), (whole(6), whole(7))), SHAPE)
    receivers = ((0, 2), (0, 3))
    transfer = Transfer(
        0, 1, mapping.tiles, receivers, mapping.spans, whole_box(SHAPE), (0, 0), SHAPE, 0
    )
    prepare_transfer(transfer, source, target, "here")()
    for replica in range(3):
        np.testing.assert_array_equal(target.tiles[:, replica].reshape(SHAPE), source.whole())


ROWS = Mapping(Tiles((2,), (1,)), (Span(0, 3, 0, 3), whole(7)))
PLAIN = Transfer(0, 1, ROWS.tiles, ((0, 2),), ROWS.spans, whole_box(SHAPE), (0, 0), SHAPE, 0)


@pytest.mark.parametrize(
    ("transfer", "said"),
    [
        (replace(PLAIN, shift=(1, 0)), "takes elements 1 to 6 of a dimension of 6"),
        (replace(PLAIN, shift=(0, -1)), "takes elements -1 to 5 of a dimension of 7"),
        (replace(PLAIN, view=(7, 6)), "takes elements 0 to 6 of a dimension of 6"),
        (replace(PLAIN, tiles=replace(ROWS.tiles, first=1)), "variable 1 does not lie"),
        (replace(PLAIN, spans=(Span(0, 3, 0, 4), whole(7))), "variable 1 does not lie"),
    ],
)
def test_a_transfer_that_leaves_its_variables_is_refused(transfer: Transfer, said: str) -> None:
    source = filled(ROWS, SHAPE)
    with pytest.raises(TileFault, match=said) as caught:
        prepare_transfer(transfer, source, memory(ROWS), "step 3")()
    assert caught.value.place == "step 3"
    assert caught.value.code == "E4051"


def test_a_box_of_nothing_moves_nothing() -> None:
    target = memory(ROWS)
    nothing = replace(PLAIN, box=((2, 2), (0, 7)), shift=(100, 0))
    prepare_transfer(nothing, filled(ROWS, SHAPE), target, "here")()
    assert (target.tiles == -1).all()
