"""Compiled kernels give the bits that numpy gives, op by op, however operands lie."""

from contextlib import nullcontext

import numpy as np
import pytest

from hloipu_runtime.codelets.core import expression_plan, native_expression
from hloipu_runtime.codelets.core.expression import plan_of
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.core.native_expression import NativeExpression, kept_buffers
from hloipu_runtime.codelets.core.native_lowering import NumpyStep, lowered
from hloipu_runtime.codelets.core.straight import run_calls
from hloipu_runtime.kernels.computing import computing
from hloipu_runtime.kernels.core.rounding import round_to
from hloipu_runtime.kernels.elementwise.complex_binary import join
from hloipu_runtime.kernels.native.settings import Settings, is_there, native_kernels
from tests.support.native_cases import (
    TYPES,
    Array,
    all_values,
    by_kernels,
    by_numpy,
    differences,
    every_op,
    some_values,
    wrong_nodes,
)

pytestmark = pytest.mark.skipif(not is_there(), reason="llvmlite is not installed")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("element_type", TYPES)
def test_every_op_has_the_same_bits(element_type: str) -> None:
    generator = np.random.default_rng(5)
    expression = every_op(element_type)
    for settings in (nullcontext(), computing()):  # the second one flushes subnormals
        with settings, np.errstate(all="ignore"):
            arrays = [some_values(x, 1003, generator) for x in expression.operand_types]
            by_both = by_numpy(expression, arrays), by_kernels(expression, arrays)
        assert wrong_nodes(expression, *by_both) == {}


@pytest.mark.parametrize("element_type", ["f32", "f64", "bf16"])
def test_what_is_chosen_by_how_it_compares_is_not_flushed(element_type: str) -> None:
    directions = ("LT", "LE", "GT", "GE", "EQ", "NE")
    compared = [Node("compare", (0, 1), "pred", (("direction", x),)) for x in directions]
    pairs = [(2 + k, *pair) for k in range(len(directions)) for pair in ((0, 1), (1, 0))]
    nodes = (*compared, *(Node("select", x, element_type) for x in pairs))
    results = tuple(range(2 + len(compared), 2 + len(nodes)))
    expression = Expression((element_type,) * 2, nodes, results)
    generator = np.random.default_rng(6)
    values = [0.0, -0.0, 1.0, -2.0, np.inf, np.nan, 1e-40, -1e-40, 1e-310, -1e-310]
    storage = np.float64 if element_type == "f64" else np.float32
    arrays = [generator.choice(np.array(values), 1003).astype(storage) for _ in range(2)]
    if element_type == "bf16":
        arrays = [round_to(x, element_type) for x in arrays]
    with computing():
        by_both = by_numpy(expression, arrays), by_kernels(expression, arrays)
    assert wrong_nodes(expression, *by_both) == {}


@pytest.mark.parametrize("element_type", ["f16", "bf16"])
def test_what_was_rounded_goes_on_with_the_same_bits(element_type: str) -> None:
    values, generator = all_values(element_type), np.random.default_rng(8)
    for op in ("add", "multiply", "divide"):
        nodes = [Node(op, (0, 1), element_type)]
        unary = ("floor", "ceil", "round-nearest-even", "round-nearest-afz", "sign", "negate")
        nodes += [Node(x, (2,), element_type) for x in unary]
        nodes += [Node(x, (2, 1), element_type) for x in ("maximum", "minimum", "subtract")]
        nodes += [Node("compare", (2, 1), "pred", (("direction", x),)) for x in ("EQ", "GT")]
        nodes += [Node("convert", (2,), x) for x in ("s8", "s32", "f32", "pred")]
        results = tuple(range(2, 2 + len(nodes)))
        expression = Expression((element_type,) * 2, tuple(nodes), results)
        for settings in (nullcontext(), computing()):
            with settings, np.errstate(all="ignore"):
                arrays = [values, generator.permutation(values)]
                by_both = by_numpy(expression, arrays), by_kernels(expression, arrays)
            assert wrong_nodes(expression, *by_both) == {}


def test_a_payload_that_is_cut_leaves_a_nan() -> None:
    """All bits of the payload are ones: rounded as a number's, they would carry."""
    nodes = (Node("convert", (0,), "bf16"), Node("negate", (1,), "bf16"))
    expression = Expression(("f32",), nodes, (1, 2))
    bits = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFFBFFFFF], np.uint32)
    with computing(), np.errstate(all="ignore"):
        for made in by_kernels(expression, [np.repeat(bits, 9).view(np.float32)]):
            assert np.isnan(made).all()


@pytest.mark.parametrize("size", [1, 7, 1003])
def test_complex_numbers_have_the_same_bits(size: int) -> None:
    generator = np.random.default_rng(7)
    pairs = [("add", (0, 1)), ("subtract", (0, 1)), ("multiply", (0, 1)), ("multiply", (0, 0))]
    nodes = [Node(op, given, "c64") for op, given in pairs]
    nodes += [Node("negate", (5,), "c64"), Node("select", (2, 0, 1), "c64")]
    nodes += [Node(op, (0,), "f32") for op in ("real", "imag", "abs")]
    nodes += [
        Node("complex", (9, 11), "c64"),
        Node("sqrt", (12,), "c64"),
        Node("abs", (13,), "f32"),
    ]
    nodes += [Node("compare", (0, 1), "pred", (("direction", x),)) for x in ("EQ", "NE")]
    made = range(3, 3 + len(nodes))
    expression = Expression(("c64", "c64", "pred"), tuple(nodes), tuple(made))
    parts = lowered(expression, halves=False).parts
    assert sum(isinstance(x, NumpyStep) for x in parts) == 1  # the root
    for settings in (nullcontext(), computing()):
        with settings, np.errstate(all="ignore"):
            four = [some_values("f32", size, generator) for _ in range(4)]
            x, y = (join(a, b, np.complex64) for a, b in (four[:2], four[2:]))
            x[::3] = y[::3]
            arrays = [x, y, some_values("pred", size, generator)]
            by_both = by_numpy(expression, arrays), by_kernels(expression, arrays)
        assert wrong_nodes(expression, *by_both) == {}


@pytest.mark.parametrize("sizes", [(0,), (3, 0)])
def test_there_may_be_no_elements(sizes: tuple[int, ...]) -> None:
    made = by_kernels(_mixed("f32"), [np.ones(sizes, np.float32)] * 3)
    assert [x.shape for x in made] == [sizes] * 2


def _mixed(element_type: str) -> Expression:
    """Return one of two results with steps of numpy's between kernels."""

    def node(op: str, *arguments: int) -> Node:
        return Node(op, arguments, element_type)

    nodes = (
        node("multiply", 0, 1), node("add", 3, 2), node("tanh", 4), node("subtract", 5, 0),
        node("logistic", 6), node("maximum", 7, 1),
    )  # fmt: skip
    return Expression((element_type,) * 3, nodes, (6, 8))


def _laid(x: Array, how: str) -> Array:
    """Return an array's values, or some of them, as a view of some kind with four dimensions."""
    match how:
        case "row-major":
            return x
        case "transposed":
            return np.ascontiguousarray(x.transpose(0, 1, 3, 2)).transpose(0, 1, 3, 2)
        case "turned":
            return np.ascontiguousarray(x.transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3)
        case "every other":
            return np.repeat(x, 2, axis=-1)[..., ::2]
        case "row":
            return np.asarray(x[0, 0, 0])
        case "column":
            return x[..., :1]
        case "inner rows":
            return x[:1, :, :1]
        case "channel":
            return x[:1, :, :1, :1]
        case _:
            return np.asarray(x[0, 0, 0, 0])


HOW = ("row-major", "transposed", "turned", "every other", "row", "column", "inner rows", "channel")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("sizes", [(3, 4, 50, 67), (2, 3, 5, 7), (2, 1, 3, 40_000)])
@pytest.mark.parametrize("first", HOW)
def test_operands_may_lie_as_they_like(first: str, sizes: tuple[int, ...]) -> None:
    generator = np.random.default_rng(6)
    expression = _mixed("bf16")
    native = _ready(expression)
    x, y, z = (some_values("bf16", int(np.prod(sizes)), generator).reshape(sizes) for _ in range(3))
    for second in (*HOW, "one"):
        arrays = [_laid(x, first), _laid(y, second), z]
        with computing():
            plain = plan_of(expression)._plain([a.shape for a in arrays], sizes)
            wanted = plain(arrays, [None, None])
            with native_kernels(Settings(keeps=False)):
                made = native.run(arrays, [None, None], sizes)
        assert made is not None
        assert [differences(a, b) for a, b in zip(wanted, made, strict=True)] == [0, 0], second
        # The order of memory decides in which order a later reduction adds up.
        assert [a.strides for a in wanted] == [b.strides for b in made], second


@pytest.mark.parametrize("element_type", ["f32", "bf16", "f16", "f8e4m3fn", "f8e8m0fnu"])
def test_few_elements_go_through_kernels_and_numpy_in_turn(
    element_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COMPILING_WORK", "LOADING_WORK"):
        monkeypatch.setattr(native_expression, name, 0)
    monkeypatch.setattr(expression_plan, "WHOLE_CALL_WORK", 0)
    native_expression.native_expression.cache_clear()
    generator = np.random.default_rng(4)
    mixed = _mixed(element_type)
    wide = Node("convert", (5,), "f32")
    expression = mixed._replace(nodes=(*mixed.nodes, wide), results=(5, 6, 8, 9))
    shapes, whole = [(12, 7), (7,), (12, 1)], (12, 7)
    x = [some_values(element_type, int(np.prod(n)), generator).reshape(n) for n in shapes]
    with computing():
        wanted = [np.broadcast_to(a, whole) for a in by_numpy(expression, x)]
        with native_kernels(Settings(keeps=False)):
            straight = plan_of(expression).straight(shapes, whole)
            assert straight is not None
            made = run_calls(straight, len(x))(x, [None] * len(wanted))
    several = [call for call in straight.calls if call.dtype is None]
    assert several or element_type == "f8e8m0fnu"  # no kernel computes that one
    assert [differences(a, b) for a, b in zip(wanted, made, strict=True)] == [0] * len(wanted)


@pytest.mark.parametrize("size", [40, 1 << 15])
def test_results_may_be_rows_of_larger_arrays(size: int) -> None:
    """As those of some tiles are, among others' parts: grid axes before the axes of a part."""
    generator = np.random.default_rng(2)
    expression = _mixed("f32")
    arrays = [some_values("f32", 2 * 3 * 4 * size, generator) for _ in range(3)]
    arrays = [x.reshape(2, 4, 3, size).transpose(0, 2, 1, 3) for x in arrays]
    around = [np.full((8, 3 * size + 5), 7, np.float32) for _ in range(2)]
    places = [
        x[:, : 3 * size].reshape(2, 4, 3, size).transpose(0, 2, 1, 3) for x in around
    ]  # of rows of 3 parts side by side, 4 rows of a part
    assert all(np.shares_memory(x, y) for x, y in zip(places, around, strict=True))
    with computing():
        made = by_kernels(expression, arrays, places)
        wanted = by_numpy(expression, arrays)
    assert [differences(a, b) for a, b in zip(made, wanted, strict=True)] == [0, 0]
    assert all((x[:, 3 * size :] == 7).all() for x in around)


def test_buffers_of_all_expressions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    x = [np.full((300, 200), 0.5, np.float32)] * 3
    natives = [_ready(_mixed(kind)) for kind in ("f32", "bf16", "f16")]
    kept_buffers.cache_clear()
    with computing(), native_kernels(Settings(keeps=False)):
        for native in natives:
            assert native.run(x, [None, None], x[0].shape) is not None
        per_run = _idle_bytes(natives[0])
        assert all(_idle_bytes(native) for native in natives)
        monkeypatch.setattr(native_expression, "MOST_KEPT_BYTES", 3 * per_run)
        for rows in range(1, 300, 7):
            for native in natives:
                assert native.run([a[:rows] for a in x], [None, None], (rows, 200)) is not None
            assert sum(_idle_bytes(native) for native in natives) <= 3 * per_run
    kept_buffers.cache_clear()


def test_few_expressions_keep_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small their buffers are: who keeps some stays in memory."""
    x = [np.full((3, 4), 0.5, np.float32)] * 3
    natives = [_ready(_mixed(kind)) for kind in ("f32", "bf16", "f16")]
    kept_buffers.cache_clear()
    monkeypatch.setattr(native_expression, "MOST_KEEPERS", 2)
    with computing(), native_kernels(Settings(keeps=False)):
        for native in natives:
            assert native.run(x, [None, None], x[0].shape) is not None
    assert [_idle_bytes(native) > 0 for native in natives] == [False, True, True]
    kept_buffers.cache_clear()


def _idle_bytes(native: NativeExpression) -> int:
    return sum(x.kept_bytes for idle in native._idle.values() for x in idle)


def _ready(expression: Expression) -> NativeExpression:
    """Return an expression of which so much was computed that compiling pays."""
    native = NativeExpression(expression)
    native.count(1 << 40)
    return native
