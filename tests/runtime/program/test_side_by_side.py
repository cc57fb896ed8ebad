"""IPUs at work at the same time: what is a branch, what stays, what it costs, the same results."""

from dataclasses import replace
from random import Random

import pytest

from hloipu_runtime.costs.estimate import estimate
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.mapping import Mapping
from hloipu_runtime.program.merging import Merger, merged
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.proof.verify import faults_of, verify
from hloipu_runtime.program.side_by_side import SideBySide, side_by_side
from hloipu_runtime.program.steps import (
    Exchange,
    Parallel,
    Sequence,
    Step,
    StreamIn,
    StreamOut,
    Sync,
    inner_steps,
)
from hloipu_runtime.program.uses import used
from hloipu_runtime.simulate.exact.exact import ExactEngine
from hloipu_runtime.simulate.functional.functional import FunctionalEngine
from tests.support.memory_checker import check_memory, most_live
from tests.support.naive_run import DrawnHost
from tests.support.program_builder import ProgramBuilder, rows
from tests.support.random_programs import random_program

TINY = load_machine("tiny")
TILES = TINY.chip.tiles_per_ipu
LARGE, SMALL = (64,), (4,)


def place(size: tuple[int, ...], number: int = 0) -> Mapping:
    """Return the mapping of equal parts on the first two tiles, or on the two behind these."""
    return rows(2, size[0] // 2, first=2 * number)


def drawn(seed: int, ipus: int = 3, steps: int = 30) -> Program:
    """Return a program of sums on each of some IPUs, and copies within and between them."""
    draw, make = Random(seed), ProgramBuilder(ipus=ipus)
    known = [
        make.stream_in(make.variable(size, place(size, n), ipu=ipu))
        for ipu in range(ipus)
        for size in (SMALL, LARGE)
        for n in range(2)
    ]
    for number in range(steps):
        if number == steps // 2 and seed % 3 == 0:
            make.stream_out(draw.choice(known))
        source = draw.choice(known)
        record = make.variables[source]
        ipu = record.ipu if draw.random() < 0.7 else draw.randrange(ipus)
        mine = [v for v in known if make.variables[v].ipu == ipu and v != source]
        alike = [
            v
            for v in mine
            if (make.variables[v].shape, make.variables[v].mapping)
            == (record.shape, record.mapping)
        ]
        target = draw.choice(alike) if alike and draw.random() < 0.5 else -1
        if target < 0:
            target = make.variable(record.shape, record.mapping, ipu=ipu)
        if ipu == record.ipu and draw.random() < 0.7:
            make.add([source, source], target)
        else:
            make.emit(Sync(ipus if ipu != record.ipu else 1))
            make.copy(source, target)
        known = [*(v for v in known if v != target), target]
    for variable in known:
        make.stream_out(variable)
    return make.program()


def given_by(program: Program, *, exact: bool) -> list[tuple[str, bytes]]:
    host = DrawnHost(program, 1)
    (ExactEngine(program, poison=True) if exact else FunctionalEngine(program)).run(host)
    return [(stream, x.tobytes()) for stream, x in host.given]


def leaves(step: Step) -> list[Step]:
    inner = inner_steps(step)
    return [x for each in inner for x in leaves(each)] if inner else [step]


@pytest.mark.parametrize("seed", range(20))
def test_the_same_is_computed_in_the_order_of_each_ipu(seed: int) -> None:
    program = drawn(seed)
    verify(program, TILES)
    found = side_by_side(program, TINY)
    verify(found, TILES)
    assert given_by(found, exact=True) == given_by(program, exact=False)
    for ipu in range(program.ipus):
        wrote, writes = (
            [
                x
                for x in leaves(each.body)
                if not isinstance(x, Sync)
                and {each.variables[v].ipu for v in used(x, each)} == {ipu}
                and max(each.variables[v].bytes_per_tile for v in used(x, each)) > 64
            ]
            for each in (program, found)
        )
        assert wrote == writes
    assert estimate(found, TINY).spent.total <= estimate(program, TINY).spent.total
    if seed < 8:
        check_memory(merged(found, TILES), TINY, seed)


@pytest.mark.parametrize("seed", range(12))
def test_loops_and_branches_are_looked_into(seed: int) -> None:
    program = random_program(seed, tiles=TILES, ipus=3)
    found = side_by_side(program, TINY)
    verify(found, TILES)
    assert given_by(found, exact=True) == given_by(program, exact=False)


def tampered(program: Program, draw: Random) -> Program:
    """Return a program with a step of a branch left out, in another branch, or beside the others.

    Or with two neighbours changed over.
    """
    steps = list(program.body.steps)
    at = draw.choice([n for n, x in enumerate(steps) if isinstance(x, Parallel)])
    together = steps[at]
    assert isinstance(together, Parallel)
    branches = [list(x.steps) for x in together.branches]
    mine, other = draw.sample(range(len(branches)), 2)
    place = draw.randrange(len(branches[mine]))
    step = branches[mine].pop(place)
    what = draw.choice(("out", "elsewhere", "before", "after", "swapped"))
    if what == "elsewhere":
        branches[other].insert(draw.randint(0, len(branches[other])), step)
    elif what == "swapped":
        branches[mine].insert(max(0, place - 1), step)
    around = ([step] if what == "before" else [], [step] if what == "after" else [])
    made = Parallel(tuple(Sequence(tuple(x)) for x in branches))
    steps[at : at + 1] = [*around[0], made, *around[1]]
    return replace(program, body=Sequence(tuple(steps)))


@pytest.mark.parametrize("seed", [2, 4, 7])
def test_no_wrong_branch_is_proved(seed: int) -> None:
    program = side_by_side(drawn(seed), TINY)
    right, draw, refused = given_by(program, exact=True), Random(seed), 0
    for _ in range(40):
        changed = tampered(program, draw)
        if faults_of(changed, TILES):
            refused += 1
        else:
            assert given_by(changed, exact=True) == right
    assert refused > 10


def three_ipus(size: tuple[int, ...]) -> ProgramBuilder:
    """IPU n makes `n + 1` sums of its own, IPU 0 takes the last of each and adds these up."""
    make = ProgramBuilder(ipus=3)
    made = []
    given = [make.stream_in(make.variable(size, place(size), ipu=ipu)) for ipu in range(3)]
    for ipu, x in enumerate(given):
        for _ in range(ipu + 1):
            x = make.add([x, x], make.variable(size, place(size), ipu=ipu))
        made.append(x)
    total = made[0]
    for x in made[1:]:
        make.emit(Sync(3))
        here = make.copy(x, make.variable(size, place(size)))
        total = make.add([total, here], make.variable(size, place(size)))
    make.emit(Sync(3))
    back = make.copy(total, make.variable(size, place(size), ipu=2))
    make.stream_out(back)
    return make


def kinds(program: Program) -> list[str]:
    names = []
    for x in program.body.steps:
        if isinstance(x, Parallel):
            names.append(f"{[len(branch.steps) for branch in x.branches]}")
        elif not isinstance(x, StreamIn | StreamOut):
            names.append(type(x).__name__)
    return names


def test_ipus_meet_where_something_crosses_and_nowhere_else() -> None:
    found = merged(side_by_side(three_ipus(SMALL).program(), TINY), TILES)
    assert kinds(found) == [
        "Sync", "[1, 2, 3]", "Sync", "Exchange", "ComputeSet", "ComputeSet", "Sync", "Exchange",
        "Sync"
    ]  # fmt: skip


def test_what_is_side_by_side_costs_its_slowest() -> None:
    """One sum beside two beside three: the three of nine that were paid for one by one are free."""
    program = merged(side_by_side(three_ipus(SMALL).program(), TINY), TILES)
    steps = program.body.steps
    (together,) = (x for x in steps if isinstance(x, Parallel))
    at = steps.index(together)

    def costing(*steps: Step) -> int:
        return estimate(replace(program, body=Sequence(steps)), TINY).spent.total.cycles

    apart = costing(*steps[:at], *together.branches, *steps[at + 1 :])
    first, second, third = (costing(*branch.steps) - costing() for branch in together.branches)
    assert (second, third) == (2 * first, 3 * first)
    assert costing(*steps) == apart - first - second


def test_copies_of_several_ipus_are_taken_apart() -> None:
    make = ProgramBuilder(ipus=2)
    inputs = [make.stream_in(make.variable(LARGE, place(LARGE), ipu=n)) for n in range(2)]
    targets = [make.variable(LARGE, place(LARGE, 1), ipu=n) for n in range(2)]
    crossing = make.variable(LARGE, place(LARGE, 1), ipu=1)
    steps = []
    for source, target in ((inputs[0], targets[0]), (inputs[1], targets[1]), (inputs[0], crossing)):
        with make.block() as block:
            make.copy(source, target)
        steps += [x for x in block if isinstance(x, Exchange)]
    make.emit(Sync(2))
    make.emit(
        Exchange(
            tuple(x for each in steps for x in each.transfers),
            tuple(x for each in steps for x in each.definitions),
        )
    )
    for variable in (*targets, crossing):
        make.stream_out(variable)
    program = make.program()
    found = side_by_side(program, TINY)
    verify(found, TILES)
    assert given_by(found, exact=True) == given_by(program, exact=False)
    assert [x for x in kinds(found) if x != "Sync"] == ["Exchange", "[2, 2]"]


def test_large_copies_stay_where_memory_has_no_room_for_both() -> None:
    """IPU 0 takes in one, adds it up, and then the other, as written; hardly any come together."""
    for size, is_moved in ((SMALL, True), (LARGE, True), ((256,), False)):
        program = three_ipus(size).program()
        found = side_by_side(program, TINY)
        verify(found, TILES)
        before, after = (most_live(x, TINY, Random(1)) for x in (program, found))
        assert any(after[tile] > before[tile] for tile in after) == is_moved
        assert given_by(found, exact=True) == given_by(program, exact=False)
        meetings = [x for x in found.body.steps if isinstance(x, Exchange)]
        assert estimate(found, TINY).spent.total < estimate(program, TINY).spent.total
        assert len(meetings) == 3


def test_one_ipu_alone_is_left_as_it_is() -> None:
    program = random_program(1)
    assert side_by_side(program, TINY) is program


def test_rounds_with_bytes_spared_are_as_if_each_were_the_only_one() -> None:
    """By one merger, which knows what IPUs have of which the same is asked again."""
    sizes = ((), (0, 0), (256, 0), (256, 256), (0, 256), (0, 0))
    rounds = [dict(enumerate(by_ipu)) for by_ipu in sizes]
    outcomes = set()
    for seed in range(12):
        program = side_by_side(drawn(seed), TINY)
        merger, siding, found = Merger(TILES), SideBySide(TINY), list[Program]()
        for spared in rounds:
            joined = merger.merged(program, spared)
            assert joined == merged(program, TILES, spared=spared)
            assert siding.side_by_side(joined) == side_by_side(joined, TINY)
            found.append(joined)
        outcomes.add(tuple(found.index(joined) for joined in found))
    assert len(outcomes) > 2
