"""The benchmark of feeds: what it says of the simulated clock, on a short job."""

import pytest

pytest.importorskip("jax")

from tools.bench.feeds import measured, shown


def test_calls_that_are_saved_are_host_round_trips() -> None:
    found = measured(40, 2)
    round_trip_seconds = 10e-6  # of the machine's description
    assert found["calls_saved"] == 36
    assert found["microseconds_per_host_call"] == pytest.approx(1e6 * round_trip_seconds)
    assert found["host_cycles_per_call"] == found["cycles_per_call"] == found["round_trip_cycles"]
    assert found["device_runs"] == [5, 41, 41]
    assert found["device_steps"] == [50, 41, 41]
    assert found["loop_turns"] == [50, 0, 41]
    assert [len(side["seconds"]) for side in found["sides"]] == [2] * 5
    text = shown(found)
    assert "40 steps" in text
    assert "lax.scan" in text
    assert "which are exactly 36 round trips" in text
    assert "calls by the host" in text
