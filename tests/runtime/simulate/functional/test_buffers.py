"""Planned memory: pieces serve one value after the other, and never more than there is room for."""

import numpy as np
import pytest

from hloipu_runtime.simulate.functional import buffers as buffers_module
from hloipu_runtime.simulate.functional.buffers import Buffers

F32 = np.dtype(np.float32)


def test_memory_that_was_given_back_serves_values_of_its_type_and_size() -> None:
    buffers = Buffers()
    first = buffers.take((64, 32), F32)
    assert first is not None
    buffers.give_back(first)
    other = buffers.take((2048,), np.dtype(np.int32))
    again = buffers.take((32, 64), F32)
    more = buffers.take((32, 64), F32)
    assert other is not None
    assert again is not None
    assert more is not None
    assert np.may_share_memory(first.array, again.array)
    assert not np.may_share_memory(again.array, more.array)
    assert not np.may_share_memory(again.array, other.array)
    assert again.array.shape == (32, 64)
    assert buffers.bytes == 3 * 8192


def test_small_values_and_too_many_get_fresh_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers_module, "MOST_BYTES", 3 * 8192)
    buffers = Buffers()
    assert buffers.take((10,), F32) is None
    smallest = buffers_module.SMALLEST_BYTES // 4
    assert Buffers().take((smallest - 1,), F32) is None
    assert Buffers().take((smallest,), F32) is not None
    assert buffers.take((0, 2048), F32) is None
    taken = [buffers.take((2048,), F32) for _ in range(5)]
    assert [x is not None for x in taken] == [True, True, True, False, False]
