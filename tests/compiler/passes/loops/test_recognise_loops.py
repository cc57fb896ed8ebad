"""`recognise-loops`: trip counts in the plan, derived, or found by running what decides the end."""

import pytest

from hloipu_compiler.passes import run_passes
from tests.support.passes import entry, parsed


def counts(
    step: str, test: str, start: str = "0", kind: str = "s32", passes: str = ""
) -> list[int]:
    """Return the trip counts of a loop whose counter `i` steps and is tested by given lines."""
    text = entry(
        f"  p = f32[4] parameter(0)\n  z = {kind}[] constant({start})\n"
        f"  t = ({kind}[], f32[4]) tuple(z, p)\n"
        f"  ROOT w = ({kind}[], f32[4]) while(t), condition=test, body=body",
        f"""body {{
  s = ({kind}[], f32[4]) parameter(0)
  i = {kind}[] get-tuple-element(s), index=0
  x = f32[4] get-tuple-element(s), index=1
  y = f32[4] sine(x)
{step}
  ROOT t = ({kind}[], f32[4]) tuple(j, y)
}}

test {{
  s = ({kind}[], f32[4]) parameter(0)
  i = {kind}[] get-tuple-element(s), index=0
{test}
}}
""",
    )
    module = parsed(text)
    after, plan = run_passes(module, None, passes or "recognise-loops")
    assert after is module or passes
    return list(plan.trip_counts.values())


UP = "  c = s32[] constant(2)\n  j = s32[] add(i, c)"
BELOW = "  n = s32[] constant(9)\n  ROOT r = pred[] compare(i, n), direction=LT"


def test_a_counter_with_a_step() -> None:
    assert counts(UP, BELOW) == [5]


def test_where_the_counter_starts_from_the_plan_tells() -> None:
    module = parsed(
        entry(
            "  p = s32[] constant(1)\n  ROOT w = s32[] while(p), condition=test, body=body",
            "body {\n  i = s32[] parameter(0)\n" + UP.replace("  j", "  ROOT j") + "\n}\n\n"
            "test {\n  i = s32[] parameter(0)\n" + BELOW + "\n}\n",
        )
    )
    _, plan = run_passes(module, None, "recognise-loops")
    assert plan.trips("e", "w") == 4
    assert plan.trips("e", "p") is None
    assert plan.record()["trip_counts"] == [{"computation": "e", "instruction": "w", "trips": 4}]


DOUBLED = "  j = s32[] add(i, i)"


@pytest.mark.parametrize(
    ("step", "test", "start", "expected"),
    [
        (DOUBLED, BELOW, "1", [4]),  # 1 2 4 8 16
        ("  c = s32[] constant(3)\n  j = s32[] multiply(i, c)",
         "  n = s32[] constant(80)\n  ROOT r = pred[] compare(n, i), direction=GT", "1", [4]),
        (DOUBLED, BELOW, "0", []),  # never ends
        (DOUBLED, "  n = s32[] constant(9)\n  a = pred[] compare(i, n), direction=LT\n"
         "  m = s32[] constant(3)\n  b = pred[] compare(i, m), direction=LT\n"
         "  ROOT r = pred[] and(a, b)", "1", [2]),
    ],
)  # fmt: skip
def test_running_what_decides_the_end(
    step: str, test: str, start: str, expected: list[int]
) -> None:
    assert counts(step, test, start) == expected


def test_the_option_bounds_the_running() -> None:
    assert counts(DOUBLED, BELOW, "1", passes="recognise-loops{max-run-trips=3}") == []
    assert counts(DOUBLED, BELOW, "1", passes="recognise-loops{max-run-trips=4}") == [4]
    assert counts(UP, BELOW, passes="recognise-loops{max-run-trips=0}") == [5]


def test_floats_count_as_they_round() -> None:
    """0.1 added up ten times is above 1 in f32, so that `<= 1` holds for 0.0 to 0.9 and then not:
    ten sums, the last of them 1.0000001."""
    step = "  c = f32[] constant(0.1)\n  j = f32[] add(i, c)"
    test = "  n = f32[] constant(1)\n  ROOT r = pred[] compare(i, n), direction=LE"
    assert counts(step, test, kind="f32") == [10]


def test_loops_that_data_ends_have_no_count() -> None:
    text = entry(
        "  p = s32[] parameter(0)\n  ROOT w = s32[] while(p), condition=test, body=body",
        "body {\n  i = s32[] parameter(0)\n  ROOT j = s32[] add(i, i)\n}\n\n"
        "test {\n  i = s32[] parameter(0)\n" + BELOW + "\n}\n",
    )
    _, plan = run_passes(parsed(text), None, "recognise-loops")
    assert not plan.trip_counts
