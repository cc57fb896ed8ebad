"""Ways to write steps: the cheapest stays, and nothing is left of the others."""

import pytest

from hloipu_compiler.lowering.core.alternatives import cheapest
from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.values import Scalar, Spread, Value
from hloipu_runtime.machine.load import load_machine

TINY = load_machine("tiny")


def writing(builder: Builder, elements: int, times: int = 1) -> list[Value]:
    """Fill so many arrays with a number; the first is the result."""
    number = Scalar("f32", "0x1.0p+0")
    made = [builder.tile_tensor(Spread(number, (), (elements,))) for _ in range(times)]
    builder.scalar(Scalar("f32", f"0x1.0p+{times}"))
    return [made[0]]


def test_the_cheapest_stays() -> None:
    builder = Builder(TINY)
    (found,) = cheapest(
        builder,
        [lambda: writing(builder, 64, 3), lambda: writing(builder, 64), lambda: None],
    )
    assert len(builder.scope.steps) == 1
    assert len(builder.constants) == 1
    assert found.shape == (64,)
    assert len(builder.variables) == 2


def test_of_equal_ones_the_last() -> None:
    builder = Builder(TINY)
    gone: list[int] = []

    def candidate(number: int) -> list[Value]:
        gone.append(number)
        return writing(builder, 64)

    cheapest(builder, [lambda: candidate(0), lambda: candidate(1)])
    assert gone == [0, 1]


def test_some_way_must_do() -> None:
    with pytest.raises(ValueError, match="no candidate"):
        cheapest(Builder(TINY), [lambda: None])


def test_ops_of_one_key_all_go_the_way_of_the_first() -> None:
    builder = Builder(TINY)
    gone: list[int] = []

    def candidate(number: int) -> list[Value]:
        gone.append(number)
        return writing(builder, 64, 2 - number)

    for _ in range(3):
        cheapest(builder, [lambda: candidate(0), lambda: candidate(1)], "key")
    assert gone == [0, 1, 1, 1]
