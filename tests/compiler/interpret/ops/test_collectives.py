"""Collectives against XLA:CPU on eight host devices."""

import numpy as np
import pytest

from hloipu.xla_cpu.runner import for_partitioner
from hloipu_compiler.hlo.printing.printer import FULL, print_module
from hloipu_compiler.interpret.participants import evaluate_participants, participants_of
from hloipu_compiler.ir.graph import Module
from tests.support.arrays import Array
from tests.support.collective_cases import LOOP, ONE_OP, ROUNDS, SEVERAL_OPS
from tests.support.collectives import R8, Counts, inputs, module_of
from tests.support.xla_oracle import Oracle


def against_xla(module: Module, given: list[list[Array]], oracle: Oracle) -> None:
    """Compare every participant's results, exactly."""
    replicas, partitions = participants_of(module)
    ours = evaluate_participants(module, given, replicas=replicas, partitions=partitions)
    carried = for_partitioner(module) if partitions > 1 else module
    program = oracle.load(print_module(carried, FULL), replicas=replicas, partitions=partitions)
    theirs = program.run_each(given)
    program.unload()
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y.reshape(x.shape), f"participant {number}")


@pytest.mark.parametrize(("opcode", "shape", "attributes", "counts"), ONE_OP)
def test_one_op(opcode: str, shape: str, attributes: str, counts: Counts, oracle: Oracle) -> None:
    """Every kind of collective with every reading of its groups is as on XLA:CPU."""
    module = module_of(f"ROOT r = {shape} {opcode}(p), {attributes}", counts)
    assert participants_of(module) == counts
    against_xla(module, inputs(8), oracle)


@pytest.mark.parametrize(("body", "counts"), SEVERAL_OPS)
def test_several_ops(body: str, counts: Counts, oracle: Oracle) -> None:
    """Variadic forms, ids and sequences are as on XLA:CPU."""
    against_xla(module_of(body, counts), inputs(8), oracle)


def test_rounds_of_a_loop(oracle: Oracle) -> None:
    """The same collectives meet again and again, and rounds do not mix."""
    against_xla(module_of(ROUNDS, R8, LOOP), inputs(8), oracle)
