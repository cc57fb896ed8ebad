"""The soak trains, weighs its memory, and finds losses that are no numbers."""

from pathlib import Path

import pytest

from tests.support.sessions import compiled
from tools.soak import main, soak

STEP = """
HloModule step, input_output_alias={ {0}: (0, {}, must-alias) }

ENTRY e {
  w = f32[4] parameter(0)
  x = f32[4] parameter(1)
  more = f32[4] add(w, x)
  zero = f32[] constant(0)
  loss = f32[] dot(more, w), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  ROOT out = (f32[4], f32[]) tuple(more, loss)
}
"""


def test_all_losses_come_and_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "step.hlo"
    path.write_text(STEP)
    assert main(["--steps", "500", "--file", str(path), "--feed", "1", "--target", "tiny"]) == 0
    assert "0 other faults" in capsys.readouterr().out


def test_a_loss_that_is_no_number_is_a_fault() -> None:
    text = STEP.replace("constant(0)", "constant(nan)").replace(
        "ROOT out = (f32[4], f32[]) tuple(more, loss)",
        "worse = f32[] add(loss, zero)\n  ROOT out = (f32[4], f32[]) tuple(more, worse)",
    )
    program = compiled(text, loop=1, feeds={"data": (1,)}, outfeeds=("loss",))
    found = soak(program, 10)
    assert len(found.faults) == 10
    assert found.losses == 10
