"""Sessions: what stays, what is counted, what a failure leaves, and what checkpoints bring back."""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hloipu_runtime.costs.step_times import step_times
from hloipu_runtime.errors import ArtefactError, StreamError, UsageError
from hloipu_runtime.session.session import Session
from hloipu_runtime.streams.element import ElementSpec, LeafSpec
from hloipu_runtime.streams.infeed import InfeedQueue
from hloipu_runtime.streams.outfeed import OutfeedQueue
from tests.support.sessions import SCALE, START, SUMS, SWAP, compiled, rows, sums

MODES = ("functional", "exact")
ROWS = rows(60)
SIX = ElementSpec((LeafSpec("f32", (6,)),))


def opened(loop: int = 3, data: Any = ROWS, **more: Any) -> Session:
    given: dict[str, Any] = {"state": START, "constants": SCALE, "infeeds": {"data": data}, **more}
    return sums(loop).session(**given)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_steps_and_cycles_add_up(mode: str) -> None:
    one = sums(3).estimate().total_cycles
    assert one is not None
    with opened(mode=mode) as session:
        first = session.run(6)
        assert (first.steps, first.cycles, first.profile.runs) == (6, 2 * one, 2)
        session.run()
        assert (session.steps, session.cycles) == (9, 3 * one)
        assert session.profile().lower_bound_cycles == 3 * one
        assert session.run(0).cycles == 0
        (loop,) = session.profile().loops
        assert (loop.entered, loop.turns) == (3, 9)


def test_what_arrives_is_stamped_with_the_end_of_its_turn() -> None:
    total = sums(3).estimate().total_cycles or 0
    turn = (sums(4).estimate().total_cycles or 0) - total
    with opened() as session:
        session.run(6)
        cycles = [x.cycle for x in session.stream("seen").drain()]
    assert cycles == [total - 2 * turn, total - turn, total,
                      2 * total - 2 * turn, 2 * total - turn, 2 * total]  # fmt: skip


def test_the_callers_arrays_are_not_touched(mode: str) -> None:
    start = {"a": np.ones(6, np.float32), "b": np.int32(0)}
    with opened(state=start, mode=mode) as session:
        session.run(30)
        held = session.state()["a"]
        before = held.copy()
        session.run(30)
    np.testing.assert_array_equal(start["a"], np.ones(6))
    np.testing.assert_array_equal(held, before)


def test_large_state_is_overwritten_in_place() -> None:
    """What the device holds alone is not copied from run to run."""
    text = """
ENTRY e {
  w = f32[65536] parameter(0), metadata={op_name="w"}
  x = f32[] parameter(1), metadata={op_name="x"}
  spread = f32[65536] broadcast(x), dimensions={}
  ROOT out = (f32[65536]) tuple(f32[65536] add(w, spread))
}
""".replace("tuple(f32[65536] add(w, spread))", "tuple(sum)").replace(
        "  ROOT", "  sum = f32[65536] add(w, spread)\n  ROOT"
    )
    program = compiled(text, "gc200", loop=2, roles={"x": "const"})
    with program.session(state=[np.zeros(65536, np.float32)], constants={1: np.float32(1)}) as s:
        s.run()
        where = s._engine.states[0]["w"].ctypes.data
        s.run(10)
        assert s._engine.states[0]["w"].ctypes.data == where
        assert s.state()["w"][0] == 12


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ({"state": {"a": START["a"]}}, "E3154", "'b' is not given"),
        ({"state": [START["a"]]}, "E3154", "keeps 2 arrays, 1 were given"),
        ({"state": {**START, "c": 0}}, "E3154", "keeps no state 'c'"),
        ({"state": {0: np.zeros(5, np.float32), 1: 0}}, "E3142", "shape"),
        ({"state": {"a": np.zeros(6), "b": np.int32(0)}}, "E3142", "float64"),
        ({"constants": {}}, "E3154", "'parameter.3' is not given"),
        ({"constants": {2: 0}}, "E3154", "takes no 'parameter.2'"),
        ({"infeeds": {}}, "E3155", "'data' has no source"),
        ({"infeeds": {"date": ROWS}}, "E3155", "did you mean data"),
        ({"outfeeds": {"sean": "last"}}, "E3155", "did you mean seen"),
        ({"mode": "quick"}, "E3140", "no mode 'quick'"),
    ],
)
def test_what_is_given_must_fit(given: dict[str, Any], code: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        opened(**given)
    assert caught.value.code == code
    assert said in str(caught.value)


def test_steps_are_whole_runs_and_state_is_there() -> None:
    with opened() as session:
        for steps in (1, -3, 4):
            with pytest.raises(UsageError) as caught:
                session.run(steps)
            assert caught.value.code == "E3153"
        with pytest.raises(UsageError) as caught:
            session.stream("lost")
        assert caught.value.code == "E3155"
    with opened(state=None) as session, pytest.raises(UsageError) as caught:
        session.run()
    assert caught.value.code == "E3154"
    with pytest.raises(UsageError) as caught:
        session.run()
    assert caught.value.code == "E3156"


@pytest.mark.parametrize(
    "what", ["state", "give_state", "save_state", "load_state", "load_constants"]
)
def test_the_state_is_not_touched_while_a_run_goes_on(tmp_path: Path, what: str) -> None:
    arguments = {"state": (), "give_state": (START,), "load_constants": (SCALE,)}.get(
        what, (tmp_path / "kept",)
    )

    def source(_: int) -> Any:
        getattr(session, what)(*arguments)

    with opened(data=source) as session:
        with pytest.raises(StreamError, match=r"E2022.*E2061") as caught:
            session.run(3)
        assert isinstance(caught.value.__cause__, StreamError)
        assert session.state()["b"] == 5


def test_a_second_run_leaves_the_first_alone() -> None:
    found: list[str] = []

    def source(number: int) -> Any:
        if number == 4:
            with pytest.raises(StreamError, match="E2025") as caught:
                session.run(3)
            found.append(caught.value.code)
        return ROWS[number]

    with opened(data=InfeedQueue("data", SIX, source, inline=True)) as session:
        session.run(9)
        assert session.cycles == 3 * (sums(3).estimate().total_cycles or 0)
    assert found == ["E2025"]


def test_queues_of_the_users_own() -> None:
    infeed = InfeedQueue("data", SIX, (row for row in ROWS), capacity=2)
    outfeed = OutfeedQueue("seen", capacity=9)
    with opened(data=infeed, outfeeds={"seen": outfeed}) as session:
        session.run(9)
        assert session.stream("seen") is outfeed
        found = [x.element for x in outfeed.drain()]
    np.testing.assert_array_equal(found, 2 * ROWS[:9])


@pytest.mark.parametrize(
    ("name", "shape", "outfeed"),
    [
        ("dada", (6,), None),
        ("data", (5,), None),
        ("data", (6,), OutfeedQueue("sean")),
        ("data", (6,), OutfeedQueue("seen", spec=ElementSpec((LeafSpec("f32", ()),)))),
    ],
)
def test_queues_of_the_users_own_must_be_the_programs(
    name: str, shape: tuple[int, ...], outfeed: OutfeedQueue | None
) -> None:
    infeed = InfeedQueue(name, ElementSpec((LeafSpec("f32", shape),)), ROWS)
    outfeeds = {} if outfeed is None else {"seen": outfeed}
    with pytest.raises(StreamError, match="E2060"):
        opened(data=infeed, outfeeds=outfeeds)


def test_modes_of_outfeeds() -> None:
    with opened(outfeeds={"seen": "every-2"}) as session:
        session.run(6)
        numbers = [x.number for x in session.stream("seen").drain()]
    assert numbers == [1, 3, 5]


def ending(count: int, error: Exception | None) -> Iterator[Any]:
    yield from ROWS[:count]
    if error is not None:
        raise error


@pytest.mark.parametrize("error", [None, ValueError("no more disk")])
def test_a_feed_that_ends_or_fails_leaves_the_last_whole_step(
    mode: str, error: Exception | None
) -> None:
    times = {n: sums(n).estimate().total_cycles or 0 for n in (3, 4)}
    turn = times[4] - times[3]
    with opened(data=ending(7, error), mode=mode, poison=True) as session:
        session.run(3)
        with pytest.raises(StreamError) as caught:
            session.run(6)
        assert caught.value.queue == "data"
        assert caught.value.__cause__ is error
        assert session.steps == 7
        assert session.cycles == 2 * times[3] + times[3] - 2 * turn
        state = session.state()
    np.testing.assert_array_equal(state["a"], 2 * ROWS[:7].sum(0))
    assert state["b"] == 12


class Broken(Exception):
    """What a test's own function raises."""


def test_an_interrupt_within_a_step_leaves_a_whole_state_or_none(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    with opened(mode=mode) as session:
        session.run(3)
        real, given = session._host.give, []

        def give(stream: str, value: Any) -> None:
            given.append(stream)
            if len(given) == 2:
                raise Broken
            real(stream, value)

        monkeypatch.setattr(session._host, "give", give)
        with pytest.raises(Broken):
            session.run(3)
        if mode == "functional":
            state = session.state()
            np.testing.assert_array_equal(state["a"], 2 * ROWS[: session.steps].sum(0))
            assert state["b"] == 5 + session.steps
        else:
            with pytest.raises(UsageError) as caught:
                session.state()
            assert caught.value.code == "E3156"


def test_a_resumed_run_ends_bit_for_bit_the_same(tmp_path: Path, mode: str) -> None:
    data = np.random.default_rng(1).standard_normal((60, 6)).astype(np.float32)
    path = tmp_path / "state"
    with opened(data=data, mode=mode) as session:
        session.run(30)
        session.save_state(path)
        session.run(30)
        wanted, cycles = session.state(), session.cycles
    with opened(data=data, mode=mode, state=None) as session:
        session.load_state(path)
        assert session.steps == 30
        session.run(30)
        assert (session.steps, session.cycles) == (60, cycles)
        for name, array in session.state().items():
            assert array.tobytes() == wanted[name].tobytes()


def test_checkpoints_are_whole_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with opened() as session:
        session.run(3)
        session.save_state(path)
    whole = path.read_bytes()
    with opened() as session:
        for at in range(0, len(whole), 7):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
            with pytest.raises(ArtefactError):
                session.load_state(path)
        path.write_bytes(whole[:-1])
        with pytest.raises(ArtefactError):
            session.load_state(path)
        assert (session.steps, session.state()["b"]) == (0, 5)


def test_a_checkpoint_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with opened() as session:
        session.save_state(path)
    other = compiled(SWAP, loop=1, roles={"s": "carry"})
    with other.session() as session, pytest.raises(UsageError) as caught:
        session.load_state(path)
    assert caught.value.code == "E3157"


def test_a_slow_host_makes_the_device_wait() -> None:
    """At a thousandth of the device's own rate, nearly all of the time is waiting."""
    program = sums(3)
    cycles = program.estimate().total_cycles or 0
    clock = program.machine.chip.clock_hz
    with opened(rates={"data": clock / (1000 * cycles)}) as session:
        run = session.run(30)
    busy = 10 * cycles
    assert run.cycles == session.cycles == busy + session.idle_cycles
    assert run.cycles == pytest.approx(30 * 1000 * cycles, rel=0.01)


def test_what_arrives_of_a_starved_loop_is_stamped_with_the_waits() -> None:
    """Element i is made after (i + 1) intervals, and its step comes after that."""
    program = sums(3)
    turn = step_times(program.costs).iteration_cycles
    interval = 10 * turn
    rate = Fraction(program.machine.chip.clock_hz, interval)
    with opened(rates={"data": rate}) as session:
        session.run(6)
        cycles = [x.cycle for x in session.stream("seen").drain()]
        assert cycles == [(i + 1) * interval + turn for i in range(6)]
        assert session.cycles == cycles[-1]
        feeds = session.profile().feeds
    assert (feeds["verdict"], feeds["slowest"]) == ("host-bound", "data")
    assert feeds["given_elements_per_second"] == rate


def test_a_rate_is_of_an_infeed_that_there_is() -> None:
    with pytest.raises(UsageError, match="no infeed 'date'") as caught:
        opened(rates={"date": 1.0})
    assert caught.value.code == "E3155"


def test_a_device_that_is_slower_than_its_host_is_told_by_how_much() -> None:
    program = sums(3)
    cycles = program.estimate().total_cycles or 0
    needed = 3 * program.machine.chip.clock_hz / cycles
    with opened(rates={"data": 4 * needed}) as session:
        session.run(30)
        feeds = session.profile().feeds
        assert session.idle_cycles == 0
    assert feeds["verdict"] == "device-bound"
    assert feeds["given_over_needed"] == pytest.approx(4)
    assert feeds["needed_elements_per_second"] == pytest.approx(needed)


def test_other_constants_may_be_loaded_between_runs(mode: str) -> None:
    """What is loaded is the session's own; loading takes no state away."""
    scale = np.full(6, 2, np.float32)
    round_trip = step_times(sums(3).costs).round_trip_cycles
    with opened(mode=mode, constants={3: scale}) as session:
        session.run(3)
        scale[:] = 100
        session.run(3)
        before = session.cycles
        session.load_constants({3: np.full(6, 5, np.float32)})
        assert session.cycles - before == session.loading_cycles > round_trip
        session.run(3)
        with pytest.raises(UsageError, match="shape"):
            session.load_constants({3: np.zeros(5, np.float32)})
        session.run(3)
        found = session.state()
    np.testing.assert_array_equal(found["a"], 2 * ROWS[:6].sum(0) + 5 * ROWS[6:12].sum(0))
    assert found["b"] == 5 + 12


def test_state_may_be_given_and_read_between_runs(mode: str) -> None:
    """Feeds go on where they were, steps and cycles too; what is given is copied."""
    other = {"a": np.full(6, 7, np.float32), "b": np.int32(40)}
    with opened(mode=mode) as session:
        session.run(3)
        session.give_state(other)
        assert session.state(names=["b"]) == {"b": 40}
        session.run(3)
        found = session.state(names=["a"])
        with pytest.raises(UsageError, match="did you mean a"):
            session.state(names=["aa"])
        with pytest.raises(UsageError, match="'b' is not given"):
            session.give_state({"a": other["a"]})
        assert session.steps == 6
    assert found.keys() == {"a"}
    np.testing.assert_allclose(found["a"], 7 + 2 * ROWS[3:6].sum(0), rtol=1e-6)
    np.testing.assert_array_equal(other["a"], np.full(6, 7, np.float32))


@pytest.mark.parametrize("loop", [None, 3])
def test_a_step_may_take_its_data_with_each_call(mode: str, loop: int | None) -> None:
    """Without a queue: the host hands it over, and it stays for all steps of the call."""
    program = compiled(SUMS, loop=loop, roles={"2": "call"}, outfeeds=("seen",) * bool(loop))
    steps = loop or 1
    with program.session(state=START, constants=SCALE, mode=mode, poison=True) as session:
        for row in ROWS[:4]:
            session.run(inputs={2: row})
        session.run(2 * steps)
        found, cycles = session.state(), session.cycles
        assert session.profile().runs == 6
        calls = session.profile().calls
    wanted = 2 * steps * (ROWS[:4].sum(0) + 2 * ROWS[3])
    np.testing.assert_array_equal(found["a"], wanted)
    assert cycles == 6 * calls["cycles_per_call"] + 6 * steps * calls["cycles_per_step"]
    assert [port.stream for port in program.program.parameters] == ["parameter.3", "parameter.2"]


def test_what_comes_with_a_call_must_be_there() -> None:
    program = compiled(SUMS, loop=3, roles={"2": "call"}, outfeeds=("seen",))
    with program.session(state=START, constants=SCALE) as session:
        assert session.run(0).cycles == 0
        with pytest.raises(
            UsageError, match=r"'parameter\.2' is not given, which comes in with each"
        ):
            session.run()
        with pytest.raises(UsageError, match="argument 0 has shape"):
            session.run(inputs={2: np.zeros(5, np.float32)})
        with pytest.raises(UsageError, match=r"takes no 'parameter\.9'"):
            session.run(inputs={9: 0})
        session.run(inputs={2: ROWS[0]})
        assert session.steps == 3
