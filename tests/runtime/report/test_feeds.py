"""What a profile says of feeds: who is the slower, in numbers and in words."""

import pytest

from hloipu_runtime.report.feeds import feeds_line, feeds_record
from tests.support.sessions import SWAP, compiled, sums

PROGRAM = sums(3)
NEEDED = 3 * PROGRAM.machine.chip.clock_hz / (PROGRAM.estimate().total_cycles or 1)
ALONE = PROGRAM.estimate().device_cycles


@pytest.mark.parametrize(
    ("rates", "verdict", "said"),
    [
        ({}, "device-bound", "if data is always ready"),
        ({"data": NEEDED / 4}, "host-bound", "it waits 75.0% of a long run"),
        ({"data": NEEDED * 2}, "device-bound", "2 times as many"),
    ],
)
def test_the_slower_is_named(rates: dict[str, float], verdict: str, said: str) -> None:
    found = feeds_record(PROGRAM.costs, rates, ALONE)
    assert found["verdict"] == verdict
    assert found["needed_elements_per_second"] == pytest.approx(NEEDED)
    alone = found["device_elements_per_second"]
    assert alone == pytest.approx(3 * PROGRAM.machine.chip.clock_hz / ALONE)
    assert alone > found["needed_elements_per_second"]
    assert found["given_elements_per_second"] == rates.get("data")
    assert found["infeeds"] == {"data": rates.get("data")}
    line = feeds_line(found)
    assert line.startswith(f"feeds: {verdict}, ")
    assert said in line


def test_without_infeeds_there_is_nothing_to_say() -> None:
    program = compiled(SWAP, loop=2, roles={"s": "carry"})
    assert feeds_record(program.costs, {}, ALONE) == {}
    assert program.profile().feeds == {}
