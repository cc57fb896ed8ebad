"""Reduction ends in the smallest valid module for which a predicate holds."""

from collections.abc import Callable

import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.reduce.reducer import Progress, reduce_module
from hloipu_compiler.verify.verifier import faults_of
from hloipu_runtime.errors import UsageError

LOOP = """HloModule m, entry_computation_layout={(f32[4]{0}, f32[4,8]{1,0})->(f32[4]{0}, f32[4]{0})}

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

body {
  s = (s32[], f32[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4] get-tuple-element(s), index=1
  y = f32[4] get-tuple-element(s), index=2
  one = s32[] constant(1)
  j = s32[] add(i, one)
  t = f32[4] tanh(x)
  u = f32[4] sine(y)
  ROOT r = (s32[], f32[4], f32[4]) tuple(j, t, u)
}

below {
  s = (s32[], f32[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT r = pred[] compare(i, n), direction=LT
}

ENTRY e {
  p = f32[4] parameter(0), metadata={op_name="p"}
  q = f32[4,8] parameter(1)
  zero = f32[] constant(0)
  s = f32[4] reduce(q, zero), dimensions={1}, to_apply=sum
  start = s32[] constant(0)
  state = (s32[], f32[4], f32[4]) tuple(start, p, s)
  w = (s32[], f32[4], f32[4]) while(state), condition=below, body=body
  a = f32[4] get-tuple-element(w), index=1
  b = f32[4] get-tuple-element(w), index=2
  ROOT r = (f32[4], f32[4]) tuple(a, b)
}
"""

CALLS = """HloModule m

half {
  x = f32[6] parameter(0)
  unused = f32[6] parameter(1)
  ROOT h = f32[6] cosine(x)
}

inside {
  x = f32[6] parameter(0)
  c = f32[6] call(x, x), to_apply=half
  ROOT n = f32[6] negate(c)
}

other {
  x = f32[6] parameter(0)
  ROOT n = f32[6] abs(x)
}

ENTRY e {
  c = pred[] parameter(0)
  x = f32[6] parameter(1)
  ROOT r = f32[6] conditional(c, x, x), true_computation=inside, false_computation=other
}
"""


def opcodes(module: Module) -> set[str]:
    return {x.opcode for c in module.computations for x in c.instructions}


def has(opcode: str) -> Callable[[str], bool]:
    def interesting(text: str) -> bool:
        module = parse(text)
        assert faults_of(module) == []
        return opcode in opcodes(module)

    return interesting


@pytest.mark.parametrize(
    ("text", "opcode", "left"),
    [
        (LOOP, "sine", {"parameter", "sine"}),
        (LOOP, "tanh", {"parameter", "tanh"}),
        # A reduction keeps its region, whose root may become either parameter.
        (LOOP, "reduce", {"constant", "reduce", "parameter"}),
        (CALLS, "cosine", {"parameter", "cosine"}),
    ],
)
def test_one_op_is_left(text: str, opcode: str, left: set[str]) -> None:
    found = reduce_module(parse(text), has(opcode))

    assert found.ending == "smallest"
    assert opcodes(found.module) <= left
    assert opcode in opcodes(found.module)
    assert found.module.instruction_count <= 7
    assert faults_of(found.module) == []
    assert parse(found.text).without_places() == found.module


def test_sizes_shrink_to_one() -> None:
    found = reduce_module(parse(LOOP), has("sine"))

    assert "f32[1]" in found.text
    assert "4" not in found.text


def test_a_loop_keeps_only_the_state_that_is_needed() -> None:
    def sine_in_a_loop(text: str) -> bool:
        module = parse(text)
        bodies = [
            module.computation[x.attributes.text("body")]
            for c in module.computations
            for x in c.instructions
            if x.opcode == "while"
        ]
        return any(x.opcode == "sine" for body in bodies for x in body.instructions)

    found = reduce_module(parse(LOOP), sine_in_a_loop)

    (loop,) = [x for x in found.module.entry.instructions if x.opcode == "while"]
    assert str(loop.shape) == "(f32[1])"


def test_metadata_and_header_go() -> None:
    found = reduce_module(parse(LOOP), lambda text: "parameter(1)" in text)

    assert "metadata" not in found.text
    assert "entry_computation_layout" not in found.text


def test_dead_code_that_matters_is_kept() -> None:
    text = "HloModule m\n\nENTRY e {\n  p = f32[2] parameter(0)\n  d = f32[2] sine(p)\n"
    text += "  o = f32[2] cosine(p)\n  ROOT r = f32[2] tanh(p)\n}\n"

    found = reduce_module(parse(text), has("sine"))

    assert "sine" in opcodes(found.module)
    assert "cosine" not in opcodes(found.module)


def test_a_module_that_is_not_interesting_is_refused() -> None:
    with pytest.raises(UsageError, match="does not hold") as caught:
        reduce_module(parse(LOOP), lambda _: False)

    assert caught.value.code == "E3115"
    assert caught.value.exit_code == 2


def test_the_number_of_tests_is_bounded_and_the_best_so_far_is_returned() -> None:
    asked: list[str] = []

    def interesting(text: str) -> bool:
        asked.append(text)
        return "sine" in text

    found = reduce_module(parse(LOOP), interesting, most_tests=3)

    assert len(asked) == found.tests == 3
    assert found.ending == "tests"
    assert "sine" in found.text


def test_no_text_is_asked_about_twice_after_the_first() -> None:
    asked: list[str] = []

    def interesting(text: str) -> bool:
        asked.append(text)
        return "reduce(" in text

    reports: list[Progress] = []
    found = reduce_module(parse(LOOP), interesting, report=reports.append)

    assert len(set(asked)) == len(asked) == found.tests
    assert reports[-1].tests == found.tests
    assert reports[-1].instructions == found.module.instruction_count
