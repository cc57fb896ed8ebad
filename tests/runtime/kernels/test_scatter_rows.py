"""Rows combined into rows of a table, by either way of numpy's: the bits of one after another."""

from collections.abc import Callable
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloipu_runtime.kernels import scatter_rows
from hloipu_runtime.kernels.native.settings import Settings, native_kernels
from hloipu_runtime.kernels.native.targets import Targets
from hloipu_runtime.kernels.scatter_rows import combine_rows
from tests.support.arrays import Array

DTYPES: dict[str, Any] = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "s32": np.int32,
}  # fmt: skip
OPS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "multiply": np.multiply, "minimum": np.minimum, "maximum": np.maximum,
    "assign": lambda a, b: b,
}  # fmt: skip
# Updates, rows of the table, elements of each.
SIZES = (
    (900, 40, 16), (600, 3, 9), (520, 300, 6), (40, 7, 8), (700, 20, 1), (1, 5, 4),
    (300, 900, 1), (300, 700, 9),
)  # fmt: skip


def _targets(count: int, rows: int, order: str) -> Array:
    """Return rows, some much oftener than others, some outside of the table."""
    generator = np.random.default_rng(3)
    numbers = (rows * generator.random(count) ** 2).astype(np.int32)
    if order == "outside":
        numbers[generator.random(count) < 0.2] = -1
        numbers[generator.random(count) < 0.1] = rows
    if order == "sorted":
        numbers.sort()
    return numbers


def _one_after_another(table: Array, numbers: Array, rows: Array, op: str) -> Array:
    out = table.copy()
    for number, row in zip(numbers.tolist(), rows, strict=True):
        if 0 <= number < len(out):
            out[number] = OPS[op](out[number], row)
    return out


def _stored(x: Array, kind: str) -> Array:
    return x.astype(np.float32) if kind in ("f16", "bf16") else x.copy()


def _assert_equal_bits(found: Array, wanted: Array, about: str) -> None:
    np.testing.assert_array_equal(
        found.view(f"u{found.itemsize}"), wanted.view(f"u{wanted.itemsize}"), about
    )


@pytest.mark.parametrize("rounds", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
def test_sums_and_products_depend_on_their_order(
    sizes: tuple[int, int, int], rounds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, rows, width = sizes
    # Of single elements only narrow floats are: numpy adds a column up in pairs.
    monkeypatch.setattr(
        scatter_rows,
        "_rounds_pay",
        lambda _, *given: rounds and (width > 1 or given[-1] in ("f16", "bf16")),
    )
    generator = np.random.default_rng(4)
    for (kind, dtype), op, order in product(DTYPES.items(), OPS, ("sorted", "outside", "repeated")):
        numbers = _targets(count, rows, order)
        values: Array = 1 + generator.standard_normal((count + rows, width)) / 8
        if kind == "s32":
            values = generator.integers(-(2**31), 2**31, values.shape)
        given = values.astype(dtype)
        table, updates = given[:rows], given[rows:]
        with np.errstate(all="ignore"):
            wanted = _stored(_one_after_another(table, numbers, updates, op), kind)
        found = _stored(table, kind)
        with native_kernels(Settings(is_on=False)):
            combine_rows(
                [found], Targets(numbers, rows, count), [_stored(updates, kind)], op, [kind], False
            )
        _assert_equal_bits(found, wanted, f"{kind} {op} {order}")


@pytest.mark.parametrize("rounds", [True, False])
@pytest.mark.parametrize("op", ["minimum", "maximum"])
def test_extrema_tell_the_smallest_numbers_apart(
    op: str, rounds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By bits as a list of ascending values has them: IEEE 754-2019 puts -0.0 before 0.0."""
    monkeypatch.setattr(scatter_rows, "_rounds_pay", lambda *_: rounds)
    generator = np.random.default_rng(5)
    ascending = np.array([-1, -1e-40, -1e-45, -0.0, 0.0, 1e-45, 1e-40, 1], np.float32)
    for low, high in ((0, 8), (1, 7), (3, 5), (0, 3), (5, 8)):
        for rows in (40, 900):
            places = generator.integers(low, high, (rows + 600, 12))
            numbers = generator.integers(0, rows, 600).astype(np.int32)
            found, updates = ascending[places[:rows]], ascending[places[rows:]]
            with native_kernels(Settings(is_on=False)):
                combine_rows([found], Targets(numbers, rows, 600), [updates], op, ["f32"], False)
            wanted = _one_after_another(places[:rows], numbers, places[rows:], op)
            _assert_equal_bits(found, ascending[wanted], f"{low} {high} {rows}")


@pytest.mark.parametrize("width", [1, 6])
@pytest.mark.parametrize("op", ["minimum", "maximum"])
def test_updates_that_do_not_meet_are_combined_alike(op: str, width: int) -> None:
    generator = np.random.default_rng(6)
    ascending = np.array([-1, -0.0, 0.0, 1], np.float32)
    for rows in (200, 300):
        places = generator.integers(1, 4, (rows + 260, width))
        numbers = generator.permutation(260).astype(np.int32) - 20  # twenty and more are outside
        found, updates = ascending[places[:rows]], ascending[places[rows:]]
        with native_kernels(Settings(is_on=False)):
            combine_rows([found], Targets(numbers, rows, 260), [updates], op, ["f32"], True)
        wanted = _one_after_another(places[:rows], numbers, places[rows:], op)
        _assert_equal_bits(found, ascending[wanted], f"{rows}")
