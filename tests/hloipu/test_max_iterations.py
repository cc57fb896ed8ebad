"""The limit on turns of loops: the same in every way to run, and off unless asked for."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_runtime.errors import LimitError
from tests.support.command_line import run

BY_DATA = """HloModule counting

body {
  p = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[4] get-tuple-element(p), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[4] negate(x)
  ROOT t = (s32[], f32[4]) tuple(j, y)
}

condition {
  p = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(7)
  ROOT c = pred[] compare(i, n), direction=NE
}

ENTRY e {
  i = s32[] parameter(0)
  x = f32[4] parameter(1)
  t = (s32[], f32[4]) tuple(i, x)
  counting = (s32[], f32[4]) while(t), condition=condition, body=body
  ROOT r = f32[4] get-tuple-element(counting), index=1
}
"""
COUNTED = BY_DATA.replace("i = s32[] parameter(0)", "i = s32[] constant(0)").replace(
    "x = f32[4] parameter(1)", "x = f32[4] parameter(0)"
)
ENTERED_THRICE = f"""{COUNTED[: COUNTED.index("ENTRY")]}
ENTRY e {{
  x = f32[4] parameter(0)
  zero = s32[] constant(0)
  t = (s32[], f32[4]) tuple(zero, x)
  a = (s32[], f32[4]) while(t), condition=condition, body=body
  y = f32[4] get-tuple-element(a), index=1
  u = (s32[], f32[4]) tuple(zero, y)
  b = (s32[], f32[4]) while(u), condition=condition, body=body
  ROOT r = f32[4] get-tuple-element(b), index=1
}}
"""
ON_ELEMENTS = """HloModule elements

body {
  i = s32[] parameter(0)
  one = s32[] constant(1)
  ROOT j = s32[] add(i, one)
}

condition {
  i = s32[] parameter(0)
  n = s32[] constant(7)
  ROOT c = pred[] compare(i, n), direction=LT
}

each {
  i = s32[] parameter(0)
  ROOT counting = s32[] while(i), condition=condition, body=body
}

ENTRY e {
  i = s32[3] parameter(0)
  ROOT r = s32[3] map(i), dimensions={0}, to_apply=each
}
"""
X = np.arange(4, dtype=np.float32)

Way = Callable[..., Any]


def evaluated(text: str, *arguments: Any, **keywords: Any) -> Any:
    return hloipu.evaluate(text, *arguments, **keywords)[0]


compiled = cache(partial(hloipu.compile, cache=False))


def functional(text: str, *arguments: Any, **keywords: Any) -> Any:
    return compiled(text).run(*arguments, **keywords).outputs[0]


def exact(text: str, *arguments: Any, **keywords: Any) -> Any:
    return functional(text, *arguments, mode="exact", **keywords)


@pytest.mark.parametrize("way", [evaluated, functional, exact])
@pytest.mark.parametrize(
    ("text", "arguments"), [(BY_DATA, (np.int32(0), X)), (COUNTED, (X,)), (ENTERED_THRICE, (X,))]
)
def test_as_many_turns_as_allowed_each_time_and_no_more(
    way: Way, text: str, arguments: tuple[Any, ...]
) -> None:
    whole = way(text, *arguments)
    assert np.array_equal(way(text, *arguments, max_iterations=7), whole)
    with pytest.raises(LimitError, match="E5031") as caught:
        way(text, *arguments, max_iterations=6)
    fault = caught.value
    assert (fault.limit, fault.allowed, fault.found) == ("max_iterations", 6, 7)
    name = "a" if text is ENTERED_THRICE else "counting"
    line = next(n for n, x in enumerate(text.splitlines(), 1) if f"  {name} = " in x)
    assert f"loop '{name}'" in str(fault)
    assert f"line {line}" in str(fault) or f":{line}:" in str(fault)


@pytest.mark.parametrize("way", [evaluated, functional, exact])
def test_a_loop_without_end_ends(way: Way) -> None:
    with pytest.raises(LimitError, match="is not at its end after 50 iterations"):
        way(BY_DATA, np.int32(8), X, max_iterations=50)


def test_loops_on_elements_count_the_longest() -> None:
    given = np.array([5, 2, 9], np.int32)
    assert evaluated(ON_ELEMENTS, given, max_iterations=5).tolist() == [7, 7, 9]
    with pytest.raises(LimitError, match=r"'counting'.* after 4 iterations"):
        evaluated(ON_ELEMENTS, given, max_iterations=4)


STEP = f"""{BY_DATA[: BY_DATA.index("ENTRY")]}
ENTRY e {{
  w = f32[4] parameter(0)
  start = s32[] parameter(1)
  t = (s32[], f32[4]) tuple(start, w)
  counting = (s32[], f32[4]) while(t), condition=condition, body=body
  ROOT r = f32[4] get-tuple-element(counting), index=1
}}
"""


@pytest.mark.parametrize("mode", ["functional", "exact"])
def test_a_step_s_loops_count_and_the_loop_around_it_does_not(mode: str) -> None:
    program = hloipu.compile(STEP, loop=20, role={"0": "weight"}, feed={"data": (1,)}, cache=False)
    for most, fits in ((7, True), (6, False)):
        with program.session(
            state=[X],
            infeeds={"data": np.full(20, 0, np.int32)},
            mode=mode,
            max_iterations=most,
        ) as session:
            if fits:
                session.run(20)
                assert np.array_equal(next(iter(session.state().values())), X)
                continue
            with pytest.raises(LimitError, match=r"'counting'.* after 6 iterations"):
                session.run(20)


@pytest.mark.parametrize(
    "command", [["eval"], ["run"], ["run", "--mode", "exact"], ["check"], ["check", "--target=bow"]]
)
def test_commands_take_it(command: list[str], tmp_path: Any) -> None:
    file = tmp_path / "loop.hlo"
    file.write_text(BY_DATA.replace("constant(7)", "constant(-1)"))
    found = run(*command, str(file), "--random=0", "--max-iterations=9")
    assert found.code == 8
    assert "loop 'counting'" in found.err
    assert "after 9 iterations" in found.err
