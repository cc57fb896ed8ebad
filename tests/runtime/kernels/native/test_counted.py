"""Kernels that stand for one of numpy's functions give the bits that it gives."""

from contextlib import nullcontext

import numpy as np
import pytest

import hloipu
from hloipu_runtime.kernels.computing import computing
from hloipu_runtime.kernels.native.best_of_rows import MOST, _kernel, best_natively
from hloipu_runtime.kernels.native.combining import combining_kernel
from hloipu_runtime.kernels.native.points import (
    _taking_kernel,
    combine_points,
    points_kernel,
    take_points,
)
from hloipu_runtime.kernels.native.random_words import _kernel as random_kernel
from hloipu_runtime.kernels.native.settings import Settings, is_there, native_kernels
from hloipu_runtime.kernels.native.targets import Targets
from hloipu_runtime.kernels.random_bits import _PHILOX, _THREE_FRY, Algorithm, rng_bit_generator
from hloipu_runtime.kernels.scatter_rows import combine_window
from hloipu_runtime.kernels.topk import topk
from tests.support.native_cases import (
    AT_ONCE,
    TYPES,
    Array,
    combined_rows,
    differences,
    monoids_of,
    some_values,
)
from tests.support.xla_oracle import Oracle

pytestmark = pytest.mark.skipif(not is_there(), reason="llvmlite is not installed")
PLAIN, FAST = Settings(is_on=False), Settings(keeps=False)
PLAIN_TOPK_TYPES = ("s8", "u16", "u64", "f64", "pred")


def _one_by_one(
    table: Array, targets: Targets, rows: Array, monoid: str, element_type: str
) -> Array:
    made = table.copy()
    for number, within in enumerate(targets.numbers.tolist()):
        if not 0 <= within < targets.rows:
            continue
        target = number // targets.group * targets.rows + within
        combine_window([made[target]], [rows[number]], monoid, [element_type])
    return made


@pytest.mark.thinned(3)
@pytest.mark.parametrize("element_type", TYPES)
def test_rows_are_combined_in_order(element_type: str) -> None:
    generator = np.random.default_rng(8)
    for monoid in monoids_of(element_type):
        for count, rows_of_table, width, groups in (
            (40, 7, 1, 1), (70, 900, 3, 2), (9, 5, 67, 1), (900, 600, 33, 3), (600, 9, 1, 3),
            (500, 9, 9, 1),
        ):  # fmt: skip
            table = some_values(element_type, rows_of_table * width, generator)
            rows = some_values(element_type, count * width, generator)
            table, rows = table.reshape(-1, width), rows.reshape(-1, width)
            rows_of_group = rows_of_table // groups
            dtype = np.int64 if count % 40 else np.int32
            numbers = generator.integers(-1, rows_of_group + 1, count, dtype)
            targets = Targets(numbers, rows_of_group, count // groups)
            for setting in (nullcontext(), computing()):  # the second one flushes subnormals
                with setting, np.errstate(all="ignore"):
                    with native_kernels(PLAIN):
                        wanted = _one_by_one(table, targets, rows, monoid, element_type)
                    for made in combined_rows(table, targets, rows, monoid, element_type):
                        assert differences(wanted, made) == 0, (monoid, count)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("element_type", TYPES)
def test_elements_are_combined_in_order(element_type: str) -> None:
    """Each named by a vector of one or two starts, some of them out of bounds."""
    generator = np.random.default_rng(9)
    for monoid in (*monoids_of(element_type), "assign"):
        for shape, dtype, count in (
            ((7,), np.int32, 90), ((400,), np.int64, 500), ((5, 3), np.int32, 200),
            ((3, 4), np.uint32, 60), ((9,), np.int32, 1),
        ):  # fmt: skip
            bounds = tuple((n, int(np.prod(shape[d + 1 :]))) for d, n in enumerate(shape))
            table = some_values(element_type, int(np.prod(shape)), generator).reshape(shape)
            starts = [generator.integers(-1, n + 1, count).astype(dtype) for n in shape]
            starts[0] = np.where(generator.random(count) < 0.5, np.sort(starts[0]), starts[0])
            places = np.stack(starts, -1)
            some = some_values(element_type, count, generator)
            numbers = np.array([_flat(at, shape) for at in places.astype(np.int64)])
            targets = Targets(numbers, table.size, count)
            kernel = points_kernel(monoid, element_type, 8 * places.itemsize, len(shape))
            assert kernel is not None
            for updates in (some, np.broadcast_to(some[:1], some.shape)):
                for setting in (nullcontext(), computing()):
                    with setting, np.errstate(all="ignore"), native_kernels(FAST):
                        assert kernel.code_for(AT_ONCE)
                        flat, rows = table.reshape(-1, 1), updates.reshape(-1, 1)
                        wanted = _one_by_one(flat, targets, rows, monoid, element_type)
                        made = table.copy()
                        assert combine_points(made, places, bounds, updates, monoid, element_type)
                    assert differences(wanted, made.reshape(-1, 1)) == 0, (monoid, shape)


@pytest.mark.parametrize("index", ["i4", "i8", "u4"])
@pytest.mark.parametrize("kind", ["?", "i2", "f4", "c8", "c16"])
def test_elements_are_taken_where_they_are(kind: str, index: str) -> None:
    generator = np.random.default_rng(10)
    for shape in ((40,), (6, 5), (3, 4, 5)):
        table = generator.integers(0, 99, shape).astype(kind)
        starts = [generator.integers(-2, n + 2, (7, 30)).astype(index) for n in shape]
        starts[0][0, 0] = np.iinfo(index).max
        at = tuple(np.clip(x, 0, n - 1) for x, n in zip(starts, shape, strict=True))
        bounds = tuple((n, int(np.prod(shape[d + 1 :]))) for d, n in enumerate(shape))
        with native_kernels(FAST):
            assert _taking_kernel(8 * table.itemsize, index, len(shape)).code_for(AT_ONCE)
            taken = take_points(table, np.stack(starts, -1), bounds, (7, 30))
            nothing = np.empty((0, len(shape)), index)
            assert take_points(table, nothing, bounds, (0,)) is None
        assert (taken is None) == (kind == "c16")
        if taken is not None:
            np.testing.assert_array_equal(taken, table[at])


def _flat(at: Array, shape: tuple[int, ...]) -> int:
    if any(not 0 <= x < n for x, n in zip(at.tolist(), shape, strict=True)):
        return -1
    return int(np.ravel_multi_index(at.tolist(), shape))


def _in_total_order(value: Array) -> int:
    """Return the place of a number in its type's order, for floats IEEE 754's total one."""
    if value.dtype.kind != "f":
        return int(value)
    bits, sign = int(value.view(f"u{value.itemsize}")), 1 << 8 * value.itemsize - 1
    return bits if bits < sign else sign - 1 - bits


@pytest.mark.thinned(4)
@pytest.mark.parametrize("element_type", ["f32", "s32", "u32", *PLAIN_TOPK_TYPES])
@pytest.mark.parametrize("largest", [True, False])
def test_the_best_of_rows_come_in_order(element_type: str, largest: bool) -> None:
    generator = np.random.default_rng(9)
    for k, count in ((1, 9), (2, 17), (MOST, 17), (3, 32), (7, 65), (4, 1001), (8, 333)):
        some = some_values(element_type, 3 * count, generator).reshape(3, count)
        few = some[:, :1].repeat(count, 1)
        few[:, ::7] = some[:, ::7]
        ranked = np.array(sorted(some[0], key=_in_total_order), some.dtype)
        rows = np.concatenate([some, few, ranked[np.newaxis], ranked[np.newaxis, ::-1]])
        wanted = [
            sorted(range(count), key=[_in_total_order(x) for x in row].__getitem__,
                   reverse=largest)[:k]
            for row in rows
        ]  # fmt: skip
        with native_kernels(PLAIN):
            values, places = topk(rows, k, largest=largest)
        assert places.tolist() == wanted, (k, count)
        assert values.tobytes() == np.take_along_axis(rows, np.array(wanted), 1).tobytes()
        if element_type in PLAIN_TOPK_TYPES:
            continue
        with native_kernels(FAST):
            for _ in range(2):  # the second time work was enough to compile
                fast = best_natively(rows, k, largest=largest)
                _kernel(rows.dtype.kind, largest).code_for(AT_ONCE)
        assert fast is not None
        assert fast.tolist() == wanted, (k, count)


@pytest.mark.parametrize("algorithm", ["rng_three_fry", "rng_philox"])
def test_random_bits_are_those_of_numpy(algorithm: Algorithm) -> None:
    method = _THREE_FRY if algorithm == "rng_three_fry" else _PHILOX
    counters = (0, 1 << 32, (1 << 64) - 5, (1 << 32) - 3)
    for shape in ((), (7,), (64,), (3, 5), (2, 33), (33, 2), (3, 4, 17), (0,), (4, 1, 40)):
        for bits in (8, 16, 32, 64):
            for counter in counters:
                state = np.array([0xDEADBEEF12345678, counter], np.uint64)
                with native_kernels(PLAIN):
                    wanted = rng_bit_generator(state, shape, bits, algorithm)
                with native_kernels(FAST):
                    for is_together in (True, False):
                        assert random_kernel(method, is_together).code_for(AT_ONCE)
                    made = rng_bit_generator(state, shape, bits, algorithm)
                for x, y in zip(wanted, made, strict=True):
                    assert (x.dtype, x.tolist()) == (y.dtype, y.tolist()), (shape, bits, counter)


JUDGED = {
    "topk": """ENTRY e { x = f32[6,301]{1,0} parameter(0)
      ROOT r = (f32[6,6]{1,0}, s32[6,6]{1,0}) topk(x), k=6, largest=true }""",
    "scatter": """add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
    ENTRY e { x = f32[6,301]{1,0} parameter(0) i = s32[700]{0} parameter(1)
      u = f32[700,301]{1,0} parameter(2)
      ROOT r = f32[6,301]{1,0} scatter(x, i, u), to_apply=add, update_window_dims={1},
        inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1 }""",
    "three_fry": """ENTRY e { s = u64[2]{0} parameter(0)
      ROOT r = (u64[2]{0}, u32[6,31]{1,0}) rng-bit-generator(s), algorithm=rng_three_fry }""",
    "philox": """ENTRY e { s = u64[3]{0} parameter(0)
      ROOT r = (u64[3]{0}, u32[6,31]{1,0}) rng-bit-generator(s), algorithm=rng_philox }""",
}


@pytest.mark.parametrize("op", JUDGED)
@pytest.mark.parametrize("fast", [False, True])
def test_values_are_those_of_xla(op: str, fast: bool, oracle: Oracle) -> None:
    text = f"HloModule m\n{JUDGED[op]}\n"
    generator = np.random.default_rng(11)
    rows = some_values("f32", 6 * 301, generator)
    rows[::5] = generator.choice(rows[:9], rows[::5].size)
    updates = some_values("f32", 700 * 301, generator).reshape(700, 301)
    given: list[Array] = {
        "topk": [rows.reshape(6, 301)],
        "scatter": [rows.reshape(6, 301), generator.integers(-1, 7, 700, np.int32), updates],
        "three_fry": [generator.integers(0, 1 << 63, 2, np.uint64)],
        "philox": [generator.integers(0, 1 << 63, 3, np.uint64)],
    }[op]
    with native_kernels(FAST):
        for kernel in (
            _kernel("f", True), combining_kernel("add", "f32", 32, 0), random_kernel(_PHILOX, True),
            random_kernel(_THREE_FRY, True), random_kernel(_THREE_FRY, False),
        ):  # fmt: skip
            assert kernel is not None
            assert kernel.code_for(AT_ONCE)
        made = hloipu.evaluate(text, *given, fast=fast)
    for x, y in zip(made, oracle.load(text).run(given), strict=True):
        assert differences(np.asarray(x), y) == 0
