"""Fused elementwise codelets compute what their parts did."""

from typing import Any

import numpy as np

from hloipu_runtime.codelets.codelet import Tensor
from hloipu_runtime.codelets.elementwise import Elementwise
from hloipu_runtime.codelets.expression import Expression, Node
from hloipu_runtime.codelets.fusing import Use, fused
from hloipu_runtime.machine.load import load_machine
from tests.support.codelet_law import Given, check_every_split

Array = np.ndarray[Any, Any]

X, BIAS, SUM, ZEROED, PRODUCT = range(5)


def one(op: str, *labels: tuple[int, ...]) -> Elementwise:
    """Return a codelet of one f32 op."""
    count = len(labels)
    node = Node(op, tuple(range(count)), "f32")
    return Elementwise(Expression(("f32",) * count, (node,), (count,)), labels, 2)


RELU = Elementwise(
    Expression(
        ("f32",),
        (
            Node("constant", (), "f32", (("value", "0x0.0p+0"),)),
            Node("maximum", (0, 1), "f32"),
        ),
        (2,),
    ),
    ((0, 1),),
    2,
)
CHAIN = [
    Use(one("add", (0, 1), (1,)), (X, BIAS), (SUM,)),
    Use(RELU, (SUM,), (ZEROED,)),
    Use(one("multiply", (0, 1), (0, 1)), (ZEROED, X), (PRODUCT,)),
]


def test_a_chain_becomes_one_codelet() -> None:
    found = fused(CHAIN, [PRODUCT, SUM])
    assert found is not None
    assert found.reads == (X, BIAS)
    assert found.codelet.labels == ((0, 1), (1,))
    random = np.random.default_rng(1)
    x = random.normal(size=(7, 5)).astype(np.float32)
    bias = random.normal(size=5).astype(np.float32)
    whole = check_every_split(
        found.codelet,
        [Given("f32", x), Given("f32", bias)],
        [Tensor("f32", x.shape), Tensor("f32", x.shape)],
    )
    np.testing.assert_array_equal(whole[0], np.maximum(x + bias, 0) * x)
    np.testing.assert_array_equal(whole[1], x + bias)


def test_a_fused_chain_costs_less() -> None:
    machine = load_machine("gc200")
    found = fused(CHAIN, [PRODUCT])
    assert found is not None
    part, row = Tensor("f32", (64, 64)), Tensor("f32", (64,))
    apart = sum(
        use.codelet.work(machine, [row if v == BIAS else part for v in use.reads], [part]).cycles
        for use in CHAIN
    )
    assert found.codelet.work(machine, [part, row], [part]).cycles < apart


def test_equal_ops_are_computed_once() -> None:
    twice = [*CHAIN[:1], Use(CHAIN[0].codelet, (X, BIAS), (ZEROED,))]
    found = fused(twice, [SUM, ZEROED])
    assert found is not None
    assert len(found.codelet.expression.nodes) == 1
    assert found.codelet.expression.results == (2, 2)


def test_what_is_read_in_two_orders_is_two_operands() -> None:
    found = fused([Use(one("add", (0, 1), (1, 0)), (X, X), (SUM,))], [SUM])
    assert found is not None
    assert found.reads == (X, X)


def test_a_transposed_middle_value_is_not_elementwise() -> None:
    turned = Use(one("add", (1, 0), (0, 1)), (SUM, X), (PRODUCT,))
    assert fused([CHAIN[0], turned], [PRODUCT]) is None
    repeated = Use(one("add", (0,), (0, 1)), (SUM, X), (PRODUCT,))
    assert fused([CHAIN[0], repeated], [PRODUCT]) is None
