"""Compiled programs in a user's hands: proved as they are made, run in both modes, and reported."""

import pickle
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hloipu.api import compile
from hloipu.inputs import flat
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.random_inputs import random_arguments
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import HloipuError, UsageError
from hloipu_runtime.kernels.native.settings import Settings, native_kernels, settings
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.faults import REPORT, ProgramError
from hloipu_runtime.program.mapping import Mapping, Tiles, whole
from hloipu_runtime.program.program import Port, Program
from hloipu_runtime.program.steps import Exchange, Sequence
from hloipu_runtime.simulate.run.host import MODES
from tests.support.program_builder import ProgramBuilder, rows

SAMPLES = Path(__file__).parents[2] / "hlo_samples"
TINY = load_machine("tiny")
A, B = np.arange(6, dtype=np.float32), np.full(6, 2.5, np.float32)


def summed(mapping: Mapping, size: int) -> Program:
    """Return the program of y = a + b, handed out from other tiles than it was computed on."""
    make = ProgramBuilder()
    a = make.stream_in(make.variable((size,), mapping))
    b = make.stream_in(make.variable((size,), mapping))
    y = make.add([a, b], make.variable((size,), mapping))
    one = Mapping(Tiles(first=3), (whole(size),))
    z = make.copy(y, make.variable((size,), one))
    make.stream_out(z)
    ports = tuple(Port(f"in{n}", "f32", (size,)) for n in (a, b))
    results = (Port(f"out{z}", "f32", (size,)),)
    return replace(make.program(), parameters=ports, results=results)


@pytest.fixture
def program() -> CompiledProgram:
    return CompiledProgram(summed(rows(2, 3), 6), TINY)


@pytest.mark.parametrize("mode", MODES)
def test_both_modes_compute_and_cost_the_same(program: CompiledProgram, mode: str) -> None:
    result = program.run(A, B, mode=mode, poison=True)

    np.testing.assert_array_equal(result.outputs[0], A + B)
    assert result.cycles == program.estimate().total_cycles
    assert result.cycles == sum(result.profile.by_bucket.values())
    assert result.profile.mode == mode
    np.testing.assert_array_equal(A, np.arange(6.0))


def test_a_program_can_be_run_again(program: CompiledProgram) -> None:
    for mode in (*MODES, *MODES):
        first, second = (program.run(A, x, mode=mode).outputs[0] for x in (B, 2 * B))
        np.testing.assert_array_equal(first, A + B)
        np.testing.assert_array_equal(second, A + 2 * B)


@pytest.mark.parametrize("sample", ["sort_topk", "mnist_adam_step", "attention"])
def test_a_program_is_pickled_after_runs_too(sample: str) -> None:
    text = (SAMPLES / f"{sample}.hlo").read_text(encoding="utf-8")
    program = compile(text, over_memory="allow")
    before = len(pickle.dumps(program))
    arguments = flat(random_arguments(parse(text), 3))
    wanted = [program.run(*arguments, mode=mode).outputs for mode in MODES]
    assert program.findings() is not None
    assert program.memory.total_bytes
    whole = pickle.dumps(program)
    assert len(whole) < 1.1 * before
    again = pickle.loads(whole)  # noqa: S301 - our own bytes
    assert again == program
    for mode, outputs in zip(MODES, wanted, strict=True):
        for x, y in zip(again.run(*arguments, mode=mode).outputs, outputs, strict=True):
            assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def test_kernels_are_allowed_by_the_run(program: CompiledProgram) -> None:
    allowed: list[bool] = []
    for fast in (False, True, None):
        program.run(A, B, fast=fast, watch=lambda *_: allowed.append(settings().is_on))
        with native_kernels(Settings(is_on=False)):
            program.run(A, B, fast=fast, watch=lambda *_: allowed.append(settings().is_on))
    per_run = len(allowed) // 6
    assert allowed[::per_run] == [False, False, True, True, True, False]


def test_a_program_is_proved_as_it_is_made() -> None:
    good = summed(rows(2, 3), 6)
    steps = list(good.body.steps)
    (number,) = [n for n, step in enumerate(steps) if isinstance(step, Exchange)]
    lost = steps[number]
    assert isinstance(lost, Exchange)
    steps[number] = replace(lost, transfers=())

    with pytest.raises(ProgramError) as caught:
        CompiledProgram(replace(good, body=Sequence(tuple(steps))), TINY)
    assert (caught.value.code, caught.value.exit_code) == ("E4050", 9)
    assert caught.value.message.startswith("internal error of hloipu: program not proved: ")
    assert caught.value.hint == REPORT


def test_a_machine_of_too_few_tiles_does_not_take_it() -> None:
    with pytest.raises(ProgramError, match="lies on tiles"):
        CompiledProgram(summed(rows(2, 3), 6), load_machine("tiny", {"tiles_per_ipu": "2"}))


def test_an_unknown_mode_is_refused(program: CompiledProgram) -> None:
    with pytest.raises(UsageError, match="functional, exact") as caught:
        program.run(A, B, mode="fast")
    assert caught.value.code == "E3140"


@pytest.mark.parametrize("mode", MODES)
def test_what_was_left_out_of_the_text_is_not_computed_with(mode: str) -> None:
    elided = replace(summed(rows(2, 3), 6), elided=("constant.7",))
    compiled = CompiledProgram(elided, TINY)
    with pytest.raises(UsageError, match=r"constant\.7") as caught:
        compiled.run(A, B, mode=mode)
    assert caught.value.code == "E3143"
    assert compiled.estimate().total_cycles is not None


@pytest.mark.parametrize("mode", MODES)
def test_arguments_that_do_not_fit_are_refused(program: CompiledProgram, mode: str) -> None:
    for arguments in ((A,), (A, B[:5]), (A, B.astype(np.float64))):
        with pytest.raises(UsageError):
            program.run(*arguments, mode=mode)


def too_large() -> dict[str, Any]:
    size = TINY.memory.bytes_per_tile
    return {"program": summed(rows(2, size // 2), size), "machine": TINY}


def test_what_does_not_fit_is_not_run_unless_that_is_allowed() -> None:
    refused = CompiledProgram(**too_large())
    ones = np.ones(TINY.memory.bytes_per_tile, np.float32)
    assert not refused.fits
    with pytest.raises(HloipuError) as caught:
        refused.run(ones, ones)
    assert caught.value.exit_code == 5

    allowed = CompiledProgram(**too_large(), over_memory="allow")
    assert not allowed.fits
    assert allowed.run(ones, ones).outputs[0].tolist() == [2.0] * len(ones)


def test_progress_and_values_are_told_as_they_come(program: CompiledProgram) -> None:
    for mode in MODES:
        done: list[int] = []
        seen: dict[int, list[float]] = {}

        def watch(value: int, array: np.ndarray, seen: dict[int, list[float]] = seen) -> None:
            seen[value] = array.tolist()

        program.run(A, B, mode=mode, progress=done.append, watch=watch)
        assert done == sorted(done)
        assert done
        assert (A + B).tolist() in seen.values()


def test_costs_and_memory_are_worked_out_once(program: CompiledProgram) -> None:
    assert program.costs is program.costs
    assert program.memory is program.memory
    assert isinstance(type(program).__dict__["costs"], cached_property)
