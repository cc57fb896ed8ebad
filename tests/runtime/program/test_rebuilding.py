"""Steps with other sequences in them: of every kind, in order; the same step if none changes."""

import pytest

from hloipu_runtime.program.rebuilding import with_blocks
from hloipu_runtime.program.steps import Sequence, Step, blocks_of, inner_steps
from tests.support.pipelined_programs import PipelineMaker
from tests.support.random_programs import random_program


def steps_in(step: Step) -> list[Step]:
    return [step, *(x for inner in inner_steps(step) for x in steps_in(inner))]


SUBJECTS = [
    *(random_program(seed, ipus=2).body for seed in range(12)),
    PipelineMaker(2, 4, 5, group=2, offloaded=frozenset(("weights",))).program().body,
]


@pytest.mark.parametrize("body", SUBJECTS, ids=range(len(SUBJECTS)))
def test_each_sequence_is_asked_for_once_and_put_back(body: Sequence) -> None:
    for step in steps_in(body):
        asked: list[Sequence] = []

        def copied(block: Sequence, asked: list[Sequence] = asked) -> Sequence:
            asked.append(block)
            return Sequence(block.steps)

        found = with_blocks(step, copied)
        expected = [step] if isinstance(step, Sequence) else list(blocks_of(step))
        assert [id(x) for x in asked] == [id(x) for x in expected]
        assert found == step
        assert (found is step) == (not expected)
        for old, new in zip(blocks_of(step), blocks_of(found), strict=True):
            assert old is not new
        assert with_blocks(step, lambda block: block) is step
