"""`hloipu eval`: arguments from files and seeds, results printed and stored."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.support.arrays import f32
from tests.support.command_line import run

TEXT = """HloModule m
ENTRY e {
  a.1 = f32[4] parameter(0)
  b = (s32[], bf16[2]) parameter(1)
  c = bf16[2] get-tuple-element(b), index=1
  d = bf16[2] negate(c)
  n = f32[4] negate(a.1)
  s = s32[] get-tuple-element(b), index=0
  ROOT r = (f32[4], s32[], bf16[2]) tuple(n, s, d)
}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "m.hlo"
    path.write_text(TEXT)
    return path


def stored(path: Path) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    with np.load(path) as given:
        return {name: given[name] for name in given.files}


def test_arguments_by_name_or_number_and_results_in_a_file(path: Path, tmp_path: Path) -> None:
    narrow = np.array([1.5, -2], ml_dtypes.bfloat16)
    inputs, output = tmp_path / "in.npz", tmp_path / "out.npz"
    given = {"a.1": f32([1, 2, 3, 4]), "in_1": np.int32(7), "in_2": narrow.view("u2")}
    np.savez(inputs, **given)  # type: ignore[arg-type]
    outcome = run("eval", str(path), "--inputs", str(inputs), "-o", str(output))
    assert outcome.code == 0, outcome
    assert outcome.out == ""
    results = stored(output)
    assert list(results) == ["out_0", "out_1", "out_2"]
    assert results["out_0"].tolist() == [-1, -2, -3, -4]
    assert results["out_1"] == 7
    assert results["out_2"].view(ml_dtypes.bfloat16).tolist() == [-1.5, 2]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_results_are_printed(path: Path) -> None:
    outcome = run("eval", str(path), "--random", "5")
    lines = outcome.out.splitlines()
    assert [line.split(" = ")[0] for line in lines] == ["out_0 f32[4]", "out_1 s32[]", "out_2 bf16[2]"]  # fmt: skip # noqa: E501
    assert outcome.out == run("eval", str(path), "--random", "5").out
    assert outcome.out != run("eval", str(path), "--random", "6").out


def test_standard_input() -> None:
    outcome = run("eval", "-", "--random", "0", stdin=TEXT)
    assert outcome.code == 0
    assert outcome.out.startswith("out_0 f32[4] = [")


def test_a_module_without_parameters_needs_no_arguments() -> None:
    text = "HloModule m\nENTRY e {\n  ROOT i = s32[5] iota(), iota_dimension=0\n}\n"
    assert run("eval", "-", stdin=text).out == "out_0 s32[5] = [0, 1, 2, 3, 4]\n"


def test_watching(path: Path) -> None:
    outcome = run("eval", str(path), "--random", "0", "--watch", "n", "--watch", "%d")
    first, second = outcome.out.splitlines()[:2]
    assert (first.split(" = ")[0], second.split(" = ")[0]) == ("d", "n")
    unknown = run("eval", str(path), "--random", "0", "--watch", "a.2")
    assert unknown.code == 2
    assert "E3113" in unknown.err
    assert "a.1" in unknown.err


def test_stop_on_nan_names_the_first_instruction(tmp_path: Path) -> None:
    path = tmp_path / "nan.hlo"
    path.write_text("""HloModule m
ENTRY e {
  a = f32[2] parameter(0)
  z = f32[2] subtract(a, a)
  bad.3 = f32[2] divide(z, z)
  ROOT r = f32[2] exponential(bad.3)
}
""")
    outcome = run("eval", str(path), "--random", "0", "--stop-on-nan")
    assert outcome.code == 6
    assert "'bad.3' (divide) made a NaN" in outcome.err
    assert run("eval", str(path), "--random", "0").code == 0


def test_elided_constants(tmp_path: Path) -> None:
    path = tmp_path / "elided.hlo"
    path.write_text("HloModule m\nENTRY e {\n  ROOT w.5 = f32[4] constant({...})\n}\n")
    outcome = run("eval", str(path))
    assert outcome.code == 4
    assert "w.5" in outcome.err
    assert "--fill-elided" in outcome.err
    filled = run("eval", str(path), "--fill-elided", "1")
    assert filled.code == 0
    assert filled.out == run("eval", str(path), "--fill-elided", "1").out


@pytest.mark.parametrize(
    ("arrays", "code"),
    [
        ({"a.1": np.ones(4, np.float32)}, "E3107"),
        ({"in_0": np.ones(5, np.float32), "in_1": np.int32(1), "in_2": np.ones(2, "u2")}, "E3102"),
        ({"in_0": np.ones(4), "in_1": np.int32(1), "in_2": np.ones(2, "u2")}, "E3103"),
        ({"in_0": np.array("x"), "in_1": np.int32(1), "in_2": np.ones(2, "u2")}, "E310"),
        ({"in_0": np.ones(4, object), "in_1": np.int32(1), "in_2": np.ones(2, "u2")}, "E3108"),
    ],
)
def test_arguments_that_do_not_fit(
    arrays: dict[str, object], code: str, path: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "in.npz", **arrays)  # type: ignore[arg-type]
    outcome = run("eval", str(path), "--inputs", str(tmp_path / "in.npz"))
    assert outcome.code == 2, outcome
    assert code in outcome.err


def test_two_sources_of_arguments(path: Path) -> None:
    outcome = run("eval", str(path), "--inputs", "x.npz", "--random", "0")
    assert outcome.code == 2
    assert "E3112" in outcome.err


@pytest.mark.parametrize("name", ["nowhere/out.npz", "."])
def test_results_that_cannot_be_written(name: str, path: Path, tmp_path: Path) -> None:
    outcome = run("eval", str(path), "--random", "0", "-o", str(tmp_path / name))
    assert outcome.code == 2
    assert "E3004" in outcome.err


def test_the_seed_of_stateful_ops() -> None:
    text = """HloModule m
ENTRY e {
  l = f32[] constant(0)
  h = f32[] constant(1)
  ROOT r = f32[4] rng(l, h), distribution=rng_uniform
}
"""
    one, same, other = (run("eval", "-", "--seed", s, stdin=text).out for s in "112")
    assert one == same != other


def test_arguments_too_large_are_not_drawn() -> None:
    text = "HloModule m\nENTRY e {\n  a = f32[100000,100000] parameter(0)\n  ROOT r = f32[100000,100000] negate(a)\n}\n"  # noqa: E501
    outcome = run("eval", "-", "--random", "0", stdin=text)
    assert outcome.code == 8
    assert "E501" in outcome.err
