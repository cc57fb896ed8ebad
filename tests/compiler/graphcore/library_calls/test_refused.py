"""Custom calls that cannot be: typed, with their place and what to do."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hloipu_compiler.formulas.call import FormulaError
from hloipu_compiler.graphcore.encoding.reading import flat_step
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.ops.custom_calls import REGISTRY, register_custom_call
from hloipu_compiler.source import Source
from hloipu_compiler.vendor.known_calls import WHY
from tests.support.popops_call import called, drawn, evaluated, text_of_call

X, SEED = drawn(3, 4), np.array([1, 2], np.int32)
WRONG: dict[str, tuple[str, list[NDArray[Any]], str, dict[str, object], str]] = {
    "shape": ("Relu", [X], "f32[4,3]", {}, "declared as"),
    "operands": ("HardSigmoid", [X, X], "f32[3,4]", {}, "takes 1"),
    "types": ("TanhGrad", [X, X.astype(np.float16)], "f32[3,4]", {}, "differ"),
    "missing number": ("Dropout", [X, SEED], "(f32[3,4], s32[2], opaque[])", {}, "rate"),
    "no number": ("OneHot", [SEED, X[0, 0:1], X[0, 0:1]], "f32[2,3]",
                  {"depth": "x", "axis": 1}, "depth"),
    "axis": ("ArgMax", [X], "s32[3]", {"axis": 2}, "axis is 2"),
    "groups": ("GroupNormStatistics", [X], "(f32[9], f32[9])",
               {"num_groups": 3, "epsilon": 0.1, "feature_index": 1}, "3 groups"),
    "window": ("MaxPool", [X], "f32[1,1]", {"window": "{"}, "window"),
    "operation": ("ScaledInplaceXbY", [X, X, X[0, 0:1]], "f32[3,4]", {"operation": "and"},
                  "operation"),
    "integer": ("Gelu", [SEED], "s32[2]", {}, "s32"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_shapes_and_attributes_that_do_not_fit(what: str) -> None:
    target, given, result, said, words = WRONG[what]
    with pytest.raises(FormulaError, match=words) as caught:
        called(target, given, result, said)
    error = caught.value
    assert (error.code, error.span.line) == ("E0531", 4 + len(given))
    assert f"'r' ({target})" in str(error)
    assert error.hint


@pytest.mark.parametrize("target", WHY)
def test_what_has_no_formula_is_refused_by_name(target: str) -> None:
    module = parse(Source(text_of_call(target, [X], "f32[3,4]"), "step.hlo"))
    with pytest.raises(FormulaError) as caught:
        flat_step(module)
    assert caught.value.code == "E0530"
    assert str(caught.value).startswith("step.hlo:5:3: error[E0530]: custom call 'r'")


def test_an_implementation_of_ones_own_is_taken() -> None:
    register_custom_call("UserOp", lambda call: [call.operands[0] * 2])
    try:
        (made,) = evaluated(text_of_call("UserOp", [X], "f32[3,4]"), X)
        np.testing.assert_array_equal(made, 2 * X)
    finally:
        del REGISTRY["UserOp"]


def test_modules_without_such_ops_are_left_alone() -> None:
    module = parse(Source("HloModule m\n\nENTRY e {\n  ROOT x = f32[2] parameter(0)\n}\n"))
    assert flat_step(module) is None
