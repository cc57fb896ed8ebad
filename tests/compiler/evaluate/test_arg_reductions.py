from math import inf, nan
from typing import Any

import numpy as np
import pytest

from hloipu_compiler.evaluate import reductions
from hloipu_compiler.evaluate.evaluator import evaluate
from hloipu_compiler.hlo.parse import parse
from hloipu_runtime.kernels.reduction import reduce

JAX = """region {
  a = f32[] parameter(0) i = s32[] parameter(1) b = f32[] parameter(2) j = s32[] parameter(3)
  gt = pred[] compare(a, b), direction=GT
  ne = pred[] compare(a, a), direction=NE
  better = pred[] or(ne, gt)
  eq = pred[] compare(a, b), direction=EQ
  lt = pred[] compare(i, j), direction=LT
  tie = pred[] and(lt, eq)
  first = pred[] or(better, tie)
  v = f32[] select(better, a, b)
  k = s32[] select(first, i, j)
  ROOT r = (f32[], s32[]) tuple(v, k)
}"""
OLD = """region {
  a = f32[] parameter(0) i = s32[] parameter(1) b = f32[] parameter(2) j = s32[] parameter(3)
  ge = pred[] compare(a, b), direction=GE
  v = f32[] select(ge, a, b)
  eq = pred[] compare(a, b), direction=EQ
  least = s32[] minimum(i, j)
  one = s32[] select(ge, i, j)
  k = s32[] select(eq, least, one)
  ROOT r = (f32[], s32[]) tuple(v, k)
}"""


def program(region: str, *, init: str, iota: str = "iota(), iota_dimension=1") -> str:
    return f"""HloModule m
{region}
ENTRY main {{
  x = f32[3,4] parameter(0)
  i = s32[3,4] {iota}
  low = f32[] constant({init})
  zero = s32[] constant(0)
  ROOT r = (f32[3], s32[3]) reduce(x, i, low, zero), dimensions={{1}}, to_apply=region
}}"""


@pytest.fixture
def folded(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What reaches the general reduction."""
    seen: list[object] = []

    def watched(*arguments: Any) -> list[Any]:
        seen.append(arguments)
        return reduce(*arguments)

    monkeypatch.setattr(reductions, "reduce", watched)
    return seen


@pytest.mark.parametrize("region", [JAX, OLD])
@pytest.mark.parametrize("largest", [True, False])
def test_both_forms_are_recognised(region: str, largest: bool, folded: list[object]) -> None:
    x = np.array([[1, 3, 3, 2], [5, -1, 4, -1], [2, 2, 2, 2]], np.float32)
    text = program(region, init="-inf")
    if not largest:
        text = text.replace("GT", "LT").replace("GE", "LE").replace("-inf", "inf")
    values, places = evaluate(parse(text), x)
    assert values.tolist() == ([3, 5, 2] if largest else [1, -1, 2])
    assert places.tolist() == ([1, 0, 0] if largest else [0, 1, 0])
    assert places.dtype == np.int32
    assert not folded


def test_the_first_nan_wins_where_the_region_looks_for_it(folded: list[object]) -> None:
    x = np.array([[1, nan, 9, nan], [0, 1, inf, 2], [-inf] * 4], np.float32)
    values, places = evaluate(parse(program(JAX, init="-inf")), x)
    assert str(values.tolist()) == "[nan, inf, -inf]"
    assert places.tolist() == [1, 2, 0]
    assert not folded


@pytest.mark.parametrize(
    ("region", "init", "iota", "x"),
    [
        (JAX, "2", "iota(), iota_dimension=1", 1.0),
        (JAX, "-inf", "iota(), iota_dimension=0", 1.0),
        (JAX, "-inf", "iota(), iota_dimension=1", -0.0),
        (OLD, "-inf", "iota(), iota_dimension=1", nan),
        (JAX.replace("LT", "GT"), "-inf", "iota(), iota_dimension=1", 1.0),
    ],
    ids=["init", "iota", "zeros", "nan", "last of equals"],
)  # fmt: skip
def test_anything_else_is_folded(
    region: str, init: str, iota: str, x: float, folded: list[object]
) -> None:
    evaluate(parse(program(region, init=init, iota=iota)), np.full((3, 4), x, np.float32))
    assert len(folded) == 1


def test_of_two_zeros_the_region_decides(folded: list[object]) -> None:
    x = np.array([[-1, 0.0, -0.0, -2]] * 3, np.float32)
    values, places = evaluate(parse(program(JAX, init="-inf")), x)
    # Neither is greater: the region keeps the value on the right, and the lower place.
    assert np.signbit(values).all()
    assert places.tolist() == [1, 1, 1]
    assert folded
