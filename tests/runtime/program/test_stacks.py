"""Arrays in pieces: cut, joined and counted as users count them."""

from dataclasses import replace

import numpy as np
import pytest

from hloipu_runtime.program.seen import seen_by_users
from hloipu_runtime.program.stacks import PARAMETER, RESULT, Numbering, Stack, Whole
from tests.support.stacked_program import STACKS, C, K, stacked

FIRST = Stack("a", PARAMETER, 1, 0, (2, 1), (3, 2))
SECOND = Stack("b", PARAMETER, 4, 1, (1, 1, 2), (2, 4))


@pytest.mark.parametrize("stack", [FIRST, SECOND], ids=["rows", "columns"])
def test_pieces_make_up_the_array(stack: Stack) -> None:
    array = np.arange(np.prod(stack.shape)).reshape(stack.shape)
    pieces = stack.pieces(array)
    assert [x.shape for x in pieces] == [stack.piece_shape(n) for n in range(len(pieces))]
    assert [x.shape[stack.axis] for x in pieces] == list(stack.sizes)
    assert not any(np.shares_memory(x, array) for x in pieces)
    assert all(x.flags.c_contiguous for x in pieces)
    np.testing.assert_array_equal(stack.joined(pieces), array)


def test_users_count_an_array_in_pieces_once() -> None:
    numbering = Numbering((SECOND, FIRST, Stack("r", RESULT, 0, 0, (1, 1), (2,))), PARAMETER)
    assert [numbering.users(n) for n in range(-1, 8)] == [-1, 0, 1, 1, 2, 3, 3, 3, 4]
    assert list(numbering.wholes([7, 4, 5, 6, -1, 1, 2])) == [
        Whole(4, (0,), None),
        Whole(3, (1, 2, 3), SECOND),
        Whole(-1, (4,), None),
        Whole(1, (5, 6), FIRST),
    ]


@pytest.mark.parametrize("row", [[1], [2, 1], [1, 0, 2], [4, 5], [5, 6], [1, 2, 2]])
def test_pieces_apart_make_up_nothing(row: list[int]) -> None:
    with pytest.raises(ValueError, match="missing, or out of order"):
        list(Numbering((FIRST, SECOND), PARAMETER).wholes(row))


def test_ports_are_seen_by_the_users_numbers() -> None:
    seen = seen_by_users(stacked(None).program)
    assert [(x.stream, x.shape) for x in seen.parameters] == [
        ("parameter.4", (3, 3)), ("parameter.5", (3,)),
    ]  # fmt: skip
    assert seen.loaded == 1
    assert [(x.stream, x.shape) for x in seen.results] == [("result.2", (3, 3)), ("result.3", ())]
    assert [(x.name, x.shape, x.parameter, x.result) for x in seen.state] == [
        ("w", (3, 3), 0, 0), ("n", (), 1, 1),
    ]  # fmt: skip
    assert [(x.places, [y.shape for y in x.streams]) for x in seen.queues] == [
        ((2, 3), [(3, 3), ()])
    ]


def test_arrays_go_to_the_streams_of_their_pieces() -> None:
    seen = seen_by_users(stacked(None).program)
    found = seen.into_pieces({"parameter.4": K, "parameter.5": C})
    number = np.array(7)
    assert seen.into_pieces({"n": number}) == {"n": number}
    assert {stream: x.shape for stream, x in found.items()} == {
        "parameter.6": (2, 3), "parameter.7": (1, 3), "parameter.8": (2,), "parameter.9": (1,),
    }  # fmt: skip
    given = {"result.3": K[:2], "result.4": K[2:], "result.5": np.array(7)}
    joined = seen.joined(given)
    np.testing.assert_array_equal(joined["result.2"], K)
    assert joined["result.3"] == 7


def test_without_stacks_users_see_the_program() -> None:
    program = stacked(None).program
    plain = seen_by_users(replace(program, stacks=()))
    assert plain.parameters == program.parameters
    assert plain.queues == program.queues
    assert [x.ports for x in plain.state] == [(port,) for port in program.state]
    assert len(STACKS) == 6
