"""The oracle itself: values, faults, crashes and hangs of XLA."""

import ml_dtypes
import numpy as np
import pytest

from tests.support.xla_oracle import Oracle, OracleError

NEGATE = "HloModule m\nENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p) }"
PARAMETER_GAP = "HloModule m\nENTRY e { ROOT p = f32[4] parameter(1) }"


def test_parser_and_verifier_are_told_apart(oracle: Oracle) -> None:
    wrong_shape = NEGATE.replace("f32[4] negate", "f32[5] negate")

    assert oracle.parse(wrong_shape).accepted
    assert oracle.verify(NEGATE).accepted
    assert oracle.verify(wrong_shape).status == "refused"
    assert "shape equal to f32[4]" in oracle.verify(wrong_shape).message
    assert oracle.verify(NEGATE[:-1]).status == "unparsed"


def test_a_crash_is_a_verdict_and_the_next_question_is_answered(oracle: Oracle) -> None:
    assert oracle.parse(PARAMETER_GAP).status == "crashed"
    assert oracle.parse(NEGATE).accepted


def test_a_hang_is_a_verdict() -> None:
    pytest.importorskip("jaxlib")
    with Oracle(timeout_seconds=0.001) as hasty:
        assert hasty.parse(NEGATE).status == "hung"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int4", "uint8"])
def test_values_come_back_in_their_type(dtype: str, oracle: Oracle) -> None:
    name = {"float32": "f32", "bfloat16": "bf16", "float8_e4m3fn": "f8e4m3fn", "int4": "s4"}
    text = NEGATE.replace("negate", "copy").replace("f32", name.get(dtype, "u8"))
    values = np.array([0, 1, 2, 3]).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))

    (out,) = oracle.run(text, [values])

    assert out.dtype == values.dtype
    assert out.tobytes() == values.tobytes()


def test_replicas_exchange_values(oracle: Oracle) -> None:
    text = """HloModule m, replica_count=4
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e {
  p = f32[2] parameter(0)
  ROOT r = f32[2] all-reduce(p), replica_groups={{0,1},{2,3}}, to_apply=add
}
"""
    program = oracle.load(text, replicas=4)
    outputs = program.run_each([[np.full(2, 10.0**i, np.float32)] for i in range(4)])
    assert [out[0].tolist() for out in outputs] == [[11, 11], [11, 11], [1100, 1100], [1100, 1100]]


def test_a_refusal_where_an_answer_is_needed_is_an_error(oracle: Oracle) -> None:
    with pytest.raises(OracleError, match="Syntax error"):
        oracle.reprint("HloModule")
