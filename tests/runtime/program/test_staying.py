"""Transfers that stay on their tiles, against a look at every element that a tile has and takes."""

from random import Random

from hloipu_runtime.program.mapping import Mapping, Sizes, Span, Tiles, whole, whole_box
from hloipu_runtime.program.program import Variable
from hloipu_runtime.program.proof.barriers import stays_on_tiles
from hloipu_runtime.program.steps import Transfer
from tests.support.exchange_counter import count, tile_parts
from tests.support.random_programs import random_mapping

SHAPES: tuple[tuple[Sizes, Sizes], ...] = (
    ((6, 4), (24,)), ((6, 4), (6, 2, 2)), ((6, 4), (3, 2, 4)), ((24,), (6, 4)), ((6, 4), (6, 4)),
    ((2, 3, 4), (6, 4)), ((6, 1, 4), (6, 4)), ((1, 6), (6,)), ((4, 6), (6, 4)),
)  # fmt: skip


def shifted(draw: Random, mapping: Mapping) -> Mapping:
    """Return a mapping, some of its parts longer, or elsewhere, than they were."""
    spans = tuple(
        span._replace(offset=span.offset + draw.choice((0, 0, 0, 1, -1)),
                      size=span.size + draw.choice((0, 0, 0, 1)))
        for span in mapping.spans
    )  # fmt: skip
    return Mapping(mapping.tiles, spans)


def rows_of(draw: Random, shape: Sizes) -> Mapping:
    """Return parts of the rows of a shape on an even grid, which may cut them elsewhere, too."""
    made = random_mapping(draw, shape, 12)
    parts = draw.choice([n for n in (1, 2, 3, 6) if shape[0] % n == 0])
    spans = (Span(0, shape[0] // parts, 0, shape[0] // parts), *map(whole, shape[1:]))
    return draw.choice((made, Mapping(Tiles((parts,), (1,), 3), spans)))


def stays(transfer: Transfer, source: Variable, target: Variable) -> bool:
    """Whether every tile has, among its own elements of the source, all that it takes."""
    if source.ipu != target.ipu:
        return not any(count(transfer, source, target).received.values())
    held = {
        tile: [set(r) for r in ranges]
        for tile, _, ranges in tile_parts(source.mapping.tiles, source.mapping.spans, source.shape)
    }
    for tile, _, ranges in tile_parts(transfer.tiles, transfer.spans, target.shape):
        for flat in flats(ranges, target.shape, transfer):
            index = []
            for size in reversed(source.shape):
                flat, n = divmod(flat, size)
                index.append(n)
            here = zip(reversed(index), held.get(tile, ()), strict=False)
            if tile not in held or not all(n in own for n, own in here):
                return False
    return True


def flats(ranges: list[range], shape: Sizes, transfer: Transfer) -> list[int]:
    """Return what a tile takes, as places in the source in row-major order."""
    found = [0]
    for own, size, shift, (low, high) in zip(
        ranges, transfer.view, transfer.shift, transfer.box, strict=True
    ):
        found = [f * size + n + shift for f in found for n in own if low <= n < high]
    return found


def test_what_is_said_to_stay_stays_and_as_much_is_said_as_was() -> None:
    told = true = 0
    for seed in range(1500):
        draw = Random(seed)
        shape, view = draw.choice(SHAPES)
        source = Variable("a", "f32", shape, rows_of(draw, shape))
        mapping = draw.choice((rows_of(draw, view), shifted(draw, rows_of(draw, view))))
        if draw.random() < 0.4:
            tiles = source.mapping.tiles
            if all(span.axis < len(tiles.extents) for span in mapping.spans):
                mapping = Mapping(tiles, mapping.spans)
        target = Variable("b", "f32", view, mapping, ipu=int(draw.random() < 0.05))
        grid, zeros = target.mapping.tiles, (0,) * len(view)
        box = whole_box(view)
        if draw.random() < 0.1:
            box = ((0, draw.randrange(view[0])), *box[1:])
        moved = Transfer(
            0, 1, grid, whole_box(grid.extents), target.mapping.spans, box, zeros, view, 0
        )
        is_told, is_true = stays_on_tiles(moved, source, target), stays(moved, source, target)
        assert is_true or not is_told, seed
        told += is_told
        true += is_true
    assert (told, true) == (89, 264)
