"""Programs as text: readable, the same each time, and nothing is written over that is needed."""

import re

import numpy as np
import pytest

from hloipu_runtime.kernels.native.settings import Settings, native_kernels
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.program.steps import Carried, Repeat, Sequence
from hloipu_runtime.simulate.functional.functional import FunctionalEngine
from hloipu_runtime.simulate.run.host import Arrays, Counts
from tests.support.arrays import Array
from tests.support.program_builder import ProgramBuilder, rows
from tests.support.program_reader.parser import parse_program

SIZES = [8, 1 << 12, 1 << 15]
"""Without buffers; with; and large enough to be written over operands."""


def ramp(size: int) -> Array:
    return np.arange(size, dtype=np.float32)


def chain(size: int) -> Program:
    """Double a vector three times; the second value is read again at the end."""
    make = ProgramBuilder()
    part = rows(2, size // 2)
    x = make.stream_in(make.variable((size,), part))
    a = make.add([x, x], make.variable((size,), part))
    b = make.add([a, a], make.variable((size,), part))
    c = make.add([b, b], make.variable((size,), part))
    d = make.add([c, b], make.variable((size,), part))
    make.stream_out(d)
    return make.program()


@pytest.mark.parametrize("size", SIZES)
def test_values_are_kept_as_long_as_they_are_read(size: int) -> None:
    engine = FunctionalEngine(chain(size))
    given = ramp(size)
    for factor in (1, -3):
        host = Arrays({"in0": given * factor})
        engine.run(host)
        (found,) = host.outputs.values()
        np.testing.assert_array_equal(found, 12 * factor * ramp(size))
    np.testing.assert_array_equal(given, ramp(size))


def test_what_a_run_gave_away_is_not_changed_by_the_next() -> None:
    engine = FunctionalEngine(chain(1 << 12))
    hosts = [Arrays({"in0": ramp(1 << 12) * factor}) for factor in (1, 2)]
    for host in hosts:
        engine.run(host)
    for host, factor in zip(hosts, (1, 2), strict=True):
        (found,) = host.outputs.values()
        np.testing.assert_array_equal(found, 12 * factor * ramp(1 << 12))


def test_the_text_is_the_same_each_time_and_holds_no_names_of_the_users() -> None:
    program = chain(1 << 12)
    text = FunctionalEngine(program).source
    assert text == FunctionalEngine(program).source
    assert "def block0(v, host, counts, watch):" in text
    assert len(re.findall(r"v\[\d+\] = add\(", text)) == 4
    assert "in0" not in text
    assert "body" not in text


def test_private_values_take_turns_in_few_buffers() -> None:
    text = FunctionalEngine(chain(1 << 12)).source
    assert len(set(re.findall(r"out=(b\d+)", text))) <= 3
    assert FunctionalEngine(chain(1 << 12))._buffers.bytes == 2 * 4 << 12


@pytest.mark.parametrize("size", SIZES)
def test_a_watch_sees_each_value_while_it_is_there(size: int) -> None:
    seen: list[Array] = []
    engine = FunctionalEngine(chain(size))
    counts = Counts()
    engine.run(Arrays({"in0": ramp(size)}), counts, lambda value, array: seen.append(array.copy()))
    factors = [1, 2, 4, 8, 12]
    assert counts.done == 6
    for found, factor in zip(seen, factors, strict=True):
        np.testing.assert_array_equal(found, factor * ramp(size))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("turns", [0, 1, 5])
def test_carried_values_change_places(size: int, turns: int) -> None:
    """Fibonacci's numbers: each turn hands the sum on and the old sum to the other variable."""
    make = ProgramBuilder()
    part = rows(2, size // 2)
    x = make.stream_in(make.variable((size,), part))
    y = make.stream_in(make.variable((size,), part))
    first = {v: make.held[v] for v in (x, y)}
    turn = {}
    for v in (x, y):
        turn[v] = make.held[v] = make.value_like(v)
    with make.block() as body:
        old = make.copy(y, make.variable((size,), part))
        make.add([x, y], y)
        make.copy(old, x)
    items = []
    for v in (x, y):
        following = make.held[v]
        final = make.held[v] = make.value_like(v)
        items.append(Carried(v, first[v], turn[v], following, final))
    make.emit(Repeat(turns, Sequence(tuple(body)), tuple(items)))
    make.stream_out(x)
    make.stream_out(y)
    engine = FunctionalEngine(make.program())
    for _ in range(2):
        host = Arrays({"in0": ramp(size), "in1": -2 * ramp(size)})
        counts = engine.run(host)
        a, b = 1, -2
        for _ in range(turns):
            a, b = b, a + b
        np.testing.assert_array_equal(host.outputs["out0"], a * ramp(size))
        np.testing.assert_array_equal(host.outputs["out1"], b * ramp(size))
        assert sum(counts.runs[x] for x in counts.runs if x.endswith("/repeat")) == turns
    turns_of = rf"for _ in \w+\(v, counts, counts\.iterations\(\w+, \w+, {turns}\)\):"
    assert re.search(turns_of, engine.source)


def steps_of_several_ops(size: int) -> str:
    """Return a program of two expressions, the second of which has two results."""
    part = f"@0[2 x 1] (a0*{size // 2}:{size // 2})"
    first = (
        "elementwise(expression={(f32, f32); 2 = f32 multiply(0, 1); 3 = f32 tanh(2); "
        "4 = f32 add(3, 0); 5 = f32 multiply(4, 3); 6 = f32 subtract(5, 2); return (6)}, "
        "labels=[[0], [0]], rank=1)"
    )
    second = (
        "elementwise(expression={(f32, f32, f32); 3 = f32 add(0, 1); 4 = f32 multiply(3, 3); "
        "5 = f32 maximum(4, 2); 6 = f32 negate(4); return (5, 6)}, "
        "labels=[[0], [0], [0]], rank=1)"
    )
    span = f"(a0*{size // 2}:{size // 2})"
    variables = "\n".join(
        f'  v{n} "v{n}": f32[{size}] {"parameter " * (n < 2)}{part}' for n in range(6)
    )
    values = "\n".join(f'  %{n}: f32[{size}] "v{n}"' for n in range(6))
    inputs = [f"v{n} = %{n} {span}" for n in range(6)]
    return f"""\
program "several" for "tiny" ipus 1
parameters {{
  "a": f32[{size}]
  "b": f32[{size}]
}}
results {{
  "c": f32[{size}]
  "d": f32[{size}]
}}
variables {{
{variables}
}}
values {{
{values}
}}
constants {{
}}
body {{
  sync 1
  in "a" -> v0 = %0
  in "b" -> v1 = %1
  compute {{
    ({inputs[2]}) <- {first} "x" @0[2 x 1] <- ({inputs[0]}, {inputs[1]})
  }}
  compute {{
    ({inputs[3]}, {inputs[4]}) <- {second} "y" @0[2 x 1] <- ({inputs[2]}, {inputs[1]}, {inputs[0]})
  }}
  compute {{
    ({inputs[5]}) <- {first} "z" @0[2 x 1] <- ({inputs[3]}, {inputs[4]})
  }}
  sync 1
  out "c" <- v5 = %5
  out "d" <- v4 = %4
}}
"""


@pytest.mark.parametrize(("size", "pieces"), [(8, 0), (1 << 12, 4), (1 << 15, 0)])
def test_values_between_several_ops_take_turns(size: int, pieces: int) -> None:
    """Four pieces of memory do for all values of a middling size."""
    program = parse_program(steps_of_several_ops(size))
    assert faults_of(program, 4) == []
    with native_kernels(Settings(is_on=False)):  # kernels have nothing between ops
        engine = FunctionalEngine(program)
    assert engine._buffers.bytes == pieces * 4 * size
    a, b = np.linspace(-1, 1, size, dtype=np.float32), ramp(size) / size
    host = Arrays({"a": a, "b": b})
    engine.run(host)

    def first(x: Array, y: Array) -> Array:
        found: Array = (np.tanh(x * y) + x) * np.tanh(x * y) - x * y
        return found

    square = (first(a, b) + b) ** 2
    wanted = first(np.maximum(square, a), -square)
    np.testing.assert_allclose(host.outputs["c"], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(host.outputs["d"], -square, rtol=1e-5, atol=1e-6)
