"""Which copies could be made in loops: not those whose source or readers stand in the way."""

from collections.abc import Callable

import pytest

from hloipu_compiler.lowering.hoisting.blocks import Blocks
from hloipu_compiler.lowering.hoisting.copies import copies_of
from hloipu_compiler.lowering.hoisting.sinking import sunk
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.proof.verify import verify
from hloipu_runtime.program.steps import Call, Passed, Repeat, Sequence
from tests.support.program_builder import ProgramBuilder, rows
from tests.support.program_checker import violations

_MACHINE = load_machine("tiny", {})
_SHAPE = (1024,)
Change = Callable[[ProgramBuilder, int, int], None]


def _nothing(builder: ProgramBuilder, source: int, copy: int) -> None:
    """Leave a program as it is."""


def _new_source(builder: ProgramBuilder, source: int, copy: int) -> None:
    """Give the source another value once the copy is made."""
    builder.stream_in(source)


def _handed_over(builder: ProgramBuilder, source: int, copy: int) -> None:
    """Have the host read the copy."""
    builder.stream_out(copy)


def _read_in_part(builder: ProgramBuilder, source: int, copy: int) -> None:
    """Write a part of the copy anew."""
    builder.place([(source, ((0, 8),))], copy, keep=True)


def _written_by_a_call(builder: ProgramBuilder, source: int, copy: int) -> None:
    """Call a function that writes the source once the copy is made."""
    outside = dict(builder.held)
    with builder.block() as steps:
        builder.stream_in(source)
    builder.functions["f"] = Sequence(tuple(steps))
    inner = builder.held[source]
    builder.held.update(outside)
    outer = builder.held[source] = builder.value_like(source)
    builder.emit(Call("f", (), (Passed(source, outer, inner),)))


def _looped(change: Change) -> ProgramBuilder:
    """Return a program that copies a value to all tiles, where a loop of three turns reads it."""
    builder = ProgramBuilder()
    source = builder.variable(_SHAPE, rows(4, 256))
    copy = builder.variable(_SHAPE, rows(1, 1024, copies=4))
    result = builder.variable(_SHAPE, rows(1, 1024, copies=4))
    builder.stream_in(source)
    builder.copy(source, copy)
    change(builder, source, copy)
    with builder.block() as steps:
        builder.add([copy, copy], result)
        builder.stream_out(result)
    builder.emit(Repeat(3, Sequence(tuple(steps)), ()))
    return builder


@pytest.mark.parametrize(
    ("change", "is_found"),
    [
        (_nothing, True),
        (_new_source, False),
        (_handed_over, False),
        (_read_in_part, False),
        (_written_by_a_call, False),
    ],
)
def test_copies_that_loops_could_make(change: Change, is_found: bool) -> None:
    program = _looped(change).program()
    verify(program, _MACHINE.chip.tiles_per_ipu)
    blocks = Blocks(program)
    copies = copies_of(program, _MACHINE, blocks)
    assert [program.variables[x.variable].bytes_per_tile for x in copies] == [4096] * is_found
    moved = sunk(program, _MACHINE, blocks, copies, ()).program
    assert (moved != program) is is_found
    assert not violations(moved, _MACHINE.chip.tiles_per_ipu)


def test_no_copy_of_a_part_is_taken_for_one_of_a_whole() -> None:
    builder = ProgramBuilder()
    source = builder.variable(_SHAPE, rows(4, 256))
    copy = builder.variable(_SHAPE, rows(1, 1024, copies=4))
    builder.stream_in(source)
    builder.place([(source, ((0, 512),)), (source, ((512, 1024),))], copy, keep=False)
    with builder.block() as steps:
        builder.add([copy], builder.variable(_SHAPE, rows(1, 1024, copies=4)))
    builder.emit(Repeat(3, Sequence(tuple(steps)), ()))
    program = builder.program()
    assert not copies_of(program, _MACHINE, Blocks(program))


@pytest.mark.parametrize("between", [False, True])
def test_a_source_that_is_written_before_a_second_copy_is_none(between: bool) -> None:
    builder = ProgramBuilder()
    source = builder.variable(_SHAPE, rows(4, 256))
    near = builder.variable(_SHAPE, rows(2, 512))
    copy = builder.variable(_SHAPE, rows(1, 1024, copies=4))
    builder.stream_in(source)
    builder.copy(source, near)
    if between:
        builder.stream_in(source)
    builder.copy(near, copy)
    with builder.block() as steps:
        builder.add([copy], builder.variable(_SHAPE, rows(1, 1024, copies=4)))
    builder.emit(Repeat(3, Sequence(tuple(steps)), ()))
    program = builder.program()
    copies = copies_of(program, _MACHINE, Blocks(program))
    assert bool(copies) is not between
    moved = sunk(program, _MACHINE, Blocks(program), copies, ()).program
    assert not violations(moved, _MACHINE.chip.tiles_per_ipu)
