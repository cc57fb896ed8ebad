"""The Python face of compiling: programs, files, runs, and what is refused."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu.api import compile_once, compile_verified, key_options
from hloipu.options.resolve import resolve
from hloipu.options.table import OPTIONS, Options
from hloipu_compiler.hlo.parse import parse
from hloipu_runtime.compiled import Mode
from tests.support.tile_texts import DOT, LOOP, TOO_LARGE

ROOT = Path(__file__).resolve().parents[2]
A = np.arange(32, dtype=np.float32).reshape(4, 8)
B = np.arange(16, dtype=np.float32).reshape(8, 2)


def test_compile_estimate_run() -> None:
    exe = hloipu.compile(DOT, target="tiny")
    assert exe.fits
    assert exe.memory.peak_bytes_per_tile == exe.memory.peak.total_bytes
    assert 0 < exe.memory.peak_bytes_per_tile <= exe.memory.available_bytes
    e = exe.estimate()
    parts = (e.compute_cycles, e.exchange_cycles, e.sync_cycles, e.host_cycles, e.idle_cycles)
    assert e.total_cycles == sum(parts)
    assert e.seconds == e.total_cycles / exe.machine.chip.clock_hz
    for mode in ("functional", "exact"):
        a, b = A.copy(), B.copy()
        result = exe.run(a, b, mode=mode)
        np.testing.assert_array_equal(result.outputs[0], A @ B)
        np.testing.assert_array_equal(a, A)
        np.testing.assert_array_equal(b, B)
        assert result.cycles == e.total_cycles
        assert result.profile.mode == mode


def test_save_and_load(tmp_path: Path) -> None:
    exe = hloipu.compile(DOT, target="tiny", set={"tiles_per_ipu": 7}, cache=False)
    exe.save(tmp_path / "m.ipux")
    found = hloipu.load(tmp_path / "m.ipux")
    assert found.profile().record() == exe.profile().record()
    np.testing.assert_array_equal(found.run(A, B, mode="exact").outputs[0], A @ B)
    found.save(tmp_path / "again.ipux")
    assert (tmp_path / "again.ipux").read_bytes() == (tmp_path / "m.ipux").read_bytes()


def test_the_runtime_alone_runs_a_file(tmp_path: Path) -> None:
    hloipu.compile(DOT, target="tiny").save(tmp_path / "m.ipux")
    np.savez(tmp_path / "in.npz", a=A, b=B)
    code = """
import sys, numpy
from hloipu_runtime.compiled import load
given = numpy.load("in.npz")
result = load("m.ipux").run(given["a"], given["b"], mode="exact")
assert (result.outputs[0] == given["a"] @ given["b"]).all()
heavy = {"hloipu", "hloipu_compiler", "lark", "networkx", "click"} & set(sys.modules)
assert not heavy, heavy
print(result.cycles)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "runtime")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == hloipu.compile(DOT, target="tiny").estimate().total_cycles


def test_the_cache_gives_an_equal_program(tmp_path: Path) -> None:
    first, second = (hloipu.compile(DOT, target="tiny", cache_dir=tmp_path) for _ in range(2))
    assert [path.suffix for path in tmp_path.iterdir()] == [".ipux"]
    assert second.profile().record() == first.profile().record()
    allowed = hloipu.compile(DOT, target="tiny", cache_dir=tmp_path, over_memory="allow")
    assert (allowed.over_memory, second.over_memory) == ("allow", "refuse")
    assert len(list(tmp_path.iterdir())) == 1
    # Whether code counts decides whether it fits, and so whether cheap values are made again.
    bare = hloipu.compile(DOT, target="tiny", cache_dir=tmp_path, code_memory=False)
    assert bare.memory.total_bytes < first.memory.total_bytes
    assert len(list(tmp_path.iterdir())) == 2
    other = hloipu.compile(DOT.replace("dot,", "m,"), target="bow", cache_dir=tmp_path)
    assert other.machine.name == "bow"
    assert len(list(tmp_path.iterdir())) == 3


def test_every_option_of_compiling_is_in_the_key() -> None:
    rest = set(OPTIONS) - set(key_options(Options()))
    assert rest == {
        "target", "set", "mode", "over_memory", "assume_trips", "plugin", "cache", "cache_dir",
        "cache_size_bytes", "poison", "seed", "max_iterations", "synthetic_data",
        "time_limit", "fast",
    }  # fmt: skip


def test_a_module_states_its_own_target(tmp_path: Path) -> None:
    head = 'HloModule dot, frontend_attributes={ipu_target="tiny"}\n'
    text = DOT.replace("HloModule dot\n", head)
    assert hloipu.compile(text).machine.name == "tiny"
    assert hloipu.compile(text, target="bow").machine.name == "bow"


def test_trips_may_be_assumed_once_for_all() -> None:
    exe = hloipu.compile(LOOP, target="tiny", assume_trips=3)
    assert exe.estimate().total_cycles == exe.estimate(3).total_cycles
    assert hloipu.compile(LOOP, target="tiny").estimate().total_cycles is None
    result = exe.run(np.float32(8), np.ones(3, np.float32))
    assert result.cycles == exe.estimate().total_cycles
    np.testing.assert_array_equal(result.outputs[0], np.full(3, 8, np.float32))


def test_what_does_not_fit_runs_only_where_that_is_allowed() -> None:
    exe = hloipu.compile(TOO_LARGE, target="tiny")
    assert not exe.fits
    assert exe.estimate().total_cycles is not None
    given = np.ones((1024, 1024), np.float32)
    with pytest.raises(hloipu.DoesNotFit) as caught:
        exe.run(given)
    assert caught.value.code == "E1001"
    assert caught.value.report is exe.memory
    allowed = hloipu.compile(TOO_LARGE, target="tiny", over_memory="allow")
    np.testing.assert_array_equal(allowed.run(given).outputs[0], 2 * given)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"taget": "tiny"}, "E3010"),
        ({"target": 7}, "E3011"),
        ({"poison": True}, "E3014"),
        ({"ipu_ids": (31,)}, "E0554"),
    ],
)
def test_options_are_those_of_the_command_line(options: dict[str, Any], code: str) -> None:
    with pytest.raises(hloipu.HloipuError) as caught:
        hloipu.compile(DOT, **options)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((A,), "E3141"),
        ((A, B, B), "E3141"),
        ((A, B.T), "E3142"),
        ((A, B.astype(np.float64)), "E3142"),
    ],
)
def test_arguments_must_be_the_parameters(arguments: tuple[object, ...], code: str) -> None:
    with pytest.raises(hloipu.HloipuError) as caught:
        hloipu.compile(DOT, target="tiny").run(*arguments)
    assert caught.value.code == code


def test_there_is_no_other_mode() -> None:
    with pytest.raises(hloipu.HloipuError, match="no mode 'fast'") as caught:
        hloipu.compile(DOT, target="tiny").run(A, B, mode="fast")
    assert caught.value.code == "E3140"


@pytest.mark.parametrize("mode", ["functional", "exact"])
def test_values_can_be_watched(mode: str) -> None:
    exe = hloipu.compile(DOT, target="tiny")
    last: dict[str, float] = {}
    names = [value.origin for value in exe.program.values]
    exe.run(A, B, mode=mode, watch=lambda n, x: last.update({names[n]: float(x.sum())}))
    assert last["a"] == A.sum()
    assert last["d"] == (A @ B).sum()


@pytest.mark.parametrize("mode", ["functional", "exact"])
def test_watching_passes_over_buffers_that_hold_a_part(mode: Mode) -> None:
    """A strided slice's tiles take in every fourth row: nobody has the whole value there."""
    text = (
        "HloModule strided\n\nENTRY e {\n  p = f32[400,64] parameter(0)\n"
        "  n = f32[400,64] negate(p)\n"
        "  ROOT s = f32[50,64] slice(n), slice={[0:400:8],[0:64]}\n}\n"
    )
    x = np.arange(400 * 64, dtype=np.float32).reshape(400, 64)
    seen: dict[int, np.ndarray[Any, Any]] = {}
    exe = hloipu.compile(text, target="gc200")
    exe.run(x, mode=mode, watch=lambda value, array: seen.update({value: array.copy()}))
    assert any(np.array_equal(array, -x) for array in seen.values())
    assert any(np.array_equal(array, -x[::8]) for array in seen.values())


PRODUCTS = """HloModule products
ENTRY e {
  a = f16[7424,7424] parameter(0)
  b = f16[7424,7424] parameter(1)
  c = f16[7424,7424] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT d = f16[7424,7424] dot(c, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}"""


def test_what_does_not_fit_is_compiled_with_smaller_plans() -> None:
    """A plan may take less than its share: one of all of a tile leaves no room for code."""
    asked = resolve("compile", {"target": "bow", "available_memory_proportion": 1.0}).options
    module = parse(PRODUCTS)
    assert not compile_once(module, asked).fits
    fitting = compile_verified(module, asked)
    assert fitting.fits
    # Products are planned by what each has room for, which all may share out as evenly.
    shared = compile_once(module, replace(asked, available_memory_proportion=0.5))
    assert shared.fits
    assert fitting.estimate().lower_bound_cycles <= 1.05 * shared.estimate().lower_bound_cycles
