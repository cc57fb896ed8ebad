"""Sessions of several replicas: state of their own, elements of the feeds in turn."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import StreamError, UsageError
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.collective import ALL_REDUCE, Collective, CollectiveForm, Moved
from hloipu_runtime.program.program import Port, Program, Queue, Role, StatePort
from hloipu_runtime.program.steps import Carried, Repeat, Sequence, StreamIn, StreamOut
from hloipu_runtime.streams.element import ElementSpec, LeafSpec
from hloipu_runtime.streams.infeed import InfeedQueue
from tests.support.program_builder import ProgramBuilder, rows

ROWS = rows(2, 3)
TURNS = 2


def program(replicas: int, partitions: int = 1) -> Program:
    """Return a loop of two turns: `own` adds up what a participant takes in, `all` what all do."""
    make = ProgramBuilder()
    own, all_ = (make.variable((6,), ROWS, role=Role.STATE) for _ in range(2))
    first = [make.value_like(v) for v in (own, all_)]
    turn = [make.value_like(v) for v in (own, all_)]
    came, total = make.variable((6,), ROWS, role=Role.PARAMETER), make.variable((6,), ROWS)
    with make.block() as steps:
        make.held.update({own: turn[0], all_: turn[1], came: make.value_like(came)})
        make.emit(StreamIn("data.0", came, make.held[came]))
        make.held[total] = make.value_like(total)
        form = CollectiveForm(ALL_REDUCE, (tuple(range(replicas * partitions)),), monoid="add")
        moved = Moved(came, make.held[came]), Moved(total, make.held[total])
        make.emit(Collective(form, moved[:1], moved[1:], "sum"))
        make.add((own, came), own)
        make.add((all_, total), all_)
        make.emit(StreamOut("out.0", own, make.held[own]))
    last = [make.value_like(v) for v in (own, all_)]
    carried = tuple(
        Carried(v, a, b, make.held[v], d)
        for v, a, b, d in zip((own, all_), first, turn, last, strict=True)
    )
    make.emit(Repeat(TURNS, Sequence(tuple(steps)), carried, "loop"))
    queues = (
        Queue("data", True, (Port("data.0", "f32", (6,)),)),
        Queue("out", False, (Port("out.0", "f32", (6,)),)),
    )
    ports = tuple(
        StatePort(name, v, a, d, n, n)
        for n, (name, v, a, d) in enumerate(zip(("own", "all"), (own, all_), first, last,
                                                strict=True))
    )  # fmt: skip
    return replace(
        make.program(), parameters=(), results=(), state=ports, queues=queues,
        steps_per_run=TURNS, replicas=replicas, partitions=partitions,
    )  # fmt: skip


def session(made: Program, **keywords: Any) -> Any:
    compiled = CompiledProgram(made, load_machine("tiny"))
    zeros = [np.zeros(6, np.float32)] * 2
    return compiled.session(state=zeros, **keywords)


def elements(count: int) -> np.ndarray[Any, Any]:
    return np.arange(count * 6, dtype=np.float32).reshape(count, 6)


@pytest.mark.parametrize("mode", ["functional", "exact"])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_replicas_take_elements_in_turn(replicas: int, mode: str) -> None:
    data = elements(4 * replicas)
    with session(program(replicas), infeeds={"data": data}, mode=mode) as s:
        s.run(4)
        given = [np.asarray(x.element) for x in s.stream("out").drain()]
        for replica in range(replicas):
            mine = data[replica::replicas]
            state = s.state(replica)
            np.testing.assert_array_equal(state["own"], mine.sum(0))
            np.testing.assert_array_equal(state["all"], data.sum(0))
            for turn, element in enumerate(given):
                told = element if replicas == 1 else element[replica]
                np.testing.assert_array_equal(told, mine[: turn + 1].sum(0))
        with pytest.raises(UsageError) as error:
            s.state(replicas)
        assert error.value.code == "E2072"


@pytest.mark.parametrize("mode", ["functional", "exact"])
def test_partitions_of_a_replica_share_its_elements(mode: str) -> None:
    data = elements(8)
    with session(program(2, 3), infeeds={"data": data}, mode=mode) as s:
        s.run(4)
        assert len(s.stream("out").drain()) == 4
        for replica in range(2):
            state = s.state(replica)
            np.testing.assert_array_equal(state["own"], data[replica::2].sum(0))
            np.testing.assert_array_equal(state["all"], 3 * data.sum(0))


def test_a_checkpoint_holds_every_replicas_state(tmp_path: Path) -> None:
    data = elements(12)
    with session(program(3), infeeds={"data": data}) as s:
        s.run(2)
        s.save_state(tmp_path / "c")
    with session(program(3), infeeds={"data": data}) as s:
        s.load_state(tmp_path / "c")
        s.run(2)
        for replica in range(3):
            np.testing.assert_array_equal(s.state(replica)["own"], data[replica::3].sum(0))
            np.testing.assert_array_equal(s.state(replica)["all"], data.sum(0))
    with session(program(2), infeeds={"data": data}) as s, pytest.raises(UsageError) as error:
        s.load_state(tmp_path / "c")
    assert error.value.code == "E3157"


def test_a_feed_that_ends_leaves_the_last_whole_step() -> None:
    data = elements(5)
    with session(program(2), infeeds={"data": data}) as s:
        with pytest.raises(StreamError) as error:
            s.run(4)
        assert error.value.code == "E2020"
        assert s.steps == 2
        np.testing.assert_array_equal(s.state(1)["own"], data[1] + data[3])


def test_identical_replicas_are_run_once() -> None:
    data = elements(4)
    with session(program(5), infeeds={"data": data}, identical=True) as s:
        s.run(4)
        assert len(s.stream("out").drain()) == 4
        for replica in range(5):
            np.testing.assert_array_equal(s.state(replica)["own"], data.sum(0))
            np.testing.assert_array_equal(s.state(replica)["all"], 5 * data.sum(0))


def test_a_queue_made_for_other_replicas_is_refused() -> None:
    queue = InfeedQueue("data", ElementSpec((LeafSpec("f32", (6,)),)), elements(4))
    with pytest.raises(StreamError) as error:
        session(program(2), infeeds={"data": queue})
    assert error.value.code == "E2070"


def test_constants_can_be_loaded_again_between_runs() -> None:
    data = elements(8)
    with session(program(2), infeeds={"data": data}) as s:
        s.run(2)
        s.load_constants([])
        s.run(2)
        np.testing.assert_array_equal(s.state(1)["own"], data[1::2].sum(0))


def test_cycles_are_those_of_an_estimate() -> None:
    compiled = CompiledProgram(program(3), load_machine("tiny"))
    with session(program(3), infeeds={"data": elements(6)}) as s:
        assert s.run(2).cycles == compiled.estimate().total_cycles
