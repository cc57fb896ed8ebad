"""Top k, radix sorts, permutations of pivots."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from hloipu_compiler.formulas.call import FormulaError
from tests.support.popops_call import called, drawn, evaluated, text_of_call

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


_PAIR = "  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
_PLACES = "  i = s32[] parameter(2)\n  j = s32[] parameter(3)\n"
_ALWAYS = "  t = pred[] constant(true)\n  u = pred[] broadcast(t), dimensions={}\n"
_SIZES = "  m = f32[] abs(a)\n  n = f32[] abs(b)\n"
COMPARATORS: dict[str, tuple[str, Callable[[float, int], tuple[float, int]]]] = {
    "largest": (_PAIR + "  ROOT c = pred[] compare(a, b), direction=GT, type=TOTALORDER",
                lambda x, i: (-x, i)),
    "smallest": (_PAIR + "  ROOT c = pred[] compare(a, b), direction=LT", lambda x, i: (x, i)),
    "as XLA writes it": (_PAIR + _PLACES + _ALWAYS
                         + "  c = pred[] compare(a, b), direction=LT, type=TOTALORDER\n"
                         "  ROOT r = pred[] select(u, c, u)", lambda x, i: (x, i)),
    "sides exchanged": (_PAIR + "  ROOT c = pred[] compare(b, a), direction=GT, type=TOTALORDER",
                        lambda x, i: (x, i)),
    "by size": (_PAIR + _SIZES + "  ROOT c = pred[] compare(m, n), direction=LT",
                lambda x, i: (abs(x), i)),
    "last of equal ones": (_PAIR + _PLACES + "  g = pred[] compare(a, b), direction=GT\n"
                           "  e = pred[] compare(a, b), direction=EQ\n"
                           "  l = pred[] compare(i, j), direction=GT\n"
                           "  f = pred[] and(e, l)\n  ROOT r = pred[] or(g, f)",
                           lambda x, i: (-x, -i)),
}  # fmt: skip


@pytest.mark.parametrize("key", ["to_apply=cmp", "called_computations={cmp}"])
@pytest.mark.parametrize("name", COMPARATORS)
def test_top_k_goes_by_its_comparator(name: str, key: str) -> None:
    comparator, order = COMPARATORS[name]
    x = np.round(drawn(3, 11) * 2) + 0.0
    text = text_of_call("TopK", [x], "(f32[3,4], s32[3,4])", line=key)
    text = text.replace("ENTRY", f"cmp {{\n{comparator}\n}}\n\nENTRY")
    values, places = evaluated(text, x)
    wanted = [sorted(range(11), key=lambda i: order(row[i], i))[:4] for row in x]
    np.testing.assert_array_equal(places, wanted)
    np.testing.assert_array_equal(values, np.take_along_axis(x, np.array(wanted), 1))


def test_computations_that_a_formula_does_not_read_are_refused() -> None:
    text = text_of_call("mhlo.erf", [X], "f32[4,9]", line="to_apply=cmp").replace(
        "ENTRY", f"cmp {{\n{COMPARATORS['smallest'][0]}\n}}\n\nENTRY"
    )
    with pytest.raises(FormulaError, match="what it does with 'cmp'"):
        evaluated(text, X)


@pytest.mark.parametrize("select", [jax.lax.approx_max_k, jax.lax.approx_min_k])
@pytest.mark.parametrize("shape", [(3, 4096), (2, 5000)])
def test_approximate_top_k_of_tpus(select: Any, shape: tuple[int, ...]) -> None:
    x = np.round(drawn(*shape) * 50) / 50
    traced = jax.jit(lambda a: select(a, 8)).trace(jax.ShapeDtypeStruct(shape, np.float32))
    text = traced.lower(lowering_platforms=("tpu",)).as_text("hlo")
    assert "PartialReduce" in text
    values, places = evaluated(text, x)
    np.testing.assert_array_equal(values, np.take_along_axis(x, places, -1))
    sign = -1 if select is jax.lax.approx_max_k else 1
    exact = np.sort(sign * x, -1)[..., :8] * sign
    assert np.mean(values == exact) > 0.7
    np.testing.assert_array_equal(values[..., 0], exact[..., 0])
    assert all(len(set(row)) == 8 for row in places.reshape(-1, 8))


@pytest.mark.parametrize("given", ["x, x0, l, o", "x, x1, v, o"])
def test_bins_need_a_place_for_each_element_and_scalars_to_begin_with(given: str) -> None:
    text = f"""HloModule m
cmp {{ {COMPARATORS["largest"][0]} }}
ENTRY e {{
  x = f32[4,6] parameter(0) x0 = s32[6] iota(), iota_dimension=0
  x1 = s32[4,6] iota(), iota_dimension=1
  l = f32[] constant(0) v = f32[1] constant({{0}}) o = s32[] constant(0)
  ROOT r = (f32[4,3], s32[4,3]) custom-call({given}), custom_call_target="PartialReduce",
    called_computations={{cmp}}, backend_config={{"reduction_dim": 1}}
}}"""
    with pytest.raises(FormulaError, match="a place for each"):
        evaluated(text, np.zeros((4, 6), np.float32))


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
