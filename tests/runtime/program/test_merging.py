"""Merging steps: what may join, what must wait, what memory forbids; and all stays proved."""

import pytest

from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.program.merging import merged
from hloipu_runtime.program.proof.verify import verify
from hloipu_runtime.program.steps import (
    ComputeSet,
    Exchange,
    Operand,
    Repeat,
    Sequence,
    Step,
    StreamIn,
    StreamOut,
    Sync,
    VertexGroup,
)
from tests.support.program_builder import ProgramBuilder, rows
from tests.support.random_programs import random_program

TILES = 8
HERE, THERE = rows(2, 2), rows(2, 2, first=2)


def kinds(steps: tuple[Step, ...]) -> list[str]:
    """Return the kinds of steps, with the number of vertex groups or transfers."""
    found = []
    for step in steps:
        match step:
            case ComputeSet():
                found.append(f"compute {len(step.groups)}")
            case Exchange():
                found.append(f"exchange {len(step.transfers)}")
            case _:
                found.append(type(step).__name__)
    return found


def after(make: ProgramBuilder, spared: dict[int, int] | None = None) -> list[str]:
    """Return the kinds of steps but syncs after merging, which leaves a program to be proved."""
    program = make.program()
    verify(program, TILES)
    joined = merged(program, TILES, spared=spared or {})
    verify(joined, TILES)
    return [kind for kind in kinds(joined.body.steps) if kind != "Sync"]


def inputs(make: ProgramBuilder, count: int) -> list[int]:
    """Return so many variables on the first tiles, filled by the host."""
    return [make.stream_in(make.variable((4,), HERE)) for _ in range(count)]


def test_ops_that_do_not_wait_for_each_other_are_one_step() -> None:
    make = ProgramBuilder()
    a, b, c = inputs(make, 3)
    results = [make.variable((4,), HERE) for _ in range(3)]
    for x, result in zip((a, b, c), results, strict=True):
        make.add([x, x], result)
    for variable in (a, b, c, *results):
        make.stream_out(variable)
    found = after(make)
    assert found == ["StreamIn"] * 3 + ["compute 3"] + ["StreamOut"] * 6


def test_a_chain_of_copies_and_sums_joins_another_like_it() -> None:
    make = ProgramBuilder()
    a, b = inputs(make, 2)
    results = []
    for x in (a, b):
        there = make.variable((4,), THERE)
        make.emit(Sync())
        make.copy(x, there)
        results += [there, make.add([there, there], make.variable((4,), THERE))]
    for variable in (a, b, *results):
        make.stream_out(variable)
    found = [kind for kind in after(make) if not kind.startswith("Stream")]
    assert found == ["exchange 2", "compute 2"]


def test_what_reads_a_result_waits_for_it() -> None:
    make = ProgramBuilder()
    (a,) = inputs(make, 1)
    b = make.add([a, a], make.variable((4,), HERE))
    c = make.add([b, b], make.variable((4,), HERE))
    make.stream_out(c)
    assert after(make) == ["StreamIn", "compute 1", "compute 1", "StreamOut"]


def test_what_overwrites_waits_for_the_readers() -> None:
    make = ProgramBuilder()
    a, b = inputs(make, 2)
    c = make.add([a, a], make.variable((4,), HERE))
    make.add([b, b], a)
    make.stream_out(c)
    make.stream_out(a)
    assert after(make)[2:4] == ["compute 1", "compute 1"]


def test_nothing_moves_past_a_loop() -> None:
    make = ProgramBuilder()
    a, b = inputs(make, 2)
    c = make.add([a, a], make.variable((4,), HERE))
    make.emit(Repeat(2, Sequence(), ()))
    d = make.add([b, b], make.variable((4,), HERE))
    make.stream_out(c)
    make.stream_out(d)
    assert after(make)[2:5] == ["compute 1", "Repeat", "compute 1"]


def test_no_stretch_of_tiles_gets_fuller() -> None:
    """Both large results at once take twice what one after the other takes."""
    make = ProgramBuilder()
    (a,) = inputs(make, 1)
    large = rows(2, 512)
    for _ in range(2):
        spread = make.variable((1024,), large)
        make.stream_in(spread)
        small = make.add([spread, spread], make.variable((1024,), large))
        make.stream_out(small)
    make.stream_out(a)
    found = after(make)
    assert found.count("compute 1") == 2


def test_streams_in_a_row_meet_once() -> None:
    make = ProgramBuilder()
    for number in range(3):
        make.emit(Sync())
        make.stream_in(make.variable((4,), HERE))
        assert number in make.held
    make.emit(Sync())
    make.stream_out(0)
    found = merged(make.program(), TILES).body.steps
    assert kinds(found) == ["Sync", *["StreamIn"] * 3, "Sync", "StreamOut"]
    assert [x.variable for x in found if isinstance(x, StreamIn)] == [0, 1, 2]
    assert isinstance(found[-1], StreamOut)


def test_what_needs_nothing_goes_last_where_memory_lacks() -> None:
    """Zeros that the last sum waits for are made with the second one, else with the first."""
    make = ProgramBuilder()
    (a,) = inputs(make, 1)
    first = make.add([a, a], make.variable((4,), HERE))
    second = make.add([first, first], make.variable((4,), HERE))
    zeros = make.variable((4,), HERE)
    make.held[zeros] = make.value_like(zeros)
    node = Node("constant", (), "f32", (("value", "0x0.0p+0"),))
    filled = Elementwise(Expression((), (node,), (0,)), (), 1)
    spans = make.variables[zeros].mapping.spans
    group = VertexGroup(
        filled, HERE.tiles, (), (Operand(zeros, spans),), (), (make.held[zeros],), "zeros"
    )
    make.emit(ComputeSet((group,)))
    make.stream_out(make.add([second, zeros], make.variable((4,), HERE)))
    assert after(make) == ["StreamIn", "compute 2", "compute 1", "compute 1", "StreamOut"]
    lacking = after(make, {0: 0})
    assert lacking == ["StreamIn", "compute 1", "compute 2", "compute 1", "StreamOut"]


def test_a_program_with_nothing_to_merge_is_the_same_one() -> None:
    make = ProgramBuilder()
    (a,) = inputs(make, 1)
    make.stream_out(make.add([a, a], make.variable((4,), HERE)))
    program = make.program()
    assert merged(program, TILES) is program


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_stay_proved(seed: int) -> None:
    program = random_program(seed, tiles=TILES, ipus=1 + seed % 2, steps=30)
    verify(program, TILES)
    found = merged(program, TILES)
    verify(found, TILES)
    assert merged(found, TILES).parameters == program.parameters
