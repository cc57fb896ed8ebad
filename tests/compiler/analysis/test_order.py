import random

import networkx as nx
import pytest

from hloipu_compiler.analysis.order import live_positions
from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.element_types import F32

SHAPE = ArrayShape(F32)


def random_computation(seed: int, size: int) -> Computation:
    """Random wiring; opcodes do not matter."""
    draw = random.Random(seed)
    instructions = []
    for i in range(size):
        count = min(i, draw.choice((0, 1, 1, 2, 2, 3)))
        reach = draw.choice((3, 20, size))
        operands = tuple(draw.randrange(max(0, i - reach), i) for _ in range(count))
        opcode = "tuple" if operands else "parameter"
        instructions.append(Instruction(f"x{i}", opcode, SHAPE, operands))
    return Computation("c", tuple(instructions), size - 1)


@pytest.mark.parametrize("seed", range(10))
def test_live_positions_are_the_ancestors_of_the_root(seed: int) -> None:
    computation = random_computation(seed, 200)
    expected = nx.ancestors(computation.dataflow, computation.root) | {computation.root}
    live = live_positions(computation)
    for i, instruction in enumerate(computation.instructions):
        assert live[i] == (i in expected or instruction.opcode == "parameter")
