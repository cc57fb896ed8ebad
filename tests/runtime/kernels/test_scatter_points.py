"""Scatters of single elements: against a loop over the updates."""

from typing import Any

import numpy as np
import pytest

from hloipu_runtime.kernels.core.monoids import UFUNCS
from hloipu_runtime.kernels.scatter import How, ScatterDimensions, form_of
from hloipu_runtime.kernels.scatter_points import scattering

POINTS = ScatterDimensions((), (0, 1), (0, 1), 1)
TYPES: dict[str, Any] = {"f32": np.float32, "s32": np.int32, "u8": np.uint8}


def looped(x: Any, indices: Any, update: Any, ufunc: np.ufunc) -> Any:
    out = x.copy()
    for (row, column), value in zip(indices.tolist(), update, strict=True):
        if 0 <= row < x.shape[0] and 0 <= column < x.shape[1]:
            out[row, column] = ufunc(out[row, column], value)
    return out


@pytest.mark.parametrize("kind", ["f32", "s32", "u8"])
@pytest.mark.parametrize("monoid", ["add", "multiply", "maximum"])
@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize("low", [0, -2])
def test_points_are_combined_in_order_and_the_operand_stays(
    kind: str, monoid: str, count: int, low: int
) -> None:
    drawn = np.random.default_rng(count)
    x = drawn.integers(1, 5, (4, 6)).astype(TYPES[kind])
    indices = np.stack([drawn.integers(low, 4, count), drawn.integers(low, 6, count)], 1)
    update = drawn.integers(0, 3, count).astype(TYPES[kind])
    before = x.copy()
    form = form_of(x.shape, indices.shape, update.shape, POINTS)

    with np.errstate(over="ignore"):
        found = scattering(form, How(monoid, (kind,)))(x, indices, update)
        wanted = looped(x, indices, update, UFUNCS[monoid])

    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(x, before)


def test_an_operand_that_repeats_one_number_becomes_an_array() -> None:
    x = np.broadcast_to(np.float32(0), (3, 20))
    indices = np.stack([np.arange(30) % 3, np.arange(30) % 10], 1).astype(np.int32)
    update = np.broadcast_to(np.float32(0.5), (30,))
    form = form_of(x.shape, indices.shape, update.shape, POINTS)
    found = scattering(form, How("add", ("f32",)))(x, indices, update)
    np.testing.assert_array_equal(found, looped(np.zeros((3, 20)), indices, update, np.add))
