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
