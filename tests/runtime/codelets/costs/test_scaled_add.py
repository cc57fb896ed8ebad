"""x + s * y has its own vertex: hand sums, and what is no scaled addition."""

import pytest

from hloipu_runtime.codelets.core.expression import Expression, Node
from hloipu_runtime.codelets.costs.scaled_add import scaled_add_cycles
from hloipu_runtime.machine.load import load_machine

MACHINE = load_machine("gc2")


def _expression(
    first: str, second: str, arguments: tuple[int, int], kind: str = "f32"
) -> Expression:
    nodes = (Node(first, (2, 0), kind, ()), Node(second, arguments, kind, ()))
    return Expression((kind,) * 3, nodes, (4,))


@pytest.mark.parametrize(
    ("kind", "second", "cycles"),
    [
        # 63 supervisor cycles; 6 workers of 25 + 7 slots, and 3 for all but the first vector.
        ("f32", "add", 63 + 6 * (32 + 3 * 99)),
        ("f32", "subtract", 70 + 6 * (32 + 3 * 99)),
        ("f16", "add", 63 + 6 * (32 + 3 * 49)),
    ],
)
def test_hand_sums(kind: str, second: str, cycles: int) -> None:
    expression = _expression("multiply", second, (1, 3), kind)
    found = scaled_add_cycles(MACHINE, expression, expression.nodes, frozenset({2}), 1200)
    assert found == cycles


@pytest.mark.parametrize(
    ("expression", "scalars"),
    [
        (_expression("add", "add", (1, 3)), {2}),
        (_expression("multiply", "multiply", (1, 3)), {2}),
        (_expression("multiply", "subtract", (3, 1)), {2}),
        (_expression("multiply", "add", (3, 3)), {2}),
        (_expression("multiply", "add", (1, 3)), set()),
        (_expression("multiply", "add", (1, 3)), {0, 2}),
        (_expression("multiply", "add", (1, 3), "s32"), {2}),
    ],
)
def test_what_is_none(expression: Expression, scalars: set[int]) -> None:
    nodes = expression.nodes
    assert scaled_add_cycles(MACHINE, expression, nodes, frozenset(scalars), 1200) is None
