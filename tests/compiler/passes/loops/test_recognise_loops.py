"""`recognise-loops`: what the plan says of loops, and those that never end."""

import pytest

from hloipu_compiler.passes import run_passes
from hloipu_compiler.plan.plan import Plan
from tests.support.passes import entry, parsed

LOOP = """body {
  i = s32[] parameter(0)
  ROOT j = s32[] add(i, i)
}

test {
  i = s32[] parameter(0)
  n = s32[] constant(9)
  ROOT r = pred[] compare(i, n), direction=LT
}
"""


def plan_of(start: int, options: str = "") -> Plan:
    """Return the plan for a loop in which a number is doubled while it is below nine."""
    body = f"  p = s32[] constant({start})\n  ROOT w = s32[] while(p), condition=test, body=body"
    return run_passes(parsed(entry(body, LOOP)), None, f"recognise-loops{options}")[1]


def test_the_plan_counts_loops_and_nothing_else() -> None:
    plan = plan_of(1)
    assert plan.trips("e", "w") == 4
    assert plan.trips("e", "p") is None
    assert plan.record()["trip_counts"] == [{"computation": "e", "instruction": "w", "trips": 4}]


@pytest.mark.parametrize(
    ("start", "most", "trips"), [(0, 128, None), (1, 3, None), (1, 4, 4), (3, 4, 2)]
)
def test_running_ends_with_the_option(start: int, most: int, trips: int | None) -> None:
    """From zero the loop never ends."""
    assert plan_of(start, f"{{max-run-trips={most}}}").trips("e", "w") == trips
