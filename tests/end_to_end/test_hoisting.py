"""Copies before loops and in them: the same values, less memory, and no more than there is."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_compiler.compilation import CompileRequest, Phase
from hloipu_compiler.driver import compile_module
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.lowering.hoisting.room import Hoister, Hoisting
from hloipu_compiler.plan.wrapping import WrappingRequest
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.plan import plan_memory
from hloipu_runtime.program.merging import merged
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Exchange, Repeat, Step, inner_steps
from hloipu_runtime.program.uses import steps_within
from tests.support.memory_checker import check_memory
from tests.support.pipeline_trials import Cut, assert_equal_to_jax
from tests.support.pipeline_trials import compiled as compiled_cut
from tests.support.program_checker import violations

_DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
_INNER = "(s32[], f32[128,48], f32[48,48])"
_OUTER = "(s32[], f32[128,48], f32[48,48], f32[48,48])"
NESTED = f"""
HloModule nested

inner_body {{
  p = {_INNER} parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[128,48] get-tuple-element(p), index=1
  v = f32[48,48] get-tuple-element(p), index=2
  y = f32[128,48] dot(x, v), {_DOT}
  t = f32[128,48] tanh(y)
  one = s32[] constant(1)
  n = s32[] add(i, one)
  ROOT r = {_INNER} tuple(n, t, v)
}}

inner_condition {{
  p = {_INNER} parameter(0)
  i = s32[] get-tuple-element(p), index=0
  c = s32[] constant(3)
  ROOT r = pred[] compare(i, c), direction=LT
}}

body {{
  p = {_OUTER} parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[128,48] get-tuple-element(p), index=1
  w = f32[48,48] get-tuple-element(p), index=2
  v = f32[48,48] get-tuple-element(p), index=3
  y = f32[128,48] dot(x, w), {_DOT}
  t = f32[128,48] tanh(y)
  zero = s32[] constant(0)
  q = {_INNER} tuple(zero, t, v)
  l = {_INNER} while(q), condition=inner_condition, body=inner_body
  z = f32[128,48] get-tuple-element(l), index=1
  one = s32[] constant(1)
  n = s32[] add(i, one)
  ROOT r = {_OUTER} tuple(n, z, w, v)
}}

condition {{
  p = {_OUTER} parameter(0)
  i = s32[] get-tuple-element(p), index=0
  c = s32[] constant(2)
  ROOT r = pred[] compare(i, c), direction=LT
}}

ENTRY e {{
  x = f32[128,48] parameter(0)
  w = f32[48,48] parameter(1)
  v = f32[48,48] parameter(2)
  zero = s32[] constant(0)
  q = {_OUTER} tuple(zero, x, w, v)
  l = {_OUTER} while(q), condition=condition, body=body
  ROOT r = f32[128,48] get-tuple-element(l), index=1
}}
"""
"""Two weights that loops do not change: `w` is read in the outer one, `v` in the inner one."""
FED = f"""
HloModule fed

ENTRY e {{
  x = f32[128,48] parameter(0)
  a = f32[48,48] parameter(1)
  b = f32[48,48] parameter(2)
  c = f32[48,48] parameter(3)
  y = f32[128,48] dot(x, a), {_DOT}
  s = f32[128,48] tanh(y)
  z = f32[128,48] dot(s, b), {_DOT}
  t = f32[128,48] tanh(z)
  u = f32[128,48] dot(t, b), {_DOT}
  v = f32[128,48] tanh(u)
  w = f32[128,48] dot(v, c), {_DOT}
  ROOT r = (f32[128,48]) tuple(w)
}}
"""
"""Three constants, of which `b` is read by two products."""
_FEEDING = WrappingRequest(
    loop=3, roles=dict.fromkeys("abc", "const"), feeds={"data": (0,)}, outfeeds=("out",)
)
_TEXTS = {"nested": (NESTED, WrappingRequest()), "fed": (FED, _FEEDING)}
_MACHINE = load_machine("tiny", {})


def _smaller(machine: Machine, bytes_per_tile: int) -> Machine:
    return replace(machine, memory=replace(machine.memory, bytes_per_tile=bytes_per_tile))


def _hoister(name: str, bytes_per_tile: int = 0) -> Hoister:
    """Return what makes the copies of a text, planned for all of `tiny`, in less memory perhaps."""
    text, wrapping = _TEXTS[name]
    request = CompileRequest(_MACHINE, wrapping=wrapping)
    lowered = compile_module(parse(text), request, until=Phase.LOWERED).program
    machine = _smaller(_MACHINE, bytes_per_tile or _MACHINE.memory.bytes_per_tile)
    tiles = machine.chip.tiles_per_ipu
    return Hoister(
        lowered,
        machine,
        machine,
        lambda program, alone: merged(program, tiles, alone),
        lambda program, _: plan_memory(program, machine),
    )


def _needed_bytes(hoisting: Hoisting) -> int:
    """Return the bytes of the fullest tile; the plan is checked moment by moment."""
    check_memory(hoisting.program, _MACHINE)
    plan = CompiledProgram(hoisting.program, _MACHINE).memory_plan
    return max(int(ipu.needed_bytes.max()) for ipu in plan.ipus)


def _arrays(count: int) -> list[Any]:
    draw = np.random.default_rng(count)
    return [draw.standard_normal(s).astype(np.float32) / 4 for s in [(128, 48), *[(48, 48)] * 3]]


def _values(name: str, hoisting: Hoisting, mode: str) -> list[Any]:
    """Return what a program computes of some arrays."""
    program = CompiledProgram(hoisting.program, _MACHINE, over_memory="allow")
    if name == "nested":
        return program.run(*_arrays(1)[:3], mode=mode).outputs
    x, a, b, c = _arrays(1)
    given = {"data": iter([x, 2 * x, -x])}
    with program.session(constants={1: a, 2: b, 3: c}, infeeds=given, mode=mode) as session:
        session.run(3)
        return [np.asarray(y.element) for y in session.stream("out").drain()]


def _wanted(name: str) -> list[Any]:
    x, a, b, c = (each.astype(np.float64) for each in _arrays(1))
    if name == "nested":
        for _ in range(2):
            x = np.tanh(x @ a)
            for _ in range(3):
                x = np.tanh(x @ b)
        return [x]
    return [np.tanh(np.tanh(np.tanh(y @ a) @ b) @ b) @ c for y in (x, 2 * x, -x)]


def _choices(hoister: Hoister) -> Iterator[set[tuple[int, int]]]:
    """Yield every choice of loops that copies are kept for; inner loops come first."""
    of_copy = []
    for copy in hoister.copies:
        loops = hoister.loops_of(copy)
        ends = range(len(loops) + 1)
        of_copy.append([{(copy.variable, loop) for loop in loops[:n]} for n in ends])
    for chosen in product(*of_copy):
        yield set().union(*chosen)


@pytest.mark.parametrize("name", _TEXTS)
def test_every_choice_of_copies_computes_the_same(name: str) -> None:
    hoister = _hoister(name)
    wanted = _wanted(name)
    choices = list(_choices(hoister))
    assert len(choices) >= 6
    for kept in choices:
        hoisting = hoister.with_kept(kept)
        assert not violations(hoisting.program, _MACHINE.chip.tiles_per_ipu)
        values = [_values(name, hoisting, mode) for mode in ("functional", "exact")]
        for functional, exact, right in zip(*values, wanted, strict=True):
            np.testing.assert_array_equal(functional, exact)
            np.testing.assert_allclose(functional, right, 1e-4, 1e-5)


def test_a_copy_does_not_count_twice_where_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    least = _needed_bytes(_hoister("nested").none())
    told_apart = _hoister("nested", least).within_room()
    # The fullest moment is the one at which an op reads `v`.
    assert _needed_bytes(told_apart) == least
    assert len(told_apart.kept) == 1
    monkeypatch.setattr("hloipu_compiler.lowering.hoisting.room._MOST_MOMENTS", 1)
    assert not _hoister("nested", least).within_room().kept


def _times_made(step: Step, variable: int, times: int = 1) -> int:
    """Return how often exchanges in a step write a variable."""
    if isinstance(step, Exchange):
        return times * sum(x.variable == variable for x in step.definitions)
    if isinstance(step, Repeat):
        times *= step.count
    return sum(_times_made(x, variable, times) for x in inner_steps(step))


@pytest.mark.parametrize(
    ("name", "readings"),
    [("nested", {"w": [2, 1], "v": [6, 2, 1]}), ("fed", {"a": [3, 0], "b": [6, 0], "c": [3, 0]})],
)
def test_copies_are_made_as_often_as_the_loops_that_they_are_not_kept_for(
    name: str, readings: dict[str, list[int]]
) -> None:
    hoister = _hoister(name)
    assert len(hoister.copies) == len(readings)
    for copy, counts in zip(hoister.copies, readings.values(), strict=True):
        loops = hoister.loops_of(copy)
        for n, count in enumerate(counts):
            kept = {(copy.variable, loop) for loop in loops[: n if count else None]}
            program = hoister.with_kept(kept).program
            assert _times_made(program.body, copy.variable) == count


@pytest.mark.parametrize("name", _TEXTS)
def test_copies_are_kept_as_far_as_memory_allows(name: str) -> None:
    most, least = (_needed_bytes(each) for each in (_hoister(name).all(), _hoister(name).none()))
    assert least < most
    hoister = _hoister(name)
    assert hoister.within_room().program == hoister.all().program
    needed, cycles, counts = [], [], []
    for room in np.linspace(least, most, 7, dtype=int):
        hoister = _hoister(name, int(room) + _MACHINE.memory.prefetch_slack_bytes)
        hoisting = hoister.within_room()
        needed.append(_needed_bytes(hoisting))
        assert needed[-1] <= room
        estimate = CompiledProgram(hoisting.program, _MACHINE).estimate(assume_trips=1)
        cycles.append(estimate.lower_bound_cycles)
        counts.append(sum(x.is_hoisted for x in hoister.records(hoisting)))
    assert counts[-1] == len(_hoister(name).copies)
    assert any(0 < count < counts[-1] for count in counts)
    assert cycles == sorted(cycles, reverse=True)
    assert cycles[-1] < cycles[0]


@pytest.mark.parametrize(
    "cut",
    [
        # A weight that two positions read alike: each has a copy of its own.
        Cut("residual_adam", 2, "grouped", 3),
        Cut("mlp_adam", 1, "grouped", 4),
    ],
    ids=str,
)
@pytest.mark.thinned(2)
def test_steps_of_micro_batches_train_with_copies_in_the_loop(cut: Cut) -> None:
    program = compiled_cut(cut, hoist="none")
    assert program.program != compiled_cut(cut, hoist="all").program
    assert_equal_to_jax(cut, program, mode="exact")


def test_a_copy_that_is_gathered_first_is_gathered_in_the_loop_too() -> None:
    text = NESTED.replace("128,48", "8192,128").replace("48,48", "128,128")
    programs = [hloipu.compile(text, cache=False, hoist=x).program for x in ("all", "none")]
    before, inside = (
        sum(isinstance(x, Exchange) for x in steps_within(_loop_of(x).body, x)) for x in programs
    )
    assert inside - before == 2 * len("wv")


def _loop_of(program: Program) -> Repeat:
    return next(x for x in program.body.steps if isinstance(x, Repeat))


def test_what_was_decided_is_said_of_every_copy() -> None:
    from hloipu.api import planned
    from hloipu.options.resolve import resolve
    from hloipu_compiler.planners.planned import plans_record

    for hoist in ("all", "none"):
        options = resolve("compile", {"target": "tiny", "hoist": hoist}, attributes={}).options
        copies = plans_record(planned(parse(NESTED), options))["copies"]
        assert [(x["value"], x["readings"]) for x in copies] == [("w", 2), ("v", 6)]
        assert {x["is_hoisted"] for x in copies} == {hoist == "all"}
    profile = hloipu.compile(NESTED, target="tiny", cache=False, hoist="none").profile()
    assert profile.options["hoisting"] == {
        "copies": 2, "hoisted": 0, "bytes_per_tile": 2 * 48 * 48 * 4, "hoisted_bytes_per_tile": 0,
    }  # fmt: skip
    assert "hoisting" not in hloipu.compile(NESTED, target="tiny", cache=False).profile().options


def test_a_memory_plan_that_is_handed_on_is_that_of_the_program() -> None:
    program = hloipu.compile(NESTED, target="tiny", cache=False)
    assert program.known_memory is not None
    fresh = replace(program, known_memory=None, is_proved=True)
    assert program.memory_plan.addresses == fresh.memory_plan.addresses
    assert program.memory == fresh.memory
