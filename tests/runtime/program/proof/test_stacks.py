"""Forged arrays in pieces: the proof refuses them, and so does the reader of files."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hloipu_runtime.errors import ArtefactError
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.program.stacks import PARAMETER, RESULT, Stack
from hloipu_runtime.program_io.file.program_codec import decode_program, encode_program
from tests.support.stacked_program import STACKS, stacked


def stacks(*changed: Stack) -> Callable[[Program], Program]:
    return lambda program: replace(program, stacks=changed)


def one(number: int, **fields: Any) -> Callable[[Program], Program]:
    changed = list(STACKS)
    changed[number] = replace(changed[number], **fields)
    return stacks(*changed)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (one(0, name=""), "it has no name"),
        (one(0, kind="state"), "cannot be state 0"),
        (one(0, first=-1), "cannot be parameter -1"),
        (one(0, axis=2), "has no axis 2"),
        (one(0, axis=-1), "has no axis -1"),
        (one(0, sizes=(2, 2)), r"pieces of \[2, 2\] are not"),
        (one(0, sizes=(3, 0)), "are not"),
        (one(0, sizes=()), "are not"),
        (one(0, sizes=(3,)), "no two pieces"),
        (one(0, sizes=(1, 2)), "its piece 0 is another tensor"),
        (one(0, sizes=(1, 1, 1)), "its piece 0 is another tensor"),
        (one(0, first=1), "its piece 0 is another tensor"),
        (stacks(Stack("q", PARAMETER, 2, 0, (1, 1), (2,))), "missing, or out of order"),
        (one(0, first=10**9), "is a piece of the one before it"),
        (one(3, first=10**9), "no port or queue has its pieces"),
        (one(1, first=1), "is a piece of the one before it"),
        (one(1, name="w"), "another one has its name"),
        (one(0, name="n"), "two arrays have one name"),
        (one(4, sizes=(1, 2)), "its piece 0 is another tensor"),
        (stacks(*STACKS[:4], STACKS[5]), "its next value is not in pieces"),
        (stacks(STACKS[1], STACKS[0], *STACKS[2:]), "is a piece of the one before it"),
        (stacks(*STACKS, Stack("z", RESULT, 7, 0, (1, 1), (2,))), "no port or queue"),
        (stacks(*STACKS[:4], STACKS[5], Stack("z", PARAMETER, 1, 0, (1, 1), (2,))), "piece of"),
    ],
)
def test_forged_stacks_are_refused(change: Callable[[Program], Program], said: str) -> None:
    forged = change(stacked(2).program)
    data = encode_program(forged)
    with pytest.raises(ArtefactError, match=said):
        decode_program(data.meta, data.arrays)
    assert {x.rule for x in faults_of(forged, 16)} == {"stack"}
