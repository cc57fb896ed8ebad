"""Levelling steps: what is not urgent goes where another tile is slowest; all stays proved."""

from dataclasses import replace
from typing import Any

import pytest

import hloipu
from hloipu_runtime.costs.levelling import _Levelling, levelled
from hloipu_runtime.costs.step_costs import step_charges
from hloipu_runtime.costs.supersteps import Item
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.merging import merged
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.proof.verify import verify
from hloipu_runtime.program.steps import ComputeSet, Exchange, Sequence
from tests.support.program_builder import ProgramBuilder, rows
from tests.support.random_programs import random_program

TINY = load_machine("tiny")
TILES = TINY.chip.tiles_per_ipu
HERE, FAR = rows(2, 2), rows(2, 200, first=2)


def cycles(program: Program) -> int:
    """Return the cycles of all steps, each once."""
    return sum(step.spent.total.cycles for step in step_charges(program, TINY).steps)


def groups(program: Program) -> list[int]:
    """Return how many vertex groups each compute set has."""
    return [len(step.groups) for step in program.body.steps if isinstance(step, ComputeSet)]


def test_a_long_op_that_can_wait_goes_beside_a_long_one() -> None:
    """Merging puts it where it can first go, beside a short one."""
    make = ProgramBuilder()
    short, aside, late = make.variable((4,), HERE), make.variable((400,), FAR), rows(2, 200)
    sums = [make.variable((4,), HERE), make.variable((400,), FAR), make.variable((400,), late)]
    make.stream_in(short)
    make.stream_in(aside)
    make.add([short, short], sums[0])
    make.add([aside, aside], sums[1])
    large = make.stream_in(make.variable((400,), late))
    make.add([large, large], sums[2])
    for variable in sums:
        make.stream_out(variable)
    joined = merged(make.program(), TILES)
    found = levelled(joined, TINY)
    verify(found, TILES)
    assert (groups(joined), groups(found)) == ([2, 1], [1, 2])


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_stay_proved_and_take_no_longer(seed: int) -> None:
    joined = merged(random_program(seed, tiles=TILES, ipus=1 + seed % 2, steps=40), TILES)
    found = levelled(joined, TINY)
    verify(found, TILES)
    assert cycles(found) <= cycles(joined)
    kinds = [
        [type(step) for step in program.body.steps if isinstance(step, ComputeSet | Exchange)]
        for program in (joined, found)
    ]
    assert len(kinds[1]) <= len(kinds[0])


@pytest.mark.parametrize("seed", [0, 4, 8])
def test_steps_take_what_the_verdict_says_after_each_move(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are priced as items come and go, and some prices are kept; the verdict prices anew."""
    joined = merged(random_program(seed, tiles=TILES, ipus=1, steps=40), TILES)
    move, seen = _Levelling._move, []

    def moved(self: _Levelling, item: Item, **named: Any) -> None:
        def spent() -> tuple[int, int]:
            steps = Sequence(tuple(self._written_out()))
            apart = replace(joined, body=steps)
            return sum(x.cycles for x in self.supersteps.places.values()), cycles(apart)

        before, step = spent(), item.step
        move(self, item, **named)
        after = spent()
        assert after[0] - before[0] == after[1] - before[1]
        seen.append(item.step != step)

    monkeypatch.setattr(_Levelling, "_move", moved)
    levelled(joined, TINY)
    assert any(seen)


def test_steps_behind_one_that_is_too_full_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each op of a long chain beside others there are as many steps as the chain is long."""
    calls = {"_move": 0, "_too_full_at": 0}

    def counting(name: str) -> Any:
        method = getattr(_Levelling, name)

        def counted(*given: Any, **named: Any) -> Any:
            calls[name] += 1
            return method(*given, **named)

        return counted

    for name in calls:
        monkeypatch.setattr(_Levelling, name, counting(name))
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    ops, links = ["x0 = f32[16,16] parameter(0)", "w = f32[16,16] parameter(1)"], range(1, 21)
    for n in links:
        ops += (
            f"x{n} = f32[16,16] dot(x{n - 1}, w), {dims}",
            f"t{n} = f32[16,16] transpose(x{n}), dimensions={{1,0}}",
            f"y{n} = f32[16,16] dot(t{n}, x0), {dims}",
        )
    types = ", ".join("f32[16,16]" for _ in links)
    ops.append(f"ROOT r = ({types}) tuple({', '.join(f'y{n}' for n in links)})")
    text = "HloModule chain ENTRY e { " + "\n".join(ops) + " }"
    hloipu.compile(text, target="gc200", cache=False)
    assert calls["_move"] > 200
    assert calls["_too_full_at"] < calls["_move"]
