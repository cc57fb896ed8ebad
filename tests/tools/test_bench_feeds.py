"""The benchmark of feeds: what it says of the simulated clock, on a short job."""

import pytest

pytest.importorskip("jax")

from tools.bench_feeds import measured, shown


def test_calls_that_are_saved_are_host_round_trips() -> None:
    found = measured(40, 2)
    round_trip_seconds = 10e-6  # of the machine's description
    assert found["microseconds_per_host_call"] == pytest.approx(1e6 * round_trip_seconds)
    assert found["host_cycles_per_call"] <= found["cycles_per_call"]
    assert found["device_runs"] == [5, 41]
    assert found["loop_turns"] == [50, 41]
    assert [len(side["seconds"]) for side in found["sides"]] == [2] * 4
    text = shown(found)
    assert "40 steps" in text
    assert "lax.scan" in text
