"""Custom calls: the registry that users add to, and what targets see."""

from collections.abc import Iterator

import numpy as np
import pytest

import hloipu
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import Evaluator, evaluate
from hloipu_compiler.interpret.ops.custom_calls import (
    LOWERED,
    REGISTRY,
    Call,
    register,
)
from hloipu_compiler.interpret.ops.routine_forms import typed_attributes
from hloipu_compiler.ir.annotations import is_identity
from hloipu_compiler.vendor.expanding import expanded
from hloipu_runtime.errors import UnsupportedError
from tests.support.arrays import Array, f32


def program(target: str, shape: str = "f32[4]", more: str = "") -> str:
    return (
        "HloModule m\nENTRY e {\n  a = f32[4] parameter(0)\n"
        f'  ROOT call.1 = {shape} custom-call(a), custom_call_target="{target}"{more}\n}}\n'
    )


@pytest.fixture
def registry() -> Iterator[None]:
    before, lowered = dict(REGISTRY), dict(LOWERED)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)
    LOWERED.clear()
    LOWERED.update(lowered)


def test_an_unknown_target_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"'call\.1': .*'fancy_kernel'") as caught:
        Evaluator(parse(program("fancy_kernel")))
    assert "register_custom_call" in caught.value.hint


@pytest.mark.usefixtures("registry")
def test_a_registered_target_gets_operands_shape_and_configuration() -> None:
    def scale(call: Call) -> list[Array]:
        assert str(call.instruction.shape) == "(f32[4], s32[])"
        factor = call.config["factor"]
        assert isinstance(factor, float)
        return [call.operands[0] * np.float32(factor), np.asarray(len(call.config), np.int32)]

    hloipu.register_custom_call("scale", scale)
    text = program(
        "scale", "(f32[4], s32[])", ", backend_config={factor = 2.5 : f32, mode = 3 : i64}"
    )
    scaled, count = evaluate(parse(text), f32([1, 2, 3, 4]))
    assert scaled.tolist() == [2.5, 5, 7.5, 10]
    assert int(count) == 2


@pytest.mark.usefixtures("registry")
def test_a_later_registration_takes_the_earlier_ones_place() -> None:
    register("one", "two")(lambda call: [call.operands[0] + 1])
    register("two")(lambda call: [call.operands[0] + 2])
    assert evaluate(parse(program("one")), f32([0] * 4))[0][0] == 1
    assert evaluate(parse(program("two")), f32([0] * 4))[0][0] == 2


@pytest.mark.usefixtures("registry")
def test_a_user_may_replace_a_builtin() -> None:
    hloipu.register_custom_call("Sharding", lambda call: [call.operands[0] * 3])
    assert evaluate(parse(program("Sharding")), f32([1] * 4))[0].tolist() == [3] * 4


@pytest.mark.parametrize("target", ["Sharding", "MoveToHost", "MoveToDevice", "LayoutConstraint"])
def test_annotations_are_the_operand(target: str) -> None:
    x = f32([1, 2, 3, 4])
    assert evaluate(parse(program(target)), x)[0].tolist() == x.tolist()
    assert is_identity(parse(program(target)).entry["call.1"])


def test_topk() -> None:
    text = program("TopK", "(f32[2], s32[2])")
    values, places = evaluate(expanded(parse(text)), f32([3, 9, -1, 4]))
    assert (values.tolist(), places.tolist()) == ([9, 4], [1, 3])


def test_typed_attributes() -> None:
    text = (
        "{n = 4 : i64, x = -1.5e-3 : f32, on = true, off = false, "
        'name = "a, \\"b\\" = 1", k = #enum<x>}'
    )
    assert typed_attributes(text) == {
        "n": 4, "x": -0.0015, "on": True, "off": False, "name": 'a, \\"b\\" = 1', "k": "#enum<x>",
    }  # fmt: skip
    assert typed_attributes("") == typed_attributes("opaque") == typed_attributes("{}") == {}
