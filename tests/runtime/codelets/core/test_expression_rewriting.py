"""What is written in other ops: floored divisions, and bounds by two extrema."""

import numpy as np
import pytest

from hloipu_runtime.codelets.core.expression import plan_of
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.elementwise.binary import binary
from hloipu_runtime.kernels.native.settings import Settings, native_kernels


def _constant(value: int | str, kind: str) -> Node:
    return Node("constant", (), kind, (("value", str(value)),))


def _compare(direction: str, *arguments: int) -> Node:
    return Node("compare", arguments, "pred", (("direction", direction),))


def _divided(kind: str, divisor: int, sign: int = 1) -> Expression:
    nodes = (
        Node("sign", (0,), kind), _constant(sign, kind), _compare("NE", 1, 2),
        _constant(divisor, kind), Node("remainder", (0, 4), kind), _constant(0, kind),
        _compare("NE", 5, 6), Node("and", (3, 7), "pred"), Node("divide", (0, 4), kind),
        Node("subtract", (9, 2), kind), Node("select", (8, 10, 9), kind),
    )  # fmt: skip
    return Expression((kind,), nodes, (11,))


def _rest(kind: str, divisor: int, below: str = "LT") -> Expression:
    nodes = (
        _constant(divisor, kind), Node("remainder", (0, 1), kind), _constant(0, kind),
        _compare(below, 2, 3), _constant("false", "pred"), _compare("NE", 4, 5),
        _compare("NE", 2, 3), Node("and", (6, 7), "pred"), Node("add", (2, 1), kind),
        Node("select", (8, 9, 2), kind),
    )  # fmt: skip
    return Expression((kind,), nodes, (10,))


def _run(expression: Expression, x: np.ndarray) -> np.ndarray:

    with native_kernels(Settings(is_on=False)):
        return plan_of(expression).run([x])[0]


@pytest.mark.parametrize("kind", ["s8", "s16", "s32", "s64"])
@pytest.mark.parametrize("divisor", [1, 2, 7, 64, 127])
def test_floored_division_is_pythons(kind: str, divisor: int) -> None:
    """Both ends of the type, both signs, zero, and arrays long enough for several blocks."""
    ends = np.iinfo(np.dtype(f"i{int(kind[1:]) // 8}"))
    few = np.array(
        [ends.min, ends.min + 1, -65, -64, -7, -1, 0, 1, 6, 63, 64, ends.max], ends.dtype
    )
    for x in (few, np.resize(few, 1 << 17)):
        divided, rest = _divided(kind, divisor), _rest(kind, divisor)
        quotients, remainders = zip(*(divmod(int(n), divisor) for n in few), strict=True)
        assert np.array_equal(_run(divided, x), np.resize(quotients, x.size))
        assert np.array_equal(_run(rest, x), np.resize(remainders, x.size))
        assert len(plan_of(divided).moves) == len(plan_of(rest).moves) == 1


def test_what_is_no_floored_division_stays() -> None:
    """A divisor below one, or another test of the signs: every node is computed."""
    x = np.arange(-20, 21, dtype=np.int32)
    cut = np.trunc(x / 7).astype(np.int32)
    rest = x - 7 * cut
    cases = [
        (_divided("s32", 7, sign=2), cut - 2 * (rest != 0)),
        (_rest("s32", 7, below="GT"), np.where(rest > 0, rest + 7, rest)),
        (_divided("s32", 0), np.full(x.size, -1) - ((np.sign(x) != 1) & (x != 0))),
        (_divided("s32", -7), -cut - ((np.sign(x) != 1) & (rest != 0))),
    ]
    for expression, expected in cases:
        result = _run(expression, x)
        assert np.array_equal(result, expected)
        assert len(plan_of(expression).moves) > 5


@pytest.mark.parametrize("kind", ["f32", "bf16", "s32", "u8"])
@pytest.mark.parametrize(("low", "high"), [(-1, 1), (0, 6), (-3, 0), (5, 2), (2, 200)])
@pytest.mark.parametrize("turned", [False, True])
def test_two_bounds_are_those_of_two_extrema(kind: str, low: int, high: int, turned: bool) -> None:
    is_float = "f" in kind
    if kind == "u8" and low < 0:
        low, high = low + 3, high + 3
    dtype = storage_dtype(kind)
    few = np.array([0, 1, 2, 3, 5, 6, 7, 100, 250], dtype)
    if is_float:
        few = np.concatenate([few, -few, np.array([np.nan, np.inf, -np.inf, 0.5], dtype)])
    constants = [_constant(float(x).hex() if is_float else x, kind) for x in (low, high)]
    larger = Node("maximum", (1, 0) if turned else (0, 1), kind)
    smaller = Node("minimum", (2, 3) if turned else (3, 2), kind)
    expression = Expression((kind,), (*constants, larger, smaller), (4,))
    assert len(plan_of(expression).moves) == 1
    for x in (few, np.resize(few, 5000), np.resize(few, 1 << 17)):
        raised = binary("maximum", x, np.full_like(x, low), kind)
        wanted = binary("minimum", raised, np.full_like(x, high), kind)
        found = _run(expression, x)
        np.testing.assert_array_equal(found, wanted)
        if is_float:
            np.testing.assert_array_equal(np.signbit(found)[x == x], np.signbit(wanted)[x == x])
