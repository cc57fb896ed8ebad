"""Collectives within a replica and buffers read and written by rows, against numpy."""

import numpy as np
import pytest

from hloipu_compiler.formulas.call import FormulaError
from tests.support.popops_call import called, drawn

PARTS = [drawn(5, seed=n) for n in range(2)]
_TWO = "(f32[{0}], f32[{0}])"


def test_ipus_of_a_replica_gather_and_reduce() -> None:
    for made in called("AllGatherWithinReplica", PARTS, _TWO.format(10)):
        np.testing.assert_array_equal(made, np.concatenate(PARTS))
    said = {"op": "COLLECTIVE_OP_MEAN"}
    for made in called("AllReduceWithinReplica", PARTS, _TWO.format(5), said):
        np.testing.assert_allclose(made, np.mean(PARTS, 0), 1e-6)
    parts = called("ReduceScatterWithinReplica", PARTS, _TWO.format(3), {"op": "COLLECTIVE_OP_MAX"})
    whole = np.append(np.maximum(*PARTS), 0)
    np.testing.assert_array_equal(parts, whole.reshape(2, 3))
    parts = called(
        "ReduceScatterWithinReplica", PARTS, _TWO.format(3), line="op=COLLECTIVE_OP_LOCAL"
    )
    np.testing.assert_array_equal(parts[1], [*PARTS[1][3:], 0])


def test_rows_of_buffers_are_loaded_and_stored() -> None:
    buffer, row, at = drawn(4, 3), drawn(3, seed=1), np.asarray(np.int32(2))
    said = {"replication_factor": 1}
    (made,) = called("BufferLoadSlice", [buffer, at], "f32[3]", said)
    np.testing.assert_array_equal(made, buffer[2])
    (made,) = called("BufferStoreSlice", [buffer, row, at], "f32[4,3]", said)
    np.testing.assert_array_equal(made, np.vstack([buffer[:2], row[None], buffer[3:]]))
    with pytest.raises(FormulaError, match="spread over replicas") as caught:
        called("BufferLoadSlice", [buffer, at], "f32[3]", {"replication_factor": 2})
    assert caught.value.code == "E0530"


def test_whole_remote_arrays_are_what_they_are() -> None:
    x, y = drawn(4), drawn(4, seed=1)
    said = {"replication_factor": 1}
    (made,) = called("RemoteParameterLoad", [x], "f32[4]", said)
    np.testing.assert_array_equal(made, x)
    stored = called("RemoteParameterStore", [x, x, y, x], "(f32[4], f32[4])", line=
                    "replication_factors=1, 1")  # fmt: skip
    np.testing.assert_array_equal(stored, [y, x])
    (made,) = called("CreateBuffer", [], "f32[4]", {"is_remote": 1})
    assert not made.any()
