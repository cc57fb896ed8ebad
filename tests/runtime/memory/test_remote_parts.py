"""What lies in remote memory beside each IPU, by kind, counted by hand."""

from dataclasses import replace

import pytest

from hloipu_runtime.memory.remote_parts import RemoteCategory, remote_bytes, remote_parts
from tests.support.pipelined_programs import PipelineMaker
from tests.support.program_builder import ProgramBuilder

BYTES = 24
"""Of each variable: six f32."""


@pytest.mark.parametrize(
    ("offloaded", "is_state", "kind", "counts"),
    [
        # Stage 0 keeps a value for two slots and gets one from stage 1, which gets two from others.
        ("activations", True, RemoteCategory.ACTIVATIONS, (3, 2)),
        ("weights", True, RemoteCategory.WEIGHTS, (1, 1)),
        ("totals", False, RemoteCategory.ACCUMULATORS, (1, 1)),
        ("pages", False, RemoteCategory.ACCUMULATORS, (1, 1)),
        # State of a step that each micro-batch reads, and state that waits beside the tiles.
        ("totals", True, RemoteCategory.WEIGHTS, (1, 1)),
        ("pages", True, RemoteCategory.STATE, (1, 1)),
    ],
)
def test_parts_of_a_pipeline(
    offloaded: str, is_state: bool, kind: RemoteCategory, counts: tuple[int, int]
) -> None:
    program = PipelineMaker(2, 2, 6, offloaded=frozenset((offloaded,))).program()
    if not is_state:
        program = replace(program, state=())
    assert remote_parts(program) == tuple({kind: BYTES * count} for count in counts)
    assert remote_bytes(program) == [BYTES * count for count in counts]


def test_nothing_lies_beside_ipus_that_use_no_remote_memory() -> None:
    program = ProgramBuilder(ipus=2).program()
    assert remote_parts(program) == ({}, {})
    assert remote_bytes(program) == [0, 0]
