"""Buffers in their sources' memory: what tiles see there, and who must have a copy instead."""

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.program.mapping import Mapping, Span, Tiles, whole, whole_box
from hloipu_runtime.program.program import Variable
from hloipu_runtime.program.steps import (
    Call,
    ComputeSet,
    Definition,
    Exchange,
    Operand,
    Piece,
    Repeat,
    Sequence,
    StreamIn,
    StreamOut,
    Transfer,
    VertexGroup,
)
from hloipu_runtime.simulate.exact.exact import ExactEngine
from hloipu_runtime.simulate.exact.shared_buffers import shared_buffers
from hloipu_runtime.simulate.exact.storage import allocate, scatter_whole, within
from tests.runtime.simulate.exact.test_copying import SHAPE, memory, one_by_one
from tests.support.cases import each
from tests.support.naive_run import DrawnHost, NaiveRun
from tests.support.program_builder import ProgramBuilder, rows
from tests.support.random_programs import random_mapping

ROWS, OTHERS, TWICE = rows(2, 3), rows(3, 2), rows(2, 3, copies=2)
OVERLAPPING = Mapping(Tiles((3, 2), (2, 1)), (Span(0, 2, -1, 4), whole(7)))
EVERY_THIRD = Mapping(Tiles((2,), (1,)), (Span(0, 3, 1, 1), Span(-1, 0, 2, 3)))


@each("seed", range(80))
def test_tiles_see_what_a_transfer_would_bring_them(seed: int) -> None:
    draw = Random(seed)
    mapping = draw.choice([random_mapping(draw, SHAPE, 8), OVERLAPPING, EVERY_THIRD])
    view = draw.choice([(8, 9), (9, 8), (7, 10), (6, 7)])
    shape = draw.choice([view, (view[0], 1, view[1]), (view[0] * view[1],)])
    shift = tuple(draw.randint(0, n - size) for n, size in zip(view, SHAPE, strict=True))
    make = ProgramBuilder()
    a = make.stream_in(make.variable(shape, random_mapping(draw, shape, 8), kind="s32"))
    b, value = make.variable(SHAPE, mapping, kind="s32"), make.value_like(a)
    transfer = Transfer(
        a, b, mapping.tiles, whole_box(mapping.tiles.extents), mapping.spans, whole_box(SHAPE),
        shift, view, value,
    )  # fmt: skip
    piece = Piece(value, view, whole_box(SHAPE), shift)
    make.emit(Exchange((transfer,), (Definition(b, value, None, (piece,)),)))
    make.emit(StreamOut("out", b, value))
    program = make.program()
    buffers = shared_buffers(program, frozenset())
    if b not in buffers.places:
        assert shape not in (view, (view[0], 1, view[1]))
        return
    source = allocate(program.variables[a], shared=True, others=buffers.reaches[a])
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    scatter_whole(source, array)
    found = within(source, buffers.places[b], Variable("b", "s32", SHAPE, mapping))

    wanted = one_by_one(transfer, array, memory(mapping))
    np.testing.assert_array_equal(np.where(wanted < 0, -1, found.tiles), wanted)
    cut = tuple(slice(k, k + size) for k, size in zip(shift, SHAPE, strict=True))
    np.testing.assert_array_equal(found.whole(), array.reshape(view)[cut])
    with pytest.raises(ValueError, match="read-only"):
        found.tiles[...] = 0


class Drawn:
    """A program that copies a to b, and what else a case does."""

    def __init__(self) -> None:
        self.make = ProgramBuilder()
        self.a = self.make.stream_in(self.make.variable((6,), ROWS))
        self.b = self.make.variable((6,), OTHERS)
        self.c = self.make.variable((6,), OTHERS)
        self.d = self.make.variable((6,), ROWS)

    def copy(self) -> None:
        """Fill b."""
        self.make.copy(self.a, self.b)

    def read(self) -> None:
        """Read b."""
        self.make.add([self.b, self.b], self.c)
        self.make.stream_out(self.c)

    def overwrite(self) -> None:
        """Write a."""
        self.make.add([self.a, self.a], self.a)

    def fill_again(self) -> None:
        """Write b in another way."""
        self.make.add([self.c], self.b)

    def host_overwrites(self) -> None:
        """Write a from the host."""
        self.make.emit(StreamIn(f"in{self.a}", self.a, self.make.held[self.a]))

    def do(self, words: str) -> None:
        """Do what words say: `loop:x,y` x and y three times, `call:x,y` in a function."""
        for word in words.split():
            kind, _, inner = word.rpartition(":")
            if not kind:
                getattr(self, word)()
                continue
            with self.make.block() as body:
                self.do(inner.replace(",", " "))
            steps = Sequence(tuple(body))
            if kind == "call":
                self.make.functions["f"] = steps
            self.make.emit(Repeat(3, steps, ()) if kind == "loop" else Call("f"))

    def copy_on(self) -> None:
        """Fill d from b."""
        self.make.copy(self.b, self.d)

    def read_on(self) -> None:
        """Read d."""
        self.make.stream_out(self.d)


@pytest.mark.parametrize(
    ("words", "shared"),
    [
        ("copy read", "b"),
        ("copy", ""),
        ("copy read overwrite", "b"),
        ("copy overwrite read", ""),
        ("copy host_overwrites read", ""),
        ("copy read overwrite read", ""),
        ("copy read copy read", ""),
        ("copy read fill_again read", ""),
        ("loop:copy,read,overwrite", "b"),
        ("copy loop:read,copy,overwrite", ""),
        ("copy loop:read,overwrite", ""),
        ("loop:copy overwrite read", ""),
        ("copy call:overwrite read", ""),
        ("call:copy,read overwrite", "b"),
        ("call:copy overwrite read", ""),
        ("copy copy_on read read_on overwrite", "bd"),
        ("copy copy_on overwrite read_on", "d"),
    ],
)
def test_who_must_have_a_copy_has_one(words: str, shared: str) -> None:
    drawn = Drawn()
    drawn.do(words)
    program = drawn.make.program()
    places = shared_buffers(program, frozenset()).places
    assert places.keys() == {getattr(drawn, name) for name in shared}
    engine = ExactEngine(program)
    for seed in range(2):
        host, naive = DrawnHost(program, seed), NaiveRun(program, DrawnHost(program, seed))
        engine.run(host)
        naive.run()
        for (_, ours), (_, theirs) in zip(host.given, naive.host.given, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@each("offset", [0, 1])
@each("is_overwritten", [False, True])
def test_what_only_repeats_a_part_of_an_operand_lies_there(
    offset: int, is_overwritten: bool
) -> None:
    """It has memory where vertices read other places than they write, or the operand changes."""
    make = ProgramBuilder()
    a = make.stream_in(make.variable((6,), ROWS))
    b = make.variable((4, 6), Mapping(ROWS.tiles, (whole(4), *ROWS.spans)))
    value = make.held[b] = make.value_like(b)
    repeat, spans = Elementwise(Expression(("f32",), (), (0,)), ((1,),), 2), ROWS.spans
    read = (spans[0]._replace(offset=offset, size=3 - offset),)
    written = (whole(4), spans[0]._replace(size=3 - offset))
    group = VertexGroup(
        repeat, ROWS.tiles, (Operand(a, read),), (Operand(b, written),), (make.held[a],), (value,)
    )
    make.emit(ComputeSet((group,)))
    if is_overwritten:
        make.add([a, a], a)
    make.stream_out(b)
    program = make.program()
    engine, host = ExactEngine(program), DrawnHost(program, 0)
    engine.run(host)
    assert engine.memories.lies_in_another(b) == (not offset and not is_overwritten)
    given = DrawnHost(program, 0).take("in0").reshape(2, 3)[:, offset:]
    found = host.given[0][1].reshape(4, 2, 3)[..., : 3 - offset]
    np.testing.assert_array_equal(found, np.broadcast_to(given, found.shape))


@each("changes", [{"receivers": ((0, 2),)}, {"box": ((0, 5),)}, {"box": ((0, 5),), "shift": (1,)}])
def test_a_buffer_that_is_not_filled_as_a_whole_is_copied_to(changes: dict[str, Any]) -> None:
    drawn = Drawn()
    drawn.do("copy read")
    assert shared_buffers(drawn.make.program(), frozenset()).places
    step = drawn.make.blocks[0][1]
    assert isinstance(step, Exchange)
    (transfer,) = step.transfers
    drawn.make.blocks[0][1] = replace(step, transfers=(replace(transfer, **changes),))
    assert not shared_buffers(drawn.make.program(), frozenset()).places


def test_a_transfer_from_elsewhere_is_seen_in_what_is_computed() -> None:
    """A descriptor that says another place is followed, whatever its logical form says."""
    results = []
    for shift in (0, 1):
        make = ProgramBuilder()
        a = make.stream_in(make.variable((8,), rows(2, 4)))
        b = make.variable((6,), TWICE)
        value = make.value_like(b)
        transfer = Transfer(
            a, b, TWICE.tiles, ((0, 2), (0, 2)), TWICE.spans, ((0, 6),), (shift,), (8,), value
        )
        make.emit(Exchange((transfer,), (Definition(b, value, None, ()),)))
        make.held[b] = value
        make.stream_out(b)
        program = make.program()
        engine, host = ExactEngine(program), DrawnHost(program, 0)
        engine.run(host)
        assert engine.memories.lies_in_another(b)
        results.append(host.given[0][1])
    given = DrawnHost(program, 0).take("in0")
    np.testing.assert_array_equal(results, [given[:6], given[1:7]])
