"""Sessions of programs in pieces: users give and take whole arrays."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hloipu_runtime.compiled import CompiledProgram, Mode, load
from hloipu_runtime.errors import StreamError, UsageError
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.program.seen import seen_by_users
from hloipu_runtime.program_io.text.printer import print_program
from hloipu_runtime.session.queues import spec_of_queue
from hloipu_runtime.session.session import Session
from hloipu_runtime.streams.element import ElementSpec, LeafSpec
from hloipu_runtime.streams.infeed import InfeedQueue
from hloipu_runtime.streams.outfeed import OutfeedQueue
from tests.support.program_reader.parser import parse_program
from tests.support.program_texts import TEXTS
from tests.support.stacked_program import (
    CALLED,
    CONSTANTS,
    STACKS,
    STATE,
    C,
    W,
    fed,
    stacked,
    weights,
)

STEPS = 4


def opened(loop: int | None = 2, **more: Any) -> Session:
    given: dict[str, Any] = {
        "state": STATE, "constants": CONSTANTS, "infeeds": {"data": fed(STEPS)}, **more,
    }  # fmt: skip
    return stacked(loop).session(**given)


@pytest.mark.parametrize("mode", ["functional", "exact"])
def test_state_feeds_and_outfeeds_are_whole(mode: str) -> None:
    with opened(mode=mode) as session:
        session.run(STEPS, inputs=CALLED)
        state = session.state()
        assert list(state) == ["w", "n"]
        np.testing.assert_array_equal(state["w"], weights(STEPS))
        assert state["n"] == 5 + STEPS
        given = [x.element for x in session.stream("o").drain()]
        expected = [weights(n + 1) * C[:, None] for n in range(STEPS)]
        np.testing.assert_array_equal(given, expected)
        assert [x.element for x in session.stream("y").drain()] == [0, 1, 2, 3]


def test_results_at_the_end_of_a_run_are_whole() -> None:
    with opened(None) as session:
        outputs = session.run(1, inputs=CALLED).outputs
    np.testing.assert_array_equal(outputs[0], weights(1) * C[:, None])
    assert outputs[1] == 0


@pytest.mark.parametrize("state", [{0: W, 1: np.int32(5)}, [W, np.int32(5)]])
def test_state_is_given_by_number_and_in_order(state: Any) -> None:
    with opened(state=state) as session:
        np.testing.assert_array_equal(session.state()["w"], W)


def test_the_callers_arrays_are_not_touched() -> None:
    mine = W.copy()
    with opened(state={"w": mine, "n": np.int32(0)}) as session:
        session.run(2, inputs=CALLED)
        session.state()["w"][:] = 0
        np.testing.assert_array_equal(session.state()["w"], weights(2))
    np.testing.assert_array_equal(mine, W)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"state": {"w": W[:2], "n": np.int32(0)}}, "E3142"),
        ({"state": {"w": W}}, "E3154"),
        ({"state": {"w0": W, "n": np.int32(0)}}, "E3154"),
        ({"state": {6: W}}, "E3154"),
        ({"constants": {4: W[:1]}}, "E3142"),
        ({"constants": {}}, "E3154"),
        ({"constants": {6: W}}, "E3154"),
    ],
)
def test_what_does_not_fit_is_told_by_the_users_names(more: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        opened(**more)
    assert caught.value.code == code
    assert "rows" not in str(caught.value)
    assert "[0:2]" not in str(caught.value)


def test_missing_inputs_of_a_call_are_told_by_the_users_number() -> None:
    with opened() as session, pytest.raises(UsageError, match=r"'parameter\.5' is not given"):
        session.run()


def test_constants_are_loaded_anew() -> None:
    with opened() as session:
        session.load_constants({4: np.zeros((3, 3), np.float32)})
        session.run(2, inputs=CALLED)
        np.testing.assert_array_equal(session.state()["w"], W)


def test_a_checkpoint_has_whole_arrays(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with opened() as session:
        session.run(2, inputs=CALLED)
        session.save_state(path)
    with opened(state=None) as session:
        session.load_state(path)
        assert session.steps == 2
        np.testing.assert_array_equal(session.state()["w"], weights(2))
        session.run(2, inputs=CALLED)
        np.testing.assert_array_equal(session.state()["w"], weights(STEPS))


def test_a_checkpoint_of_the_whole_is_not_that_of_pieces(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with opened() as session:
        session.save_state(path)
    made = stacked(2)
    apart = replace(made, program=replace(made.program, stacks=(*STACKS[1:4], STACKS[5])))
    with (
        apart.session(constants={5: CONSTANTS[4]}, infeeds={"data": fed(1)}) as session,
        pytest.raises(UsageError, match="E3157"),
    ):
        session.load_state(path)  # there w is two arrays of the user's


def test_queues_of_the_users_own_are_whole() -> None:
    spec = ElementSpec((LeafSpec("f32", (3, 3)), LeafSpec("f32", ())))
    out = OutfeedQueue("o", "last")
    with opened(
        infeeds={"data": InfeedQueue("data", spec, fed(STEPS))}, outfeeds={"o": out}
    ) as session:
        session.run(STEPS, inputs=CALLED)
    assert str(out.spec) == "(f32[3,3])"
    (last,) = out.drain()
    np.testing.assert_array_equal(last.element, weights(STEPS) * C[:, None])


def test_an_element_in_pieces_is_no_element() -> None:
    x, y = fed(2)
    with (
        opened(infeeds={"data": (x[:, :, :2], x[:, :, 2:], y)}) as session,
        pytest.raises(StreamError, match="expected 2 arrays: x, y, found 3"),
    ):
        session.run(2, inputs=CALLED)


def test_arrays_in_pieces_bind_by_their_own_names() -> None:
    x, y = fed(STEPS)
    with opened(infeeds={"data": {"y": y, "x": x}}) as session:
        session.run(STEPS, inputs=CALLED)
        np.testing.assert_array_equal(session.state()["w"], weights(STEPS))


def test_replicas_take_whole_elements_each() -> None:
    made = stacked(2)
    pair = replace(made, program=replace(made.program, replicas=2))
    with pair.session(
        state=STATE, constants=CONSTANTS, infeeds={"data": fed(2 * STEPS)}
    ) as session:
        session.run(STEPS, inputs=CALLED)
        x = fed(2 * STEPS)[0]
        for replica in range(2):
            expected = W + 2 * x[replica::2].sum(0)
            np.testing.assert_array_equal(session.state(replica)["w"], expected)
        last = session.stream("o").drain()[-1].element
        assert last.shape == (2, 3, 3)
        np.testing.assert_array_equal(last[1], (W + 2 * x[1::2].sum(0)) * C[:, None])


def test_files_and_texts_keep_stacks(tmp_path: Path) -> None:
    made = stacked(2)
    path = tmp_path / "step.ipux"
    made.save(path)
    assert load(path).program.stacks == STACKS
    text = print_program(made.program, constants=True)
    assert '  "x" parameter 3 axis 1 by [2,1] of [3,3]\n' in text
    assert parse_program(text).stacks == STACKS
    assert print_program(parse_program(text), constants=True) == text
    assert not faults_of(made.program, made.machine.chip.tiles_per_ipu)


def test_specs_of_queues_are_whole() -> None:
    queues = {x.name: x for x in seen_by_users(stacked(2).program).queues}
    assert str(spec_of_queue(queues["data"])) == "(f32[3,3], f32[])"
    assert str(spec_of_queue(queues["o"])) == "(f32[3,3])"


@pytest.mark.parametrize("mode", ["functional", "exact"])
def test_programs_without_state_take_and_give_whole_arrays(mode: Mode) -> None:
    program = parse_program(TEXTS["pieces"])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (y,) = CompiledProgram(program, load_machine("tiny")).run(x, mode=mode).outputs
    np.testing.assert_array_equal(x, y)
