"""Participants of one program, each an engine on a thread of its own."""

import random
import time
from dataclasses import replace

import numpy as np
import pytest

from hloipu_runtime.errors import UsageError
from hloipu_runtime.program.collective import ALL_REDUCE, Collective, CollectiveForm, Moved
from hloipu_runtime.program.program import Array, Program
from hloipu_runtime.simulate.exact.exact import ExactEngine
from hloipu_runtime.simulate.functional.functional import FunctionalEngine
from hloipu_runtime.simulate.participants import meeting_participants, run_together
from hloipu_runtime.simulate.replicated import ReplicatedEngine
from hloipu_runtime.simulate.run.host import Arrays, Counts
from hloipu_runtime.simulate.run.meeting import MeetingError
from hloipu_runtime.simulate.run.participant import Participant
from tests.support.program_builder import ProgramBuilder, rows
from tests.support.program_texts import small_programs

INPUTS = np.arange(16, dtype=np.float32).reshape(4, 4) ** 2
SUMS = np.stack([INPUTS[0] + INPUTS[3], INPUTS[1] + INPUTS[2]])[[0, 1, 1, 0]]


class Late(Arrays):
    """A host that takes its time."""

    def take(self, stream: str) -> Array:
        time.sleep(random.random() / 50)
        return super().take(stream)


def beginning() -> dict[str, Array]:
    """Return the state of the program `meet` as it begins."""
    return {"far": np.zeros(4, np.float32), "key": np.zeros(2, np.uint32)}


def replicated(program: Program, kind: type) -> ReplicatedEngine:
    engines = [kind(program) for _ in range(program.participants)]
    made = ReplicatedEngine(program, engines)
    made.hosts = tuple(Late({"x": x.copy()}) for x in INPUTS)
    made.state = beginning()
    return made


@pytest.mark.parametrize("kind", [FunctionalEngine, ExactEngine])
def test_each_participant_gets_what_is_its_own(kind: type) -> None:
    engine = replicated(small_programs()["meet"], kind)
    for _ in range(5):
        engine.run(engine.hosts[0], Counts())
        for number, host in enumerate(engine.hosts):
            assert isinstance(host, Arrays)
            np.testing.assert_array_equal(host.outputs["sum"], SUMS[number])
            pair = np.maximum(*SUMS[number // 2 * 2 : number // 2 * 2 + 2])
            np.testing.assert_array_equal(host.outputs["part"], np.split(pair, 2)[number % 2])
            assert host.outputs["me"] == number % 2
            np.testing.assert_array_equal(engine.states[number]["far"], SUMS[number])


def reducing(count: int) -> Program:
    """Return a program whose replicas add up what they take in."""
    make = ProgramBuilder()
    here = make.stream_in(make.variable((6,), rows(2, 3)))
    before, after = make.held[here], make.value_like(here)
    form = CollectiveForm(ALL_REDUCE, (tuple(range(count)),), monoid="add")
    make.emit(Collective(form, (Moved(here, before),), (Moved(here, after),), "total"))
    make.held[here] = after
    make.stream_out(here)
    return replace(make.program(), replicas=count)


def test_sums_are_in_the_order_of_the_group_whoever_comes_first() -> None:
    values = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    wanted = values[0]
    for x in values[1:]:
        wanted = wanted + x
    program = reducing(8)
    engines = [FunctionalEngine(program) for _ in range(8)]
    for _ in range(10):
        made = ReplicatedEngine(program, engines)
        made.hosts = tuple(Late({"in0": x.copy()}) for x in values)
        made.run(made.hosts[0], Counts())
        for host in made.hosts:
            assert isinstance(host, Arrays)
            np.testing.assert_array_equal(host.outputs["out0"], wanted)


def test_one_engine_stands_for_identical_replicas() -> None:
    host = Arrays({"in0": np.arange(6, dtype=np.float32)})
    FunctionalEngine(reducing(5)).run(host)
    np.testing.assert_array_equal(host.outputs["out0"], 5 * np.arange(6.0))


def test_identical_replicas_may_not_ask_who_they_are() -> None:
    program = small_programs()["meet"]
    engine = FunctionalEngine(program)
    engine.state = beginning()
    with pytest.raises(UsageError) as error:
        engine.run(Arrays({"x": INPUTS[0].copy()}))
    assert error.value.code == "E2071"


def test_one_that_fails_ends_all() -> None:
    program = reducing(4)

    def run(here: Participant) -> None:
        engine = FunctionalEngine(program)
        engine.here = here
        given = {} if here.number == 2 else {"in0": np.zeros(6, np.float32)}
        engine.run(Arrays(given))

    begun = time.monotonic()
    with pytest.raises(KeyError, match="in0"):
        run_together(meeting_participants(program), run)
    assert time.monotonic() - begun < 10


def test_one_that_does_not_come_ends_all() -> None:
    program = reducing(3)

    def run(here: Participant) -> None:
        if here.number == 1:
            return
        engine = FunctionalEngine(program)
        engine.here = here
        engine.run(Arrays({"in0": np.zeros(6, np.float32)}))

    with pytest.raises(MeetingError) as error:
        run_together(meeting_participants(program), run)
    assert error.value.code == "E2011"
    assert "total" in error.value.message
