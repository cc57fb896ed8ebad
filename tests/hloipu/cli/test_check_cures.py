"""What `hloipu check` says will cure an error that no reference answers does cure it."""

import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from hloipu.xla_cpu import runner
from tests.support.check_texts import BROADCAST_AMONG_TWO, TWO_LAYERS
from tests.support.command_line import run
from tests.support.sessions import SUMS
from tests.support.xla_oracle import available

F64 = ("--against", "evaluator-f64")
FED = ("--target", "tiny", "--loop", "2", "--feed", "data=0")


class Cure(NamedTuple):
    """A command that ends in an error, a part of its hint, and what that says to do."""

    text: str
    options: tuple[str, ...]
    hint: str
    cured_text: str
    cured_options: tuple[str, ...]


OUTFEED = (
    "HloModule m\nENTRY e {\n  x = f32[4] parameter(0)\n  t = token[] after-all()\n"
    '  o = token[] outfeed(x, t), outfeed_config="seen"\n  ROOT r = f32[4] negate(x)\n}\n'
)
RANDOM = (
    "HloModule m\nENTRY e {\n  x = f32[4] parameter(0)\n  a = f32[] constant(0)\n"
    "  b = f32[] constant(1)\n  n = f32[4] rng(a, b), distribution=rng_uniform\n"
    "  ROOT r = f32[4] add(x, n)\n}\n"
)
OF_A_KEY = (
    "HloModule m, input_output_alias={ {0}: (0, {}, may-alias) }\nENTRY e {\n"
    "  key = u64[2] parameter(0)\n  x = f32[4] parameter(1)\n"
    "  bits = (u64[2], u32[4]) rng-bit-generator(key), algorithm=rng_three_fry\n"
    "  next = u64[2] get-tuple-element(bits), index=0\n"
    "  drawn = u32[4] get-tuple-element(bits), index=1\n"
    "  n = f32[4] convert(drawn)\n  y = f32[4] add(x, n)\n"
    "  ROOT r = (u64[2], f32[4]) tuple(next, y)\n}\n"
)
CURES = {
    "collectives": Cure(
        BROADCAST_AMONG_TWO, (*FED, *F64), "check the step without loop, stages and micro-batches",
        BROADCAST_AMONG_TWO, ("--target", "tiny", *F64),
    ),
    "a queue of its own": Cure(
        OUTFEED, (*FED, *F64), "make its arrays parameters and results of the entry",
        OUTFEED.replace("ROOT r = f32[4] negate(x)", "n = f32[4] negate(x)\n"
                        "  ROOT r = (f32[4], f32[4]) tuple(n, x)")
        .replace("  t = token[] after-all()\n", "")
        .replace('  o = token[] outfeed(x, t), outfeed_config="seen"\n', ""),
        (*FED, *F64, "--outfeed", "seen=1"),
    ),
    "random numbers": Cure(
        RANDOM, (*FED, *F64), "have the step take a key among its parameters",
        OF_A_KEY, ("--target", "tiny", "--loop", "2", "--feed", "data=1", *F64),
    ),
    "a file": Cure(
        SUMS, ("--target", "tiny", "--loop", "2", "--feed", "data=2", "--against", "x.npz"),
        "compare with --against xla-cpu or evaluator-f64",
        SUMS, ("--target", "tiny", "--loop", "2", "--feed", "data=2", *F64),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CURES)
def test_what_has_no_reference_has_one_when_cured(name: str, tmp_path: Path) -> None:
    cure = CURES[name]
    path = tmp_path / "m.hlo"
    path.write_text(cure.text)
    outcome = run("check", str(path), *cure.options)
    assert outcome.code == 4, outcome
    assert "E0466" in outcome.err
    assert cure.hint in outcome.err
    path.write_text(cure.cured_text)
    outcome = run("check", str(path), *cure.cured_options)
    assert outcome.code == 0, outcome
    assert "ok " in outcome.out


@pytest.fixture
def stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have XLA:CPU give no answer."""
    stalls = (sys.executable, "-c", "import time; time.sleep(600)")
    monkeypatch.setattr(runner, "CHILD", stalls)
    monkeypatch.setattr(runner.XlaCpu.__init__, "__defaults__", (0.3,))


@pytest.mark.skipif(not available(), reason="jaxlib is not installed")
@pytest.mark.usefixtures("stalled")
def test_another_reference_answers_where_xla_does_not(tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    path.write_text(TWO_LAYERS)
    outcome = run("check", str(path), "--time-limit", "30")
    assert "E0465" in outcome.err, outcome
    assert "compare with --against evaluator-f64" in outcome.err
    outcome = run("check", str(path), *F64)
    assert outcome.code == 0, outcome


def test_more_time_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    path.write_text(TWO_LAYERS)
    outcome = run("check", str(path), *F64, "--time-limit", "0.001")
    assert outcome.code == 8, outcome
    assert "E5017" in outcome.err
    assert "give more: --time-limit SECONDS" in outcome.err
    outcome = run("check", str(path), *F64, "--time-limit", "600")
    assert outcome.code == 0, outcome
