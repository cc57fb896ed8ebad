import json
from pathlib import Path

import pytest

from hloipu.cli.table import readable_bytes, readable_count, readable_runs
from tests.support.command_line import run

SAMPLES = Path(__file__).parents[2] / "hlo_samples"

BRANCHES = """HloModule m
f { x = f32[4] parameter(0)
  ROOT y = f32[4] negate(x) }
ENTRY e { p = pred[] parameter(0)
  x = f32[4] parameter(1)
  c = f32[4] conditional(p, x, x), true_computation=f, false_computation=f
  ROOT k = f32[4] custom-call(c), custom_call_target="mystery" }
"""


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (999 * 1024, "999 KiB"),
        (1010 * 1024, "0.986 MiB"), (2**50, "1 PiB"), (2**70, "1.05e+06 PiB"),
    ],
)  # fmt: skip
def test_bytes_have_three_digits(count: int, text: str) -> None:
    assert readable_bytes(count) == text


@pytest.mark.parametrize(
    ("count", "text"), [(999, "999"), (1000, "1 k"), (999_600, "1 M"), (10**30, "1.00e+12 E")]
)
def test_counts_have_three_digits(count: int, text: str) -> None:
    assert readable_count(count) == text


def test_runs_are_exact_while_they_can_be_read() -> None:
    assert readable_runs(1_234_567) == "1234567"
    assert readable_runs(12_345_678) == "12.3 M"


def test_a_scan_of_20_steps_counts_20_times() -> None:
    """Two dots of 4x16x32 and 4x32x32, an add of two, a tanh; a counter's add and compare."""
    found = json.loads(run("show", str(SAMPLES / "scan_rnn.hlo"), "--json").out)
    step = 2 * 4 * 16 * 32 + 2 * 4 * 32 * 32 + 4 * 32 + 1
    assert found["total"]["flops"] == 20 * step + 21
    assert found["total"]["transcendentals"] == 20 * 4 * 32


def test_what_makes_a_number_a_lower_bound_is_said() -> None:
    outcome = run("show", "-", stdin=BRANCHES)
    assert "work        ≥0 FLOP" in outcome.out
    assert "which branch of 1 conditional, FLOPs of custom calls (mystery)" in outcome.out
    record = json.loads(run("show", "-", "--json", stdin=BRANCHES).out)
    assert record["total"] is None
    assert record["opaque_custom_calls"] == {"mystery": 1}


def test_assumed_trips_take_the_place_of_unknown_ones() -> None:
    file = str(SAMPLES / "newton_while.hlo")
    unknown = json.loads(run("show", file, "--json").out)
    assert unknown["total"] is None
    (loop,) = unknown["unknown_loops"]
    assumed = [json.loads(run("show", file, "--json", "--assume-trips", n).out) for n in "12"]
    one, two = (x["total"]["flops"] for x in assumed)
    assert two - one == loop["work_per_trip"]["flops"]
