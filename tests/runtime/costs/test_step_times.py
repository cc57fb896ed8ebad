"""N steps of a call cost N times one step, and each call the round trip: nothing else."""

from itertools import pairwise
from time import perf_counter
from typing import Any

import pytest

from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.costs.step_times import step_times
from hloipu_runtime.machine.transfers import cycles_of_nanoseconds
from hloipu_runtime.program.program import Role
from hloipu_runtime.program.steps import Exchange, Repeat, Sequence, Step, Sync
from hloipu_runtime.program.uses import used
from tests.support.sessions import SAMPLES, SUMS, compiled

ROWS_SUMS = """
HloModule rows, input_output_alias={ {0}: (0, {}, may-alias) }

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

ENTRY e {
  w = f32[8,16] parameter(0), metadata={op_name="w"}
  x = f32[8,16] parameter(1), metadata={op_name="x"}
  k = f32[16,8] parameter(2), metadata={op_name="k"}
  zero = f32[] constant(0)
  rows = f32[8] reduce(x, zero), dimensions={1}, to_apply=add
  columns = f32[16] reduce(x, zero), dimensions={0}, to_apply=add
  c = f32[8,8] dot(w, k), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  m = f32[8,16] dot(c, k), lhs_contracting_dims={0}, rhs_contracting_dims={1}
  t = f32[16,8] constant({...})
  u = f32[8,16] transpose(t), dimensions={1,0}
  next = f32[8,16] add(m, u)
  ROOT out = (f32[8,16], f32[8], f32[16]) tuple(next, rows, columns)
}
""".replace("{...}", "{" + ", ".join(f"{{{', '.join('1234567'[i % 7] for i in range(8))}}}"
                                      for _ in range(16)) + "}")  # fmt: skip
"""Reductions that begin with a constant, a parameter and a constant read in several layouts."""

STEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "sums": (SUMS, {"feeds": {"data": (2,)}, "outfeeds": ("seen",)}),
    "rows": (ROWS_SUMS, {"feeds": {"data": (1,)}, "outfeeds": ("r=1", "c=2")}),
    "mnist": (
        (SAMPLES / "mnist_train_step.hlo").read_text(),
        {"feeds": {"data": (4, 5)}, "outfeeds": ("loss",)},
    ),
}


def looped(name: str, loop: int, target: str = "tiny", **more: Any) -> CompiledProgram:
    text, request = STEPS[name]
    return compiled(text, target, loop=loop, **{**request, **more})


def round_trip(program: CompiledProgram) -> int:
    return cycles_of_nanoseconds(program.machine, program.machine.host.round_trip_nanoseconds)


def cycles(program: CompiledProgram) -> int:
    found = program.estimate().total_cycles
    assert found is not None
    return found


@pytest.mark.parametrize("target", ["tiny", "gc200"])
@pytest.mark.parametrize("name", STEPS)
def test_a_call_of_n_steps_costs_n_steps_and_a_round_trip(name: str, target: str) -> None:
    made = {n: looped(name, n, target) for n in (1, 2, 10)}
    times = {n: step_times(program.costs) for n, program in made.items()}
    turn = times[1].iteration_cycles
    for n, program in made.items():
        assert cycles(program) == round_trip(program) + n * turn
        body = program.costs.blocks[0]
        assert turn == body.spent.total.cycles  # which the turn's own jump is a part of
        assert program.costs.steps[body.steps[-1]].kind == "repeat"
        assert (times[n].call_cycles, times[n].is_exact) == (round_trip(program), True)


@pytest.mark.parametrize("name", STEPS)
def test_calls_saved_are_round_trips_saved(name: str) -> None:
    """10,000 steps in calls of 10 and in calls of 1: 9,000 calls less."""
    short, long = looped(name, 1, "gc200"), looped(name, 10, "gc200")
    assert 10_000 * cycles(short) - 1_000 * cycles(long) == 9_000 * round_trip(long)


def test_nothing_is_done_before_the_loop() -> None:
    for name in STEPS:
        body = looped(name, 3, "gc200").program.body
        assert [type(step) for step in body.steps] == [Repeat]


def test_what_is_added_up_costs_its_zeros_and_its_end_once_a_call() -> None:
    made = {n: looped("sums", n, outfeeds=("seen=mean:2",)) for n in (1, 2, 10)}
    turns = [(cycles(b) - cycles(a)) / (m - n) for (n, a), (m, b) in pairwise(made.items())]
    assert turns[0] == turns[1]
    for n, program in made.items():
        times = step_times(program.costs)
        root = program.costs.blocks[program.costs.root]
        assert times.call_cycles == root.spent.total.cycles > round_trip(program)
        assert cycles(program) == times.call_cycles + n * times.iteration_cycles
        calls = program.profile().calls
        assert calls["cycles_per_call"] == times.call_cycles
        assert calls["round_trip_cycles"] == round_trip(program)


def test_constants_are_copied_in_no_turn() -> None:
    """What a turn exchanges is what the turn made, or took in."""
    program = looped("rows", 2, "gc200").program
    lasting = set(program.constants)

    def sources(step: Step) -> set[int]:
        match step:
            case Sequence():
                return set().union(*map(sources, step.steps))
            case Repeat():
                return sources(step.body)
            case Exchange():
                return {x.source for x in step.transfers}
            case Sync() | _:
                return set()

    assert not sources(program.body) & lasting


def test_a_constant_lies_where_it_is_read_and_nowhere_else() -> None:
    program = looped("rows", 2, "gc200").program
    lying = [v for v in program.variables if v.role is Role.CONSTANT]
    assert len(lying) == len(program.constants)
    assert set(program.constants) <= used(program.body, program)
    assert {value for value, _ in program.constants.values()} >= set(program.loaded)


def test_a_million_steps_are_estimated_as_fast_as_ten() -> None:
    seconds = []
    for loop in (10, 10**6):
        program = looped("rows", loop)
        begun = perf_counter()
        found = program.estimate()
        seconds.append(perf_counter() - begun)
        assert found.total_cycles == step_times(program.costs).cycles_after(loop)
    assert seconds[1] < 5 * seconds[0] + 0.05
