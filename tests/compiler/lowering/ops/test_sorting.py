"""Sort and top-k on tiles, in both modes, against numpy's stable sorts."""

from math import prod
from typing import Any

import numpy as np
import pytest

from hloipu_runtime.codelets.ops.sort import Sort
from tests.support.on_tiles import Given, check_on_tiles, groups_of, results_of

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(12)
KEY = "a = f32[] parameter(0) b = f32[] parameter(1)"
PAYLOAD = "c = s32[] parameter(2) d = s32[] parameter(3)"
SHAPES = [((600,), 0), ((37,), 0), ((3, 50), 1), ((50, 3), 0), ((2, 90, 2), 1), ((1,), 0)]


def _sizes(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))


def _sort(comparator: str, shape: tuple[int, ...], dimension: int) -> str:
    f32, s32 = f"f32[{_sizes(shape)}]", f"s32[{_sizes(shape)}]"
    return f"""HloModule sorts
    compare {{ {KEY} {PAYLOAD} {comparator} }}
    ENTRY e {{
      x = {f32} parameter(0)
      y = {s32} parameter(1)
      ROOT s = ({f32}, {s32}) sort(x, y), dimensions={{{dimension}}},
        is_stable=true, to_apply=compare
    }}"""


def _pair(shape: tuple[int, ...]) -> tuple[Array, Array]:
    x = RNG.integers(-9, 9, shape).astype(np.float32)
    return x, RNG.integers(-99, 99, shape).astype(np.int32)


def _in_order(order: Array, dimension: int, *arrays: Array) -> list[Array]:
    return [np.take_along_axis(x, order, axis=dimension) for x in arrays]


@pytest.mark.parametrize(("shape", "dimension"), SHAPES)
def test_key_with_value(shape: tuple[int, ...], dimension: int) -> None:
    x, y = _pair(shape)
    text = _sort("ROOT r = pred[] compare(a, b), direction=GT", shape, dimension)
    order = np.argsort(-x, axis=dimension, kind="stable")
    check_on_tiles(text, [x, y], _in_order(order, dimension, x, y))


@pytest.mark.parametrize(("shape", "dimension"), SHAPES)
def test_two_keys(shape: tuple[int, ...], dimension: int) -> None:
    x, y = _pair(shape)
    text = _sort(
        """l = pred[] compare(a, b), direction=LT
        e = pred[] compare(a, b), direction=EQ
        g = pred[] compare(c, d), direction=GT
        h = pred[] and(e, g)
        ROOT r = pred[] or(l, h)""",
        shape,
        dimension,
    )
    order = np.argsort(x.astype(int) * 1000 - y, axis=dimension, kind="stable")
    check_on_tiles(text, [x, y], _in_order(order, dimension, x, y))


@pytest.mark.parametrize(("shape", "dimension"), SHAPES)
def test_derived_key(shape: tuple[int, ...], dimension: int) -> None:
    x, y = _pair(shape)
    text = _sort(
        """m = s32[] constant(10) e = s32[] remainder(c, m) f = s32[] remainder(d, m)
        ROOT r = pred[] compare(e, f), direction=LT""",
        shape,
        dimension,
    )
    order = np.argsort(np.fmod(y, 10), axis=dimension, kind="stable")
    check_on_tiles(text, [x, y], _in_order(order, dimension, x, y))


@pytest.mark.parametrize(("shape", "dimension"), SHAPES)
def test_comparator_of_both_operands(shape: tuple[int, ...], dimension: int) -> None:
    x, y = _pair(shape)
    text = _sort(
        """p = f32[] convert(c) q = f32[] convert(d) t = f32[] add(a, p) u = f32[] add(b, q)
        ROOT r = pred[] compare(t, u), direction=LT""",
        shape,
        dimension,
    )
    order = np.argsort(x + y, axis=dimension, kind="stable")
    check_on_tiles(text, [x, y], _in_order(order, dimension, x, y))


@pytest.mark.parametrize("length", [512, 1023])
def test_floats_alone_in_total_order(length: int) -> None:
    x = RNG.standard_normal(length).astype(np.float32)
    x[::7], x[::11], x[::13], x[::17] = -0.0, 0.0, np.nan, -np.inf
    text = f"""HloModule sorts
    compare {{ {KEY} ROOT r = pred[] compare(a, b), direction=LT, type=TOTALORDER }}
    ENTRY e {{
      x = f32[{length}] parameter(0)
      ROOT s = f32[{length}] sort(x), dimensions={{0}}, to_apply=compare
    }}"""
    bits = x.view(np.int32)
    expected = x[np.argsort(np.where(bits < 0, ~bits ^ np.int32(-(2**31)), bits), kind="stable")]
    for program in check_on_tiles(text, [x], [expected]):
        sorts = [g for g in groups_of(program) if isinstance(g.codelet, Sort)]
        assert len(sorts) >= 5  # 1 + 2 log2(parts), and more where columns are cut
        # Elements that cannot be told apart need no places, unless blocks are filled up.
        assert all(len(g.reads) == 1 + length % 2 for g in sorts)
        for (made,) in results_of(program, x):
            np.testing.assert_array_equal(np.signbit(made), np.signbit(expected))


def test_argsort_carries_its_counter_as_places() -> None:
    text = f"""HloModule argsorts
    compare {{ {KEY} {PAYLOAD} ROOT r = pred[] compare(a, b), direction=LT }}
    ENTRY e {{
      x = f32[2,700] parameter(0)
      i = s32[700] iota(), iota_dimension=0
      y = s32[2,700] broadcast(i), dimensions={{1}}
      ROOT s = (f32[2,700], s32[2,700]) sort(x, y), dimensions={{1}},
        is_stable=true, to_apply=compare
    }}"""
    x = RNG.integers(-9, 9, (2, 700)).astype(np.float32)
    order = np.argsort(x, axis=1, kind="stable")
    for program in check_on_tiles(text, [x], [*_in_order(order, 1, x), order]):
        assert all(len(g.reads) == 2 for g in groups_of(program) if isinstance(g.codelet, Sort))


def test_no_tile_holds_a_long_row() -> None:
    shape = (30000,)
    x, y = _pair(shape)
    text = _sort("ROOT r = pred[] compare(a, b), direction=LT", shape, 0)
    order = np.argsort(x, kind="stable")
    gc200: list[Given] = [("gc200", {})]
    (program,) = check_on_tiles(text, [x, y], _in_order(order, 0, x, y), machines=gc200)
    assert max(v.bytes_per_tile for v in program.variables) < 4 * prod(shape) / 16


def _top(shape: tuple[int, ...], k: int, kind: str = "f32", *, largest: bool = True) -> str:
    rows = shape[:-1]
    both = f"({kind}[{_sizes((*rows, k))}], s32[{_sizes((*rows, k))}])"
    return f"""HloModule tops
    ENTRY e {{
      x = {kind}[{_sizes(shape)}] parameter(0)
      ROOT t = {both} topk(x), k={k}, largest={str(largest).lower()}
    }}"""


@pytest.mark.parametrize(
    ("shape", "k"),
    [((1000,), 5), ((37,), 37), ((3, 5000), 10), ((40000,), 3), ((9, 64), 5), ((4, 1), 1)],
)
@pytest.mark.parametrize("largest", [True, False])
def test_top_k(shape: tuple[int, ...], k: int, largest: bool) -> None:
    x = RNG.integers(-1000, 1000, shape).astype(np.int32)
    order = np.argsort(-x if largest else x, axis=-1, kind="stable")[..., :k]
    expected: list[Array] = [np.take_along_axis(x, order, -1), order]
    check_on_tiles(_top(shape, k, "s32", largest=largest), [x], expected)


def test_top_k_of_very_many_is_a_sort() -> None:
    x = RNG.standard_normal(40000).astype(np.float32)
    order = np.argsort(-x, kind="stable")[:9000]
    for program in check_on_tiles(_top((40000,), 9000), [x], [x[order], order]):
        assert {"sort"} <= {g.codelet.name for g in groups_of(program)} <= {"sort", "iota"}


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("kind", ["f32", "s32"])
def test_top_k_of_many_is_a_sort_where_that_takes_less(kind: str, largest: bool) -> None:
    """Of equal ones the first come first, either way."""
    numpy = {"f32": np.float32, "s32": np.int32}[kind]
    x = RNG.integers(-40, 40, (2, 1200)).astype(numpy)
    order = np.argsort(-x if largest else x, axis=-1, kind="stable")
    gc200: list[Given] = [("gc200", {})]
    for k, codelet in ((300, "sort"), (3, "topk_pieces")):
        best = order[:, :k]
        expected: list[Array] = [np.take_along_axis(x, best, -1), best]
        text = _top((2, 1200), k, kind, largest=largest)
        (program,) = check_on_tiles(text, [x], expected, machines=gc200)
        assert codelet in {g.codelet.name for g in groups_of(program)}
