"""Traffic in closed form against a referee that counts elements, and by hand."""

from collections import Counter, defaultdict
from dataclasses import replace
from math import prod
from random import Random

import pytest

from hloipu_runtime.costs.exchanging import exchange_cost
from hloipu_runtime.costs.forms import Forms
from hloipu_runtime.costs.traffic import TransferTraffic, transfer_traffic
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.costs import TileTraffic, exchange
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.mapping import Box, Mapping, Sizes, Span, Tiles, whole, whole_box
from hloipu_runtime.program.program import Program, Variable
from hloipu_runtime.program.steps import Exchange, Transfer
from tests.support.exchange_counter import Counted, count


def grid(*extents: int, first: int = 0, strides: Sizes | None = None) -> Tiles:
    if strides is None:
        strides = tuple(prod(extents[d + 1 :]) for d in range(len(extents)))
    return Tiles(extents, strides, first)


def blocks(axis: int, size: int, extent: int) -> Span:
    block = -(-size // extent)
    return Span(axis, block, 0, block)


def variable(shape: Sizes, tiles: Tiles, *spans: Span, element_type: str = "f32") -> Variable:
    return Variable("v", element_type, shape, Mapping(tiles, spans))


def both(
    source: Variable,
    destination: Variable,
    box: Box | None = None,
    shift: Sizes | None = None,
    view: Sizes | None = None,
    bus: int = 1,
) -> tuple[TransferTraffic, Counted]:
    transfer = Transfer(
        0,
        1,
        destination.mapping.tiles,
        whole_box(destination.mapping.tiles.extents),
        destination.mapping.spans,
        whole_box(destination.shape) if box is None else box,
        (0,) * len(destination.shape) if shift is None else shift,
        view
        or (source.shape if len(source.shape) == len(destination.shape) else destination.shape),
        0,
    )
    found = transfer_traffic(transfer, source, destination, bus)
    assert found is not None
    return found, count(transfer, source, destination)


def assert_equal(found: TransferTraffic, counted: Counted) -> None:
    assert found.received_bytes == 4 * counted.most("received")
    assert found.sent_bytes == 4 * counted.most("sent")
    assert found.copied_bytes == 4 * counted.most("copied")
    assert found.fragments == counted.pieces()
    assert found.messages >= max(map(len, counted.senders.values()), default=0)


def test_rows_to_columns_takes_a_piece_of_each_row() -> None:
    rows = variable((8, 12), grid(4), blocks(0, 8, 4), whole(12))
    columns = variable((8, 12), grid(4), whole(8), blocks(0, 12, 4))
    found, counted = both(rows, columns)
    assert_equal(found, counted)
    # 8 x 3 elements a tile; 2 x 3 of them are its own, the others come from three tiles.
    assert (found.received_bytes, found.sent_bytes, found.copied_bytes) == (72, 72, 24)
    assert found.fragments == 3


def test_equal_parts_on_equal_tiles_stay() -> None:
    rows = variable((8, 12), grid(4), blocks(0, 8, 4), whole(12))
    found, counted = both(rows, rows)
    assert_equal(found, counted)
    assert (found.received_bytes, found.copied_bytes, found.copied_runs) == (0, 96, 1)


def test_halo_moves_only_the_rim() -> None:
    rows = variable((16, 10), grid(4), blocks(0, 16, 4), whole(10))
    halo = variable((16, 10), grid(4), Span(0, 4, -1, 6), whole(10))
    found, counted = both(rows, halo)
    assert_equal(found, counted)
    assert (found.received_bytes, found.sent_bytes, found.fragments) == (80, 80, 2)


def test_halo_in_two_dimensions_moves_only_the_rim() -> None:
    tiles = grid(3, 3)
    field = variable((9, 9), tiles, blocks(0, 9, 3), blocks(1, 9, 3))
    halo = variable((9, 9), tiles, Span(0, 3, -1, 5), Span(1, 3, -1, 5))
    found, counted = both(field, halo)
    assert found.received_bytes == 4 * counted.most("received") == 4 * 16
    assert found.sent_bytes == 4 * counted.most("sent") == 4 * 8
    assert found.fragments >= counted.pieces()


def test_gathering_to_every_tile_multicasts() -> None:
    rows = variable((8, 4), grid(4), blocks(0, 8, 4), whole(4))
    everywhere = variable((8, 4), grid(4), whole(8), whole(4))
    found, counted = both(rows, everywhere)
    assert_equal(found, counted)
    assert (found.received_bytes, found.sent_bytes, found.fragments) == (96, 32, 3)


def test_tiles_of_a_bus_that_receive_the_same_are_paired() -> None:
    one = variable((6,), grid(), whole(6))
    everywhere = variable((6,), grid(4), whole(6))
    assert both(one, everywhere, bus=2)[0].is_paired
    assert not both(one, everywhere, bus=1)[0].is_paired
    assert not both(one, variable((6,), grid(4, first=1), whole(6)), bus=2)[0].is_paired
    assert not both(one, variable((6,), grid(3), whole(6)), bus=2)[0].is_paired
    assert not both(one, variable((6,), grid(2, strides=(2,)), whole(6)), bus=2)[0].is_paired
    # Columns on axis 0, the same rows on the tiles of a pair.
    paired = variable((6,), grid(2, 2), blocks(0, 6, 2))
    assert both(one, paired, bus=2)[0].is_paired
    across = variable((6,), Tiles((2, 2), (1, 2)), blocks(0, 6, 2))
    assert not both(one, across, bus=2)[0].is_paired


def test_pieces_of_a_concatenation_reach_their_own_tiles() -> None:
    part = variable((4, 3), grid(2, first=4), blocks(0, 4, 2), whole(3))
    joined = variable((12, 3), grid(4), blocks(0, 12, 4), whole(3))
    found, counted = both(part, joined, box=((4, 8), (0, 3)), shift=(-4, 0))
    assert_equal(found, counted)
    assert (found.receivers.first, found.receivers.last) == (1, 2)
    assert (found.senders.first, found.senders.last) == (4, 5)


def test_a_reshape_that_keeps_rows_together_moves_nothing() -> None:
    matrix = variable((8, 4, 3), grid(4), blocks(0, 8, 4), whole(4), whole(3))
    flat = variable((32, 3), grid(4), blocks(0, 32, 4), whole(3))
    found, counted = both(matrix, flat, view=(32, 3))
    assert_equal(found, counted)
    assert (found.received_bytes, found.copied_bytes) == (0, 96)


def test_a_reshape_across_parts_is_never_underestimated() -> None:
    columns = variable((6, 8), grid(4), whole(6), blocks(0, 8, 4))
    flat = variable((48,), grid(4), blocks(0, 48, 4))
    found, counted = both(columns, flat, view=(48,))
    assert_bounded(found, counted)


def test_half_words_are_sent_as_words() -> None:
    one = variable((5, 3), grid(), whole(5), whole(3), element_type="f16")
    columns = variable((5, 3), grid(3), whole(5), blocks(0, 3, 3), element_type="f16")
    rows = variable((5, 3), grid(5), blocks(0, 5, 5), whole(3), element_type="f16")
    assert both(one, columns)[0].received_bytes == 12  # one dense column of 5 at the receiver
    assert both(one, rows)[0].received_bytes == 8
    assert both(rows, one)[0].received_bytes == 5 * 8


def test_an_empty_box_moves_nothing() -> None:
    one = variable((5,), grid(), whole(5))
    transfer = Transfer(0, 1, grid(), (), (whole(5),), ((2, 2),), (0,), (5,), 0)
    assert transfer_traffic(transfer, one, one, 1) is None


def test_what_stays_cuts_what_comes_into_pieces() -> None:
    tiles = grid(2)
    both_have_the_middle = Span(0, 1, -1, 2)  # columns 0, and 0 to 1
    source = variable((3, 2), tiles, whole(3), both_have_the_middle)
    wanted = variable((3, 2), tiles, whole(3), whole(2))
    found, counted = both(source, wanted)
    # The first tile has column 0 of three rows and takes column 1, an element of each row.
    assert counted.fragments[0] == [1, 1, 1]
    assert 3 <= found.fragments <= 6


def assert_bounded(found: TransferTraffic, counted: Counted) -> None:
    assert found.received_bytes >= 4 * counted.most("received")
    assert found.sent_bytes >= 4 * counted.most("sent")
    assert found.fragments >= counted.pieces()
    assert found.messages >= max(map(len, counted.senders.values()), default=0)
    for tile, elements in counted.copied.items():
        moved = elements + counted.received.get(tile, 0)
        assert found.received_bytes + found.copied_bytes >= 4 * moved
    for tile in counted.received:
        assert found.receivers.first <= tile <= found.receivers.last
    for tile in counted.sent:
        assert found.senders.first <= tile <= found.senders.last


Case = tuple[Variable, Variable, Box, Sizes, Sizes]


def drawn_mapping(draw: Random, shape: Sizes) -> Mapping:
    axes = draw.randint(0, 2)
    extents = [draw.randint(2, 3) for _ in range(axes)]
    strides = [prod(extents[d + 1 :]) for d in range(axes)]
    scale = draw.randint(1, 2)
    order = draw.sample(range(axes), axes)
    tiles = Tiles(
        tuple(extents[a] for a in order),
        tuple(strides[a] * scale for a in order),
        draw.randint(0, 3),
    )
    places = draw.sample(range(len(shape)), len(shape))
    spans = [whole(size) for size in shape]
    for axis in range(min(axes, len(shape))):
        if draw.random() < 0.5:
            size = shape[places[axis]]
            block = -(-size // tiles.extents[axis]) + draw.randint(0, 1)
            before, after = draw.randint(0, 1), draw.randint(0, 1)
            spans[places[axis]] = Span(axis, block, -before, block + before + after)
    return Mapping(tiles, tuple(spans))


def drawn_case(draw: Random) -> Case:
    view = tuple(draw.randint(1, 5) for _ in range(draw.randint(0, 3)))
    kind = draw.choice(("same", "merged", "split"))
    source_shape = view
    if kind == "merged" and len(view) > 1:
        at = draw.randint(0, len(view) - 2)
        source_shape = (*view[:at], view[at] * view[at + 1], *view[at + 2 :])
    if kind == "split" and view:
        at = draw.randrange(len(view))
        factor = draw.choice([f for f in range(1, 6) if view[at] % f == 0])
        source_shape = (*view[:at], factor, view[at] // factor, *view[at + 1 :])
    shape, box, shift = [], [], []
    for size in view:
        taken = draw.randint(1, size)
        from_index = draw.randint(0, size - taken)
        at = draw.randint(0, 2)
        shape.append(at + taken + draw.randint(0, 2))
        if draw.random() < 0.5:
            taken, from_index, at, shape[-1] = size, 0, 0, size
        box.append((at, at + taken))
        shift.append(from_index - at)
    source = Variable("s", "f32", source_shape, drawn_mapping(draw, source_shape))
    target_mapping = drawn_mapping(draw, tuple(shape))
    if draw.random() < 0.5 and tuple(shape) == source_shape:
        spans = drawn_mapping(draw, tuple(shape)).spans
        if all(s.axis < len(source.mapping.tiles.extents) for s in spans) and _covers(
            source.mapping.tiles, spans, tuple(shape)
        ):
            target_mapping = Mapping(source.mapping.tiles, spans)
    target = Variable("t", "f32", tuple(shape), target_mapping)
    return source, target, tuple(box), tuple(shift), view


def _covers(tiles: Tiles, spans: tuple[Span, ...], shape: Sizes) -> bool:
    return all(
        s.axis < 0 or (tiles.extents[s.axis] - 1) * s.step + s.offset + s.size >= n
        for s, n in zip(spans, shape, strict=True)
    )


def test_no_transfer_is_underestimated_nor_more_overestimated_than_it_was() -> None:
    """What bounds exceed the count by, in all, is written down: looser ones cost too much."""
    excess = Counter[str]()
    for seed in range(600):
        found, counted = both(*drawn_case(Random(seed)))
        assert_bounded(found, counted)
        excess["received"] += found.received_bytes // 4 - counted.most("received")
        excess["sent"] += found.sent_bytes // 4 - counted.most("sent")
        excess["copied"] += found.copied_bytes // 4 - counted.most("copied")
        excess["pieces"] += found.fragments - counted.pieces()
        excess["messages"] += found.messages - max(map(len, counted.senders.values()), default=0)
        excess["receivers"] += found.receivers.tiles - len({*counted.received, *counted.copied})
        excess["senders"] += found.senders.tiles - len(counted.sent)
    assert excess == {
        "received": 1, "sent": 267, "copied": -8, "pieces": 23, "messages": 13, "receivers": 0,
        "senders": 215,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("element_type", "excess_words"), [("pred", 2), ("f16", 2), ("s4", 1), ("f64", 0)]
)
def test_words_of_small_types_are_not_underestimated(element_type: str, excess_words: int) -> None:
    bits = ELEMENT_TYPES[element_type].bits
    excess = 0
    for seed in range(50):
        source, target, box, shift, view = drawn_case(Random(seed))
        source = replace(source, element_type=element_type)
        target = replace(target, element_type=element_type)
        found, counted = both(source, target, box, shift, view)
        words = [counted.received_words(tile, bits) for tile in counted.received]
        assert found.received_bytes >= 4 * max(words, default=0)
        excess += found.received_bytes // 4 - max(words, default=0)
    assert excess == excess_words


BUSES_APART = load_machine("tiny", {"tiles_per_exchange_bus": "1"})


@pytest.mark.parametrize("seed", range(100))
def test_no_exchange_is_cheaper_than_its_fullest_tile(seed: int) -> None:
    draw = Random(seed)
    cases = [drawn_case(draw) for _ in range(draw.randint(1, 4))]
    variables: list[Variable] = []
    moves: list[Transfer] = []
    loads: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    for source, target, box, shift, view in cases:
        number = len(variables)
        variables += [source, target]
        tiles, spans = target.mapping.tiles, target.mapping.spans
        moves.append(
            Transfer(
                number, number + 1, tiles, whole_box(tiles.extents), spans, box, shift, view, 0
            )
        )
        counted = count(moves[-1], source, target)
        for tile, elements in counted.sent.items():
            loads[tile][0] += 4 * elements
        for tile, elements in counted.received.items():
            loads[tile][1] += 4 * elements
            loads[tile][2] += len(counted.fragments[tile])
    program = Program("p", "tiny", 1, tuple(variables), ())
    step = Exchange(tuple(moves), ())
    cost = exchange_cost(program, step, BUSES_APART, Forms(program, BUSES_APART))
    counted_loads = [TileTraffic(a, b, received_fragments=c) for a, b, c in loads.values()]
    assert cost.spent.exchange.cycles >= exchange(BUSES_APART, counted_loads).cycles


@pytest.mark.parametrize("rows", [4, 7, 8, 12])
@pytest.mark.parametrize("tiles", [2, 3, 4])
def test_regular_exchanges_are_exact(rows: int, tiles: int) -> None:
    split = variable((rows, 6), grid(tiles, first=8), blocks(0, rows, tiles), whole(6))
    one = variable((rows, 6), grid(), whole(rows), whole(6))
    columns = variable((rows, 6), grid(2), whole(rows), blocks(0, 6, 2))
    for source, target in ((one, split), (split, one), (split, columns), (columns, split)):
        assert_equal(*both(source, target))
