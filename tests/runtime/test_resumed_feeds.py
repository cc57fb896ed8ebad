"""Feeds go on with the state: what a failed step took is not lost, and nothing is half loaded."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_runtime.errors import LimitError, StreamError, UsageError
from hloipu_runtime.session.checkpoint import Checkpoint
from hloipu_runtime.session.host_parts import load_checkpoint
from hloipu_runtime.streams.element import ElementSpec, LeafSpec
from hloipu_runtime.streams.infeed import InfeedQueue
from tests.support.fitted_plane import STEP

A = np.random.default_rng(0).standard_normal((60, 4, 2)).astype(np.float32) / 4
B = np.random.default_rng(1).standard_normal((60, 4)).astype(np.float32)
W = np.ones(2, np.float32)


@cache
def step(name: str = "step", **options: Any) -> hloipu.CompiledProgram:
    return hloipu.compile(
        STEP.replace("HloModule step,", f"HloModule {name},"),
        loop=2, feed={"a": (1,), "b": (2,)}, cache=False, **options,
    )  # fmt: skip


def failing(at: int) -> Callable[[int], Any]:
    def element(number: int) -> Any:
        if number == at:
            raise ValueError("for once")
        return B[number]

    return element


def feeds(second: Callable[[int], Any] | Any) -> dict[str, Any]:
    return {"a": A, "b": second}


@pytest.mark.parametrize("mode", ["functional", "exact"])
@pytest.mark.parametrize(
    ("options", "each", "fails_at"),
    [({}, 1, 14), ({"micro_batches": 3}, 3, 14), ({"replicas": 2}, 2, 13)],
)
def test_a_step_that_failed_takes_its_elements_again(
    mode: str, options: dict[str, Any], each: int, fails_at: int, tmp_path: Path
) -> None:
    """The other feed had given its element already, of a step that was never done."""
    program = step(**options)
    start: dict[str, Any] = {"state": [W], "mode": mode}
    with program.session(infeeds=feeds(B), **start) as session:
        session.run(18)
        wanted = session.state()
    path = tmp_path / "c"
    with program.session(infeeds=feeds(failing(fails_at)), **start) as session:
        with pytest.raises(StreamError):
            session.run(18)
        done = session.steps
        assert done == fails_at // each
        if mode == "exact" and options:  # it fails within a step, or not on all replicas
            with pytest.raises(UsageError, match="E3156"):
                session.save_state(path)
            return
        session.save_state(path)
    assert load_checkpoint(path).positions == {"a": done * each, "b": done * each}
    with program.session(infeeds=feeds(B), mode=mode) as session:
        session.load_state(path)
        session.run(18 - done)
        assert [x.tobytes() for x in session.state().values()] == [
            x.tobytes() for x in wanted.values()
        ]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "c"
    with step().session(state=[W], infeeds=feeds(B)) as session:
        session.run(4)
        session.save_state(path)
    return path


BROKEN: dict[str, dict[str, Any]] = {
    "no position": {"positions": {"a": 4}},
    "one too many": {"positions": {"a": 4, "b": 4, "c": 4}},
    "misnamed": {"positions": {"a": 4, "B": 4}},
    "begun anew": {"positions": {"a": 4, "b": 0}},
    "behind": {"positions": {"a": 4, "b": 3}},
    "other program": {"program": "other"},
    "of a trainer": {"program": "training", "positions": {}},
    "no state": {"arrays": {}},
    "more state": {"arrays": {"w": W, "v": W}},
    "another replica's": {"arrays": {"w": W, "participant 1: w": W}},
    "other type": {"arrays": {"w": np.ones(2)}},
    "other shape": {"arrays": {"w": np.ones(1, np.float32)}},
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_not_of_the_program_is_refused_and_changes_nothing(case: str, saved: Path) -> None:
    whole = load_checkpoint(saved)
    assert set(whole.arrays) == {"w"}
    changes = BROKEN[case]
    other = saved.with_name("d")
    replace(whole, **changes).save(other)
    with step().session(state=[7 * W], infeeds=feeds(B)) as session:
        with pytest.raises(UsageError, match="E3157"):
            session.load_state(other)
        assert (session.steps, session.state()["w"].tolist()) == (0, [7, 7])
        session.run(2)
        assert [queue.position for queue in session._host.infeeds] == [2, 2]
        with pytest.raises(StreamError, match="E2031"):
            session.load_state(saved)  # feeds have given elements
        assert (session.steps, [q.position for q in session._host.infeeds]) == (2, [2, 2])


def test_nothing_is_loaded_where_one_feed_cannot_go_on(saved: Path) -> None:
    spec = ElementSpec((LeafSpec("f32", (4,)),))
    started = InfeedQueue("b", spec, B, inline=False)
    started.start()
    with step().session(state=[7 * W], infeeds=feeds(started)) as session:
        with pytest.raises(StreamError, match="E2031"):
            session.load_state(saved)
        assert (session.steps, session.state()["w"].tolist()) == (0, [7, 7])
        assert [queue.position for queue in session._host.infeeds] == [0, 0]


COUNTS_UP = """HloModule step

body {
  p = (s32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[] get-tuple-element(p), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  half = f32[] constant(0.5)
  y = f32[] multiply(x, half)
  ROOT t = (s32[], f32[]) tuple(j, y)
}

condition {
  p = (s32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(7)
  ROOT c = pred[] compare(i, n), direction=LT
}

ENTRY e {
  w = f32[] parameter(0)
  start = s32[] parameter(1)
  two = f32[] constant(2)
  t = (s32[], f32[]) tuple(start, two)
  counting = (s32[], f32[]) while(t), condition=condition, body=body
  x = f32[] get-tuple-element(counting), index=1
  k = s32[] get-tuple-element(counting), index=0
  f = f32[] convert(k)
  y = f32[] add(x, f)
  ROOT r = f32[] multiply(y, w)
}
"""


def test_no_run_goes_on_past_elements_that_a_failed_step_has_taken(tmp_path: Path) -> None:
    """Its feeds are open still, and a step further than the state."""
    program = hloipu.compile(
        COUNTS_UP, loop=1, role={"0": "weight"}, feed={"data": (1,)}, cache=False
    )
    starts = np.array([5, 6, 0, 4, 3, 2], np.int32)
    path = tmp_path / "c"
    given: dict[str, Any] = {"state": [np.float32(1)], "infeeds": {"data": starts}}
    with program.session(**given) as session:
        session.run(6)
        wanted = session.state()
    with program.session(max_iterations=5, **given) as session:
        with pytest.raises(LimitError):
            session.run(6)
        assert session.steps == 2
        with pytest.raises(UsageError, match=r"E3156.*ahead of the state"):
            session.run(1)
        session.save_state(path)
    with program.session(infeeds=given["infeeds"]) as session:
        session.load_state(path)
        session.run(4)
        assert session.state() == wanted


@pytest.mark.parametrize("loop", [1, 4])
def test_another_number_of_turns_goes_on_the_same(loop: int, saved: Path) -> None:
    other = hloipu.compile(STEP, loop=loop, feed={"a": (1,), "b": (2,)}, cache=False)
    ends = []
    for program in (step(), other):
        with program.session(infeeds=feeds(B)) as session:
            session.load_state(saved)
            session.run(8)
            ends.append((session.steps, session.state()["w"].tobytes()))
    assert ends[0] == ends[1]


def test_a_trainer_takes_the_state_of_its_step_alone(tmp_path: Path, saved: Path) -> None:
    trainer = hloipu.Trainer(STEP, state=[W], cache=False)
    trainer.load_state(saved)
    assert trainer.steps == 4
    for arrays in ({"v": W}, {"w": np.ones(3, np.float32)}):
        Checkpoint("training", 1, 0, {}, arrays).save(tmp_path / "d")
        with pytest.raises(UsageError, match="E3157"):
            trainer.load_state(tmp_path / "d")
    assert trainer.steps == 4
