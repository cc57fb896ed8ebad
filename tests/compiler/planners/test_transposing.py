"""Transposes of many dimensions: as cheap as those of the few that they are, and as soon found."""

import pytest

from hloipu_compiler.planners.transposing import transpositions
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.machine.load import load_machine

RANK = 14
"""Of a state of so many qubits, each a dimension of 2."""


@pytest.mark.parametrize("qubit", [1, 5, 13])
def test_many_dimensions_are_planned_as_the_few_that_move(qubit: int) -> None:
    machine = load_machine("gc200")
    others = [d for d in range(RANK) if d != qubit]
    many = transpositions(machine, Tensor("f32", (2,) * RANK), (qubit, *others), None)
    few = transpositions(
        machine, Tensor("f32", (2**qubit, 2, 2 ** (RANK - 1 - qubit))), (1, 0, 2), None
    )
    assert many[0].price <= 1.02 * few[0].price
    assert len(many) <= 2 * len(few)
