"""Random programs: valid, the same each time, tame, and equal on both sides."""

import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import evaluate
from hloipu_compiler.ir.ops import OPS
from hloipu_compiler.verify.verifier import verify
from tests.support.xla_oracle import Oracle
from tools.fuzz_programs import judge
from tools.fuzz_programs.facts import Facts, UntameError, added, multiplied, repeated, rounded
from tools.fuzz_programs.program import ALL, Output, Program, generate


def test_a_program_is_the_same_each_time() -> None:
    first, second = generate(5, 9), generate(5, 9)

    assert first.text == second.text
    for a, b in zip(first.arguments(), second.arguments(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert generate(5, 10).text != first.text


def test_programs_are_valid_and_meet_every_family_and_most_ops() -> None:
    families: set[str] = set()
    opcodes: set[str] = set()
    for number in range(150):
        program = generate(2, number)
        module = parse(program.text)
        verify(module)
        families.update(program.families)
        opcodes.update(x.opcode for c in module.computations for x in c.instructions)

    assert families == {family.__name__ for family in ALL}
    assert len(opcodes & OPS.keys()) > 75


def test_values_stay_within_their_facts() -> None:
    for number in range(25):
        program = generate(4, number)
        ours = evaluate(parse(program.text), *program.arguments())
        outcome = judge.compared(program, ours, ours)
        assert (number, outcome.kind, outcome.detail) == (number, judge.AGREED, "")


def test_both_sides_agree_on_programs(oracle: Oracle) -> None:
    outcomes = [judge.judged(generate(1, number), oracle) for number in range(16)]

    kinds = [o.kind for o in outcomes]
    assert [o for o in outcomes if o.kind not in (judge.AGREED, judge.REFUSED)] == []
    assert kinds.count(judge.AGREED) >= 15
    assert sum(o.exact for o in outcomes) > 400


def of_one_output(known: Output) -> Program:
    return Program(0, 0, "", (), (known,), {})


@pytest.mark.parametrize(
    ("name", "facts", "ours", "theirs", "agree"),
    [
        ("s32", Facts(0, 9, 0, 1), 3, 3, True),
        ("s32", Facts(0, 9, 0, 1), 3, 4, False),
        ("f32", Facts(0, 9, 0, 1), 3.0, 3.0000002, False),
        ("f32", Facts(-1, 1, 0, 1), 0.0, -0.0, True),
        ("f32", Facts(0, 9, 1e-6), 3.0, 3.0000007, True),
        ("f32", Facts(0, 9, 1e-6), 3.0, 3.000002, False),
        ("f32", Facts(0, 9, 1e-6), np.nan, 3.0, False),
        ("f32", Facts(0, 9, 1e-6), np.nan, np.nan, False),
        ("f32", Facts(0, 2, 1e-6), 3.0, 3.0, False),
    ],
)
def test_outputs_are_held_to_their_facts(
    name: str, facts: Facts, ours: float, theirs: float, agree: bool
) -> None:
    dtype = np.int32 if name == "s32" else np.float32
    program = of_one_output(Output(name, facts))

    outcome = judge.compared(program, [np.array([ours], dtype)], [np.array([theirs], dtype)])

    assert outcome.kind == (judge.AGREED if agree else judge.DIFFERED)
    assert bool(outcome.detail) is not agree


def test_exactness_lasts_as_long_as_the_type_holds_the_bits() -> None:
    small = Facts(-4, 4, 0, 0.25)

    assert rounded("bf16", added(small, small)).exact
    assert rounded("bf16", multiplied(small, small)) == Facts(-16, 16, 0, 0.0625)
    # 16 / 0.0625 takes eight bits; times 4 once more at a grain of 1/64, twelve.
    assert not rounded("bf16", multiplied(multiplied(small, small), small)).exact
    assert rounded("f32", repeated(small, 1000)).exact


def test_an_error_grows_by_the_steps_of_the_result_type() -> None:
    inexact = rounded("f32", Facts(0, 8, 1e-3), roundings=2)

    assert inexact.error == pytest.approx(1e-3 + 2 * 8 * 2.0**-23)
    with pytest.raises(UntameError):
        rounded("f16", Facts(0, 60000, 0.5))
