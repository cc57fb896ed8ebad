"""Steps on the device: N turns are N steps, whatever happens to state, feeds and constants."""

from time import perf_counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import Evaluator
from hloipu_compiler.interpret.random_inputs import random_arguments
from hloipu_runtime.errors import UsageError
from hloipu_runtime.program.program import Role
from hloipu_runtime.program.steps import Repeat
from hloipu_runtime.program_io.file.program_codec import decode_program, encode_program
from hloipu_runtime.program_io.text.printer import print_program
from tests.support.program_checker import violations
from tests.support.program_reader.parser import parse_program
from tests.support.sessions import SAMPLES, SCALE, START, SUMS, SWAP, compiled, rows, sums

MODES = ("functional", "exact")


@pytest.fixture(scope="module")
def mnist() -> tuple[list[Any], list[Any]]:
    """Return arguments of the step, and the state and the losses of five steps."""
    module = parse((SAMPLES / "mnist_train_step.hlo").read_text())
    arguments = [np.asarray(x) for x in random_arguments(module, 0)]
    evaluator = Evaluator(module)
    state, losses = arguments[:4], []
    for _ in range(5):
        *state, loss = evaluator(*state, *arguments[4:])
        losses.append(loss)
    return arguments, [*state, losses]


@pytest.mark.parametrize("target", ["tiny", "gc200"])
def test_five_turns_are_five_steps(mnist: tuple[list[Any], list[Any]], target: str) -> None:
    text = (SAMPLES / "mnist_train_step.hlo").read_text()
    program = compiled(text, target, loop=5, feeds={"data": (4, 5)}, outfeeds=("loss",))
    arguments, (*state, losses) = mnist
    batches = tuple(np.stack([x] * 5) for x in arguments[4:])
    # Partial sums of other tiles are other roundings, which five steps blow up.
    for mode, tolerance in (("functional", 0.0 if target == "gc200" else 1e-2), ("exact", 1e-2)):
        with program.session(
            state=arguments[:4], infeeds={"data": batches}, mode=mode, poison=True
        ) as session:
            session.run()
            found = session.state()
            told = [float(x.element) for x in session.stream("loss").drain()]
        np.testing.assert_allclose(told, losses, rtol=tolerance, atol=0)
        for port, wanted in zip(program.program.state, state, strict=True):
            np.testing.assert_allclose(
                found[port.name], wanted, rtol=tolerance, atol=tolerance / 10
            )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loop", [1, 3])
def test_state_feeds_and_constants(mode: str, loop: int) -> None:
    data = rows(6)
    with sums(loop).session(
        state=START, constants=SCALE, infeeds={"data": data}, mode=mode, poison=True
    ) as session:
        session.run(6)
        state = session.state()
        seen = np.stack([x.element for x in session.stream("seen").drain()])
    np.testing.assert_array_equal(state["a"], 2 * data.sum(0))
    assert state["b"] == 5 + 6
    np.testing.assert_array_equal(seen, 2 * data)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loop", [None, 1, 3])
def test_state_may_change_places(mode: str, loop: int | None) -> None:
    program = compiled(SWAP, loop=loop, roles={"s": "carry"})
    first = [np.full(3, n, np.float32) for n in (1, 2, 3)]
    with program.session(state=first, mode=mode, poison=True) as session:
        session.run(3)
        assert [x[0] for x in session.state().values()] == [2, 1, 3]
        session.run(3)
        assert [x[0] for x in session.state().values()] == [1, 2, 3]


@pytest.mark.parametrize("mode", MODES)
def test_random_ops_go_on_where_they_were(mode: str) -> None:
    text = """
ENTRY e {
  n = s32[] parameter(0), metadata={op_name="n"}
  one = s32[] constant(1)
  next = s32[] add(n, one)
  low = f32[] constant(0)
  high = f32[] constant(1)
  drawn = f32[8] rng(low, high), distribution=rng_uniform
  ROOT out = (s32[], f32[8]) tuple(next, drawn)
}
"""
    draws = {}
    for loop in (1, 4):
        program = compiled(text, loop=loop, outfeeds=("drawn",))
        with program.session(state=[np.int32(0)], seed=9, mode=mode) as session:
            session.run(4)
            draws[loop] = np.stack([x.element for x in session.stream("drawn").drain()])
    np.testing.assert_array_equal(draws[1], draws[4])
    assert len(np.unique(draws[4])) == 32


def test_state_stays_and_the_rest_comes_in_where_it_is_said() -> None:
    program = sums(3).program
    assert [port.name for port in program.state] == ["a", "b"]
    assert all(program.variables[port.variable].role is Role.STATE for port in program.state)
    assert [port.stream for port in program.parameters] == ["parameter.3"]
    assert [(q.name, q.to_device, q.places) for q in program.queues] == [
        ("data", True, (2,)),
        ("seen", False, (2,)),
    ]
    (loop,) = [step for step in program.body.steps if isinstance(step, Repeat)]
    assert (loop.count, program.steps_per_run) == (3, 3)


@pytest.mark.parametrize("loop", [None, 2])
def test_the_slow_referee_agrees(loop: int | None) -> None:
    program = compiled(SWAP, loop=loop, roles={"s": "carry"}).program
    assert violations(program, 4) == []
    assert violations(sums(2).program, 4) == []


def test_texts_and_files_hold_state_and_queues() -> None:
    program = sums(3).program
    text = print_program(program, constants=True)
    assert '"a" v0: %0 ' in text
    assert 'in "data" ("data.0": f32[6]) for 2' in text
    again = parse_program(text)
    assert print_program(again, constants=True) == text
    data = encode_program(program)
    read = decode_program(data.meta, data.arrays)
    assert (read.state, read.queues, read.steps_per_run) == (
        program.state,
        program.queues,
        program.steps_per_run,
    )
    assert read.body == program.body


def test_cycles_grow_by_the_turn() -> None:
    cycles = {n: sums(n).estimate().total_cycles or 0 for n in (1, 2, 10, 1000)}
    turn = cycles[2] - cycles[1]
    assert turn > 0
    assert cycles[10] == cycles[1] + 9 * turn
    assert cycles[1000] == cycles[1] + 999 * turn


def test_a_long_loop_is_estimated_as_fast_as_a_short_one() -> None:
    seconds = []
    for loop in (10, 10**6):
        program = sums(loop)
        start = perf_counter()
        program.estimate()
        seconds.append(perf_counter() - start)
    assert seconds[1] < 5 * seconds[0] + 0.05


def test_a_step_costs_what_it_costs_and_a_call_one_round_trip() -> None:
    """Beside the call nothing depends on how many steps a run does."""
    short, long = (sums(n) for n in (1, 10))
    clock = long.machine.chip.clock_hz
    call = -(-long.machine.host.round_trip_nanoseconds * clock // 10**9)
    body = long.costs.blocks[0].spent.total.cycles
    outside = (long.estimate().total_cycles or 0) - 10 * body
    assert (short.estimate().total_cycles or 0) == outside + body
    (step,) = [x for x in long.costs.steps if x.kind == "host call"]
    assert step.spent.total.cycles == call


def test_nothing_but_a_session_runs_it() -> None:
    with pytest.raises(UsageError) as caught:
        sums().run(np.zeros(6, np.float32))
    assert caught.value.code == "E3159"
    with pytest.raises(UsageError) as caught:
        compiled(SUMS).session()
    assert caught.value.code == "E3158"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_device_makes_the_elements_of_a_run_one(mode: str, reduction: str) -> None:
    program = compiled(
        SUMS, loop=4, feeds={"data": (2,)}, outfeeds=(f"seen={reduction}:2", f"b={reduction}:1")
    )
    data = rows(8)
    with program.session(
        state=START, constants=SCALE, infeeds={"data": data}, mode=mode, poison=True
    ) as session:
        session.run(8)
        seen = [x.element for x in session.stream("seen").drain()]
        counts = [x.element for x in session.stream("b").drain()]
    steps = 1 if reduction == "sum" else 4
    np.testing.assert_array_equal(seen, [2 * half.sum(0) / steps for half in (data[:4], data[4:])])
    whole = np.array([6 + 7 + 8 + 9, 10 + 11 + 12 + 13])
    np.testing.assert_array_equal(counts, whole if reduction == "sum" else whole / steps)
    assert counts[0].dtype == (np.int32 if reduction == "sum" else np.float32)
    assert violations(program.program, 4) == []


def test_narrow_floats_are_added_up_in_f32() -> None:
    text = """
ENTRY e {
  n = bf16[] parameter(0), metadata={op_name="n"}
  x = bf16[] parameter(1), metadata={op_name="x"}
  one = bf16[] constant(1)
  ROOT out = (bf16[], bf16[]) tuple(one, x)
}
"""
    program = compiled(text, loop=1000, roles={"n": "carry"}, outfeeds=("x=sum:1",))
    (queue,) = program.program.queues
    assert queue.reduction == "sum"
    with program.session(state=[ml_dtypes.bfloat16(0)], constants={1: ml_dtypes.bfloat16(1)}) as s:
        s.run()
        assert float(s.stream("x").drain()[0].element) == 1000
    assert parse_program(print_program(program.program, constants=True)).queues == (queue,)
    with pytest.raises(UsageError, match="gives sum, not the mean"):
        program.session(
            state=[ml_dtypes.bfloat16(0)],
            constants={1: ml_dtypes.bfloat16(1)},
            outfeeds={"x": "mean"},
        )


MADE = {
    "a": "",
    "b": "",
    "x": "",
    "k": "",
    "five": "five = f32[4] constant({5, 5, 5, 5})",
    "spread": "s = f32[] constant(7)\n  spread = f32[4] broadcast(s), dimensions={}",
    "sum": "sum = f32[4] add(a, b)",
    "more": "more = f32[4] add(a, x)",
    "less": "less = f32[4] subtract(b, k)",
    "turned": "turned = f32[4] reverse(a), dimensions={0}",
}


def expected(name: str, held: dict[str, Any]) -> Any:
    a, b, x, k = (held[n] for n in "abxk")
    return {
        "a": a, "b": b, "x": x, "k": k, "five": np.full(4, 5.0), "spread": np.full(4, 7.0),
        "sum": a + b, "more": a + x, "less": b - k, "turned": a[::-1],
    }[name]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loop", [None, 4])
@pytest.mark.parametrize("seed", range(12))
def test_whatever_becomes_of_state(seed: int, loop: int | None, mode: str) -> None:
    """New state may be any value: another's old one, data, a constant, one value for both."""
    draw = np.random.default_rng(seed)
    first, second, out = (str(x) for x in draw.choice(list(MADE), 3))
    lines = [MADE[name] for name in dict.fromkeys((first, second, out))]
    text = f"""
ENTRY e {{
  a = f32[4] parameter(0)
  b = f32[4] parameter(1)
  x = f32[4] parameter(2)
  k = f32[4] parameter(3)
  {chr(10).join(lines)}
  ROOT r = (f32[4], f32[4], f32[4]) tuple({first}, {second}, {out})
}}
"""
    program = compiled(
        text, loop=loop, roles={"a": "carry", "b": "carry"}, feeds={"x": (2,)}, outfeeds=("out",)
    )
    data = draw.integers(-9, 9, (8, 4)).astype(np.float32)
    held = {n: draw.integers(-9, 9, 4).astype(np.float32) for n in "abk"}
    told = []
    with program.session(
        state=[held["a"], held["b"]],
        constants={3: held["k"]},
        infeeds={"x": data},
        mode=mode,
        poison=True,
    ) as session:
        session.run(8)
        for x in data:
            held["x"] = x
            told.append(expected(out, held))
            new_a, new_b = expected(first, held), expected(second, held)
            held |= {"a": new_a, "b": new_b}
        np.testing.assert_array_equal([x.element for x in session.stream("out").drain()], told)
        state = session.state()
        np.testing.assert_array_equal(state["a"], held["a"])
        np.testing.assert_array_equal(state["b"], held["b"])
    assert violations(program.program, 4) == []
