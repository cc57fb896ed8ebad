"""Large arrays in blocks: the same values as at once, the short last block and layouts included."""

import numpy as np
import pytest

from hloipu_runtime.codelets.core.expression import Expression, Node, evaluate
from hloipu_runtime.kernels.core.blocks import BLOCK_ELEMENTS


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
