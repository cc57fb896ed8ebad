import random

import networkx as nx
import pytest

from hloipu_compiler.analysis.dominance import (
    ROOT,
    immediate_dominators,
    immediate_post_dominators,
)
from hloipu_compiler.analysis.order import live_positions, post_order
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.element_types import F32

SHAPE = ArrayShape(F32)


def random_computation(seed: int, size: int) -> Computation:
    """Random wiring; opcodes do not matter to orders and dominators."""
    draw = random.Random(seed)
    instructions = []
    for i in range(size):
        count = min(i, draw.choice((0, 1, 1, 2, 2, 3)))
        reach = draw.choice((3, 20, size))
        operands = tuple(draw.randrange(max(0, i - reach), i) for _ in range(count))
        opcode = "tuple" if operands else "parameter"
        instructions.append(Instruction(f"x{i}", opcode, SHAPE, operands))
    return Computation("c", tuple(instructions), size - 1)


@pytest.mark.parametrize("seed", range(40))
def test_dominators_equal_networkx(seed: int) -> None:
    computation = random_computation(seed, 60)
    graph = computation.dataflow.copy()
    for node in list(graph):
        if graph.in_degree(node) == 0:
            graph.add_edge(ROOT, node)
    expected = nx.immediate_dominators(graph, ROOT)
    found = immediate_dominators(computation)
    assert all(found[i] == expected[i] for i in range(60))


@pytest.mark.parametrize("seed", range(40))
def test_post_dominators_equal_networkx_on_the_reversed_graph(seed: int) -> None:
    computation = random_computation(seed, 60)
    graph = computation.dataflow.reverse()
    for node in list(graph):
        if graph.in_degree(node) == 0:
            graph.add_edge(ROOT, node)
    expected = nx.immediate_dominators(graph, ROOT)
    found = immediate_post_dominators(computation)
    assert all(found[i] == expected[i] for i in range(60))


@pytest.mark.parametrize("seed", range(10))
def test_post_order_places_operands_first_and_everything_once(seed: int) -> None:
    computation = random_computation(seed, 200)
    order = post_order(computation)
    place = {position: k for k, position in enumerate(order)}
    assert sorted(order) == list(range(200))
    for i, instruction in enumerate(computation.instructions):
        assert all(place[x] < place[i] for x in instruction.operands)


@pytest.mark.parametrize("seed", range(10))
def test_live_positions_are_the_ancestors_of_the_root(seed: int) -> None:
    computation = random_computation(seed, 200)
    expected = nx.ancestors(computation.dataflow, computation.root) | {computation.root}
    live = live_positions(computation)
    for i, instruction in enumerate(computation.instructions):
        assert live[i] == (i in expected or instruction.opcode == "parameter")


def test_a_chain_of_100_000_is_no_problem() -> None:
    chain = tuple(
        Instruction(f"x{i}", "negate" if i else "parameter", SHAPE, (i - 1,) if i else ())
        for i in range(100_000)
    )
    computation = Computation("c", chain, len(chain) - 1)
    assert immediate_dominators(computation)[-1] == len(chain) - 2
    assert post_order(computation) == tuple(range(len(chain)))
