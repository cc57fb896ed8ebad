"""Elementwise vertices: the law, values, what may be overwritten."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloipu_runtime.codelets.core.expression import Expression, Node
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from tests.support.codelet_law import Given, check_every_split, check_law, run_whole

Array = np.ndarray[Any, Any]

MULTIPLY_ADD = Expression(
    ("f32", "f32", "f32"),
    (Node("multiply", (0, 1), "f32"), Node("add", (3, 2), "f32")),
    (4, 3),
)
"""x * y + z, and x * y."""
ADD = Expression(("f32", "f32"), (Node("add", (0, 1), "f32"),), (2,))


def normal(*shape: int) -> Array:
    """Return random f32 values."""
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def test_operands_repeat_along_the_dimensions_that_they_do_not_name() -> None:
    x, row, column = normal(7, 5, 3), normal(3), normal(7, 5)
    codelet = Elementwise(MULTIPLY_ADD, ((0, 1, 2), (2,), (0, 1)), 3)
    whole = check_every_split(
        codelet,
        [Given("f32", a) for a in (x, row, column)],
        [Tensor("f32", x.shape), Tensor("f32", x.shape)],
    )
    np.testing.assert_array_equal(whole[0], x * row + column[:, :, None])
    np.testing.assert_array_equal(whole[1], x * row)


def test_operands_may_have_the_dimensions_in_another_order() -> None:
    x, y = normal(4, 6), normal(6, 5, 4)
    codelet = Elementwise(ADD, ((2, 0), (0, 1, 2)), 3)
    (whole,) = check_every_split(
        codelet, [Given("f32", x), Given("f32", y)], [Tensor("f32", (6, 5, 4))]
    )
    np.testing.assert_array_equal(whole, x.T[:, None] + y)


def test_scalars_and_results_without_dimensions() -> None:
    x, y = np.array(2, np.float32), np.array(3, np.float32)
    (whole,) = check_law(
        Elementwise(ADD, ((), ()), 0), [Given("f32", x), Given("f32", y)], [Tensor("f32", ())], {}
    )
    assert whole == 5
    (repeated,) = check_every_split(
        Elementwise(Expression(("f32",), (), (0,)), ((),), 2),
        [Given("f32", x)],
        [Tensor("f32", (3, 2))],
    )
    np.testing.assert_array_equal(repeated, np.full((3, 2), 2.0))


def test_nothing_to_compute() -> None:
    empty = np.empty((0, 3), np.float32)
    codelet = Elementwise(ADD, ((0, 1), (1,)), 2)
    given = [Given("f32", empty), Given("f32", normal(3))]
    (whole,) = check_law(codelet, given, [Tensor("f32", (0, 3))], {1: 2})
    assert whole.shape == (0, 3)


def test_results_of_several_types_and_narrow_floats() -> None:
    nodes = (
        Node("exponential", (0,), "bf16"),
        Node("compare", (1, 0), "pred", (("direction", "GT"),)),
        Node("convert", (1,), "s32"),
    )
    codelet = Elementwise(Expression(("bf16",), nodes, (1, 2, 3)), ((0, 1),), 2)
    x = (normal(9, 4).view(np.uint32) & 0xFFFF0000).view(np.float32)
    whole = check_every_split(
        codelet,
        [Given("bf16", x)],
        [Tensor("bf16", x.shape), Tensor("pred", x.shape), Tensor("s32", x.shape)],
    )
    np.testing.assert_allclose(whole[0], np.exp(x), rtol=2**-8)
    assert whole[1].all()  # e^x > x
    np.testing.assert_array_equal(whole[2], np.trunc(whole[0]).astype(np.int32))


def test_what_may_be_overwritten() -> None:
    def may(types: tuple[str, ...], nodes: tuple[Node, ...], results: tuple[int, ...],
            *labels: tuple[int, ...]) -> list[bool]:  # fmt: skip
        codelet = Elementwise(Expression(types, nodes, results), labels, 2)
        return [codelet.may_overwrite(k) for k in range(len(types))]

    both, add = ("f32", "f32"), (Node("add", (0, 1), "f32"),)
    assert may(both, add, (2,), (0, 1), (0, 1)) == [True, True]
    assert may(both, add, (2,), (0, 1), (1,)) == [True, False]
    assert may(both, add, (2,), (1, 0), (0, 1)) == [False, True]
    assert may(both, add, (2, 0), (0, 1), (0, 1)) == [False, True]
    assert may(("f16",), (Node("convert", (0,), "bf16"),), (1,), (0, 1)) == [True]
    # f16 is stored as f32, but takes half the memory of a tile.
    assert may(("f16",), (Node("convert", (0,), "f32"),), (1,), (0, 1)) == [False]
    assert may(("s32",), (Node("convert", (0,), "f32"),), (1,), (0, 1)) == [False]


def test_large_results_are_those_of_small_parts() -> None:
    x, y, z = normal(300, 350), normal(350), normal(300, 350)
    codelet = Elementwise(MULTIPLY_ADD, ((0, 1), (1,), (0, 1)), 2)
    given = [Given("f32", a) for a in (x, y, z)]
    results = [Tensor("f32", x.shape)] * 2
    whole = check_law(codelet, given, results, {0: 70, 1: 200})
    np.testing.assert_array_equal(whole[0], x * y + z)
    np.testing.assert_array_equal(run_whole(codelet, given, results)[1], x * y)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_labels_and_any_split(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    labels = tuple(
        tuple(data.draw(st.permutations(range(len(shape)))))[
            : data.draw(st.integers(0, len(shape)))
        ]
        for _ in range(3)
    )
    blocks = {d: data.draw(st.integers(1, n)) for d, n in enumerate(shape)}
    random = np.random.default_rng(1)
    arrays = [random.normal(size=[shape[d] for d in x]).astype(np.float32) for x in labels]
    codelet = Elementwise(MULTIPLY_ADD, labels, len(shape))
    results = [Tensor("f32", shape)] * 2
    whole = check_law(codelet, [Given("f32", a) for a in arrays], results, blocks)
    x, y, z = (
        np.einsum(f"{''.join('ijk'[d] for d in at)},{'ijk'[: len(shape)]}->{'ijk'[: len(shape)]}",
                  a, np.ones(shape))
        for a, at in zip(arrays, labels, strict=True)
    )  # fmt: skip
    np.testing.assert_allclose(whole[0], x * y + z, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("k", [0, 1])
def test_operands_are_left_alone(k: int) -> None:
    x, y = normal(40, 1000), normal(1000)
    given = [Given("f32", x), Given("f32", y)]
    before = given[k].array.copy()
    check_law(Elementwise(ADD, ((0, 1), (1,)), 2), given, [Tensor("f32", x.shape)], {0: 7})
    np.testing.assert_array_equal(given[k].array, before)
