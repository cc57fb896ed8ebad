"""Pieces of arrays: every element once, none too large."""

import numpy as np
import pytest

from hloipu_runtime.kernels.core.blocks import BLOCK_ELEMENTS, block_memories, blocks, compact, put


@pytest.mark.parametrize(
    "shape",
    [(), (0,), (5,), (BLOCK_ELEMENTS + 1,), (300, 400), (3, BLOCK_ELEMENTS + 7), (2, 3, 5, 7000)],
)
def test_every_element_is_visited_once(shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    for given in (x, x.T, np.asfortranarray(x), x[..., ::2] if x.ndim else x):
        out = np.zeros_like(given)
        for target, piece in blocks(out, given):
            assert target.size <= BLOCK_ELEMENTS
            assert target.ndim >= 1
            target += piece + 1
        np.testing.assert_array_equal(out, given + 1)


def test_broadcast_inputs() -> None:
    out = np.zeros((200, 300))
    for target, row in blocks(out, np.broadcast_to(np.arange(300), out.shape)):
        target += row
    np.testing.assert_array_equal(out[150], np.arange(300.0))


def test_compact_keeps_one_of_each_repeated_row() -> None:
    x = np.broadcast_to(np.arange(4).reshape(1, 4), (5, 4))
    assert compact(x).shape == (1, 4)
    plain = np.zeros((2, 3))
    assert compact(plain) is plain


def test_values_that_earlier_places_overlap_are_copied_aside() -> None:
    x = np.arange(6.0)
    before, y, z = x.copy(), np.empty(6), np.empty(5)
    put([x, None, y, z], [2 * before, before, x, x[1:]])
    np.testing.assert_array_equal(x, 2 * before)
    np.testing.assert_array_equal(y, before)
    np.testing.assert_array_equal(z, before[1:])


def test_memory_of_blocks_is_its_users_alone_and_used_again() -> None:
    kinds = [np.dtype(np.float32), np.dtype(np.float32), np.dtype(np.bool_)]
    with block_memories(kinds) as outer:
        assert [x.dtype for x in outer] == kinds
        with block_memories(kinds) as inner:
            whole = [*outer, *inner]
            for n, x in enumerate(whole):
                assert not any(np.may_share_memory(x, y) for y in whole[:n])
    with block_memories(kinds) as again:
        assert all(any(x is y for y in whole) for x in again)
