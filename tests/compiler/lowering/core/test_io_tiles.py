"""Tiles set apart for queues: the same values, transfers beside computing, memory charged."""

from typing import Any

import numpy as np
import pytest

from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.costs.step_times import step_times
from hloipu_runtime.errors import UsageError
from hloipu_runtime.machine.transfers import cycles_of_nanoseconds
from hloipu_runtime.program.program import Role
from hloipu_runtime.program_io.text.printer import print_program
from tests.support.program_checker import violations
from tests.support.program_reader.parser import parse_program
from tests.support.sessions import SAMPLES, SCALE, START, SUMS, compiled, rows

REQUEST: dict[str, Any] = {"feeds": {"data": (2,)}, "outfeeds": ("seen",)}
STEP = """
HloModule step, input_output_alias={{ {{0}}: (0, {{}}, may-alias) }}

ENTRY e {{
  w = f32[64,64] parameter(0), metadata={{op_name="w"}}
  x = f32[64,{n}] parameter(1), metadata={{op_name="x"}}
  s = f32[] constant(0.5)
  half = f32[64,64] broadcast(s), dimensions={{}}
  d = f32[64,64] dot(w, half), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT out = (f32[64,64], f32[64,{n}]) tuple(d, x)
}}
"""


def fed(loop: int, io_tiles: int, target: str = "tiny", text: str = SUMS) -> CompiledProgram:
    return compiled(text, target, loop=loop, io_tiles=io_tiles, **REQUEST)


@pytest.mark.parametrize("mode", ["functional", "exact"])
@pytest.mark.parametrize("loop", [1, 3])
def test_values_are_the_same(loop: int, mode: str) -> None:
    data = rows(6)
    with fed(loop, 2).session(
        state=START, constants=SCALE, infeeds={"data": data}, mode=mode, poison=True
    ) as session:
        session.run(6)
        state = session.state()
        seen = np.stack([x.element for x in session.stream("seen").drain()])
    np.testing.assert_array_equal(state["a"], 2 * data.sum(0))
    np.testing.assert_array_equal(seen, 2 * data)


def test_only_buffers_lie_on_tiles_set_apart() -> None:
    program = fed(3, 1).program
    assert violations(program, 4) == []
    for variable in program.variables:
        tiles = variable.mapping.tiles
        last = tiles.first + sum(
            (n - 1) * step for n, step in zip(tiles.extents, tiles.strides, strict=True)
        )
        if variable.role is Role.BUFFER:
            assert tiles.first == last == 3
        else:
            assert last < 3
    text = print_program(program, constants=True)
    assert " buffer @3" in text
    assert print_program(parse_program(text), constants=True) == text


def parts_of(program: CompiledProgram) -> tuple[int, int, int]:
    """Return cycles of a turn's transfers, of what is handed over, and of the rest."""
    transfers = handing = rest = 0
    steps = [
        step
        for step in program.costs.steps
        if "/repeat/" in step.path and "/beside/" not in step.path
    ]
    buffers = {n for n, v in enumerate(program.program.variables) if v.role is Role.BUFFER}
    (loop,) = program.program.body.steps
    body = loop.body.steps  # type: ignore[union-attr]
    spent = {int(step.path.rpartition("/")[2]): step.spent.total.cycles for step in steps}
    for number, step in enumerate(body):
        follower = body[number + 1] if type(step).__name__ == "Sync" else step
        moved = {x.source for x in getattr(follower, "transfers", ())}
        moved |= {x.destination for x in getattr(follower, "transfers", ())}
        if type(follower).__name__ in ("StreamIn", "StreamOut"):
            transfers += spent[number]
        elif moved & buffers:
            handing += spent[number]
        else:
            rest += spent[number]
    return transfers, handing, rest


@pytest.mark.parametrize("columns", [1, 65, 20_000])
def test_a_turn_takes_the_longer_of_transfers_and_computing(columns: int) -> None:
    text = STEP.format(n=columns)
    made = {
        n: compiled(text, "gc200", loop=n, io_tiles=64, feeds={"data": (1,)}, outfeeds=("seen",))
        for n in (1, 2, 10)
    }
    program = made[10]
    transfers, handing, rest = parts_of(program)
    jump = next(x for x in program.costs.steps if x.path == "body/0/turn").spent.total.cycles
    turn = handing + max(transfers, rest) + jump
    call = cycles_of_nanoseconds(program.machine, program.machine.host.round_trip_nanoseconds)
    times = step_times(program.costs)
    assert (times.iteration_cycles, times.transfer_cycles) == (turn, transfers)
    for n, each in made.items():
        assert each.estimate().total_cycles == call + transfers + n * turn
    (row,) = program.profile().by_ipu
    assert row.idle == 0
    assert sum(row[1:]) == program.estimate().total_cycles
    assert (transfers > rest) == (columns > 1)


def test_the_memory_of_buffers_is_charged_there() -> None:
    """A buffer is filled at all times, so the bytes of all of them lie side by side."""
    program = fed(3, 1)
    buffers = [v for v in program.program.variables if v.role is Role.BUFFER]
    assert sum(v.bytes_per_tile for v in buffers) == 2 * 6 * 4
    assert program.memory.to_json()["parts"]["parameters"] == 2 * 6 * 4


def test_a_real_step_is_faster_by_its_transfers() -> None:
    text = (SAMPLES / "mnist_train_step.hlo").read_text()
    request: dict[str, Any] = {"feeds": {"data": (4, 5)}, "outfeeds": ("loss",)}
    with_io, without = (compiled(text, "gc200", loop=10, io_tiles=n, **request) for n in (32, 0))
    turn, transfers = step_times(with_io.costs).iteration_cycles, step_times(with_io.costs)[-1]
    before = step_times(without.costs).iteration_cycles
    assert before - transfers < turn < before


@pytest.mark.parametrize(
    ("request_", "code"),
    [({"io_tiles": 4, "loop": 2, **REQUEST}, "E2044"), ({"io_tiles": 1, **REQUEST}, "E2045")],
)
def test_what_cannot_be_set_apart(request_: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        compiled(SUMS, **request_)
    assert caught.value.code == code
