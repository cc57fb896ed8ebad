import pytest

from hloipu_compiler.analysis.trip_count import CountedLoop, counted_loop, trip_count
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from tests.support.cases import each

LOOP = """HloModule m
body {{
  state = (s32[], f32[4], s32[]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = f32[4] get-tuple-element(state), index=1
  n = s32[] get-tuple-element(state), index=2
  step = s32[] constant({step})
  next = s32[] {change}
  y = f32[4] add(x, x)
  ROOT out = (s32[], f32[4], s32[]) tuple(next, y, n)
}}
cond {{
  state = (s32[], f32[4], s32[]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] get-tuple-element(state), index=2
  limit = s32[] constant({limit})
  ROOT more = pred[] {test}
}}
ENTRY e {{
  zero = s32[] constant({start})
  x = f32[4] parameter(0)
  n = s32[] constant(7)
  init = (s32[], f32[4], s32[]) tuple(zero, x, n)
  ROOT w = (s32[], f32[4], s32[]) while(init), condition=cond, body=body
}}
"""


def loop_of(module: Module) -> CountedLoop | None:
    return counted_loop(module, module.entry, module.entry["w"])


def reference_trips(start: int, step: int, limit: int, direction: str, flipped: bool) -> int | None:
    compare = {
        "LT": int.__lt__, "LE": int.__le__, "GT": int.__gt__, "GE": int.__ge__, "NE": int.__ne__,
    }[direction]  # fmt: skip
    value, trips = start, 0
    while compare(limit, value) if flipped else compare(value, limit):
        value, trips = value + step, trips + 1
        if trips > 10_000:
            return None
    return trips


@each("direction", ["LT", "LE", "GT", "GE", "NE"])
@each("flipped", [False, True])
@each(
    ("start", "step", "limit"),
    [
        (0, 1, 10),
        (0, 3, 10),
        (3, -2, -9),
        (5, 1, 5),
        (6, 1, 5),
        (0, 5, 10),
        (10, -5, 0),
        (0, -1, 9),
    ],
)
def test_counts_equal_running_the_loop(
    direction: str, flipped: bool, start: int, step: int, limit: int
) -> None:
    operands = "limit, i" if flipped else "i, limit"
    text = LOOP.format(
        start=start, step=step, limit=limit,
        change="add(i, step)", test=f"compare({operands}), direction={direction}",
    )  # fmt: skip
    expected = reference_trips(start, step, limit, direction, flipped)
    found = loop_of(parse(text))
    assert (found.trips if found else None) == expected


def test_a_subtracted_step_counts_down() -> None:
    text = LOOP.format(
        start=9, step=2, limit=0, change="subtract(i, step)", test="compare(i, limit), direction=GT"
    )
    assert loop_of(parse(text)) == CountedLoop(5, (0,), 9, -2)


def test_a_limit_carried_unchanged_is_found() -> None:
    text = LOOP.format(
        start=0, step=1, limit=0, change="add(i, step)", test="compare(i, n), direction=LT"
    )
    assert loop_of(parse(text)) == CountedLoop(7, (0,), 0, 1)


def test_a_counter_that_wraps_before_its_limit_has_no_count() -> None:
    text = LOOP.format(
        start=0, step=1_000_000_000, limit=2_147_483_647,
        change="add(i, step)", test="compare(i, limit), direction=LT",
    )  # fmt: skip
    assert loop_of(parse(text)) is None


def test_a_multiplied_counter_has_no_count() -> None:
    text = LOOP.format(
        start=1, step=2, limit=100,
        change="multiply(i, step)", test="compare(i, limit), direction=LT",
    )  # fmt: skip
    assert loop_of(parse(text)) is None


def test_a_step_inside_a_call_is_followed() -> None:
    text = """HloModule m
inner { i = s32[] parameter(0)
  one = s32[] constant(1)
  ROOT j = s32[] add(i, one) }
body { s = (s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  j = s32[] call(i), to_apply=inner
  k = s32[] copy(j)
  ROOT t = (s32[]) tuple(k) }
cond { s = (s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(12)
  ROOT m = pred[] compare(i, n), direction=LT }
ENTRY e { z = s32[] constant(2)
  t = (s32[]) tuple(z)
  ROOT w = (s32[]) while(t), condition=cond, body=body }
"""
    assert loop_of(parse(text)) == CountedLoop(10, (0,), 2, 1)


FUSED = """HloModule m
plus { i = s32[] parameter(0)
  one = s32[] parameter(1)
  ROOT j = s32[] add(i, one) }
less { i = s32[] parameter(0)
  n = s32[] parameter(1)
  ROOT b = pred[] compare(i, n), direction=LT }
body { s = (s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(2)
  j = s32[] fusion(i, one), kind=kLoop, calls=plus
  ROOT t = (s32[]) tuple(j) }
cond { s = (s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(9)
  ROOT m = pred[] fusion(i, n), kind=kLoop, calls=less }
ENTRY e { z = s32[] constant(0)
  t = (s32[]) tuple(z)
  ROOT w = (s32[]) while(t), condition=cond, body=body }
"""


def test_steps_and_tests_inside_fusions_are_followed() -> None:
    """XLA:CPU wraps both into fusions of one instruction."""
    assert loop_of(parse(FUSED)) == CountedLoop(5, (0,), 0, 2)


@pytest.mark.parametrize(
    "config", ['{"known_trip_count":{"n":"14"}}', r'"{\"known_trip_count\":{\"n\":\"14\"}}"']
)
def test_a_count_that_xla_noted_down_is_taken_where_none_is_derived(config: str) -> None:
    text = LOOP.format(
        start=1, step=2, limit=100,
        change="multiply(i, step)", test="compare(i, limit), direction=LT",
    )  # fmt: skip
    text = text.replace("body=body", f"body=body, backend_config={config}")
    module = parse(text)
    assert trip_count(module, module.entry, module.entry["w"]) == 14
    assert loop_of(module) is None


@each("other, trips", [("LT", 4), ("NE", 4), ("GT", 0), ("EQ", None)])
def test_the_first_of_several_tests_that_fails_ends_the_loop(other: str, trips: int | None) -> None:
    """As TensorFlow writes loops: two counters, and a call that gives a tuple of one."""
    state = "(s32[], s32[], s32[])"
    module = parse(f"""HloModule two_tests
tests {{
  s = {state} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  j = s32[] get-tuple-element(s), index=1
  most = s32[] get-tuple-element(s), index=2
  end = s32[] constant(8)
  few = pred[] compare(i, most), direction=LT
  more = pred[] compare(j, end), direction={other}
  both = pred[] and(few, more)
  same = pred[] reshape(both)
  ROOT one = (pred[]) tuple(same)
}}
condition {{
  s = {state} parameter(0)
  call = (pred[]) call(s), to_apply=tests
  ROOT r = pred[] get-tuple-element(call), index=0
}}
body {{
  s = {state} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  j = s32[] get-tuple-element(s), index=1
  most = s32[] get-tuple-element(s), index=2
  one = s32[] constant(1)
  two = s32[] constant(2)
  i2 = s32[] add(i, one)
  j2 = s32[] add(j, two)
  ROOT r = {state} tuple(i2, j2, most)
}}
ENTRY main {{
  zero = s32[] constant(0)
  most = s32[] constant(6)
  s = {state} tuple(zero, zero, most)
  ROOT loop = {state} while(s), condition=condition, body=body
}}""")
    entry = module.entry
    assert trip_count(module, entry, entry.instructions[entry.root]) == trips


@each("limit, trips", [("index=0", 6), ("index=1", None)])
def test_a_loop_may_end_where_the_one_before_it_did(limit: str, trips: int | None) -> None:
    """As TensorFlow writes the gradient of a loop."""
    state = "(s32[], s32[])"
    module = parse(f"""HloModule back
condition {{
  s = {state} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  most = s32[] get-tuple-element(s), index=1
  ROOT few = pred[] compare(i, most), direction=LT
}}
body {{
  s = {state} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  most = s32[] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT r = {state} tuple(j, most)
}}
changing {{
  s = {state} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = s32[] get-tuple-element(s), index=1
  two = s32[] constant(2)
  j = s32[] add(i, two)
  y = s32[] multiply(x, x)
  ROOT r = {state} tuple(j, y)
}}
below_five {{
  s = {state} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  five = s32[] constant(5)
  ROOT few = pred[] compare(i, five), direction=LT
}}
ENTRY main {{
  zero = s32[] constant(0)
  x = s32[] parameter(0)
  s = {state} tuple(zero, x)
  forward = {state} while(s), condition=below_five, body=changing
  done = s32[] get-tuple-element(forward), {limit}
  t = {state} tuple(zero, done)
  ROOT back = {state} while(t), condition=condition, body=body
}}""")
    entry = module.entry
    assert trip_count(module, entry, entry.instructions[entry.root]) == trips
