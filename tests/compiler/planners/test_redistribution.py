"""What bringing a value elsewhere costs, and by what way it goes."""

from math import isqrt

import numpy as np
import pytest

from hloipu_compiler.planners.placing import row_major
from hloipu_compiler.planners.redistribution import redistribution, routes, serves
from hloipu_runtime.costs.exchange_price import CodePrice
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.mapping import Mapping, Span, Tiles, covers, whole
from tests.support.tile_runs import same_on_tiles

BOW = load_machine("bow")


def _rows(tiles: int, rows: int, width: int, first: int = 0) -> Mapping:
    block = -(-rows // tiles)
    return Mapping(row_major((tiles,), first), (Span(0, block, 0, block), whole(width)))


def _everywhere(tiles: int, rows: int, width: int) -> Mapping:
    return Mapping(row_major((tiles,), 0), (whole(rows), whole(width)))


def test_what_lies_there_costs_nothing() -> None:
    rows = _rows(8, 64, 16)
    assert redistribution(BOW, "f32", (64, 16), rows, rows).price == 0
    assert serves(_everywhere(8, 64, 16), rows, (64, 16))
    assert not serves(rows, _everywhere(8, 64, 16), (64, 16))


def test_few_pieces_come_straight() -> None:
    found = redistribution(BOW, "f32", (64, 16), _rows(8, 64, 16), _everywhere(1472, 64, 16))
    assert found.via is None
    # Eight pieces of eight rows of 64 bytes to every pair of tiles at 8 bytes a cycle.
    assert found.cycles >= 64 * 64 // 8


def test_many_pieces_are_gathered_first() -> None:
    """Rather than 1024 messages to each tile, about the root of that from each of as many."""
    lying, wanted = _rows(1024, 1024, 32), _everywhere(1472, 1024, 32)
    found = redistribution(BOW, "f32", (1024, 32), lying, wanted)
    via = found.via
    assert via is not None
    assert 16 <= via.tiles.count <= 64
    assert covers(via.tiles, via.spans[0], 1024)
    straight = 1024 * BOW.memory.exchange_fragment_code_bytes
    assert found.code_bytes < straight // 8


@pytest.mark.parametrize(("parts", "copies"), [(16, 64), (4, 128), (2, 512)])
def test_each_part_is_gathered_on_tiles_of_its_own(parts: int, copies: int) -> None:
    rows, width = 1024, 32
    block = rows // parts
    spans = (Span(0, block, 0, block), whole(width))
    wanted = Mapping(Tiles((parts, copies), (copies, 1), 0), spans)
    via = redistribution(BOW, "f32", (rows, width), _rows(rows, rows, width), wanted).via
    assert via is not None
    assert via.is_partition
    assert not via.replicated_axes
    assert covers(via.tiles, via.spans[0], rows)
    assert covers(via.tiles, via.spans[1], width)
    gathered = via.spans[0].size
    assert block % gathered == 0
    # a tile wants `block` rows of as many tiles: about the root of that gathers them
    assert isqrt(block) // 2 <= block // gathered <= max(2, isqrt(block))
    assert via.tiles.count == rows // gathered <= wanted.tiles.count


def test_overlapping_parts_are_not_gathered() -> None:
    wanted = Mapping(Tiles((16, 92), (92, 1), 0), (Span(0, 64, -1, 66), whole(32)))
    assert redistribution(BOW, "f32", (1024, 32), _rows(1024, 1024, 32), wanted).via is None


def test_gathered_values_arrive() -> None:
    text = """HloModule gathered
    ENTRY e {
      x = f32[4096,96] parameter(0)
      w = f32[96,64] parameter(1)
      two = f32[] constant(2)
      twice = f32[] multiply(two, two)
      y = f32[96,64] broadcast(two), dimensions={}
      v = f32[96,64] add(w, y)
      ROOT r = f32[4096,64] dot(x, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    }"""
    rng = np.random.default_rng(3)
    x = rng.integers(-3, 4, (4096, 96)).astype(np.float32)
    w = rng.integers(-3, 4, (96, 64)).astype(np.float32)
    run = same_on_tiles(text, BOW, [x, w])
    np.testing.assert_array_equal(run.functional[0], x @ (w + 2))


def test_a_way_over_other_tiles_is_looked_for_from_24_messages_on() -> None:
    """That many is assumed; then the cheaper one is taken, code included."""
    gathered = {}
    for senders in (16, 23, 24, 40):
        for width in (16, 64, 256):
            lying, wanted = _rows(senders, senders, width), _everywhere(1472, senders, width)
            found = redistribution(BOW, "f32", (senders, width), lying, wanted)
            gathered[senders, width] = found.via is not None
            # Straight: each tile receives all at 8 bytes a cycle, a message from every sender.
            straight = senders * width * 4 // 8 + senders * 3 + 9 + 74 + 126
            if found.via is None:
                assert found.cycles == straight
            # 8 bytes of code for each message, received or sent, one more for each 16,592 bytes,
            # and 32 of the step.
            messages = senders + 1 + senders * width * 4 // 16_592
            price = straight + 8 * (8 * messages + 32)
            assert found.price == price if found.via is None else found.price < price
    assert [at for at, via in gathered.items() if via] == [(24, 16), (24, 64), (40, 16), (40, 64)]


def test_where_code_is_dear_blocks_between_both_take_fewer_messages() -> None:
    """From rows to columns and batches each tile would receive 43 messages from each of 4 rows."""
    shape = (32, 128, 768)
    lying = Mapping(row_major((32, 43), 0), (Span(0, 1, 0, 1), Span(1, 3, 0, 3), whole(768)))
    wanted = Mapping(row_major((8, 96), 0), (Span(0, 4, 0, 4), whole(128), Span(1, 8, 0, 8)))
    assert redistribution(BOW, "f16", shape, lying, wanted).via is None
    found = redistribution(BOW, "f16", shape, lying, wanted, CodePrice(8, 8))
    via = found.via
    assert via is not None
    assert via.is_partition
    assert not via.replicated_axes
    assert via.tiles.count <= BOW.chip.tiles_per_ipu
    assert all(covers(via.tiles, span, size) for span, size in zip(via.spans, shape, strict=True))
    # Straight: 172 messages received and 96 sent, 8 bytes each. Both halves take under one half.
    assert found.code_bytes < 8 * (172 + 96) // 2
    assert routes(shape, lying, lying, BOW.chip.tiles_per_ipu) == []
