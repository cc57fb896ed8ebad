"""What makes a program fit: every change is what compiling with it gives."""

from dataclasses import replace
from itertools import count
from typing import Any, Literal

import numpy as np
import pytest

import hloipu
from hloipu.advice.fitting import _more_ipus, what_fits
from hloipu.advice.trials import Limit, flags
from hloipu.api import _UNNOTICED_SECONDS, compile_once
from hloipu.options.table import Options
from hloipu_compiler.hlo.parse import parse
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.report.change import Change, Fitting
from tests.support.command_line import run
from tests.support.training_steps import STEPS

ROWS = """HloModule rows

ENTRY e {
  x = f32[128,256]{1,0} parameter(0)
  y = f32[128,256]{1,0} exponential(x)
  s = f32[128,256]{1,0} reverse(y), dimensions={0}
  t = f32[128,256]{1,0} reverse(s), dimensions={1}
  u = f32[128,512]{1,0} concatenate(s, t), dimensions={1}
  v = f32[128,256]{1,0} slice(u), slice={[0:128], [128:384]}
  w = f32[128,256]{1,0} multiply(v, y)
  ROOT r = f32[128,256]{1,0} add(w, x)
}
"""
"""A batch of 128 rows: 32 KiB of each of the four tiles of `tiny` for an array of f32."""

SQUARE = """HloModule square

ENTRY e {
  a = f32[2048,2048]{1,0} parameter(0)
  t = f32[2048,2048]{0,1} transpose(a), dimensions={1,0}
  ROOT r = f32[2048,2048]{1,0} add(a, t)
}
"""
"""Both dimensions are one, which is no batch: nothing can be made smaller."""

OPTIONS = Options(target="tiny", cache=False, recompute="none")


def fitting_of(text: str, options: Options = OPTIONS, limit: Limit = Limit()) -> Fitting:  # noqa: B008
    module = parse(text)
    program = compile_once(module, options)
    assert not program.fits
    return what_fits(module, options, program, compile_once, limit)


def test_two_changes_are_found_and_are_what_compiling_gives() -> None:
    found = fitting_of(ROWS)
    assert len(found.found) == 2
    module = parse(ROWS)
    for change in found.found:
        program = compile_once(module, replace(OPTIONS, **change.settings))
        assert program.fits
        assert change.fits
        assert program.memory.peak.total_bytes == change.peak_bytes <= change.available_bytes
        assert change.cycles % program.estimate().lower_bound_cycles == 0
        assert change.cycles_before == compile_once(module, OPTIONS).estimate().total_cycles
    assert not any(change.fits for change in found.failed)


def test_a_smaller_batch_counts_all_its_parts() -> None:
    found = fitting_of(ROWS, replace(OPTIONS, recompute="auto"))
    batch = next(x for x in (*found.found, *found.failed) if x.text.startswith("make the batch"))
    parts = int(batch.text.removeprefix("make the batch of the model ").split()[0])
    program = compile_once(parse(ROWS), replace(OPTIONS, **batch.settings))
    assert batch.cycles == parts * program.estimate().lower_bound_cycles
    assert batch.kind == "edit"


def test_what_cannot_fit_says_how_much_is_missing() -> None:
    found = fitting_of(SQUARE)
    assert found.found == ()
    program = compile_once(parse(SQUARE), OPTIONS)
    assert found.needed_bytes == program.memory.total_bytes
    assert found.capacity_bytes == 4 * program.memory.available_bytes
    tried, line = found.lines()
    assert tried == "more IPUs alone are not enough: tried --ipus=256, --shards=256"
    assert f"{found.needed_bytes:,} bytes of {found.capacity_bytes:,}" in line


def test_no_more_is_tried_than_allowed() -> None:
    found = fitting_of(ROWS, limit=Limit(trials=1))
    assert len(found.found) + len(found.failed) <= 1
    assert not found.is_complete
    assert fitting_of(ROWS, limit=Limit(seconds=-1.0)).failed == ()


def test_a_trial_is_given_up_when_time_is_up() -> None:
    ticks = count()
    none = fitting_of(ROWS, limit=Limit(seconds=5, clock=lambda: float(next(ticks))))
    assert not none.is_complete
    assert none.found == none.failed == ()
    assert "in the time for that (hloipu advise takes more time to look)" in none.lines()[-1]
    ticks = count()
    whole = fitting_of(ROWS, limit=Limit(seconds=10**9, clock=lambda: float(next(ticks))))
    assert whole == fitting_of(ROWS)


@pytest.mark.parametrize("seconds", [0.5, 40.0])
def test_advice_takes_no_longer_than_compiling_did(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[Limit] = []

    def asked(*given: Any) -> Fitting:
        limits.append(given[-1])
        return Fitting((), (), 0, 0, is_complete=False)

    monkeypatch.setattr("hloipu.advice.fitting.what_fits", asked)
    times = iter([100.0, 100.0 + seconds])
    monkeypatch.setattr("hloipu.api.perf_counter", lambda: next(times))
    program = hloipu.compile(ROWS, target="tiny", cache=False, recompute="none")
    assert program.fitting is not None
    assert [limit.seconds for limit in limits] == [max(seconds, _UNNOTICED_SECONDS)]


def test_flags_are_spelt_as_the_command_line_reads_them() -> None:
    assert flags({"available_memory_proportion": 0.3, "recompute": "cheap"}) == (
        "--available-memory-proportion=0.3 --recompute=cheap"
    )
    assert flags({"code_memory": False}) == "--no-code-memory"
    assert flags({"set": (("bytes_per_tile", "8"),)}) == "--set bytes_per_tile=8"


def test_the_command_line_the_error_and_the_api_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hloipu.api._UNNOTICED_SECONDS", 1e9)  # whatever the machine's load is
    outcome = run("compile", "-", "--target", "tiny", "--no-cache", stdin=ROWS)
    if outcome.code == 0:  # recomputation alone may do by default
        outcome = run(
            "compile", "-", "--target", "tiny", "--no-cache", "--recompute=none", stdin=ROWS
        )
    assert outcome.code == 5
    assert "would fit if you make the batch of the model 4 times smaller" in outcome.out
    assert "hint: more IPUs alone are not enough: tried --ipus=16" in outcome.err
    program = hloipu.compile(ROWS, target="tiny", cache=False, recompute="none")
    assert program.fitting is not None
    assert program.fitting.found
    with pytest.raises(hloipu.DoesNotFit) as caught:
        program.run(np.zeros((128, 256), np.float32))
    assert "would fit if you " in caught.value.hint


def test_what_fits_is_asked_nothing() -> None:
    text = ROWS.replace("128", "16").replace("[16:384]", "[128:384]")
    assert hloipu.compile(text, target="tiny", cache=False).fitting is None


def test_recomputing_is_what_auto_does_where_that_is_enough() -> None:
    def compiled(recompute: Literal["none", "cheap", "auto"], size: int) -> CompiledProgram:
        return hloipu.compile(
            ROWS, target="tiny", cache=False, recompute=recompute, over_memory="allow",
            set={"bytes_per_tile": size, "executable_bytes": size},
        )  # fmt: skip

    cheap, none = (
        max(int(x.needed_bytes.max()) for x in program.memory_plan.ipus)
        for program in (compiled("cheap", 1 << 18), compiled("none", 1 << 18))
    )
    assert cheap < none
    between = (cheap + none) // 2 // 64 * 64
    assert not compiled("none", between).fits
    auto, asked = compiled("auto", between), compiled("cheap", between)
    assert auto.fits
    assert asked.fits
    assert auto.program == asked.program


def test_lines_of_what_failed_for_code_alone_name_the_code() -> None:
    change = Change("flag", "--x", {}, False, 10, 20, 9, 8, 110, 100, 60, 50)
    assert change.line() == (
        "--x: 10 of 20 bytes, 9 of 8 bytes for code, device 60 cycles (+20.0 %), "
        "with its host 110 cycles (+10.0 %)"
    )


@pytest.mark.large
def test_steps_that_are_cut_may_keep_more_in_remote_buffers() -> None:
    step = STEPS["transformer_adam"]
    first = step.state_count
    options = replace(
        OPTIONS, stages=3, micro_batches=8, feed=(("data", (first, first + 1)),), offload="on",
        recompute="cheap", over_memory="allow", code_memory=False, hoist="all",
    )  # fmt: skip
    peaks = [
        compile_once(parse(step.text), replace(options, offload_activations=away)).memory
        for away in (False, True)
    ]
    most, least = (memory.peak_bytes_per_tile for memory in peaks)
    room = (least + most) // 2 & ~7
    sizes = (("memory.bytes_per_tile", str(room)), ("memory.executable_bytes", str(room // 2)))
    small = replace(options, set=sizes)
    found = fitting_of(step.text, small, Limit(trials=3))
    change = next(x for x in found.found if "offload_activations" in x.settings)
    assert change.text.startswith("--offload-activations")
    assert change.peak_bytes <= room < most
    bare = replace(small, offload="off", set=(*sizes, ("remote.remote_bytes", "0")))
    without = fitting_of(step.text, bare, Limit(trials=3))
    assert not any("offload_activations" in x.settings for x in (*without.found, *without.failed))


def test_steps_whose_cuts_are_given_are_not_cut_into_more_stages() -> None:
    program = compile_once(parse(ROWS), OPTIONS)
    assert _more_ipus(replace(OPTIONS, stages=2), program)
    assert not _more_ipus(replace(OPTIONS, cut_at=(4,)), program)


def test_edits_of_cut_steps_are_measured_as_such() -> None:
    step = STEPS["mlp_sgd"]
    first = step.state_count
    given: dict[str, Any] = {
        "target": "tiny", "over_memory": "allow", "cache": False, "loop": 1, "stages": 2,
        "micro_batches": 2, "feed": {"data": (first, first + 1)},
    }  # fmt: skip
    whole = hloipu.compile(step.text, **given).program
    half = hloipu.compile(step.text, passes="narrow-floats,default", **given).program
    assert {whole.variables[port.variable].element_type for port in whole.state} == {"f32"}
    assert {half.variables[port.variable].element_type for port in half.state} == {"f16"}
