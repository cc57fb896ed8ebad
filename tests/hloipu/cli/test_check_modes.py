"""`hloipu check --target`: programs against references, and the first wrong instruction."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hloipu_runtime.kernels.contractions.dot import dotting
from tests.support.arrays import Array
from tests.support.command_line import run
from tests.support.tile_texts import DOT, LOOP, TOO_LARGE
from tests.support.xla_oracle import available

pytestmark = pytest.mark.usefixtures("checks_share_xla")
REFERENCES = [
    "evaluator-f64",
    pytest.param("xla-cpu", marks=pytest.mark.skipif(not available(), reason="no jaxlib")),
]
CHAIN = """HloModule chain

ENTRY e {
  a = f32[16,8]{1,0} parameter(0)
  b = f32[8,4]{1,0} parameter(1)
  d = f32[16,4]{1,0} dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t.1 = f32[16,4]{1,0} negate(d)
  k = s32[4]{0} parameter(2)
  j = s32[4]{0} add(k, k)
  ROOT r = (f32[16,4]{1,0}, s32[4]{0}) tuple(t.1, j)
}
"""
PLACE = 'metadata={op_name="d" source_file="model.py" source_line=3}'


@pytest.mark.parametrize("against", REFERENCES)
@pytest.mark.parametrize("mode", ["functional", "exact"])
def test_a_program_agrees(mode: str, against: str) -> None:
    options = ("--target", "tiny", "--mode", mode, "--poison", "--against", against)
    outcome = run("check", "-", *options, stdin=CHAIN)
    assert outcome.code == 0
    assert [line.split()[:2] for line in outcome.out.splitlines()] == [
        ["ok", "out_0"],
        ["ok", "out_1"],
    ]
    assert outcome.err == f"agrees with {against} on tiny, {mode}\n"


def test_without_options_of_compiling_no_program_is_made() -> None:
    outcome = run("check", "-", "--against", "evaluator-f64", stdin=DOT)
    assert (outcome.code, outcome.err) == (0, "agrees with evaluator-f64\n")


def test_loops_agree_draw_by_draw() -> None:
    options = ("--target", "tiny", "--against", "evaluator-f64", "--iterations", "3", "--isolate")
    outcome = run("check", "-", *options, stdin=LOOP)
    assert outcome.code == 0
    assert len(outcome.out.splitlines()) == 3


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tiles, and nobody else, multiply matrices wrongly."""

    def wrong(*decided: Any) -> Callable[..., Array]:
        product = dotting(*decided)
        return lambda *arguments: product(*arguments) + 1

    monkeypatch.setattr("hloipu_runtime.codelets.dense.dot.dotting", wrong)
    # Of small parts on tiles.
    monkeypatch.setattr(
        "hloipu_runtime.codelets.dense.dot.multiplying", lambda *_: lambda a, b, out=None: a @ b + 1
    )


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("mode", ["functional", "exact"])
def test_the_first_wrong_instruction_is_named(mode: str) -> None:
    text = CHAIN.replace("rhs_contracting_dims={0}", f"rhs_contracting_dims={{0}}, {PLACE}")
    options = ("--target", "tiny", "--mode", mode, "--against", "evaluator-f64")
    outcome = run("check", "-", *options, stdin=text)
    assert outcome.code == 6
    assert [line.split()[:2] for line in outcome.out.splitlines()] == [
        ["DIFF", "out_0"],
        ["ok", "out_1"],
    ]
    said = "first instruction that differs on tiles: d = f32[16,4]{1,0} dot (model.py:3)\n"
    assert outcome.err.startswith(f"1 of 2 results differ from evaluator-f64\n{said}")
    assert "error[E6002]: 'd' diverges on tiles" in outcome.err
    assert run("check", "-", "--against", "evaluator-f64", stdin=text).code == 0


@pytest.mark.usefixtures("planted")
def test_a_wrong_program_that_no_result_shows_is_found_by_isolation() -> None:
    text = CHAIN.replace("tuple(t.1, j)", "tuple(z, j)").replace(
        "  k = ", "  n = f32[16,4]{1,0} is-finite(t.1)\n  z = f32[16,4]{1,0} convert(n)\n  k = "
    )
    text = text.replace("n = f32", "n = pred")
    options = ("--target", "tiny", "--against", "evaluator-f64")
    assert run("check", "-", *options, stdin=text).code == 0
    outcome = run("check", "-", *options, "--isolate", stdin=text)
    assert outcome.code == 6
    assert "error[E6002]: 'd' diverges on tiles" in outcome.err


def test_what_does_not_fit_is_not_checked() -> None:
    options = ("--target", "tiny", "--against", "evaluator-f64")
    outcome = run("check", "-", *options, stdin=TOO_LARGE)
    assert (outcome.code, outcome.out) == (5, "")
    allowed = run("check", "-", *options, "--over-memory", "allow", stdin=TOO_LARGE)
    assert allowed.code == 0


def test_an_estimate_has_no_values_to_check() -> None:
    outcome = run("check", "-", "--mode", "estimate", stdin=DOT)
    assert (outcome.code, outcome.err[:12]) == (2, "error[E3140]")


INFEED = """
ENTRY e {
  t = token[] after-all()
  taken = (f32[4], token[]) infeed(t)
  ROOT x = f32[4] get-tuple-element(taken), index=0
}
"""
OUTFEED = """
ENTRY e {
  x = f32[4] parameter(0)
  y = f32[4] multiply(x, x)
  t = token[] after-all()
  o = token[] outfeed(y, t), outfeed_config="seen"
  ROOT r = f32[4] negate(y)
}
"""


def test_an_infeed_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(INFEED)
    for more in ((), ("--against", "evaluator-f64"), ("--target", "tiny")):
        outcome = run("check", str(file), *more)
        assert outcome.code == 2
        assert "E2041" in outcome.err
        assert "infeed 'taken'" in outcome.err


def test_what_outfeeds_take_is_let_go(tmp_path: Path) -> None:
    file = tmp_path / "m.hlo"
    file.write_text(OUTFEED)
    for mode in ("functional", "exact"):
        given = ("--target", "tiny", "--mode", mode, "--against", "evaluator-f64")
        outcome = run("check", str(file), *given)
        assert outcome.code == 0, outcome.err
        assert "ok   out_0 f32[4]" in outcome.out
