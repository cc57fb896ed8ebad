"""`hloipu estimate`: costs without values, also of what does not fit."""

import json

from tests.hloipu.cli.commands.test_compile import profile_sums
from tests.support.command_line import run
from tests.support.tile_texts import DOT, TOO_LARGE

TINY = ("--target", "tiny")


def test_an_estimate_is_what_compiling_says() -> None:
    assert run("estimate", "-", *TINY, stdin=DOT).out == run("compile", "-", *TINY, stdin=DOT).out


def test_what_does_not_fit_is_estimated() -> None:
    outcome = run("estimate", "-", *TINY, "--json", stdin=TOO_LARGE)
    assert (outcome.code, outcome.err) == (0, "")
    record = json.loads(outcome.out)
    assert record["memory"]["fits"] is False
    assert record["total_cycles"] > 0
    profile_sums(record)


def test_numbers_of_the_machine_can_be_set() -> None:
    slow, fast = (
        json.loads(run("estimate", "-", *TINY, "--set", f"clock_hz={hz}", "--json", stdin=DOT).out)
        for hz in (10**9, 2 * 10**9)
    )
    assert slow["machine"]["overrides"] == {"chip.clock_hz": 10**9}
    assert slow["by_bucket"]["compute"] == fast["by_bucket"]["compute"]
    assert slow["by_bucket"]["compute"] > 0


def test_constants_that_were_left_out_cost_all_the_same() -> None:
    text = DOT.replace("parameter(1)", "constant({...})")
    outcome = run("estimate", "-", *TINY, stdin=text)
    assert outcome.code == 0
    assert outcome.err.startswith("1 constant left out of the text")


def test_wrong_hlo_is_refused() -> None:
    outcome = run("estimate", "-", *TINY, stdin=DOT.replace("f32[4,2]", "f32[4,3]"))
    assert outcome.code == 3
    assert "error[E0301]" in outcome.err
