from math import inf, nan
from typing import Any

import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import evaluate
from hloipu_compiler.interpret.ops import reductions
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


@pytest.mark.parametrize(("place_type", "size"), [("s8", 300), ("bf16", 300), ("u8", 300)])
def test_places_that_their_type_cannot_count_are_folded(
    place_type: str, size: int, folded: list[object]
) -> None:
    region = JAX.replace("s32", place_type)
    text = f"""HloModule m
{region}
ENTRY main {{
  x = f32[{size}] parameter(0)
  i = {place_type}[{size}] iota(), iota_dimension=0
  low = f32[] constant(-inf)
  zero = {place_type}[] constant(0)
  ROOT r = (f32[], {place_type}[]) reduce(x, i, low, zero), dimensions={{0}}, to_apply=region
}}"""
    x = np.zeros(size, np.float32)
    x[[100, 299]] = 1
    value, place = evaluate(parse(text), x)
    assert value == 1
    # 299 is 43 as a byte, which is the lower place; in bf16 it is 300 and beyond 100.
    assert float(place) == (100 if place_type == "bf16" else 43)
    assert folded


def test_integers_start_from_their_least_value(folded: list[object]) -> None:
    region = JAX.replace("a = f32", "a = s16").replace("b = f32", "b = s16")
    region = region.replace("v = f32", "v = s16").replace("ROOT r = (f32", "ROOT r = (s16")
    text = f"""HloModule m
{region}
ENTRY main {{
  x = s16[4,3] parameter(0)
  j = s32[4] iota(), iota_dimension=0
  i = s32[4,3] broadcast(j), dimensions={{0}}
  low = s16[] constant(-32768)
  zero = s32[] constant(0)
  ROOT r = (s16[3], s32[3]) reduce(x, i, low, zero), dimensions={{0}}, to_apply=region
}}"""
    x = np.array([[1, -32768, 4], [7, -32768, 4], [7, -32768, -1], [0, -32768, 4]], np.int16)
    values, places = evaluate(parse(text), x)
    assert values.tolist() == [7, -32768, 4]
    assert places.tolist() == [1, 0, 0]
    assert not folded
