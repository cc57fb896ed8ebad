"""Top k, radix sorts, permutations of pivots."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from hloipu_compiler.formulas.call import FormulaError
from tests.support.popops_call import called, drawn

X = drawn(4, 9)
KINDS = {"f32": np.float32, "s32": np.int32, "u8": np.uint8}


@pytest.mark.parametrize("largest", [True, False])
def test_top_k_of_mhlo(largest: bool) -> None:
    word = str(largest).lower()
    line = f'frontend_attributes={{mhlo.attributes="{{k = 3 : i64, largest = {word}}}"}}'
    values, places = called("mhlo.topk", [X], "(f32[4,3], s32[4,3])", line=line)
    wanted = jax.lax.top_k(jnp.asarray(X if largest else -X), 3)
    np.testing.assert_array_equal(values, wanted[0] if largest else -wanted[0])
    np.testing.assert_array_equal(places, wanted[1])


def test_top_k_of_gpus() -> None:
    values, places, space = called("__gpu$TopK", [X], "(f32[4,2], s32[4,2], s8[16])")
    wanted = jax.lax.top_k(jnp.asarray(X), 2)
    np.testing.assert_array_equal(values, wanted[0])
    np.testing.assert_array_equal(places, wanted[1])
    assert not space.any()
    with pytest.raises(FormulaError, match="takes 10 of"):
        called("__gpu$TopK", [X], "(f32[4,10], s32[4,10])")


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_radix_sorts_are_stable(name: str, descending: bool) -> None:
    keys: NDArray[Any] = np.random.default_rng(2).integers(0, 5, (3, 20)).astype(KINDS[name])
    values = np.arange(60, dtype=np.int32).reshape(3, 20)
    said = {"descending": descending}
    order = np.argsort(-keys.astype(int) if descending else keys, kind="stable", axis=1)
    wanted = np.take_along_axis(keys, order, 1)
    alone, _ = called("__cub$DeviceRadixSort", [keys], f"({name}[3,20], u8[64])", said)
    np.testing.assert_array_equal(alone, wanted)
    both = called("__cub$DeviceRadixSort", [keys, values],
                  f"({name}[3,20], s32[3,20], u8[64])", said)  # fmt: skip
    np.testing.assert_array_equal(both[0], wanted)
    np.testing.assert_array_equal(both[1], np.take_along_axis(values, order, 1))


@pytest.mark.parametrize("target", ["lu_pivots_to_permutation", "cu_lu_pivots_to_permutation"])
def test_pivots_permute(target: str) -> None:
    pivots = np.array([[2, 1, 3], [0, 4, 2]], np.int32)
    (made,) = called(target, [pivots], "s32[2,5]")
    wanted = jax.lax.linalg.lu_pivots_to_permutation(jnp.asarray(pivots), 5)
    np.testing.assert_array_equal(made, wanted)
    with pytest.raises(FormulaError, match="permute"):
        called(target, [pivots], "s32[2,2]")


def test_functions_of_mhlo() -> None:
    np.testing.assert_allclose(called("mhlo.erf", [X], "f32[4,9]")[0],
                               jax.scipy.special.erf(X), 1e-5, 1e-6)  # fmt: skip
    (made,) = called("mhlo.tan", [X / 3], "f32[4,9]")
    np.testing.assert_allclose(made, np.tan(X / 3), 1e-5, 1e-6)
