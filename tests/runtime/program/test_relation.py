"""How parts of a transfer's ends lie to each other, against a look at every element."""

from itertools import pairwise, product
from random import Random

import pytest

from hloipu_runtime.program.mapping import Span, Tiles
from hloipu_runtime.program.relation import MixedPart, dimension_groups, relate
from tests.support.random_programs import random_mapping


@pytest.mark.parametrize(("step", "row"), [(1, 4), (2, 6), (3, 7), (4, 4), (5, 20)])
def test_a_run_is_put_together_from_no_more_parts_than_told(step: int, row: int) -> None:
    """Parts begin each `step` elements, and anew with each row."""
    part_of = [(n // row, n % row // step) for n in range(8 * row)]
    for run in range(1, 3 * row):
        counted = max(
            1 + sum(a != b for a, b in pairwise(part_of[start : start + run]))
            for start in range(2 * row)
        )
        told = MixedPart(step, step, row, 0).pieces(run)
        assert counted <= told <= run
        # where a row begins, a part may begin, too, and is counted with it
        begins = [-(-(run - 1) // each) for each in (step, row)]
        assert told == min(run, 1 + sum(begins))


@pytest.mark.parametrize("seed", range(40))
def test_receivers_have_the_sources_elements_that_they_take(seed: int) -> None:
    """Of one shape: what a receiver's part takes, in elements of the source, is as told."""
    draw = Random(seed)
    shape, source = (5, 7), (9, 8)
    mapping = random_mapping(draw, shape, 12)
    box = tuple((low, draw.randint(low + 1, n)) for n in shape for low in [draw.randrange(n)])
    shift = tuple(draw.randint(-low, n - high) for (low, high), n in zip(box, source, strict=True))
    held = (Span(0, 3, 0, 3), Span(-1, 0, 0, 8))
    found = relate(shape, mapping.spans, box, shift, source, source, held)
    assert found.mixed == ()
    assert [each.sender for each in found.along] == [*held]
    assert [each.size for each in found.along] == [*source]
    tiles: Tiles = mapping.tiles
    for place in product(*(range(n) for n in tiles.extents)):
        for d, each in enumerate(found.along):
            span = mapping.spans[d]
            begin = span.offset + (place[span.axis] * span.step if span.axis >= 0 else 0)
            own = range(max(0, begin), min(shape[d], begin + span.size))
            taken = [n + shift[d] for n in own if box[d][0] <= n < box[d][1]]
            first = each.receiver.offset
            first += (
                place[each.receiver.axis] * each.receiver.step if each.receiver.axis >= 0 else 0
            )
            low, high = max(each.own_low, first), min(each.own_high, first + each.receiver.size)
            assert taken == [n for n in range(low, high) if each.low <= n < each.high]
            assert [n + shift[d] for n in own] == [*range(low, high)]


@pytest.mark.parametrize(
    ("view", "shape", "groups"),
    [
        ((6, 4), (24,), [([0, 1], [0])]),
        ((6, 4), (6, 2, 2), [([0], [0]), ([1], [1, 2])]),
        ((4, 6), (6, 4), [([0, 1], [0, 1])]),
        ((1, 6, 1, 4), (6, 1, 4), [([1], [0]), ([3], [2])]),
        ((2, 6, 5), (3, 4, 5), [([0, 1], [0, 1]), ([2], [2])]),
        ((8, 3), (2, 4, 3), [([0], [0, 1]), ([1], [2])]),
        ((), (1, 1), []),
        ((0, 5), (0,), [([0], [0])]),
    ],
)
def test_dimensions_of_two_shapes_belong_together_where_they_hold_equally_much(
    view: tuple[int, ...], shape: tuple[int, ...], groups: list[tuple[list[int], list[int]]]
) -> None:
    assert dimension_groups(view, shape) == groups
    assert dimension_groups(shape, view) == [(b, a) for a, b in groups]
