"""The exact engine: drawn programs against a naive run, and poison where nothing was written."""

from dataclasses import replace

import numpy as np
import pytest

from hloipu_runtime.program.mapping import Mapping, Tiles
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.program.steps import (
    Carried,
    ComputeSet,
    Exchange,
    Repeat,
    RepeatWhile,
    Sequence,
    StreamOut,
)
from hloipu_runtime.simulate.exact.exact import ExactEngine
from hloipu_runtime.simulate.exact.private_variables import private_variables
from hloipu_runtime.simulate.functional.functional import FunctionalEngine
from hloipu_runtime.simulate.run.faults import TileFault
from hloipu_runtime.simulate.run.host import Counts, in_range
from tests.support.naive_run import DrawnHost, NaiveRun
from tests.support.program_builder import ProgramBuilder, rows
from tests.support.random_programs import random_program

ROWS = rows(2, 3)


def assert_same(found: DrawnHost, wanted: DrawnHost) -> None:
    assert [stream for stream, _ in found.given] == [stream for stream, _ in wanted.given]
    for (_, ours), (_, theirs) in zip(found.given, wanted.given, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert found.taken == wanted.taken


def is_decided(place: str) -> bool:
    """Whether how often a block runs is told by its place alone: functions run when called."""
    last = place.rpartition("/")[2]
    return last in ("body", "repeat", "condition", "while") or "?" in last


@pytest.mark.parametrize("seed", range(40))
def test_drawn_programs_give_what_a_naive_run_gives(seed: int) -> None:
    program = random_program(seed, ipus=1 + seed % 2)
    naive = NaiveRun(program, DrawnHost(program, seed))
    naive.run()
    counted = []
    for engine in (
        ExactEngine(program),
        ExactEngine(program, poison=True),
        FunctionalEngine(program),
    ):
        host = DrawnHost(program, seed)
        counts = engine.run(host)
        assert_same(host, naive.host)
        counted.append({k: n for k, n in counts.runs.items() if is_decided(k)})
    assert counted[0] == counted[1] == counted[2]
    turns = sum(n for place, n in counted[0].items() if place.endswith(("/repeat", "/while")))
    assert turns == naive.turns


def test_a_second_run_knows_nothing_of_the_first() -> None:
    program = random_program(5)
    for engine in (ExactEngine(program, poison=True), FunctionalEngine(program)):
        first, second = DrawnHost(program, 1), DrawnHost(program, 1)
        engine.run(first)
        engine.run(second)
        assert_same(first, second)


def test_what_was_never_written_is_poison() -> None:
    make = ProgramBuilder()
    lost = make.variable((6,), ROWS)
    make.emit(StreamOut("out0", lost, make.value_like(lost)))
    program = make.program()
    assert faults_of(program, 4) != []

    host = DrawnHost(program, 0)
    ExactEngine(program, poison=True).run(host)
    assert np.isnan(host.given[0][1]).all()


def test_a_tile_that_receives_nothing_keeps_its_poison() -> None:
    make = ProgramBuilder()
    a = make.stream_in(make.variable((6,), ROWS))
    b = make.copy(a, make.variable((6,), rows(3, 2)))
    make.stream_out(b)
    step = make.blocks[0][1]
    assert isinstance(step, Exchange)
    cut = replace(step.transfers[0], receivers=((0, 2),))
    make.blocks[0][1] = replace(step, transfers=(cut,))
    program = make.program()

    host = DrawnHost(program, 0)
    ExactEngine(program, poison=True).run(host)
    assert np.isnan(host.given[0][1]).tolist() == [False] * 4 + [True] * 2


def test_a_replica_that_receives_nothing_keeps_its_poison() -> None:
    make = ProgramBuilder()
    a = make.stream_in(make.variable((6,), ROWS))
    twice = rows(2, 3, copies=2)
    b = make.copy(a, make.variable((6,), twice))
    c = make.add([b], make.variable((6,), twice))
    make.stream_out(c)
    step = make.blocks[0][1]
    assert isinstance(step, Exchange)

    def given(receivers: tuple[tuple[int, int], ...]) -> list[bool]:
        cut = replace(step.transfers[0], receivers=receivers)
        make.blocks[0][1] = replace(step, transfers=(cut,))
        host = DrawnHost(make.program(), 0)
        ExactEngine(make.program(), poison=True).run(host)
        found: list[bool] = np.isnan(host.given[0][1]).tolist()
        return found

    assert given(((0, 2), (0, 2))) == [False] * 6
    assert given(((0, 2), (1, 2))) == [True] * 6
    assert given(((0, 1), (0, 2))) == [False] * 3 + [True] * 3


def looped(swapped: bool) -> Program:
    """Return a program whose loop writes t from x, and x from t; swapped: x is first.

    Before the loop t has been written, too, so that the first turn finds numbers there.
    """
    make = ProgramBuilder()
    x = make.stream_in(make.variable((6,), ROWS))
    t = make.add([x], make.variable((6,), ROWS))
    initial = make.held[x]
    turn = make.held[x] = make.value_like(x)
    with make.block() as body:
        make.add([x], t)
        make.add([t, t], x)
    following = make.held[x]
    final = make.held[x] = make.value_like(x)
    steps = tuple(reversed(body)) if swapped else tuple(body)
    item = Carried(x, initial, turn, following, final)
    make.emit(Repeat(3, Sequence(steps), (item,)))
    make.stream_out(x)
    return make.program()


def test_what_a_turn_left_is_poison_in_the_next_turn() -> None:
    right, wrong = looped(False), looped(True)
    assert faults_of(right, 4) == []
    assert faults_of(wrong, 4) != []

    host = DrawnHost(right, 0)
    ExactEngine(right, poison=True).run(host)
    np.testing.assert_array_equal(host.given[0][1], 8 * DrawnHost(right, 0).take("in0"))
    host = DrawnHost(wrong, 0)
    ExactEngine(wrong, poison=True).run(host)
    assert np.isnan(host.given[0][1]).all()


def test_what_the_condition_left_is_there_in_the_body() -> None:
    make = ProgramBuilder()
    x = make.stream_in(make.variable((6,), ROWS))
    t = make.variable((6,), ROWS)
    p = make.variable((), Mapping(Tiles(), ()), kind="pred")
    initial = make.held[x]
    turn = make.held[x] = make.value_like(x)
    with make.block() as condition:
        make.add([x, x], t)
        make.stream_in(p)
    with make.block() as body:
        make.add([t], t)
        make.add([t], x)
    following = make.held[x]
    final = make.held[x] = make.value_like(x)
    item = Carried(x, initial, turn, following, final)
    make.emit(
        RepeatWhile(Sequence(tuple(condition)), p, make.held[p], Sequence(tuple(body)), (item,))
    )
    make.stream_out(x)
    program = make.program()
    assert faults_of(program, 4) == []

    for seed in range(6):
        naive = NaiveRun(program, DrawnHost(program, seed))
        naive.run()
        host = DrawnHost(program, seed)
        ExactEngine(program, poison=True).run(host)
        assert_same(host, naive.host)


def test_memory_is_given_back_after_the_last_use() -> None:
    make = ProgramBuilder()
    x = make.stream_in(make.variable((6,), ROWS))
    for _ in range(5):
        x = make.add([x], make.variable((6,), ROWS))
    make.stream_out(x)
    engine = ExactEngine(make.program())
    most = 0

    def look(done: int) -> None:
        nonlocal most
        most = max(most, len(engine.memories.alive))

    engine.run(DrawnHost(make.program(), 0), Counts(progress=look))
    assert most == 2
    assert engine.memories.alive == {}


def test_a_vertex_that_reaches_beyond_its_tile_is_a_fault() -> None:
    make = ProgramBuilder()
    x = make.stream_in(make.variable((6,), ROWS))
    make.add([x], make.variable((6,), ROWS))
    step = make.blocks[0][1]
    assert isinstance(step, ComputeSet)
    (group,) = step.groups
    moved = group.inputs[0]._replace(spans=(group.inputs[0].spans[0]._replace(offset=1),))
    make.blocks[0][1] = ComputeSet((replace(group, inputs=(moved,)),))
    with pytest.raises(TileFault) as caught:
        ExactEngine(make.program()).run(DrawnHost(make.program(), 0))
    assert caught.value.place == group.name


def test_only_what_all_replicas_receive_may_be_stored_once() -> None:
    make = ProgramBuilder()
    twice = rows(2, 3, copies=2)
    a = make.stream_in(make.variable((6,), ROWS))
    sent = make.copy(a, make.variable((6,), twice))
    computed = make.add([sent], make.variable((6,), twice))
    assert private_variables(make.program()) == {computed}

    step = make.blocks[0][1]
    assert isinstance(step, Exchange)
    cut = replace(step.transfers[0], receivers=((0, 2), (0, 1)))
    make.blocks[0][1] = replace(step, transfers=(cut,))
    assert private_variables(make.program()) == {sent, computed}


@pytest.mark.parametrize(
    ("index", "count", "branch"), [(0, 3, 0), (2, 3, 2), (3, 3, 2), (-1, 3, 2), (5, 1, 0)]
)
def test_an_index_out_of_range_runs_the_last_branch(index: int, count: int, branch: int) -> None:
    assert in_range(index, count) == branch
