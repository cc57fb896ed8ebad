"""`hloipu emit --stage=plans` and `hloipu explain plan`: what was chosen, and what lost."""

import json

from tests.support.command_line import run

TINY = ("--target", "tiny")
MODULE = """HloModule m

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY e {
  x = f32[32,16]{1,0} parameter(0)
  y = f32[16,24]{1,0} parameter(1)
  d = f32[32,24]{1,0} dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  z = f32[] constant(0)
  ROOT r = f32[24]{0} reduce(d, z), dimensions={0}, to_apply=add
}
"""


def test_every_planned_op_has_a_block() -> None:
    outcome = run("emit", "-", "--stage", "plans", *TINY, stdin=MODULE)
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[0] == "d = f32[32,24] dot(f32[32,16], f32[16,24])"
    assert lines[1].startswith("  chosen: depth whole, on ")
    assert "r = f32[24] reduce(f32[32,24], f32[])" in lines
    assert any(line.startswith("  slower: ") for line in lines)


def test_the_chosen_way_is_the_cheapest_that_fits() -> None:
    text = run("emit", "-", "--stage", "plans", *TINY, "--format", "json", stdin=MODULE).out
    for op in json.loads(text)["ops"]:
        for other in op["alternatives"]:
            if other["lost"] == "slower":
                assert other["cycles"]["total"] >= op["chosen"]["cycles"]["total"]


def test_one_op_is_explained() -> None:
    every = run("emit", "-", "--stage", "plans", *TINY, stdin=MODULE).out
    one = run("explain", "plan", "r", "-", *TINY, stdin=MODULE)
    assert (one.code, one.err) == (0, "")
    assert one.out in every
    assert one.out.startswith("r = ")
    assert run("explain", "plan", "%r", "-", *TINY, stdin=MODULE).out == one.out
    record = json.loads(run("explain", "plan", "r", "-", *TINY, "--json", stdin=MODULE).out)
    assert [x["op"] for x in record["ops"]] == ["r"]


def test_an_op_without_a_plan() -> None:
    outcome = run("explain", "plan", "nobody", "-", *TINY, stdin=MODULE)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error[E0490]: no plan was made for an instruction 'nobody'")
    assert "plans were made for" in outcome.err


def test_words_that_explain_does_not_take() -> None:
    assert run("explain", "plan", "r").code == 2
    assert run("explain", "E3001", "E3002").code == 2
