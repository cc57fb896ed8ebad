from math import inf, nan

import ml_dtypes
import numpy as np
import pytest

from hloipu_compiler.interpret.agreement import (
    Budget,
    compare_values,
    complex_steps,
    float_steps,
    largest_finite,
    smallest_normal,
)
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.errors import UsageError
from hloipu_runtime.kernels.core.storage import user_dtype

FLOATS = [t for t in ELEMENT_TYPES.values() if t.is_float]


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def steps(a: float, b: float, dtype: type = np.float32, name: str = "f32") -> float:
    return float(float_steps(np.array([a], dtype), np.array([b], dtype), name)[0])


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_steps_count_the_values_between(count: int) -> None:
    value = np.float32(1.5)
    for _ in range(count):
        value = np.nextafter(value, np.float32(inf), dtype=np.float32)
    assert steps(1.5, float(value)) == count


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        (0.0, -0.0, 0.5), (2.0**-149, -(2.0**-149), 2), (0.0, 2.0**-149, 1),
        (3.4028234663852886e38, inf, 1), (inf, inf, 0), (inf, -inf, 2 * 0x7F800000),
        (nan, nan, 0), (nan, 1.0, inf), (1.0, nan, inf),
    ],
)  # fmt: skip
def test_steps_at_the_edges(a: float, b: float, wanted: float) -> None:
    assert steps(a, b) == wanted


def test_steps_of_f64_do_not_overflow() -> None:
    assert steps(-inf, inf, np.float64, "f64") == pytest.approx(2 * 0x7FF0000000000000)
    assert steps(1.0, 1.0 + 2**-52, np.float64, "f64") == 1


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("bf16", ml_dtypes.bfloat16), ("f8e5m2", ml_dtypes.float8_e5m2),
     ("f8e4m3fn", ml_dtypes.float8_e4m3fn), ("f4e2m1fn", ml_dtypes.float4_e2m1fn)],
)  # fmt: skip
def test_narrow_floats_count_their_own_values(name: str, dtype: type) -> None:
    a: np.ndarray = np.array([1.0, 1.0], dtype)
    b = (
        np.nextafter(a, np.array([2.0, 2.0], dtype))
        if name != "f4e2m1fn"
        else a + a.dtype.type(0.5)
    )
    verdict = compare_values(a, b, Budget(name))
    assert (verdict.agrees, verdict.error, verdict.disagreeing) == (False, 1.0, 2)
    assert compare_values(a, b, Budget(name, ulps=1)).agrees


@pytest.mark.parametrize("element", FLOATS, ids=lambda t: t.name)
def test_limits_of_the_formats(element: object) -> None:
    name = element.name  # type: ignore[attr-defined]
    finfo = ml_dtypes.finfo(user_dtype(name))  # type: ignore[no-untyped-call]
    assert smallest_normal(name) == float(finfo.smallest_normal)
    # The last binade of the `fn` formats lies one further than that of IEEE formats.
    assert largest_finite(name) <= float(finfo.max) < 4 * largest_finite(name)


def test_the_worst_element_is_named() -> None:
    a, b = f32(1, 2, 3).reshape(3, 1), f32(1, 2.5, 3.00001).reshape(3, 1)
    verdict = compare_values(a, b, Budget("f32", ulps=4))
    assert not verdict.agrees
    assert (verdict.index, verdict.ours, verdict.theirs) == ((1, 0), 2.0, 2.5)
    assert (verdict.disagreeing, verdict.elements) == (2, 3)
    assert "at [1, 0]: 2.0 against 2.5" in str(verdict)


def test_within_budget_names_the_worst_too() -> None:
    verdict = compare_values(f32(1, 2), f32(1, 2 + 2**-22), Budget("f32", ulps=2))
    assert (verdict.agrees, verdict.index, verdict.error) == (True, (1,), 1.0)
    assert compare_values(f32(1), f32(1), Budget("f32")).index is None


def test_nan_counts_by_place_not_by_payload() -> None:
    quiet = np.array([0x7FC00001], np.uint32).view(np.float32)
    other = np.array([0xFFC00000], np.uint32).view(np.float32)
    assert compare_values(quiet, other, Budget("f32")).agrees
    assert not compare_values(quiet, f32(0), Budget("f32", ulps=9, factor=9, terms=9)).agrees


def test_signed_zeros() -> None:
    assert not compare_values(f32(0.0), f32(-0.0), Budget("f32")).agrees
    assert compare_values(f32(0.0), f32(-0.0), Budget("f32", signed_zero=False)).agrees


def test_flushed_subnormals() -> None:
    tiny, normal = 1e-40, 1.2e-38
    assert not compare_values(f32(tiny), f32(0), Budget("f32")).agrees
    assert compare_values(f32(tiny), f32(-0.0), Budget("f32", subnormals_flushed=True)).agrees
    assert not compare_values(f32(normal), f32(0), Budget("f32", subnormals_flushed=True)).agrees


def test_sums_are_held_to_their_terms() -> None:
    budget = Budget("f32", factor=2, terms=16)
    bound = 2 * 4 * 2.0**-23 * 100
    a = f32(0.0)
    assert compare_values(a, f32(0.9 * bound), budget, np.array([100.0])).agrees
    verdict = compare_values(a, f32(3 * bound), budget, np.array([100.0]))
    assert not verdict.agrees
    assert verdict.error == pytest.approx(3, rel=1e-5)
    assert not compare_values(a, f32(0.9 * bound), budget).agrees


def test_sums_that_overflow_depend_on_their_order() -> None:
    budget = Budget("f32", factor=2, terms=4)
    assert compare_values(f32(inf), f32(3e38), budget, np.array([1e39])).agrees
    assert not compare_values(f32(inf), f32(3e37), budget, np.array([1e38])).agrees


def test_complex_values_are_points_of_the_plane() -> None:
    a, b = np.array([1e3 + 0j], np.complex64), np.array([1e3 + 1e-4j], np.complex64)
    assert complex_steps(a, b, "c64")[0] == pytest.approx(1e-7 * 2**23, rel=1e-3)
    infinite, other = np.array([complex(inf, nan)]), np.array([complex(inf, 0)])
    assert compare_values(infinite, infinite, Budget("c128")).agrees
    assert not compare_values(infinite, other, Budget("c128", ulps=100)).agrees


@pytest.mark.parametrize("name", ["pred", "s4", "u64"])
def test_integers_are_exact(name: str) -> None:
    a = np.array([0, 1], user_dtype(name))
    verdict = compare_values(a, a[::-1], Budget(name))
    assert (verdict.agrees, verdict.disagreeing) == (False, 2)
    assert compare_values(a, a, Budget(name)).agrees


def test_empty_results_agree_and_shapes_must_fit() -> None:
    assert compare_values(f32(), f32(), Budget("f32")).agrees
    with pytest.raises(UsageError, match="shapes"):
        compare_values(f32(1), f32(1, 2), Budget("f32"))
