"""Expressions: values against numpy and ml_dtypes, whatever the size, the layout and the target."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloipu_runtime.codelets.core.constants import number_node, text_of, value_of
from hloipu_runtime.codelets.core.expression import (
    Expression,
    Node,
    evaluate,
    monoid_of,
    plan_of,
    region,
)
from hloipu_runtime.codelets.core.expression_steps import STEPS, WRITES_OUT
from hloipu_runtime.errors import UnsupportedError, UsageError
from hloipu_runtime.kernels.core.quiet import quietly
from hloipu_runtime.kernels.core.rounding import round_to
from hloipu_runtime.kernels.core.storage import from_storage, storage_dtype, user_dtype
from hloipu_runtime.kernels.elementwise.binary import binary
from hloipu_runtime.kernels.elementwise.unary import UNARY, unary

Array = np.ndarray[Any, Any]


def node(op: str, *arguments: int, t: str = "f32", **parameters: str | int) -> Node:
    """Return a node."""
    return Node(op, arguments, t, tuple(parameters.items()))


def constant(value: float, t: str = "f32") -> Node:
    """Return a node of one float."""
    return node("constant", t=t, value=float(value).hex())


def one(op: str, types: tuple[str, ...], result: str, **parameters: str | int) -> Expression:
    """Return an expression of one op on all operands."""
    arguments = tuple(range(len(types)))
    return Expression(types, (node(op, *arguments, t=result, **parameters),), (len(types),))


def bias_relu(t: str = "f32") -> Expression:
    """Return max(x + b, 0) * x, and x + b."""
    nodes = (
        node("add", 0, 1, t=t),
        constant(0, t),
        node("maximum", 2, 3, t=t),
        node("multiply", 4, 0, t=t),
    )
    return Expression((t, t), nodes, (5, 2))


SMALL, LARGE = 7, 70_001
"""The large size takes several blocks, the last of them short."""


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("over", [None, 0, 1])
def test_results_may_be_written_over_an_operand(size: int, over: int | None) -> None:
    random = np.random.default_rng(size)
    x, b = (random.normal(size=size).astype(np.float32) for _ in range(2))
    want = np.maximum(x + b, 0) * x, x + b
    outs = [None if over is None else (x, b)[over], np.empty(size, np.float32)]
    found = evaluate(bias_relu(), [x, b], outs)
    for array, wanted in zip(found, want, strict=True):
        np.testing.assert_array_equal(array, wanted)


@pytest.mark.parametrize("element_type", ["bf16", "f16"])
def test_narrow_floats_are_rounded_after_each_op(element_type: str) -> None:
    dtype = ml_dtypes.bfloat16 if element_type == "bf16" else np.float16
    random = np.random.default_rng(3)
    x, b = (random.normal(size=LARGE).astype(dtype) for _ in range(2))
    found = evaluate(bias_relu(element_type), [x.astype(np.float32), b.astype(np.float32)])
    total = x + b  # ml_dtypes and numpy round each op to the type
    np.testing.assert_array_equal(found[1], total.astype(np.float32))
    product = (np.maximum(total, dtype(0)) * x).astype(np.float32)
    np.testing.assert_array_equal(found[0], product)


@pytest.mark.parametrize("shapes", [((300, 401), (401,)), ((300, 401), (300, 1)), ((), (5,))])
def test_operands_broadcast(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    random = np.random.default_rng(4)
    x, b = (np.asarray(random.normal(size=s), np.float32) for s in shapes)
    found = evaluate(bias_relu(), [x, b])
    np.testing.assert_array_equal(found[0], np.maximum(x + b, 0) * x)
    assert found[0].shape == np.broadcast_shapes(*shapes)


def test_transposed_operands_and_targets() -> None:
    random = np.random.default_rng(5)
    x = random.normal(size=(300, 401)).astype(np.float32)
    b = random.normal(size=(401, 300)).astype(np.float32).T
    out = np.empty((401, 300), np.float32).T
    for outs in (None, [out, None], [None, out]):
        found = evaluate(bias_relu(), [x, b], outs)
        np.testing.assert_array_equal(found[0], np.maximum(x + b, 0) * x)
        np.testing.assert_array_equal(found[1], x + b)
    both = evaluate(bias_relu(), [x.T, b.T])
    np.testing.assert_array_equal(both[0], (np.maximum(x + b, 0) * x).T)


def test_nothing_is_computed_from_nothing() -> None:
    empty = np.empty((0, 3), np.float32)
    for t in ("f32", "bf16"):
        assert [x.shape for x in evaluate(bias_relu(t), [empty, empty])] == [(0, 3), (0, 3)]


@pytest.mark.parametrize("op", ["maximum", "minimum"])
@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, float("inf"), float("nan")])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("size", [8, 5000])
def test_extrema_with_a_constant_are_those_of_the_kernel(
    op: str, value: float, first: bool, size: int
) -> None:
    few = np.array([0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, np.nan, 1e-45], np.float32)
    special = np.resize(few, size)
    arguments = (0, 1) if first else (1, 0)
    text = text_of(np.array(value, np.float32), "f32")
    expression = Expression(("f32",), (node("constant", value=text), node(op, *arguments)), (2,))
    (found,) = evaluate(expression, [special])
    want = binary(op, special, np.full_like(special, value), "f32")
    np.testing.assert_array_equal(found, want)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(found)[numbers], np.signbit(want)[numbers])


@pytest.mark.parametrize("size", [1, 5000, LARGE])
@pytest.mark.parametrize("element_type", ["f32", "s8", "f64", "pred", "c64", "c128"])
@pytest.mark.parametrize("over", [None, 1, 2])
def test_select(size: int, element_type: str, over: int | None) -> None:
    random = np.random.default_rng(6)
    holds = random.random(size) < 0.5
    dtype = storage_dtype(element_type)
    yes, no = (random.integers(0, 2, size).astype(dtype) * dtype.type(1) for _ in range(2))
    want = np.where(holds, yes, no)
    expression = Expression(
        ("pred", element_type, element_type),
        (node("select", 0, 1, 2, t=element_type), node("copy", 3, t=element_type)),
        (4,),
    )
    outs = None if over is None else [(holds, yes, no)[over]]
    (found,) = evaluate(expression, [holds, yes, no], outs)
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("size", [8, LARGE])
def test_select_of_numbers_and_by_one_predicate(size: int) -> None:
    x = np.linspace(-1, 1, size, dtype=np.float32)
    nodes = (
        constant(0),
        node("compare", 0, 1, t="pred", direction="GT"),
        constant(3),
        node("select", 2, 0, 3),
        node("select", 2, 3, 0),
        node("select", 2, 3, 1),
    )
    found = evaluate(Expression(("f32",), nodes, (4, 5, 6)), [x])
    for array, want in zip(
        found,
        (np.where(x > 0, x, 3), np.where(x > 0, 3, x), np.where(x > 0, 3.0, 0.0)),
        strict=True,
    ):
        np.testing.assert_array_equal(array, want)
    by_one = Expression(("pred", "f32", "f32"), (node("select", 0, 1, 2),), (3,))
    for choice in (True, False):
        (array,) = evaluate(by_one, [np.array(choice), x, np.array(7, np.float32)])
        want = x if choice else np.full(size, 7, np.float32)
        np.testing.assert_array_equal(array, want, strict=True)


@pytest.mark.parametrize("value", [0, 1, 2])
def test_a_clamp_with_two_constants_is_two_extrema(value: int) -> None:
    x, low, high = np.array([-3, 0, 2, 7, np.nan], np.float32), np.float32(0), np.float32(5)
    rest = iter((low, high))
    given = [x if k == value else np.array(next(rest)) for k in range(3)]
    numbers = [0 if k == value else 1 + k - (k > value) for k in range(3)]
    constants = [node("constant", value=text_of(np.array(c), "f32")) for c in (low, high)]
    expression = Expression(("f32",), (*constants, node("clamp", *numbers)), (3,))
    (result,) = evaluate(expression, [x])
    np.testing.assert_array_equal(result, np.minimum(np.maximum(given[0], given[1]), given[2]))


def test_a_clamp_may_be_written_over_its_upper_bound() -> None:
    x = np.array([-2, 0.5, 2], np.float32)
    high = np.array([1, 1, 1.5], np.float32)
    (found,) = evaluate(
        one("clamp", ("f32", "f32", "f32"), "f32"), [np.array(-1, np.float32), x, high], [high]
    )
    np.testing.assert_array_equal(found, [-1, 0.5, 1.5])


@pytest.mark.parametrize("size", [8, LARGE])
def test_values_that_a_node_hands_on_are_not_written_over(size: int) -> None:
    # bf16 is stored as f32, so the convert to f32 is the sum itself.
    x = np.ones(size, np.float32)
    nodes = (
        node("add", 0, 0, t="bf16"),
        node("convert", 1),
        node("add", 0, 0, t="bf16"),
        node("multiply", 3, 3, t="bf16"),
        node("convert", 4),
        node("subtract", 2, 5),
    )
    (found,) = evaluate(Expression(("bf16",), nodes, (6,)), [x])
    np.testing.assert_array_equal(found, np.full(size, -2.0))


CONVERSIONS = [
    ("s32", "f32"), ("f32", "s32"), ("pred", "f32"), ("f32", "pred"), ("f32", "bf16"),
    ("f64", "f16"), ("bf16", "f32"), ("s8", "s32"), ("s32", "s8"), ("f16", "f64"), ("s32", "u8"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), CONVERSIONS)
def test_conversions_in_blocks_are_those_of_ml_dtypes(before: str, after: str) -> None:
    users = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "pred": np.bool_}
    random = np.random.default_rng(7)
    integers = random.integers(0, 2 if before == "pred" else 100, LARGE)
    x = integers.astype(storage_dtype(before))
    nodes = (node("copy", 0, t=before), node("convert", 1, t=after))
    for outs in (None, [np.empty(LARGE, storage_dtype(after))]):
        (found,) = evaluate(Expression((before,), nodes, (2,)), [x], outs)
        want = x.astype(users.get(after, storage_dtype(after))).astype(storage_dtype(after))
        assert found.dtype == storage_dtype(after)
        np.testing.assert_array_equal(found, want)


REAL_TYPES = ["f32", "f64", "bf16", "f16", "f8e4m3fn", "s32", "u8", "s4", "pred", "c64"]


@pytest.mark.parametrize("element_type", REAL_TYPES)
def test_every_unary_op_is_its_kernel(element_type: str) -> None:
    x = _numbers(element_type, 33_000, seed=8)
    for op in UNARY:
        try:
            want = unary(op, x[:40], element_type)
        except UnsupportedError:
            continue
        result = {"bool": "pred", "float32": "f32"}.get(str(want.dtype), element_type)
        result = element_type if want.dtype == storage_dtype(element_type) else result
        single = one(op, (element_type,), result)
        twice = single._replace(nodes=(*single.nodes, node("copy", 1, t=result)), results=(2,))
        np.testing.assert_array_equal(evaluate(single, [x[:40]])[0], want, err_msg=op)
        blocked = evaluate(twice, [x])[0]
        np.testing.assert_array_equal(blocked, unary(op, x, element_type), err_msg=op)
        alone = evaluate(single, [x[0]])[0]
        assert isinstance(alone, np.ndarray)
        np.testing.assert_array_equal(alone, unary(op, x[:1], element_type)[0], err_msg=op)


@pytest.mark.parametrize("element_type", REAL_TYPES)
def test_every_binary_op_is_its_kernel(element_type: str) -> None:
    x, y = (_numbers(element_type, 33_000, seed=s) for s in (9, 10))
    for op in STEPS:
        if op == "complex" and element_type != "f32":
            continue
        try:
            want = binary(op, x[:40], y[:40], element_type)
        except UnsupportedError:
            continue
        result = "c64" if op == "complex" and element_type == "f32" else element_type
        single = one(op, (element_type, element_type), result)
        twice = single._replace(nodes=(*single.nodes, node("copy", 2, t=result)), results=(3,))
        np.testing.assert_array_equal(evaluate(single, [x[:40], y[:40]])[0], want, err_msg=op)
        blocked = evaluate(twice, [x, y])[0]
        np.testing.assert_array_equal(blocked, binary(op, x, y, element_type), err_msg=op)
        by_one = evaluate(single, [x[:40], y[3]])[0]
        repeated = np.full_like(y[:40], y[3])
        np.testing.assert_array_equal(by_one, binary(op, x[:40], repeated, element_type))


def test_ops_with_parameters_are_their_kernels() -> None:
    x = _numbers("f32", 33_000, seed=11)
    bits = np.random.default_rng(12).integers(0, 2**32, x.size, np.uint32)
    nodes = (
        node("reduce-precision", 0, exponent_bits=5, mantissa_bits=10),
        node("stochastic-convert", 0, 1, t="bf16"),
        node("bitcast-convert", 0, t="s32"),
        node("compare", 0, 2, t="pred", direction="LE", type="TOTALORDER"),
    )
    found = evaluate(Expression(("f32", "u32"), nodes, (2, 3, 4, 5)), [x, bits])
    half = x.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(found[0], np.where(np.abs(half) < 2.0**-14, 0 * x, half))
    # Either neighbour in bf16: the difference is less than a unit in the last place.
    assert (np.abs(found[1] - x) < np.abs(x) * 2.0**-7).all()
    assert not (found[1].view(np.uint32) & 0xFFFF).any()
    np.testing.assert_array_equal(found[2], x.view(np.int32))
    np.testing.assert_array_equal(found[3], x <= found[0])


def test_a_long_expression_is_planned_in_linear_time() -> None:
    count = 20_000
    nodes = tuple(node("add", n, 0) for n in range(count))
    (found,) = evaluate(Expression(("f32",), nodes, (count,)), [np.ones(2, np.float32)])
    np.testing.assert_array_equal(found, [count + 1] * 2)


def _numbers(element_type: str, size: int, seed: int) -> Array:
    random = np.random.default_rng(seed)
    dtype = storage_dtype(element_type)
    if dtype.kind == "b":
        return random.random(size) < 0.5
    if dtype.kind in "iu":
        return random.integers(0 if dtype.kind == "u" else -8, 8, size).astype(dtype)
    values = random.normal(size=size).astype(dtype)
    if dtype.kind == "c":
        values.imag = random.normal(size=size)
        return values
    return round_to(values, element_type)


def test_a_region_is_called_with_accumulators_and_values() -> None:
    total = region(one("add", ("s32", "s32"), "s32"))
    np.testing.assert_array_equal(
        total(np.array([1, 2], np.int32), np.array(5, np.int32))[0], [6, 7]
    )
    second = region(Expression(("s32", "s32"), (), (1,)))
    (found,) = second(np.array([1, 2], np.int32), np.array(5, np.int32))
    np.testing.assert_array_equal(found, [5, 5])


def test_which_expressions_are_monoids() -> None:
    assert monoid_of(one("add", ("f32", "f32"), "f32")) == "add"
    assert monoid_of(one("subtract", ("f32", "f32"), "f32")) is None
    twice = Expression(("f32", "f32"), (node("add", 0, 0),), (2,))
    assert monoid_of(twice) is None
    wide = (
        node("convert", 0), node("convert", 1), node("add", 3, 2), node("convert", 4, t="bf16"),
    )  # fmt: skip
    assert monoid_of(Expression(("bf16", "bf16"), wide, (5,))) == "add"
    narrow = tuple(n._replace(element_type="f16" if n.element_type == "f32" else "bf16")
                   for n in wide)  # fmt: skip
    assert monoid_of(Expression(("bf16", "bf16"), narrow, (5,))) is None
    assert monoid_of(Expression(("f32", "f32"), (), (0,))) is None


@pytest.mark.parametrize(
    ("element_type", "value", "text"),
    [
        ("f32", np.float32(0.1), "0x1.99999a0000000p-4"),
        ("f32", np.float32(-np.inf), "-inf"),
        ("f32", np.uint32(0xFFC00001).view(np.float32), "nan:0xffc00001"),
        ("s64", np.int64(-(2**63)), "-9223372036854775808"),
        ("u64", np.uint64(2**64 - 1), "18446744073709551615"),
        ("pred", np.bool_(True), "true"),
        ("c64", np.complex64(1 - 2j), "0x1.0000000000000p+0,-0x1.0000000000000p+1"),
    ],
)
def test_constants_are_exact_text(element_type: str, value: Any, text: str) -> None:
    assert text_of(value, element_type) == text
    back = value_of(text, element_type)
    assert back.dtype == storage_dtype(element_type)
    assert back.tobytes() == np.asarray(value).tobytes()


@pytest.mark.parametrize(
    ("element_type", "text"),
    [("f32", "xyz"), ("s8", "300"), ("pred", "1"), ("c64", "0x1p0"), ("u8", "-1"), ("f32", "nan:")],
)
def test_text_that_is_no_constant(element_type: str, text: str) -> None:
    with pytest.raises(UsageError, match="E3092"):
        value_of(text, element_type)


@pytest.mark.parametrize(
    "expression",
    [
        Expression(("f32",), (node("dot", 0, 0),), (1,)),
        Expression(("f32",), (node("negate", 1),), (1,)),
        Expression(("f32",), (node("negate", 0),), (2,)),
        Expression(("f32",), (node("negate", -1),), (1,)),
    ],
)
def test_data_that_is_no_expression(expression: Expression) -> None:
    with pytest.raises(UsageError, match="E3091"):
        plan_of(expression)


@pytest.mark.parametrize("element_type", ["f32", "f16", "bf16", "f8e4m3fn", "f64", "s32", "u8"])
@pytest.mark.parametrize("number", [0, 1, 10, 16, 100])
def test_a_number_comes_back_from_its_node(element_type: str, number: int) -> None:
    node = number_node(number, element_type)
    text = node.parameters[0][1]
    assert isinstance(text, str)
    stored = value_of(text, element_type)
    expected = np.asarray(number, user_dtype(element_type))
    assert from_storage(stored, element_type) == expected


def test_complex_numbers_and_predicates_have_nodes_too() -> None:
    assert number_node(0.5, "c64").parameters == (("value", "0x1.0000000000000p-1,0x0.0p+0"),)
    assert number_node(0, "pred").parameters == (("value", "false"),)


@pytest.mark.parametrize(("number", "element_type"), [(0.5, "s32"), (256, "u8"), (-1, "u32")])
def test_a_number_that_integers_do_not_hold_is_refused(number: float, element_type: str) -> None:
    with pytest.raises(UsageError, match="not a value of type") as caught:
        number_node(number, element_type)
    assert caught.value.code == "E3092"


@pytest.mark.parametrize("text", ["10", "1.5", "-3", "1e3"])
def test_decimal_digits_are_no_text_of_a_float(text: str) -> None:
    with pytest.raises(UsageError, match="not a value of type f32"):
        value_of(text, "f32")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((1, 4), (0, 4)),
        ((3, 1), (1, 5)),
        ((4,), ()),
        ((), (4,)),
        ((0,), (0,)),
        ((300, 1), (1, 300)),
    ],
)
@pytest.mark.parametrize("op", ["add", "multiply"])
def test_narrow_operands_broadcast(
    op: str, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    expression = Expression(("f16", "f16"), (Node(op, (0, 1), "f16"),), (2,))
    generator = np.random.default_rng(3)
    x, y = (generator.standard_normal(n).astype(np.float16) for n in (first, second))
    (found,) = evaluate(expression, [np.asarray(v, np.float32) for v in (x, y)])
    wanted = np.add(x, y) if op == "add" else np.multiply(x, y)
    np.testing.assert_array_equal(found, np.asarray(wanted).astype(np.float32))


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("is_read_on", [False, True])
def test_views_of_operands_are_read_before_these_are_overwritten(
    is_read_on: bool, size: int
) -> None:
    """A conversion from f16, which is stored as f32, is the operand itself."""
    nodes = (node("convert", 0), node("add", 0, 0, t="f16"), node("negate", 1))
    expression = Expression(("f16",), nodes, (2, 3 if is_read_on else 1))
    x = (np.arange(size) % 9).astype(np.float32)
    before = x.copy()
    outs = [x, None]
    doubled, kept = plan_of(expression).bound([x.shape], x.shape)([x], outs)
    np.testing.assert_array_equal(doubled, 2 * before)
    np.testing.assert_array_equal(kept, -before if is_read_on else before)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_parts_of_complex_numbers_outlive_these(size: int) -> None:
    """`real` and `imag` are read after what they are parts of could be written over."""
    nodes = (
        node("add", 0, 0, t="c64"),
        node("real", 1),
        node("imag", 1),
        node("multiply", 0, 0, t="c64"),
        node("complex", 3, 2, t="c64"),
        node("subtract", 5, 4, t="c64"),
    )
    x = _numbers("c64", size, seed=11)
    (found,) = evaluate(Expression(("c64",), nodes, (6,)), [x])
    double = x + x
    np.testing.assert_array_equal(found, double.imag + 1j * double.real - x * x)


@pytest.mark.parametrize("element_type", ["f32", "bf16", "s32", "c64", "c128"])
def test_unary_ops_share_no_memory_with_their_operand(element_type: str) -> None:
    """Buffers are written over once they are read for the last time: views would be, too."""
    x = _numbers(element_type, SMALL, seed=12)
    for op in sorted(WRITES_OUT & UNARY.keys()):
        try:
            unary(op, x, element_type)
        except UnsupportedError:
            continue
        with quietly():
            made = STEPS[op]((element_type,), element_type, {})([x], None)
        assert not np.shares_memory(made, x), op
