"""Scaled and ragged dots: the law, and values by the definition."""

import numpy as np
import pytest

from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.dense.dot import Dot
from hloipu_runtime.codelets.dense.scaled_dot import RaggedDot, ScaledDot
from hloipu_runtime.machine.load import load_machine
from tests.support.codelet_law import Given, check_every_split, run_whole

RNG = np.random.default_rng(31)


def _given(element_type: str, *shape: int) -> Given:
    if element_type == "f8e8m0fnu":
        return Given(element_type, np.asarray(2.0 ** RNG.integers(-1, 2, shape), np.float32))
    return Given(element_type, np.asarray(RNG.integers(-3, 4, shape), np.float32))


@pytest.mark.parametrize(
    ("lhs_scale", "rhs_scale"),
    [((6, 2), (2, 5)), ((1, 8), (8, 1)), ((3, 1), (1, 1)), ((), (1, 5)), ((), ())],
)
def test_scaled_matrices(lhs_scale: tuple[int, ...], rhs_scale: tuple[int, ...]) -> None:
    lhs, rhs = _given("f8e4m3fn", 6, 8), _given("f8e4m3fn", 8, 5)
    scales = [_given("f8e8m0fnu", *shape) for shape in (lhs_scale, rhs_scale)]
    types = ("f8e4m3fn", "f8e4m3fn", "f8e8m0fnu", "f8e8m0fnu")
    codelet = ScaledDot(Dot((), (), (1,), (0,), "f32"), types)
    whole = check_every_split(codelet, [lhs, rhs, *scales], [Tensor("f32", (6, 5))])
    wide = []
    for x, scale in zip((lhs.array, rhs.array), scales, strict=True):
        factors = scale.array if scale.array.ndim else np.ones((1, 1), np.float32)
        for axis in range(2):
            factors = np.repeat(factors, x.shape[axis] // factors.shape[axis], axis)
        wide.append(x * factors)
    np.testing.assert_array_equal(whole[0], wide[0] @ wide[1])


def test_scaled_batches() -> None:
    lhs, rhs = _given("f8e5m2", 3, 4, 8), _given("f8e5m2", 3, 8, 2)
    scales = [_given("f8e8m0fnu", 3, 2, 8), _given("f8e8m0fnu", 1, 4, 2)]
    types = ("f8e5m2", "f8e5m2", "f8e8m0fnu", "f8e8m0fnu")
    codelet = ScaledDot(Dot((0,), (0,), (2,), (1,), "f32"), types)
    whole = check_every_split(codelet, [lhs, rhs, *scales], [Tensor("f32", (3, 4, 2))])
    left = lhs.array * np.repeat(scales[0].array, 2, 1)
    right = rhs.array * np.repeat(np.repeat(scales[1].array, 2, 1), 3, 0)
    np.testing.assert_array_equal(whole[0], left @ right)


def _groups(*sizes: int) -> Given:
    return Given("s32", np.asarray(sizes, np.int32))


def test_ragged_rows() -> None:
    lhs, rhs = _given("f32", 8, 4), _given("f32", 3, 4, 5)
    codelet = RaggedDot(Dot((), (), (1,), (1,), "f32"), 0, 0)
    whole = check_every_split(codelet, [lhs, rhs, _groups(2, 0, 5)], [Tensor("f32", (8, 5))])
    np.testing.assert_array_equal(whole[0][:2], lhs.array[:2] @ rhs.array[0])
    np.testing.assert_array_equal(whole[0][2:7], lhs.array[2:7] @ rhs.array[2])
    assert not whole[0][7:].any()


def test_ragged_rows_of_batches_in_pieces_of_depth() -> None:
    lhs, rhs = _given("f32", 2, 8, 7), _given("f32", 3, 2, 7, 5)
    whole = RaggedDot(Dot((0,), (1,), (2,), (2,), "f32"), 1, 0)
    cut = RaggedDot(Dot((0,), (1,), (2,), (2,), "f32", part=3), 1, 0)
    given = [lhs, rhs, _groups(2, 0, 5)]
    sums = check_every_split(whole, given, [Tensor("f32", (2, 8, 5))])
    pieces = check_every_split(cut, given, [Tensor("f32", (3, 2, 8, 5))])
    np.testing.assert_array_equal(
        pieces[0][1, 1, 2:7], lhs.array[1, 2:7, 3:6] @ rhs.array[2, 1, 3:6]
    )
    np.testing.assert_array_equal(pieces[0].sum(0), sums[0])


def test_ragged_depth() -> None:
    lhs, rhs = _given("f32", 6, 8), _given("f32", 8, 5)
    codelet = RaggedDot(Dot((), (), (1,), (0,), "f32"), 1, -1)
    whole = check_every_split(codelet, [lhs, rhs, _groups(3, 4)], [Tensor("f32", (2, 6, 5))])
    np.testing.assert_array_equal(whole[0][0], lhs.array[:, :3] @ rhs.array[:3])
    np.testing.assert_array_equal(whole[0][1], lhs.array[:, 3:7] @ rhs.array[3:7])


def test_ragged_batch_with_sizes_for_each_batch_element() -> None:
    lhs, rhs = _given("f32", 2, 6, 4), _given("f32", 3, 2, 4, 5)
    sizes = Given("s32", np.asarray([[1, 2, 3], [4, 0, 1]], np.int32))
    codelet = RaggedDot(Dot((0,), (1,), (2,), (2,), "f32"), 1, 0)
    whole = check_every_split(codelet, [lhs, rhs, sizes], [Tensor("f32", (2, 6, 5))])
    np.testing.assert_array_equal(whole[0][0, 1:3], lhs.array[0, 1:3] @ rhs.array[1, 0])
    np.testing.assert_array_equal(whole[0][1, :4], lhs.array[1, :4] @ rhs.array[0, 1])


def test_work_grows_with_parts() -> None:
    machine, last = load_machine("gc200"), 0
    for rows in range(1, 30):
        tensors = [Tensor("f32", (rows, 8)), Tensor("f32", (3, 8, 5)), Tensor("s32", (3,))]
        codelet = RaggedDot(Dot((), (), (1,), (1,), "f32"), 0, 0)
        cycles = codelet.work(machine, tensors, [Tensor("f32", (rows, 5))]).cycles
        assert cycles >= last
        last = cycles
    made = run_whole(
        codelet, [_given("f32", 0, 8), _given("f32", 3, 8, 5), _groups(0, 0, 0)],
        [Tensor("f32", (0, 5))],
    )  # fmt: skip
    assert made[0].shape == (0, 5)
