"""Dot: the law, values against numpy, and cycles worked out by hand."""

import numpy as np
import pytest

from hloipu_runtime.codelets.core.tensors import Block, Tensor
from hloipu_runtime.codelets.dense.dot import Dot
from hloipu_runtime.machine.load import load_machine
from tests.support.codelet_law import Given, check_every_split, close_values, run_whole

RNG = np.random.default_rng(7)


def _given(*shape: int, element_type: str = "f32") -> Given:
    if element_type.startswith("s"):
        dtype = {"s4": "int8", "s8": "int8", "s32": "int32", "s64": "int64"}[element_type]
        top = 8 if element_type == "s4" else np.iinfo(dtype).max
        return Given(element_type, RNG.integers(-top, top, shape).astype(dtype))
    if element_type == "pred":
        return Given(element_type, RNG.integers(0, 2, shape).astype(bool))
    values = RNG.standard_normal(shape)
    if element_type == "c64":
        return Given(element_type, (values + 1j * RNG.standard_normal(shape)).astype("complex64"))
    if element_type == "f64":
        return Given(element_type, values)
    # Small whole numbers are values of every narrow float.
    whole = np.round(values * 2) if element_type != "f32" else values
    return Given(element_type, whole.astype(np.float32))


def _matrix(element_type: str = "f32", part: int = 0) -> Dot:
    return Dot((), (), (1,), (0,), element_type, part)


@pytest.mark.parametrize("element_type", ["f32", "f16", "bf16", "f64", "c64", "s32", "s4", "pred"])
def test_split_matrix_products_are_parts_of_the_whole(element_type: str) -> None:
    operands = [_given(7, 9, element_type=element_type), _given(9, 5, element_type=element_type)]
    check_every_split(
        _matrix(element_type),
        operands,
        [Tensor(element_type, (7, 5))],
        same=close_values(1e-5, 1e-5),
    )


def test_batch_and_several_contracted_dimensions() -> None:
    lhs, rhs = _given(3, 4, 5, 6), _given(6, 3, 7, 4)
    dot = Dot((0,), (1,), (1, 3), (3, 0), "f32")
    whole = check_every_split(
        dot, [lhs, rhs], [Tensor("f32", (3, 5, 7))], same=close_values(1e-5, 1e-5)
    )
    expected = np.einsum("bkml,lbnk->bmn", lhs.array.astype("f8"), rhs.array.astype("f8"))
    np.testing.assert_allclose(whole[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("part", [1, 4, 5, 10, 100])
def test_pieces_of_the_contracted_dimension_add_up(part: int) -> None:
    lhs, rhs = _given(2, 3, 10), _given(2, 10, 4)
    dot = Dot((0,), (0,), (2,), (1,), "f32", part)
    pieces = -(-10 // part)
    whole = check_every_split(
        dot, [lhs, rhs], [Tensor("f32", (pieces, 2, 3, 4))], same=close_values(1e-5, 1e-5)
    )
    for k in range(pieces):
        at = slice(k * part, (k + 1) * part)
        expected = lhs.array[:, :, at] @ rhs.array[:, at]
        np.testing.assert_allclose(whole[0][k], expected, rtol=1e-5, atol=1e-5)


def test_pieces_of_one_of_two_contracted_dimensions() -> None:
    lhs, rhs = _given(7, 2, 3), _given(2, 4, 7)
    dot = Dot((), (), (0, 1), (2, 0), "f32", 3)
    whole = check_every_split(
        dot, [lhs, rhs], [Tensor("f32", (3, 3, 4))], same=close_values(1e-5, 1e-5)
    )
    expected = np.einsum("kbm,bnk->mn", lhs.array, rhs.array)
    np.testing.assert_allclose(whole[0].sum(0), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "depth", "columns"), [(0, 3, 2), (2, 0, 3), (2, 3, 0)])
@pytest.mark.parametrize("part", [0, 2])
def test_empty_dimensions(rows: int, depth: int, columns: int, part: int) -> None:
    operands = [_given(rows, depth), _given(depth, columns)]
    shape = (*((-(-depth // part),) if part else ()), rows, columns)
    made = run_whole(_matrix(part=part), operands, [Tensor("f32", shape)])
    assert made[0].shape == shape
    assert not made[0].size or depth or not made[0].any()


def test_a_grid_axis_that_neither_operand_follows_repeats_the_result() -> None:
    lhs, rhs = _given(2, 3).array, _given(4, 3, 5).array
    blocks = [
        Block(np.broadcast_to(lhs, (6, 4, 2, 3)), (6, 4), (2, 3), (0, 0), (2, 3)),
        Block(np.broadcast_to(rhs, (6, 4, 3, 5)), (6, 4), (3, 5), (0, 0), (3, 20)),
    ]
    made = _matrix().run(blocks, [Block(None, (6, 4), (2, 5), (0, 0), (2, 20))])[0]
    assert made.shape == (6, 4, 2, 5)
    np.testing.assert_allclose(made[5], lhs @ rhs, rtol=1e-5, atol=1e-6)


def _cycles(dot: Dot, machine_name: str, lhs: Tensor, rhs: Tensor, result: Tensor) -> int:
    return dot.work(load_machine(machine_name), [lhs, rhs], [result]).cycles


def test_half_cycles_by_hand() -> None:
    # 96 positions, 16 a worker; 4 groups of 16 input channels, 4 of 16 output channels.
    adding, zeroing = 6 * (38 + 4 * 13 - 7), 6 * (37 + 4 * 13 - 7)
    expected = 50 + 6 * (7 + 3 * 3)
    expected += 13 + 3 * (15 + 4 * (19 + 6 + 64 + adding))
    # All workers have equally much, so the fastest one's 14 more cycles are what counts.
    expected += 3 * 4 * 14
    expected += 11 + 4 * (18 + 7 + 64 + zeroing + 14)
    shapes = Tensor("f16", (96, 64)), Tensor("f16", (64, 64)), Tensor("f32", (96, 64))
    assert _cycles(_matrix(), "tiny", *shapes) == expected


def test_a_result_in_half_precision_is_cast() -> None:
    shapes = Tensor("f16", (96, 64)), Tensor("f16", (64, 64))
    single = _cycles(_matrix(), "tiny", *shapes, Tensor("f32", (96, 64)))
    half = _cycles(_matrix("f16"), "tiny", *shapes, Tensor("f16", (96, 64)))
    assert half - single == 6 * (26 + 512)  # 1024 elements a worker, two a load


def test_single_cycles_by_hand() -> None:
    # 60 positions, 10 a worker; 2 groups of 8 input channels, 1 of output channels.
    adding, zeroing = 6 * (46 + 8 * 7), 6 * (46 + 8 * 7 + 2 + 80)
    expected = 50 + 13 + (15 + 19 + 6 + 64 + adding + 14) + 11 + (18 + 7 + 64 + zeroing + 14)
    shapes = Tensor("f32", (60, 16)), Tensor("f32", (16, 16)), Tensor("f32", (60, 16))
    assert _cycles(_matrix(), "tiny", *shapes) == expected


@pytest.mark.parametrize("types", [("f16", "f16"), ("f32", "f32"), ("bf16", "f32"), ("s8", "s32")])
@pytest.mark.thinned(4)
def test_larger_parts_never_cost_less(types: tuple[str, str]) -> None:
    kind, result = types
    for fixed in ((1, 1), (5, 40), (64, 64)):
        for turn in range(3):
            last = 0
            for size in range(50):
                m, k, n = np.roll([size, *fixed], turn).tolist()
                shapes = Tensor(kind, (m, k)), Tensor(kind, (k, n)), Tensor(result, (m, n))
                cycles = _cycles(_matrix(result), "gc200", *shapes)
                assert cycles >= last
                last = cycles


def test_emulated_types_are_marked_as_assumed() -> None:
    machine = load_machine("gc200")

    def work(kind: str) -> tuple[int, int]:
        found = _matrix(kind).work(
            machine, [Tensor(kind, (8, 8)), Tensor(kind, (8, 8))], [Tensor(kind, (8, 8))]
        )
        return found.cycles, found.assumed_cycles

    assert work("f16")[1] == work("f32")[1] == 0
    assert work("bf16")[0] - work("bf16")[1] == work("f32")[0]
    assert work("f64")[0] == work("f64")[1] > work("f32")[0]


def test_a_transposed_product_is_the_product_the_other_way_round() -> None:
    lhs, rhs = _given(3, 4, 5, 6), _given(6, 3, 7, 4)
    dot = Dot((0,), (1,), (1, 3), (3, 0), "f32")
    turned = dot.transposed((0, 2, 1), (4, 4))
    assert turned is not None
    codelet, order = turned
    operands = [(lhs, rhs)[n] for n in order]
    (found,) = run_whole(codelet, operands, [Tensor("f32", (3, 7, 5))])
    expected = np.einsum("bkml,lbnk->bnm", lhs.array.astype("f8"), rhs.array.astype("f8"))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert dot.transposed((0, 1, 2), (4, 4)) is None
    assert dot.transposed((1, 0, 2), (4, 4)) is None
    assert _matrix(part=2).transposed((1, 0), (2, 2)) is None
