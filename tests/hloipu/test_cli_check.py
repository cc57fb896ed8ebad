"""`hloipu check`: agreement, disagreement, and the first op that is to blame."""

from pathlib import Path

import numpy as np
import pytest

from hloipu_compiler.interpret.budgets import budget_of
from hloipu_runtime.kernels.elementwise import unary
from tests.support.arrays import Array
from tests.support.command_line import Outcome, run
from tests.support.xla_oracle import available

pytestmark = pytest.mark.usefixtures("checks_share_xla")
SAMPLES = Path(__file__).resolve().parents[2] / "hlo_samples"

TEXT = """HloModule m
inner {
  x = f32[64] parameter(0)
  n = f32[64] negate(x)
  t.9 = f32[64] tanh(n), metadata={op_name="jit(f)/tanh" source_file="model.py" source_line=7}
  ROOT r = f32[64] multiply(t.9, t.9)
}
ENTRY e {
  a = f32[64] parameter(0)
  k = s32[64] parameter(1)
  e1 = f32[64] exponential(a)
  c = f32[64] call(e1), to_apply=inner
  s = f32[64] add(c, a)
  j = s32[64] add(k, k)
  ROOT r = (f32[64], s32[64]) tuple(s, j)
}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "m.hlo"
    path.write_text(TEXT)
    return path


def off_in_f32(x: Array, out: Array) -> None:
    """A tanh that is wrong by a thousandth, in f32 alone."""
    np.tanh(x, out)
    if x.dtype == np.float32:
        out += np.float32(1e-3)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(unary.REAL_KERNELS, "tanh", off_in_f32)


REFERENCES = [
    "evaluator-f64",
    pytest.param("xla-cpu", marks=pytest.mark.skipif(not available(), reason="no jaxlib")),
]


@pytest.mark.parametrize("against", REFERENCES)
def test_agreement(against: str, path: Path) -> None:
    outcome = run("check", str(path), "--against", against)
    assert outcome.code == 0, outcome
    lines = outcome.out.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["ok", "out_0", "f32[64]:"],
        ["ok", "out_1", "s32[64]:"],
    ]
    assert "all 64 elements are equal" in lines[1]
    assert f"agrees with {against}" in outcome.err


@pytest.mark.parametrize("against", REFERENCES)
def test_several_draws_and_every_op_alone(against: str, path: Path) -> None:
    outcome = run("check", str(path), "--against", against, "--iterations", "3", "--isolate")
    assert outcome.code == 0, outcome
    assert len(outcome.out.splitlines()) == 6


TWO_CALLS = """HloModule m
inner {
  x = bf16[64] parameter(0)
  ROOT t = bf16[64] tanh(x)
}
ENTRY e {
  a = bf16[64] parameter(0)
  b = bf16[64] call(a), to_apply=inner
  c = bf16[64] call(b), to_apply=inner
  ROOT r = bf16[64] negate(c)
}
"""


def test_ops_judged_side_by_side_are_judged_by_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three hundredths are 64 roundings of bf16 that add up, and none of a single tanh."""

    def off(x: Array, out: Array) -> None:
        np.tanh(x, out)
        if x.dtype == np.float32:
            out *= np.float32(1.03)

    monkeypatch.setitem(unary.REAL_KERNELS, "tanh", off)
    path = tmp_path / "m.hlo"
    path.write_text(TWO_CALLS)
    outcome = run("check", str(path), "--against", "evaluator-f64")
    assert "E6002" in outcome.err, outcome
    assert "'t' diverges" in outcome.err


NOT_FINITE = """HloModule m
ENTRY e {
  a = f32[8] parameter(0)
  e = f32[8] exponential(a)
  n = f32[8] negate(e)
  nan = f32[8] log(n)
  i = f32[8] iota(), iota_dimension=0
  z = f32[] constant(6)
  zz = f32[8] broadcast(z), dimensions={}
  p = pred[8] compare(i, zz), direction=GE
  some = f32[8] select(p, e, nan)
  ROOT r = (f32[8], f32[8]) tuple(RESULTS)
}
"""


@pytest.mark.parametrize("against", REFERENCES)
def test_a_result_with_nothing_finite_is_no_agreement(against: str, tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    path.write_text(NOT_FINITE.replace("RESULTS", "some, nan"))
    outcome = run("check", str(path), "--against", against)
    assert outcome.code == 4, outcome
    assert [line.split()[0] for line in outcome.out.splitlines()] == ["ok", "none"]
    assert "6 of 8 elements are not finite on either side and were not judged" in outcome.out
    assert "E0467" in outcome.err
    assert "agrees" not in outcome.err
    path.write_text(NOT_FINITE.replace("RESULTS", "some, e"))
    outcome = run("check", str(path), "--against", against)
    assert outcome.code == 0, outcome


def is_found_and_named(outcome: Outcome) -> None:
    assert outcome.code == 6, outcome
    assert "E6002" in outcome.err
    assert "t.9" in outcome.err
    assert "tanh in inner" in outcome.err
    assert "model.py:7" in outcome.err
    assert f"budget: {budget_of('tanh', 'f32')}" in outcome.err


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("against", REFERENCES)
def test_a_wrong_kernel_is_found_and_named(against: str, path: Path) -> None:
    outcome = run("check", str(path), "--against", against)
    is_found_and_named(outcome)
    assert outcome.out.startswith("DIFF out_0")


@pytest.mark.usefixtures("planted")
def test_a_wrong_kernel_that_no_result_shows_is_found_by_isolation(tmp_path: Path) -> None:
    path = tmp_path / "hidden.hlo"
    path.write_text(TEXT.replace("c = f32[64] call(e1)", "c0 = f32[64] call(e1)").replace(
        "  s = ", "  z = f32[64] subtract(c0, c0)\n  c = f32[64] negate(z)\n  s = "
    ))  # fmt: skip
    assert run("check", str(path), "--against", "evaluator-f64").code == 0
    is_found_and_named(run("check", str(path), "--against", "evaluator-f64", "--isolate"))


def test_against_a_file(path: Path, tmp_path: Path) -> None:
    stored = tmp_path / "out.npz"
    assert run("eval", str(path), "--random", "3", "-o", str(stored)).code == 0
    assert run("check", str(path), "--random", "3", "--against", str(stored)).code == 0
    with np.load(stored) as given:
        wrong = {name: given[name].copy() for name in given.files}
    wrong["out_1"][5] += 1
    np.savez(stored, **wrong)
    outcome = run("check", str(path), "--random", "3", "--against", str(stored))
    assert outcome.code == 6
    assert "DIFF out_1 s32[64]: 1 of 64 elements differ; worst at [5]" in outcome.out


FILES: dict[str, tuple[dict[str, Array], str]] = {
    "too few": ({"out_0": np.ones(64, np.float32)}, "E3107"),
    "another shape": ({"out_0": np.ones(63, np.float32), "out_1": np.ones(64, np.int32)}, "E3109"),
    "another type": ({"out_0": np.ones(64), "out_1": np.ones(64, np.int32)}, "E3109"),
    "no numbers": ({"out_0": np.array(["x"] * 64), "out_1": np.ones(64, np.int32)}, "E3109"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_do_not_fit(name: str, path: Path, tmp_path: Path) -> None:
    arrays, code = FILES[name]
    np.savez(tmp_path / "bad.npz", **arrays)  # type: ignore[arg-type]
    outcome = run("check", str(path), "--against", str(tmp_path / "bad.npz"))
    assert outcome.code == 2
    assert code in outcome.err


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"no zip at all"])
def test_files_that_are_none(content: bytes, path: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(content)
    for arguments in (("--against", str(tmp_path / "bad.npz")), ("--inputs", str(tmp_path / "bad.npz"))):  # fmt: skip # noqa: E501
        outcome = run("check", str(path), *arguments)
        assert (outcome.code, outcome.out) == (2, "")
        assert "E3108" in outcome.err


def test_a_module_that_looks_at_bits_has_a_form_in_f64(tmp_path: Path) -> None:
    path = tmp_path / "bits.hlo"
    path.write_text("HloModule m\nENTRY e {\n  a = f32[2] parameter(0)\n  ROOT r = s32[2] bitcast-convert(a)\n}\n")  # fmt: skip # noqa: E501
    outcome = run("check", str(path), "--against", "evaluator-f64")
    assert outcome.code == 0, outcome.err
    assert "all 2 elements are equal" in outcome.out


@pytest.mark.parametrize("name", ["attention", "sort_topk", "cond_switch", "embedding_grad"])
def test_samples_agree(name: str) -> None:
    outcome = run("check", str(SAMPLES / f"{name}.hlo"), "--against", "evaluator-f64")
    assert outcome.code == 0, outcome
