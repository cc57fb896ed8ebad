"""Barriers: each that is left out or weakened is told; what stays on its tiles needs none."""

from dataclasses import replace

import pytest

from hloipu_runtime.program.mapping import Mapping, Span, Tiles, whole, whole_box
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.proof.barriers import barrier_faults, stays_on_tiles
from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.program.steps import Repeat, Sequence, Step, StreamIn, Sync, Transfer
from tests.support.program_builder import ProgramBuilder, rows
from tests.support.program_checker import violations

HERE, THERE = rows(2, 3), rows(3, 2)


def program(ipus: int = 1) -> Program:
    make = ProgramBuilder(ipus=ipus)
    x = make.stream_in(make.variable((6,), HERE))
    y = make.add([x, x], make.variable((6,), HERE))
    z = make.copy(y, make.variable((6,), THERE, ipu=ipus - 1))
    make.stream_out(z)
    return make.program()


def with_steps(given: Program, steps: list[Step]) -> Program:
    return replace(given, body=Sequence(tuple(steps)))


def barriers(given: Program) -> list[str]:
    return [fault.place for fault in faults_of(given, 4) if fault.rule == "barrier"]


@pytest.mark.parametrize("ipus", [1, 2])
@pytest.mark.parametrize("number", range(3))
def test_every_sync_is_needed(ipus: int, number: int) -> None:
    right = program(ipus)
    assert faults_of(right, 4) == []
    assert violations(right, 4) == []
    syncs = [n for n, step in enumerate(right.body.steps) if isinstance(step, Sync)]
    steps = list(right.body.steps)
    del steps[syncs[number]]
    assert len(barriers(with_steps(right, steps))) == 1
    if number:  # before the first stream nothing was done
        assert violations(with_steps(right, steps), 4)


def test_tiles_of_one_ipu_are_not_all() -> None:
    right = program(2)
    steps = [Sync() if step == Sync(2) else step for step in right.body.steps]
    (fault,) = (x for x in faults_of(with_steps(right, steps), 4) if x.rule == "barrier")
    assert "no sync of 2 IPUs" in fault.message
    assert violations(with_steps(right, steps), 4)


def test_a_meeting_of_all_holds_through_one_of_tiles_but_not_through_a_step() -> None:
    right = program(2)
    number = next(n for n, step in enumerate(right.body.steps) if step == Sync(2))
    before, after = right.body.steps[:number], right.body.steps[number + 1 :]
    for syncs, count in (([Sync(2), Sync()], 0), ([Sync(), Sync(2)], 0), ([Sync(), Sync()], 1)):
        assert len(barriers(with_steps(right, [*before, *syncs, *after]))) == count
    stream = right.body.steps[1]
    assert isinstance(stream, StreamIn)
    again = [*before, Sync(2), stream, Sync(), *after]
    (fault,) = barrier_faults(with_steps(right, again))
    assert "no sync of 2 IPUs" in fault.message


def test_a_sync_before_a_loop_is_none_in_its_turns() -> None:
    right = program()
    *before, sync, exchange, last_sync, out = right.body.steps
    loop = Repeat(1, Sequence((exchange,)), ())
    inside = Repeat(1, Sequence((sync, exchange)), ())
    for step, count in ((loop, 1), (inside, 0)):
        found = barrier_faults(with_steps(right, [*before, sync, step, last_sync, out]))
        assert len(found) == count
        assert all("no sync of the tiles stands right before" in fault.message for fault in found)


def reshaped(
    source: Mapping, shape: tuple[int, ...], target: Mapping, new: tuple[int, ...]
) -> bool:
    make = ProgramBuilder()
    a, b = make.variable(shape, source), make.variable(new, target)
    grid = target.tiles
    transfer = Transfer(
        a, b, grid, whole_box(grid.extents), target.spans, whole_box(new), (0,) * len(new), new, 0
    )
    return stays_on_tiles(transfer, make.variables[a], make.variables[b])


def test_layouts_are_compared_as_functions_of_tiles() -> None:
    """8 elements on 4 tiles are 4 x 2 and 2 x 4 on the same ones, whatever the grid is called."""
    line = Mapping(Tiles((4,), (1,), 0), (Span(0, 2, 0, 2),))
    table = Mapping(Tiles((4,), (1,), 0), (Span(0, 1, 0, 1), whole(2)))
    square = Mapping(Tiles((2, 2), (2, 1), 0), (Span(0, 1, 0, 1), Span(1, 2, 0, 2)))
    turned = Mapping(Tiles((2, 2), (1, 2), 0), (Span(0, 1, 0, 1), Span(1, 2, 0, 2)))
    columns = Mapping(Tiles((2,), (1,), 0), (whole(4), Span(0, 1, 0, 1)))
    assert reshaped(line, (8,), table, (4, 2))
    assert reshaped(line, (8,), square, (2, 4))
    assert reshaped(table, (4, 2), square, (2, 4))
    assert not reshaped(line, (8,), turned, (2, 4))
    assert not reshaped(line, (8,), columns, (4, 2))
    moved = replace(table, tiles=Tiles((4,), (1,), 1))
    assert not reshaped(line, (8,), moved, (4, 2))
