"""Arrays in parts: every element is in one part, in order, and nothing else is."""

import numpy as np
import pytest

from hloipu_runtime.program.state_parts import joined, part_of, part_size


@pytest.mark.parametrize("replicas", [1, 2, 3, 7])
@pytest.mark.parametrize("shape", [(1,), (6,), (7,), (2, 3, 5), (4, 1)])
def test_parts_make_up_the_array(shape: tuple[int, ...], replicas: int) -> None:
    array = np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape)
    parts = [part_of(array, replica, replicas) for replica in range(replicas)]
    assert {part.shape for part in parts} == {(part_size(shape, replicas),)}
    np.testing.assert_array_equal(joined(parts, shape), array)
    assert np.concatenate(parts)[array.size :].sum() == 0
    assert not any(np.shares_memory(part, array) for part in parts)
