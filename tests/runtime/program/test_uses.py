"""What steps read and write, inner steps included."""

import pytest

from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import (
    Call,
    Carried,
    ComputeSet,
    Exchange,
    If,
    Merged,
    Parallel,
    Repeat,
    RepeatWhile,
    Sequence,
    Step,
    StreamIn,
    StreamOut,
    Switch,
    Sync,
)
from hloipu_runtime.program.uses import read_first, used, written
from tests.support.program_builder import ProgramBuilder, rows


def of_each_kind() -> tuple[Program, list[Step]]:
    """Return a program of seven variables, and: in 0; 2 = 0 + 1; 3 := 2; out 4."""
    make = ProgramBuilder()
    for _ in range(7):
        make.held[make.variable((4,), rows(2, 2))] = -1
    for number in range(7):
        make.held[number] = make.value_like(number)
    make.stream_in(0)
    make.add([0, 1], 2)
    make.copy(2, 3)
    make.stream_out(4)
    steps = make.blocks[0]
    program = make.program()
    program.functions["f"] = Sequence(tuple(steps))
    return program, steps


PROGRAM, (IN, COMPUTE, COPY, OUT) = of_each_kind()
FIRST, SECOND = Sequence((IN, COMPUTE)), Sequence((COPY, OUT))
CARRIED = (Carried(5, 0, 0, 0, 0),)
MERGED = (Merged(5, (0, 0), 0),)


@pytest.mark.parametrize(
    ("step", "writes", "reads"),
    [
        (IN, {0}, set()),
        (COMPUTE, {2}, {0, 1}),
        (COPY, {3}, {2}),
        (OUT, set(), {4}),
        (Sync(), set(), set()),
        (FIRST, {0, 2}, {0, 1}),
        (Repeat(2, FIRST, CARRIED), {0, 2}, {0, 1, 5}),
        (RepeatWhile(FIRST, 6, 0, SECOND, CARRIED), {0, 2, 3}, {0, 1, 2, 4, 5, 6}),
        (If(6, 0, FIRST, SECOND, MERGED), {0, 2, 3}, {0, 1, 2, 4, 5, 6}),
        (Switch(6, 0, (FIRST, SECOND), MERGED), {0, 2, 3}, {0, 1, 2, 4, 5, 6}),
        (Parallel((FIRST, SECOND)), {0, 2, 3}, {0, 1, 2, 4}),
        (Call("f"), {0, 2, 3}, {0, 1, 2, 4}),
        (Sequence((Repeat(2, Sequence((Call("f"), COMPUTE)), ()),)), {0, 2, 3}, {0, 1, 2, 4}),
        (Parallel((FIRST, Sequence((FIRST, Sync())))), {0, 2}, {0, 1}),
        (Call("unknown"), set(), set()),
    ],
    ids=lambda x: type(x).__name__ if not isinstance(x, set) else "",
)
def test_steps_tell_what_they_use(step: Step, writes: set[int], reads: set[int]) -> None:
    assert written(step, PROGRAM) == writes
    assert used(step, PROGRAM) == writes | reads


def test_an_exchange_writes_what_only_its_definitions_or_its_transfers_name() -> None:
    assert isinstance(COPY, Exchange)
    assert written(Exchange(COPY.transfers, ()), PROGRAM) == {3}
    assert written(Exchange((), COPY.definitions), PROGRAM) == {3}


def test_a_compute_set_unites_its_groups() -> None:
    assert isinstance(COMPUTE, ComputeSet)
    (group,) = COMPUTE.groups
    other = ComputeSet((group, group))
    assert written(other, PROGRAM) == {2}
    assert isinstance(IN, StreamIn)
    assert isinstance(OUT, StreamOut)


def test_functions_that_call_each_other_are_looked_into_once() -> None:
    program = ProgramBuilder().program()
    deep = {f"f{n}": Sequence((Call(f"f{n + 1}"), Call(f"f{n + 1}"))) for n in range(60)}
    program.functions.update(deep | {"f60": Sequence((COMPUTE, Call("f0")))})

    assert written(Call("f0"), program) == {2}
    assert used(Call("f0"), program) == {0, 1, 2}
    assert read_first(Call("f0"), program) == {0, 1}


@pytest.mark.parametrize(
    ("steps", "first"),
    [
        ((IN, COMPUTE, COPY, OUT), {1, 4}),
        ((COMPUTE, IN), {0, 1}),
        ((Repeat(2, FIRST, ()), COPY), {1}),
        ((Repeat(0, FIRST, ()), COPY), {1, 2}),
        ((Parallel((FIRST, SECOND)),), {1, 4}),
        ((If(6, 0, FIRST, FIRST, ()), COPY), {1, 2, 6}),
        ((Call("f", (), ()), OUT), {1, 4}),
        ((RepeatWhile(FIRST, 6, 0, FIRST, ()), COPY), {1, 2, 6}),
        ((Exchange(getattr(COPY, "transfers", ()), ()),), {2, 3}),
    ],
)
def test_what_is_read_before_it_is_written(steps: tuple[Step, ...], first: set[int]) -> None:
    """Of branches and loops that may not run nothing is surely written; parts keep the rest."""
    assert read_first(Sequence(steps), PROGRAM) == first
