"""Draws are changed until a module's results are finite, and the command says so."""

from pathlib import Path

import numpy as np
import pytest

from hloipu.check.finite_draws import CHANGES, finite_draw
from hloipu.inputs import flat
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import EvaluationLimits
from hloipu_compiler.interpret.random_inputs import random_arguments
from tests.support.command_line import run

TEXT = """HloModule m
ENTRY e {{
  a = f16[64] parameter(0)
  k = s32[64] parameter(1)
{body}
  ROOT r = (f16[64], s32[64]) tuple(v, k)
}}
"""
BODIES = {
    "": "  v = f16[64] exponential(a)",
    "floats made positive": "  t = f16[64] tanh(a)\n  v = f16[64] sqrt(t)",
    # exp(64 x^2) is finite in f16 where 64 x^2 < log(65504) = 11.09: for x below 0.41.
    "floats divided by 4": "  c = f16[] constant(8)\n  cc = f16[64] broadcast(c), dimensions={}\n"
    "  m = f16[64] multiply(a, cc)\n  s = f16[64] multiply(m, m)\n  v = f16[64] exponential(s)",
}


@pytest.mark.parametrize("change", BODIES)
def test_floats_are_changed_until_results_are_finite(change: str) -> None:
    module = parse(TEXT.format(body=BODIES[change]))
    drawn = flat(random_arguments(module, 5))
    draw = finite_draw(module, 5, EvaluationLimits())
    assert (draw.change, draw.not_finite, draw.not_finite_before > 0) == (change, 0, bool(change))
    assert (draw.leaves[0] == CHANGES[change](drawn[0])).all()
    assert (draw.leaves[1] == drawn[1]).all()


def test_where_nothing_helps_the_draw_stays() -> None:
    body = "  e = f16[64] exponential(a)\n  n = f16[64] negate(e)\n  v = f16[64] sqrt(n)"
    draw = finite_draw(parse(TEXT.format(body=body)), 5, EvaluationLimits())
    assert (draw.change, draw.not_finite, draw.not_finite_before) == ("", 64, 64)


def test_the_check_says_what_was_done(tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    path.write_text(TEXT.format(body=BODIES["floats divided by 4"]))
    outcome = run("check", str(path), "--random", "5", "--against", "evaluator-f64")
    assert outcome.code == 0, outcome
    assert "with floats divided by 4, as checked here, 0 are not" in outcome.err
    assert np.all([line.startswith("ok ") for line in outcome.out.splitlines()])
