"""Products of known shapes, called again and again: against float64, whatever the layout."""

from itertools import product

import numpy as np
import pytest

from hloipu_runtime.kernels.contractions.contraction import DotDimensions
from hloipu_runtime.kernels.contractions.dot import dot_general
from hloipu_runtime.kernels.contractions.dotting import dotting, is_matrix_product
from hloipu_runtime.kernels.core.quiet import warnings_off
from tests.support.arrays import Array

DRAWN = np.random.default_rng(7)


def layouts(shape: tuple[int, int]) -> list[Array]:
    """Return equal matrices that lie differently in memory."""
    x = DRAWN.standard_normal(shape).astype(np.float32)
    wide = np.zeros((shape[0], 2 * shape[1]), np.float32)
    wide[:, ::2] = x
    return [x, np.asfortranarray(x), wide[:, ::2]]


@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("right", [0, 1])
@pytest.mark.parametrize("depth", [1, 2, 24])
def test_matrices_of_any_layout_with_and_without_a_place(left: int, right: int, depth: int) -> None:
    lhs = (depth, 5) if left == 0 else (5, depth)
    rhs = (depth, 7) if right == 0 else (7, depth)
    dims = DotDimensions((), (), (left,), (right,))
    run = dotting(lhs, rhs, dims, "f32")
    assert is_matrix_product(lhs, rhs, dims, "f32") == (depth > 1)
    for a, b in product(layouts(lhs), layouts(rhs)):
        wanted = np.tensordot(a.astype(np.float64), b.astype(np.float64), ((left,), (right,)))
        place = np.full((5, 7), np.nan, np.float32)
        with warnings_off():
            for found in (run(a, b), run(a, b, out=place)):
                assert found.dtype == np.float32
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_other_types_and_dimensions_are_those_of_dot_general() -> None:
    a = DRAWN.standard_normal((3, 4, 6)).astype(np.float32)
    b = DRAWN.standard_normal((3, 6, 2)).astype(np.float32)
    dims = DotDimensions((0,), (0,), (2,), (1,))
    with warnings_off():
        for kind in ("f32", "bf16", "f16"):
            found = dotting(a.shape, b.shape, dims, kind)(a, b)
            np.testing.assert_array_equal(found, dot_general(a, b, dims, kind))
        matrices = DotDimensions((), (), (1,), (0,))
        run = dotting((3, 4), (4, 2), matrices, "f32")
        wide = run(np.ones((3, 4), np.float64), np.full((4, 2), 0.5, np.float32))
        whole = dotting((3, 4), (4, 2), matrices, "s32")(np.ones((3, 4), int), np.ones((4, 2), int))
    assert wide.dtype == np.float32
    np.testing.assert_array_equal(wide, np.full((3, 2), 2.0))
    np.testing.assert_array_equal(whole, np.full((3, 2), 4))
