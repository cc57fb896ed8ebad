"""Steps over several IPUs taken apart: each part on one IPU, and nothing lost."""

from dataclasses import replace

from hloipu_runtime.program.program import Program
from hloipu_runtime.program.side_by_side import parts_by_ipu
from hloipu_runtime.program.steps import ComputeSet, Exchange, Step
from hloipu_runtime.program.uses import used
from tests.support.program_builder import ProgramBuilder, rows

HERE = rows(2, 2)


def made() -> tuple[Program, list[ComputeSet], list[Exchange]]:
    """Return sums on each of two IPUs, copies within each, and one from the first to the second."""
    make = ProgramBuilder(ipus=2)
    first, second = (make.stream_in(make.variable((4,), HERE, ipu=ipu)) for ipu in range(2))
    for ipu, x in enumerate((first, second)):
        make.add([x, x], make.variable((4,), HERE, ipu=ipu))
    for ipu, x in ((0, first), (1, second), (1, first)):
        make.copy(x, make.variable((4,), rows(1, 4), ipu=ipu))
    program = make.program(synced=False)
    steps = program.body.steps
    return (
        program,
        [x for x in steps if isinstance(x, ComputeSet)],
        [x for x in steps if isinstance(x, Exchange)],
    )


def ipus(program: Program, step: Step) -> list[int]:
    return sorted({program.variables[v].ipu for v in used(step, program)})


def test_vertices_of_each_ipu_are_a_step() -> None:
    program, (a, b), _ = made()
    both = ComputeSet((*b.groups, *a.groups, *b.groups))
    parts = parts_by_ipu(program, both)
    assert parts == [ComputeSet((*b.groups, *b.groups)), ComputeSet(a.groups)]
    assert parts_by_ipu(program, b) == (b,)


def test_copies_of_each_ipu_are_a_step_and_those_between_ipus_another() -> None:
    program, _, exchanges = made()
    a, b, across = exchanges
    whole = Exchange(
        tuple(t for x in exchanges for t in x.transfers),
        tuple(d for x in exchanges for d in x.definitions),
        "all",
    )
    parts = parts_by_ipu(program, whole)
    assert [ipus(program, part) for part in parts] == [[0, 1], [0], [1]]
    for part, alone in zip(parts, (across, a, b), strict=True):
        assert part == Exchange(alone.transfers, alone.definitions, "all")
    for step in (a, across):
        assert parts_by_ipu(program, step) == (step,)


def test_copies_of_what_others_fill_stay_together() -> None:
    program, _, (a, b, _) = made()
    back = replace(a.transfers[0], source=b.transfers[0].destination)
    chained = Exchange((*b.transfers, back), (*b.definitions, *a.definitions))
    assert parts_by_ipu(program, chained) == (chained,)
