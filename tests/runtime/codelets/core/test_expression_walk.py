"""Large arrays in blocks: the same values as at once, the short last block and layouts included."""

import numpy as np
import pytest

from hloipu_runtime.codelets.core.constants import number_node, value_of
from hloipu_runtime.codelets.core.expression import Expression, Node, evaluate
from hloipu_runtime.kernels.core.blocks import BLOCK_ELEMENTS
from hloipu_runtime.kernels.core.storage import storage_dtype

_LARGE = 70_001
"""Several blocks, the last of them short."""


def _node(op: str, *arguments: int, t: str, **parameters: str) -> Node:
    return Node(op, arguments, t, tuple(parameters.items()))


def constant(value: float) -> Node:
    return Node("constant", (), "f32", (("value", value.hex()),))


CHAIN = Expression(
    ("f32", "f32"),
    (
        constant(0.5),
        Node("maximum", (0, 2), "f32"),
        Node("add", (3, 1), "f32"),
        constant(-2.0),
        Node("minimum", (5, 4), "f32"),
        Node("multiply", (6, 3), "f32"),
    ),
    (7, 4),
)


@pytest.mark.parametrize("shape", [(2 * BLOCK_ELEMENTS + 77,), (3, BLOCK_ELEMENTS - 5), (900, 301)])
@pytest.mark.parametrize("turned", [False, True])
def test_extrema_with_numbers_repeat_these_over_each_block(
    shape: tuple[int, ...], turned: bool
) -> None:
    drawn = np.random.default_rng(5)
    x, y = (drawn.standard_normal(shape).astype(np.float32) for _ in range(2))
    x.reshape(-1)[:: BLOCK_ELEMENTS // 3] = np.nan
    if turned:
        x, y = np.asfortranarray(x), np.asfortranarray(y)
    with np.errstate(invalid="ignore"):
        product, total = evaluate(CHAIN, [x, y])
        raised = np.maximum(x, np.float32(0.5))
        np.testing.assert_array_equal(total, raised + y)
        np.testing.assert_array_equal(product, np.minimum(np.float32(-2), raised + y) * raised)


@pytest.mark.parametrize("columns", [2, 9, 32, 33])
@pytest.mark.parametrize("turned", [False, True])
def test_operands_that_repeat_along_short_rows(columns: int, turned: bool) -> None:
    drawn = np.random.default_rng(5)
    x = drawn.standard_normal((20_000, columns)).astype(np.float32)
    by_row, by_column = (
        drawn.standard_normal(s).astype(np.float32) for s in ((20_000, 1), columns)
    )
    if turned:
        x = np.asfortranarray(x)
    nodes = (
        Node("multiply", (0, 1), "f32"),
        Node("add", (3, 2), "f32"),
        Node("multiply", (4, 1), "f32"),
    )
    (made,) = evaluate(Expression(("f32",) * 3, nodes, (5,)), [x, by_row, by_column])
    np.testing.assert_array_equal(made, (x * by_row + by_column) * by_row)


@pytest.mark.parametrize("element_type", ["f32", "s8", "f64", "pred", "c64", "s32"])
@pytest.mark.parametrize("over", [None, 1, 2, 3])
def test_choices_by_one_predicate_in_blocks(element_type: str, over: int | None) -> None:
    random = np.random.default_rng(6)
    holds, less = (random.random(_LARGE) < 0.5 for _ in range(2))
    dtype = storage_dtype(element_type)
    is_pred = element_type == "pred"
    drawn = [random.integers(0, 256, _LARGE * dtype.itemsize).astype(np.uint8) for _ in range(3)]
    x, y, z = (bits < 128 if is_pred else bits.view(dtype) for bits in drawn)
    one, two, nothing = (
        _node("constant", t="pred", value=text) if is_pred else number_node(n, element_type)
        for n, text in ((1, "true"), (2, "true"), (0, "false"))
    )
    nodes = (
        one, two, nothing,  # 5, 6, 7
        _node("select", 0, 2, 3, t=element_type),  # 8
        _node("select", 0, 4, 8, t=element_type),
        _node("select", 1, 9, 2, t=element_type),
        _node("select", 0, 5, 6, t=element_type),
        _node("select", 0, 7, 3, t=element_type),
        _node("select", 0, 4, 7, t=element_type),
        _node("select", 0, 5, 4, t=element_type),
    )  # fmt: skip
    results = (8, 9, 10, 11, 12, 13, 14)
    expression = Expression(("pred", "pred", *[element_type] * 3), nodes, results)
    first = np.where(holds, x, y)
    second = np.where(holds, z, first)
    n1, n2, n0 = (value_of(str(dict(n.parameters)["value"]), element_type) for n in nodes[:3])
    wanted = [
        first, second, np.where(less, second, x), np.where(holds, n1, n2), np.where(holds, n0, y),
        np.where(holds, z, n0), np.where(holds, n1, z),
    ]  # fmt: skip
    outs = None if over is None else [None] * 6 + [(x, y, z)[over - 1]]
    found = evaluate(expression, [holds, less, x, y, z], outs)
    for made, want in zip(found, wanted, strict=True):
        assert made.tobytes() == want.astype(dtype).tobytes()
