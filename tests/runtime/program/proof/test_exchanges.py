"""The proof of exchanges: what arrives is what is said to be put together, on every tile."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloipu_runtime.program.mapping import Span, volume
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.proof.exchanges import exchange_faults, is_plain_copy
from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.program.steps import Definition, Exchange, Piece, Transfer
from tests.support.program_builder import ProgramBuilder, blocks, rows

TILES = 6


class Joined:
    """Variables a and b of (4, 6); c of (4, 6) takes columns 0 to 2 of a, and 3 to 5 of b."""

    def __init__(self, *, keep: bool = False) -> None:
        make = self.make = ProgramBuilder()
        self.a = make.stream_in(make.variable((4, 6), blocks((4, 6), (2, 1))))
        self.b = make.stream_in(make.variable((4, 6), blocks((4, 6), (1, 3))))
        self.c = make.stream_in(make.variable((4, 6), blocks((4, 6), (2, 3))))
        left, right = ((0, 4), (0, 3)), ((0, 4), (3, 6))
        pieces = [(self.a, left)] if keep else [(self.a, left), (self.b, right)]
        make.place(pieces, self.c, keep=keep)
        make.stream_out(self.c)

    @property
    def exchange(self) -> Exchange:
        step = self.make.blocks[0][3]
        assert isinstance(step, Exchange)
        return step

    def program(self, step: Exchange) -> Program:
        self.make.blocks[0][3] = step
        return self.make.program()


def said(joined: Joined, step: Exchange) -> str:
    return "; ".join(f"{x.rule}: {x.message}" for x in faults_of(joined.program(step), TILES))


def test_what_is_put_together_rightly_passes() -> None:
    for keep in (False, True):
        joined = Joined(keep=keep)
        assert said(joined, joined.exchange) == ""


def on_first(**changed: object) -> Callable[[Exchange], Exchange]:
    def change(step: Exchange) -> Exchange:
        first = replace(step.transfers[0], **changed)  # type: ignore[arg-type]
        return replace(step, transfers=(first, *step.transfers[1:]))

    return change


def on_spans(number: int, span: Span) -> Callable[[Exchange], Exchange]:
    def change(step: Exchange) -> Exchange:
        spans = list(step.transfers[0].spans)
        spans[number] = span
        return on_first(spans=tuple(spans))(step)

    return change


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda x: replace(x, transfers=x.transfers[1:]), "receives is not what makes"),
        (lambda x: replace(x, transfers=x.transfers * 2), "receives is not what makes"),
        (on_first(box=((0, 4), (0, 2))), "receives is not what makes"),
        (on_first(shift=(0, 3)), "receives is not what makes"),
        (on_first(view=(6, 4)), "receives is not what makes"),
        (on_first(source=1), "version: sends value"),
        (on_first(value=1), "version: sends value"),
        (on_first(receivers=((0, 1), (0, 3))), "not all tiles that hold"),
        (on_first(receivers=((0, 2), (1, 3))), "not all tiles that hold"),
        (on_spans(1, Span(1, 2, 0, 1)), "parts of v2 are not all received"),
        (on_spans(1, Span(1, 2, 2, 2)), "parts of v2 are not all received"),
        (on_first(destination=0), "receives what no definition names"),
        (lambda x: replace(x, definitions=()), "receives what no definition names"),
        (lambda x: replace(x, definitions=x.definitions * 2), "defined twice"),
    ],
)
def test_what_does_not_arrive_as_said_is_told(
    change: Callable[[Exchange], Exchange], wanted: str
) -> None:
    joined = Joined()
    assert wanted in said(joined, change(joined.exchange))


def test_receivers_are_the_tiles_of_the_variable() -> None:
    joined = Joined()
    moved = replace(joined.exchange.transfers[0].tiles, strides=(1, 2))
    assert "lies on other tiles" in said(joined, on_first(tiles=moved)(joined.exchange))


def with_pieces(joined: Joined, *pieces: Piece, base: int | None = None) -> Exchange:
    """Return the exchange with other pieces, in both of its forms."""
    (definition,) = joined.exchange.definitions
    sources = {joined.make.held[v]: v for v in (joined.a, joined.b)}
    pattern = joined.exchange.transfers[0]
    transfers = tuple(
        replace(
            pattern, source=sources[p.value], value=p.value, view=p.view, box=p.box, shift=p.shift
        )
        for p in pieces
    )
    return Exchange(transfers, (replace(definition, base=base, pieces=pieces),))


LEFT = Piece(0, (4, 6), ((0, 4), (0, 3)), (0, 0))
RIGHT = Piece(1, (4, 6), ((0, 4), (3, 6)), (0, 0))


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        ((LEFT, RIGHT), ""),
        ((LEFT, RIGHT._replace(shift=(0, -3))), ""),
        ((LEFT._replace(view=(2, 12), box=((0, 2), (0, 3))), RIGHT), "make up all"),
        ((LEFT,), "make up all"),
        ((LEFT, RIGHT._replace(box=((0, 4), (2, 6)))), "two pieces overlap"),
        ((LEFT, RIGHT._replace(shift=(0, 1))), "lies outside"),
        ((LEFT._replace(shift=(0, -1)), RIGHT), "lies outside"),
        ((LEFT._replace(box=((0, 4), (0, 7))), RIGHT), "lies outside"),
        ((LEFT._replace(view=(5, 6)), RIGHT), "lies outside"),
        ((LEFT._replace(view=(24,)), RIGHT), "lies outside"),
    ],
)
def test_pieces_lie_in_their_values_and_make_up_the_result(
    pieces: tuple[Piece, ...], wanted: str
) -> None:
    joined = Joined()
    found = said(joined, with_pieces(joined, *pieces))
    assert wanted in found
    assert bool(wanted) == bool(found)


def test_the_base_is_what_the_variable_holds() -> None:
    joined = Joined(keep=True)
    held = joined.exchange.definitions[0].base
    assert held is not None
    assert said(joined, with_pieces(joined, LEFT, base=held)) == ""
    assert "underneath" in said(joined, with_pieces(joined, LEFT, base=0))


def test_nothing_is_sent_and_received_at_once() -> None:
    make = ProgramBuilder()
    a = make.stream_in(make.variable((6,), rows(2, 3)))
    b = make.stream_in(make.variable((6,), rows(2, 3)))
    make.copy(a, b)
    make.copy(b, a)
    first, second = make.blocks[0][2:]
    assert isinstance(first, Exchange)
    assert isinstance(second, Exchange)
    both = Exchange(first.transfers + second.transfers, first.definitions + second.definitions)
    make.blocks[0][2:] = [both]
    assert "race" in {x.rule for x in faults_of(make.program(), TILES)}


def test_a_copy_makes_no_new_value_and_anything_else_does() -> None:
    make = ProgramBuilder()
    a = make.stream_in(make.variable((6,), rows(2, 3)))
    make.copy(a, make.variable((6,), rows(3, 2)))
    step = make.blocks[0][1]
    assert isinstance(step, Exchange)
    (definition,) = step.definitions
    value = make.held[a]

    assert is_plain_copy(definition, (6,))
    for other in (
        replace(definition, base=value),
        replace(definition, value=value + 1),
        replace(definition, pieces=definition.pieces * 2),
        replace(definition, pieces=(definition.pieces[0]._replace(shift=(1,)),)),
        replace(definition, pieces=(definition.pieces[0]._replace(box=((0, 5),)),)),
        replace(definition, pieces=(definition.pieces[0]._replace(view=(2, 3)),)),
    ):
        assert not is_plain_copy(other, (6,))


def test_a_value_is_made_once() -> None:
    joined = Joined()
    step = joined.exchange
    state = {v: joined.make.held[v] for v in (joined.a, joined.b)}
    program = joined.make.program()
    defined: set[int] = set()

    assert exchange_faults(program, step, state, defined, "here") == []
    assert defined == {step.definitions[0].value}
    (fault,) = exchange_faults(program, step, state, defined, "here")
    assert "made twice" in fault.message


CUTS = st.lists(st.integers(1, 5), max_size=3, unique=True).map(sorted)


@given(CUTS, CUTS, st.integers(0, 2**31))
def test_any_tiling_is_accepted_and_any_overlap_is_not(
    rows_at: list[int], columns_at: list[int], draw: int
) -> None:
    edges = [[0, *cuts, 6] for cuts in (rows_at, columns_at)]
    boxes = [
        ((a, b), (c, d))
        for a, b in zip(edges[0], edges[0][1:], strict=False)
        for c, d in zip(edges[1], edges[1][1:], strict=False)
    ]
    make = ProgramBuilder()
    a = make.stream_in(make.variable((6, 6), rows(2, 3, 2)))
    a_mapping = blocks((6, 6), (2, 1))
    make = ProgramBuilder()
    a = make.stream_in(make.variable((6, 6), a_mapping))
    b = make.variable((6, 6), a_mapping)
    make.place([(a, box) for box in boxes], b, keep=False)
    assert faults_of(make.program(), TILES) == []

    grown = draw % len(boxes)
    (low, high), columns = boxes[grown]
    wider = ((max(0, low - 1), min(6, high + 1)), columns)
    if volume(wider) == volume(boxes[grown]):
        return
    make.place([(a, wider if n == grown else box) for n, box in enumerate(boxes)], b, keep=False)
    found = faults_of(make.program(), TILES)
    assert [x.message for x in found if "overlap" in x.message]


def test_transfers_are_told_apart_by_everything_that_matters() -> None:
    fields = Transfer.__dataclass_fields__
    assert set(fields) == {
        "source", "destination", "tiles", "receivers", "spans", "box", "shift", "view", "value",
    }  # fmt: skip
    assert set(Definition.__dataclass_fields__) == {"variable", "value", "base", "pieces"}
