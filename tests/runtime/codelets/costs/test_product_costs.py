"""Costs of many sizes at once: the same as of each alone."""

import numpy as np
import pytest

from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.costs.amp import Product, Products, product_work, products_cycles
from hloipu_runtime.codelets.costs.reduce import (
    Reducing,
    convolution_summing_cycles,
    reduce_work,
    summing_cycles,
)
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.load import load_machine
from tests.support.vertex_formulas import reduce_add

RNG = np.random.default_rng(9)
TYPES = [("f32", "f32"), ("f16", "f16"), ("bf16", "f32"), ("s32", "s32"), ("f8e4m3fn", "f16")]


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("target", ["gc2", "bow"])
def test_products(types: tuple[str, str], target: str) -> None:
    machine = load_machine(target)
    groups, rows, depth, columns = RNG.integers(1, 200, (4, 60))
    sizes = Products(groups, rows, depth, columns)
    second = RNG.integers(0, 2, 60).astype(bool)
    results = ("f16", "f32")
    found = products_cycles(machine, sizes, types, results, second)
    for n, numbers in enumerate(zip(groups, rows, depth, columns, strict=True)):
        size = Product(*map(int, numbers))
        assert found[n] == product_work(machine, size, types, results[int(second[n])]).cycles


def test_half_partials() -> None:
    """No cast; with as many units as f32 partials, the rest is the same."""
    machine = load_machine("bow")
    size = Product(1, 96, 64, 64)
    whole = product_work(machine, size, ("f16", "f16"), "f32").cycles
    half = product_work(machine, size, ("f16", "f16"), "f16", half_partials=True).cycles
    assert half == whole
    one = np.array([1]), np.array([96]), np.array([64]), np.array([64])
    pieces = products_cycles(
        machine, Products(*one), ("f16", "f16"), ("f16", "f16"), np.array([True])
    )
    assert pieces.tolist() == [half]


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_sums_of_pieces(kind: str) -> None:
    machine = load_machine("gc200")
    for outputs, pieces in ((60, 4), (7, 30), (1000, 2)):
        operands = [Tensor(kind, (pieces, outputs)), Tensor(kind, ())]
        work = reduce_work(
            Reducing(
                machine, operands[:1], [Tensor(kind, (outputs,))], (0,), monoid="add", body=None
            )
        )
        found = summing_cycles(machine, kind, np.array([outputs]), np.array([pieces]))
        assert found.tolist() == [work.cycles]


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_sums_of_a_convolution(kind: str) -> None:
    machine = load_machine("gc200")
    for outputs, pieces in ((60, 4), (7, 30), (1000, 2), (64, 16), (4096, 30), (3, 1)):
        sizes = np.array([outputs]), np.array([pieces])
        found = convolution_summing_cycles(machine, (kind, kind), *sizes)
        assert found.tolist() == [reduce_add(outputs, pieces, kind == "f16")]
        add = Reduce((0,), "add", None, (kind,), of_convolution=True)
        tensors = Tensor(kind, (pieces, outputs)), Tensor(kind, ())
        assert add.work(machine, tensors, [Tensor(kind, (outputs,))]) == TileWork(int(found[0]))


@pytest.mark.parametrize(("kind", "width", "store"), [("f32", 4, 8), ("f16", 8, 9)])
def test_sums_of_a_convolution_where_a_load_is_less_than_an_element(
    kind: str, width: int, store: int
) -> None:
    """A vector of 16 bytes takes 16 loads of a byte."""
    machine = load_machine("unit")
    sizes = np.array([3 * width]), np.array([5])
    found = convolution_summing_cycles(machine, (kind, kind), *sizes)
    assert machine.tile.worker_contexts == machine.tile.load_bytes_per_cycle == 1
    assert found.tolist() == [20 + (16 * (5 - 1) + store) * 3 + 33]
