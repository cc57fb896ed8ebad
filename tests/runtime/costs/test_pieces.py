"""Pieces and messages that tiles send, against a count element by element."""

from itertools import product
from math import prod
from random import Random

import pytest

from hloipu_runtime.costs.pieces import Sent, what_is_sent, whole_sent
from hloipu_runtime.costs.traffic import transfer_traffic
from hloipu_runtime.memory.charges import receivers, senders
from hloipu_runtime.program.mapping import Box, Mapping, Sizes, Tiles, whole, whole_box
from hloipu_runtime.program.program import Variable
from hloipu_runtime.program.steps import Transfer
from tests.support.program_builder import blocks, rows
from tests.support.random_programs import random_mapping


def variable(shape: Sizes, mapping: Mapping) -> Variable:
    return Variable("v", "f32", shape, mapping)


def transfer(target: Variable, box: Box, shift: Sizes, view: Sizes) -> Transfer:
    grid = target.mapping.tiles
    everyone = whole_box(grid.extents)
    return Transfer(0, 1, grid, everyone, target.mapping.spans, box, shift, view, 0)


def part(mapping: Mapping, place: Sizes, shape: Sizes) -> list[list[int]]:
    """Return the indices of each dimension that the tile at a place of the grid holds."""
    found = []
    for span, size in zip(mapping.spans, shape, strict=True):
        start = (place[span.axis] * span.step if span.axis >= 0 else 0) + span.offset
        found.append([n for n in range(start, start + span.size) if 0 <= n < size])
    return found


def places(mapping: Mapping) -> list[Sizes]:
    return list(product(*(range(n) for n in mapping.tiles.extents)))


def tile(mapping: Mapping, place: Sizes) -> int:
    tiles = mapping.tiles
    return tiles.first + sum(n * s for n, s in zip(place, tiles.strides, strict=True))


def sent_by_counting(moved: Transfer, source: Variable, target: Variable) -> dict[int, Sent]:
    """Return for each tile in how many runs and to how many sets of tiles it sends.

    A run are neighbours that go to the same tiles.
    """
    wanted: dict[int, set[int]] = {}
    for place in places(target.mapping):
        for index in product(*part(target.mapping, place, target.shape)):
            if all(low <= n < high for n, (low, high) in zip(index, moved.box, strict=True)):
                flat = 0
                for n, shift, size in zip(index, moved.shift, moved.view, strict=True):
                    flat = flat * size + n + shift
                wanted.setdefault(flat, set()).add(tile(target.mapping, place))
    sent: dict[int, Sent] = {}
    for place in places(source.mapping):
        if any(place[axis] for axis in source.mapping.replicated_axes):
            continue
        before: set[int] | None = None
        runs, sets = 0, set[frozenset[int]]()
        for index in product(*part(source.mapping, place, source.shape)):
            flat = 0
            for n, size in zip(index, source.shape, strict=True):
                flat = flat * size + n
            here = wanted.get(flat)
            if here and here != before:
                runs += 1
                sets.add(frozenset(here))
            before = here
        if runs:
            sent[tile(source.mapping, place)] = Sent(runs, len(sets))
    return sent


def check(moved: Transfer, source: Variable, target: Variable) -> tuple[Sent, Sent]:
    """Return what is sent as computed and as counted; no tile that takes part may be missing."""
    counted = sent_by_counting(moved, source, target)
    assert set(counted) <= set(senders(moved, source).numbers.ravel().tolist())
    receiving = {
        tile(target.mapping, place)
        for place in places(target.mapping)
        if all(
            any(low <= n < high for n in indices)
            for indices, (low, high) in zip(
                part(target.mapping, place, target.shape), moved.box, strict=True
            )
        )
    }
    assert receiving <= set(receivers(moved, target).numbers.ravel().tolist())
    most = Sent(*(max(sent[n] for sent in counted.values()) for n in range(2)))
    return what_is_sent(moved, source, target), most


@pytest.mark.parametrize(
    ("shape", "source", "target", "pieces", "messages"),
    [
        ((8, 6), rows(4, 2, 2), blocks((8, 6), (1, 3)), 6, 3),  # two rows, each in three columns
        ((8, 6), blocks((8, 6), (1, 3)), rows(4, 2, 2), 4, 4),  # two columns: a row in each part
        ((8, 6), rows(4, 2, 2), rows(2, 4, 2), 1, 1),
        ((8, 6), rows(2, 4, 2), rows(4, 2, 2), 2, 2),
        ((8, 6), rows(4, 2, 2), Mapping(Tiles((), (), 0), (whole(8), whole(6))), 1, 1),
        ((8, 6), rows(4, 2, 2), rows(1, 8, 2, copies=4), 1, 1),  # to all tiles at once
        ((8, 6), rows(2, 4, 2, copies=2), rows(4, 2, 2), 2, 2),
    ],
)
def test_regular_parts(
    shape: Sizes, source: Mapping, target: Mapping, pieces: int, messages: int
) -> None:
    a, b = variable(shape, fill(source, shape)), variable(shape, fill(target, shape))
    moved = transfer(b, whole_box(shape), (0,) * len(shape), shape)
    assert check(moved, a, b) == (Sent(pieces, messages), Sent(pieces, messages))


def fill(mapping: Mapping, shape: Sizes) -> Mapping:
    """Return a mapping with the dimensions that it leaves out whole."""
    missing = tuple(whole(size) for size in shape[len(mapping.spans) :])
    return Mapping(mapping.tiles, mapping.spans + missing)


def test_tiles_that_keep_their_own_exchange_nothing() -> None:
    shape = (8, 6)
    a = variable(shape, fill(rows(4, 2, 2), shape))
    found = transfer_traffic(transfer(a, whole_box(shape), (0, 0), shape), a, a, 2)
    assert found is not None
    assert (found.received_bytes, found.sent_bytes, found.fragments) == (0, 0, 0)


def drawn_mapping(draw: Random, shape: Sizes) -> Mapping:
    """Return a random mapping, in which parts may reach into their neighbours or beyond the end."""
    made = random_mapping(draw, shape, 12)
    halo = draw.choice((0, 0, 1, 2))
    spans = tuple(
        span._replace(offset=span.offset - halo, size=span.size + 2 * halo)
        if span.axis >= 0
        else span._replace(size=span.size + halo)
        for span in made.spans
    )
    return Mapping(made.tiles, spans)


def drawn_transfer(draw: Random, target: Variable, view: Sizes) -> Transfer:
    shape = target.shape
    low = [draw.randrange(n) * draw.randrange(2) for n in shape]
    box = tuple(
        (a, draw.choice((n, draw.randint(a + 1, n)))) for a, n in zip(low, shape, strict=True)
    )
    shift = tuple(draw.randint(-a, n - b) for (a, b), n in zip(box, view, strict=True))
    return transfer(target, box, shift, view)


def excess(cases: list[tuple[Transfer, Variable, Variable]]) -> tuple[int, int]:
    """Return by how much bounds exceed what is sent, in all; none may be below it."""
    pieces = messages = 0
    for moved, source, target in cases:
        closed, counted = check(moved, source, target)
        assert closed.pieces >= counted.pieces, (moved, source, target)
        assert closed.messages >= counted.messages, (moved, source, target)
        pieces += closed.pieces - counted.pieces
        messages += closed.messages - counted.messages
    return pieces, messages


def test_bounds_are_never_below_what_is_sent_and_as_tight_as_they_were() -> None:
    """What they exceed it by is written down: with a looser bound, exchanges cost too much."""
    cases = []
    for seed in range(300):
        draw = Random(seed)
        shape = draw.choice([(7,), (12,), (6, 4), (5, 7), (4, 3, 5), (2, 8, 3)])
        source = variable(shape, drawn_mapping(draw, shape))
        target = variable(shape, drawn_mapping(draw, shape))
        cases.append((drawn_transfer(draw, target, shape), source, target))
    assert excess(cases) == (398, 391)


def test_bounds_in_another_shape_are_never_below_what_is_sent() -> None:
    cases = []
    for seed in range(300):
        draw = Random(seed)
        held, view = draw.choice(
            [((6, 4), (4, 6)), ((24,), (4, 6)), ((2, 3, 4), (6, 4)), ((8, 3), (24,)),
             ((2, 4, 5), (8, 5)), ((4, 1, 6), (4, 6)), ((3, 4), (3, 2, 2))]
        )  # fmt: skip
        source = variable(held, drawn_mapping(draw, held))
        target = variable(view, drawn_mapping(draw, view))
        cases.append((drawn_transfer(draw, target, view), source, target))
    assert excess(cases) == (2438, 1005)


def test_a_whole_value_is_sent_as_a_transfer_of_all_of_it() -> None:
    for seed in range(60):
        draw = Random(seed)
        shape = draw.choice([(7,), (6, 4), (4, 3, 5)])
        source, target = drawn_mapping(draw, shape), drawn_mapping(draw, shape)
        moved = transfer(variable(shape, target), whole_box(shape), (0,) * len(shape), shape)
        wanted = what_is_sent(moved, variable(shape, source), variable(shape, target))
        assert whole_sent(shape, source, target) == wanted


def even_cuts(shape: Sizes) -> list[Sizes]:
    """Return into how many parts dimensions can be cut evenly."""
    return list(product(*([n for n in (1, 2, 3, 4) if size % n == 0] for size in shape)))


REGULAR = [
    (shape, *cuts)
    for shape in ((12,), (8, 6), (4, 6), (2, 4, 6))
    for cuts in product(even_cuts(shape), repeat=2)
]


def test_even_parts_are_counted_exactly() -> None:
    """Where parts divide each dimension evenly, bounds are what is sent, no more."""
    for shape, first, second in REGULAR:
        source, target = variable(shape, blocks(shape, first)), blocks(shape, second, 50)
        moved = transfer(variable(shape, target), whole_box(shape), (0,) * len(shape), shape)
        closed, counted = check(moved, source, variable(shape, target))
        assert closed == counted, (shape, first, second)


def test_messages_of_even_parts_are_bounded_in_another_shape() -> None:
    """Ranges of rows, seen as one flat dimension that is cut anew: at most one too many."""
    for shape, first, second in REGULAR:
        if any(n > 1 for n in first[1:]):
            continue
        view = (prod(shape),)
        source = variable(shape, blocks(shape, first))
        target = variable(view, blocks(view, (prod(second),), 50))
        closed, counted = check(transfer(target, whole_box(view), (0,), view), source, target)
        assert closed.messages <= counted.messages + 1, (shape, first, second)
        assert closed.pieces <= 2 * counted.pieces * prod(shape[:1])
