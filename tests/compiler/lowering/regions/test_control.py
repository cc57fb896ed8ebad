"""Loops and branches on tiles: carried state, swaps, nesting, branches that share results."""

import numpy as np

from hloipu_runtime.program import steps as s
from tests.support.on_tiles import check_on_tiles, programs_of, results_of

SWAP = """HloModule swap
body {
  p = (s32[], f32[70], f32[70]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  a = f32[70] get-tuple-element(p), index=1
  b = f32[70] get-tuple-element(p), index=2
  one = s32[] constant(1)
  j = s32[] add(i, one)
  c = f32[70] add(a, b)
  ROOT r = (s32[], f32[70], f32[70]) tuple(j, b, c)
}
cond {
  p = (s32[], f32[70], f32[70]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(6)
  ROOT c = pred[] compare(i, n), direction=LT
}
ENTRY e {
  a = f32[70] parameter(0)
  b = f32[70] parameter(1)
  z = s32[] constant(0)
  t = (s32[], f32[70], f32[70]) tuple(z, a, b)
  ROOT l = (s32[], f32[70], f32[70]) while(t), condition=cond, body=body
}
"""


def test_state_that_moves_from_one_place_to_another() -> None:
    """Fibonacci by turns: what was second is first in the next turn."""
    a, b = np.arange(70, dtype=np.float32), np.ones(70, np.float32)
    x, y = a, b
    for _ in range(6):
        x, y = y, x + y
    check_on_tiles(SWAP, [a, b], [np.array(6, np.int32), x, y])


def test_arguments_are_not_changed_by_a_loop() -> None:
    a, b = np.arange(70, dtype=np.float32), np.ones(70, np.float32)
    kept = a.copy(), b.copy()
    for program in programs_of(SWAP):
        results_of(program, a, b)
    assert np.array_equal(a, kept[0])
    assert np.array_equal(b, kept[1])


def test_what_does_not_change_is_copied_before_the_loop() -> None:
    text = """HloModule invariant
body {
  p = (s32[], f32[40,64], f32[64,64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[40,64] get-tuple-element(p), index=1
  w = f32[64,64] get-tuple-element(p), index=2
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[40,64] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = (s32[], f32[40,64], f32[64,64]) tuple(j, y, w)
}
cond {
  p = (s32[], f32[40,64], f32[64,64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}
ENTRY e {
  x = f32[40,64] parameter(0)
  w = f32[64,64] parameter(1)
  z = s32[] constant(0)
  t = (s32[], f32[40,64], f32[64,64]) tuple(z, x, w)
  l = (s32[], f32[40,64], f32[64,64]) while(t), condition=cond, body=body
  ROOT y = f32[40,64] get-tuple-element(l), index=1
}
"""
    x = np.linspace(-1, 1, 40 * 64, dtype=np.float32).reshape(40, 64)
    w = np.eye(64, dtype=np.float32)[::-1].copy()
    programs = check_on_tiles(text, [x, w], [x @ w @ w @ w], relative=1e-6)
    for program in programs:
        (loop,) = (step for step in program.body.steps if isinstance(step, s.RepeatWhile))
        exchanges = [step for step in loop.body.steps if isinstance(step, s.Exchange)]
        sources = [program.variables[t.source] for x in exchanges for t in x.transfers]
        assert all(variable.role.value != "parameter" for variable in sources)


CHOICE = """HloModule choice
yes {
  a = f32[9] parameter(0)
  ROOT r = f32[9] negate(a)
}
no {
  a = f32[9] parameter(0)
  ROOT r = f32[9] copy(a)
}
ENTRY e {
  p = pred[] parameter(0)
  a = f32[9] parameter(1)
  c = f32[9] conditional(p, a, a), true_computation=yes, false_computation=no
  ROOT r = f32[9] add(c, a)
}
"""


def test_a_branch_does_not_overwrite_what_is_read_after_it() -> None:
    a = np.arange(9, dtype=np.float32)
    check_on_tiles(CHOICE, [np.array(True), a], [np.zeros(9, np.float32)])
    check_on_tiles(CHOICE, [np.array(False), a], [2 * a])


def test_an_index_out_of_range_takes_the_last_branch() -> None:
    branches = "".join(
        f"b{n} {{\n  x = s32[] parameter(0)\n  c = s32[] constant({n})\n"
        f"  ROOT r = s32[] add(x, c)\n}}\n"
        for n in range(3)
    )
    text = f"""HloModule switch
{branches}ENTRY e {{
  i = s32[] parameter(0)
  x = s32[] parameter(1)
  ROOT r = s32[] conditional(i, x, x, x), branch_computations={{b0, b1, b2}}
}}
"""
    for index, expected in ((0, 10), (1, 11), (2, 12), (7, 12), (-1, 12)):
        check_on_tiles(
            text,
            [np.array(index, np.int32), np.array(10, np.int32)],
            [np.array(expected, np.int32)],
        )


def test_a_loop_of_no_turns_leaves_its_state() -> None:
    text = SWAP.replace("constant(6)", "constant(0)")
    a, b = np.arange(70, dtype=np.float32), np.ones(70, np.float32)
    check_on_tiles(text, [a, b], [np.array(0, np.int32), a, b])


def test_loops_have_variables_of_their_own() -> None:
    """The entry's parameters are read again after the loop: a loop must not write them."""
    text = SWAP.replace("ROOT l = ", "l = ").replace(
        "body=body\n", "body=body\n  ROOT r = f32[70] add(a, b)\n"
    )
    a, b = np.arange(70, dtype=np.float32), np.ones(70, np.float32)
    check_on_tiles(text, [a, b], [a + b])
