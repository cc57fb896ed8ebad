"""A loop's body in which new state comes behind the readers of the old one, where it can."""

import numpy as np

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.lowering.regions.control import order_for_state
from hloipu_runtime.program import steps as s
from tests.support.on_tiles import check_on_tiles, programs_of


def loop(body: str) -> str:
    """Return a module that turns a body on (s32[], f32[40], f32[40]) five times."""
    return f"""HloModule loop
body {{
  p = (s32[], f32[40], f32[40]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  a = f32[40] get-tuple-element(p), index=1
  b = f32[40] get-tuple-element(p), index=2
  one = s32[] constant(1)
{body}
}}
cond {{
  p = (s32[], f32[40], f32[40]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(5)
  ROOT c = pred[] compare(i, n), direction=LT
}}
ENTRY e {{
  a = f32[40] parameter(0)
  b = f32[40] parameter(1)
  z = s32[] constant(0)
  t = (s32[], f32[40], f32[40]) tuple(z, a, b)
  ROOT l = (s32[], f32[40], f32[40]) while(t), condition=cond, body=body
}}
"""


EARLY = loop("""  j = s32[] add(i, one)
  c = f32[40] negate(a)
  f = f32[] convert(i)
  g = f32[40] broadcast(f), dimensions={}
  h = f32[40] multiply(a, g)
  d = f32[40] add(b, h)
  ROOT r = (s32[], f32[40], f32[40]) tuple(j, c, d)""")

CROSSED = loop("""  j = s32[] add(i, one)
  c = f32[40] add(a, b)
  d = f32[40] subtract(a, b)
  ROOT r = (s32[], f32[40], f32[40]) tuple(j, c, d)""")

NEEDED = loop("""  j = s32[] add(i, one)
  c = f32[40] sine(a)
  d = f32[40] add(a, c)
  ROOT r = (s32[], f32[40], f32[40]) tuple(j, c, d)""")


def body_of(text: str) -> Computation:
    return parse(text).computation["body"]


def names(computation: Computation) -> list[str]:
    return [x.name for x in computation.instructions]


def test_new_state_comes_behind_what_reads_the_old() -> None:
    order = names(order_for_state(body_of(EARLY)))
    assert order.index("j") > order.index("f")
    assert order.index("c") > order.index("h")
    assert order[-1] == "r"


def test_every_operand_stands_before_its_user() -> None:
    body = body_of(EARLY)
    ordered = order_for_state(body)
    assert sorted(names(ordered)) == sorted(names(body))
    for position, x in enumerate(ordered.instructions):
        assert all(i < position for i in x.operands)
        old = body[x.name]
        before = [body.instructions[i].name for i in old.operands]
        assert [ordered.instructions[i].name for i in x.operands] == before
    assert ordered.instructions[ordered.root].name == "r"


def test_state_that_waits_for_each_other_stays() -> None:
    """Each new value reads both old ones: one of them must be kept aside whatever the order."""
    body = body_of(CROSSED)
    ordered = order_for_state(body)
    assert sorted(names(ordered)) == sorted(names(body))


def test_what_the_readers_need_itself_is_not_moved() -> None:
    order = names(order_for_state(body_of(NEEDED)))
    assert order.index("c") < order.index("d")


def test_a_turn_without_copies() -> None:
    """Both new arrays are written over the old ones, so that no exchange brings them home."""
    for program in programs_of(EARLY, [("gc200", {})]):
        (turned,) = (x for x in program.body.steps if isinstance(x, s.RepeatWhile))
        homes = {item.variable for item in turned.carried}
        for step in turned.body.steps:
            if isinstance(step, s.Exchange):
                assert not {t.destination for t in step.transfers} & homes


def test_values_of_all_three() -> None:
    a, b = np.linspace(-1, 1, 40, dtype=np.float32), np.arange(40, dtype=np.float32)
    x, y = a, b
    for turn in range(5):
        x, y = -x, y + x * np.float32(turn)
    check_on_tiles(EARLY, [a, b], [np.array(5, np.int32), x, y])
    x, y = a, b
    for _ in range(5):
        x, y = x + y, x - y
    check_on_tiles(CROSSED, [a, b], [np.array(5, np.int32), x, y])
    x, y = a, b
    for _ in range(5):
        x, y = np.sin(x), x + np.sin(x)
    check_on_tiles(NEEDED, [a, b], [np.array(5, np.int32), x, y])
