"""The functional engine: nothing given to it is changed, and buffers are reused only when dead."""

import numpy as np
import pytest

from hloipu_runtime.program.program import Program
from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.program.steps import Carried, Repeat, Sequence
from hloipu_runtime.simulate.functional.functional import FunctionalEngine
from hloipu_runtime.simulate.run.host import Arrays
from tests.support.program_builder import ProgramBuilder, rows

SIZE = 1 << 15
"""Elements: enough for results to be written over operands."""
ROWS = rows(2, SIZE // 2)


def run(program: Program, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    assert faults_of(program, 4) == []
    host = Arrays(dict(inputs))
    FunctionalEngine(program).run(host)
    return host.outputs


def ramp() -> np.ndarray:
    return np.arange(SIZE, dtype=np.float32)


def test_arrays_that_were_given_are_not_changed() -> None:
    make = ProgramBuilder()
    x = make.stream_in(make.variable((SIZE,), ROWS))
    y = make.copy(x, make.variable((SIZE,), ROWS))
    make.add([x, y], x)
    make.stream_out(x)
    given = ramp()

    found = run(make.program(), in0=given)

    np.testing.assert_array_equal(found["out0"], 2 * ramp())
    np.testing.assert_array_equal(given, ramp())


def test_constants_last() -> None:
    make = ProgramBuilder()
    k = make.constant((SIZE,), ROWS)
    value, _ = make.constants[k]
    make.constants[k] = (value, ramp())
    y = make.add([k, k], make.variable((SIZE,), ROWS))
    make.stream_out(y)
    make.stream_out(k)
    program = make.program()

    for _ in range(2):
        found = run(program)
        np.testing.assert_array_equal(found[f"out{y}"], 2 * ramp())
        np.testing.assert_array_equal(found[f"out{k}"], ramp())


def test_a_value_that_is_still_read_is_not_written_over() -> None:
    make = ProgramBuilder()
    x = make.stream_in(make.variable((SIZE,), ROWS))
    y = make.add([x, x], make.variable((SIZE,), ROWS))
    z = make.add([y, y], make.variable((SIZE,), ROWS))
    w = make.add([y, z], make.variable((SIZE,), ROWS))
    for v in (z, w):
        make.stream_out(v)
    found = run(make.program(), in0=ramp())
    np.testing.assert_array_equal(found[f"out{z}"], 4 * ramp())
    np.testing.assert_array_equal(found[f"out{w}"], 6 * ramp())


@pytest.mark.parametrize("turns", [0, 1, 4])
def test_a_loop_reads_the_same_value_from_outside_in_every_turn(turns: int) -> None:
    make = ProgramBuilder()
    x = make.stream_in(make.variable((SIZE,), ROWS))
    k = make.add([x], make.variable((SIZE,), ROWS))
    initial = make.held[x]
    turn = make.held[x] = make.value_like(x)
    with make.block() as body:
        t = make.add([x, k], make.variable((SIZE,), ROWS))
        make.add([t], x)
    following = make.held[x]
    final = make.held[x] = make.value_like(x)
    item = Carried(x, initial, turn, following, final)
    make.emit(Repeat(turns, Sequence(tuple(body)), (item,)))
    make.stream_out(x)
    found = run(make.program(), in0=ramp())
    np.testing.assert_array_equal(found["out0"], (turns + 1) * ramp())


def test_pieces_are_put_where_they_belong_over_what_was_there() -> None:
    make = ProgramBuilder()
    x = make.stream_in(make.variable((SIZE,), ROWS))
    y = make.stream_in(make.variable((SIZE,), ROWS))
    make.place([(x, ((10, 20),))], y, keep=True)
    make.stream_out(y)
    make.stream_out(x)
    given = [ramp(), -ramp()]

    found = run(make.program(), in0=given[0], in1=given[1])

    expected = -ramp()
    expected[10:20] = ramp()[10:20]
    np.testing.assert_array_equal(found["out1"], expected)
    np.testing.assert_array_equal(found["out0"], ramp())
    np.testing.assert_array_equal(given[1], -ramp())


def test_what_constants_decide_is_computed_once_for_all_turns_and_runs() -> None:
    make = ProgramBuilder()
    few = rows(2, 8)
    k = make.constant((16,), few)
    value, _ = make.constants[k]
    make.constants[k] = (value, np.arange(16, dtype=np.float32))
    x = make.stream_in(make.variable((16,), few))
    initial = make.held[x]
    turn = make.held[x] = make.value_like(x)
    with make.block() as body:
        twice = make.add([k, k], make.variable((16,), few))
        make.add([x, twice], x)
    following = make.held[x]
    final = make.held[x] = make.value_like(x)
    item = Carried(x, initial, turn, following, final)
    make.emit(Repeat(3, Sequence(tuple(body)), (item,)))
    make.stream_out(x)
    program = make.program()
    assert faults_of(program, 4) == []
    engine = FunctionalEngine(program)
    assert engine.source.count("add(") == 1
    for begin in range(2):
        host = Arrays({f"in{x}": np.full(16, begin, np.float32)})
        engine.run(host)
        (found,) = host.outputs.values()
        np.testing.assert_array_equal(found, begin + 6 * np.arange(16, dtype=np.float32))
