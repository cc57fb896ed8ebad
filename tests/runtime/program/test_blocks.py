"""Arrays in blocks: every partition has its part, and parts make the whole again."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from hloipu_runtime.program.blocks import Blocks
from hloipu_runtime.program.proof.blocks import block_faults
from hloipu_runtime.program.stacks import PARAMETER, RESULT, STREAM, Divided, Partitioning
from tests.support.program_reader.parser import parse_program
from tests.support.program_texts import TEXTS

CASES = {
    "rows": ((4,), (), (8, 3), ((0,), ())),
    "rows and columns": ((2, 4), (), (4, 8), ((0,), (1,))),
    "two axes for one dimension": ((2, 2), (), (8,), ((1, 0),)),
    "a replicated axis": ((2, 3, 2), (), (6, 4), ((1,), (2,))),
    "an order of its own": ((2, 2), (3, 1, 0, 2), (4, 6), ((0,), (1,))),
    "not divided": ((4,), (), (3, 3), ((), ())),
    "a number": ((4,), (), (), ()),
    "padding": ((4,), (), (7, 2), ((0,), ())),
    "blocks of nothing but padding": ((8,), (), (4,), ((0,),)),
}


@pytest.mark.parametrize("case", CASES)
def test_blocks_are_those_of_their_places(case: str) -> None:
    mesh, order, shape, axes = CASES[case]
    divided = Divided(PARAMETER, 0, shape, axes)
    blocks = Blocks(Partitioning(mesh, order, (divided,)), divided)
    whole = np.arange(1, 1 + np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)
    found = [blocks.block(whole, n) for n in range(blocks.partitions)]
    for place, coordinates in enumerate(product(*map(range, mesh))):
        wanted = whole
        for d, own in enumerate(axes):
            number, count = 0, 1
            for axis in own:
                number, count = number * mesh[axis] + coordinates[axis], count * mesh[axis]
            size = -(-shape[d] // count)
            rows = np.arange(number * size, (number + 1) * size)
            behind = np.zeros_like(np.take(wanted, [0] * size, d))
            there = np.expand_dims(rows < shape[d], tuple(range(1, wanted.ndim - d)))
            taken = np.take(wanted, np.minimum(rows, shape[d] - 1), d)
            wanted = np.where(there, taken, behind)
        np.testing.assert_array_equal(found[order[place] if order else place], wanted)
    np.testing.assert_array_equal(blocks.joined(found, "x"), whole)


WRONG = {
    "another mesh": Partitioning((2, 3), (), ()),
    "an order of less": Partitioning((2, 2), (0, 1, 2), ()),
    "an axis twice": Partitioning((2, 2), (), (Divided(PARAMETER, 0, (4, 4), ((0,), (0,))),)),
    "no such axis": Partitioning((2, 2), (), (Divided(PARAMETER, 0, (4, 4), ((2,), ())),)),
    "another rank": Partitioning((2, 2), (), (Divided(PARAMETER, 0, (4,), ((0,), ())),)),
    "another shape": Partitioning((2, 2), (), (Divided(RESULT, 0, (8, 4), ((0,), (1,))),)),
    "no stream": Partitioning((2, 2), (), (Divided(STREAM, 9, (4, 4), ((0,), (1,))),)),
    "no port": Partitioning((2, 2), (), (Divided("port", 0, (4, 4), ((0,), (1,))),)),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_blocks_are_told(case: str) -> None:
    program = parse_program(TEXTS["blocks"])
    assert not list(block_faults(program))
    assert list(block_faults(replace(program, partitioning=WRONG[case])))
