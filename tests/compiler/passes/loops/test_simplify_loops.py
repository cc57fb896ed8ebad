"""Passes on loops: constants move in, unchanged state is read before, trip counts are known."""

import pytest

from hloipu_compiler.passes import run_passes
from tests.support.passes import entry, opcodes, parsed, passed, root

RUN = "simplify-loops,eliminate-dead-code"
STATE = "(s32[], f32[4], f32[4], s32[])"
LOOP = f"""body {{
  s = {STATE} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4] get-tuple-element(s), index=1
  k = f32[4] get-tuple-element(s), index=2
  n = s32[] get-tuple-element(s), index=3
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[4] multiply(x, k)
  ROOT t = {STATE} tuple(j, y, k, n)
}}

below {{
  s = {STATE} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=3
  ROOT r = pred[] compare(i, n), direction=LT
}}
"""


def loop(index: int, factor: str) -> str:
    return entry(
        "  p = f32[4] parameter(0)\n  q = f32[4] parameter(1)\n  zero = s32[] constant(0)\n"
        f"  five = s32[] constant(5)\n{factor}\n  t = {STATE} tuple(zero, p, k, five)\n"
        f"  w = {STATE} while(t), condition=below, body=body\n"
        f"  ROOT r = f32[4] get-tuple-element(w), index={index}",
        LOOP,
    )


BROADCAST = "  h = f32[] constant(0.5)\n  k = f32[4] broadcast(h), dimensions={}"


def test_constants_move_into_bodies_and_conditions() -> None:
    after = passed(loop(1, BROADCAST), RUN)
    assert len(after.entry["w"].shape.elements) == 2  # type: ignore[union-attr]
    assert "broadcast" in opcodes(after, "body")
    assert "constant" in opcodes(after, "below")
    assert opcodes(after) == ["constant", "tuple", "while", "get-tuple-element"]


def test_unchanged_state_is_read_before_the_loop() -> None:
    after = passed(loop(2, "  k = f32[4] sine(q)"), RUN)
    assert opcodes(after) == ["sine"]


def test_unchanged_state_that_is_no_constant_stays_state() -> None:
    after = passed(loop(1, "  k = f32[4] sine(q)"), RUN)
    assert len(after.entry["w"].shape.elements) == 3  # type: ignore[union-attr]


def test_exchanged_elements_are_not_unchanged() -> None:
    text = loop(1, BROADCAST).replace("tuple(j, y, k, n)", "tuple(j, k, y, n)")
    after = passed(text, RUN)
    assert len(after.entry["w"].shape.elements) == 3  # type: ignore[union-attr]
    assert "broadcast" not in opcodes(after, "body")


def test_bodies_of_several_loops_stay() -> None:
    text = loop(1, BROADCAST).replace(
        f"  w = {STATE} while(t)",
        f"  v = {STATE} while(t), condition=below, body=body\n  w = {STATE} while(v)",
    )
    after = passed(text, "simplify-loops")
    assert "broadcast" not in opcodes(after, "body")
    assert "broadcast" in opcodes(passed(text, f"inline-calls,{RUN}", settled=False), "body")


def test_constants_move_into_branches() -> None:
    text = entry(
        "  i = pred[] parameter(0)\n  p = f32[] parameter(1)\n  two = f32[] constant(2)\n"
        "  t = (f32[], f32[]) tuple(p, two)\n"
        "  ROOT r = f32[] conditional(i, t, two), true_computation=f, false_computation=g",
        """f {
  s = (f32[], f32[]) parameter(0)
  a = f32[] get-tuple-element(s), index=0
  b = f32[] get-tuple-element(s), index=1
  ROOT c = f32[] multiply(a, b)
}

g {
  x = f32[] parameter(0)
  ROOT y = f32[] sqrt(x)
}
""",
    )
    after = passed(text, RUN, settled=False)
    assert opcodes(after, "f") == ["get-tuple-element", "constant", "multiply"]
    assert opcodes(after, "g") == ["constant", "sqrt"]
    after = passed(text, "front", settled=False)
    assert opcodes(after, "g") == ["constant"]


def test_a_bound_in_the_state_counts_the_loop() -> None:
    after = passed(loop(1, BROADCAST), "front")
    assert opcodes(after)[-2] == "while"
    assert root(after).opcode == "get-tuple-element"


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
