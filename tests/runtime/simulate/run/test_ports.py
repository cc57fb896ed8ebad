"""Arrays at the ports: taken where they fit, refused where they do not."""

import ml_dtypes
import numpy as np
import pytest

from hloipu_runtime.errors import UsageError
from hloipu_runtime.program.program import Port
from hloipu_runtime.simulate.run.ports import given_arrays, taken_arrays

PORTS = (Port("a", "f32", (2,)), Port("b", "bf16", ()), Port("c", "s32", (1, 2)))
A, B, C = np.array([1.5, 2], np.float32), np.array(3, ml_dtypes.bfloat16), np.array([[4, 5]], "i4")


def test_arrays_come_by_stream_whatever_tuples_they_lie_in() -> None:
    for arguments in ([A, B, C], [(A, B), C], [[A, [B, (C,)]]]):
        found = given_arrays(PORTS, arguments)
        assert list(found) == ["a", "b", "c"]
        np.testing.assert_array_equal(found["a"], A)
        assert float(found["b"]) == 3.0
        np.testing.assert_array_equal(found["c"], C)


def test_what_goes_in_comes_out_in_the_users_types() -> None:
    back = taken_arrays(PORTS, given_arrays(PORTS, [A, B, C]))
    assert [x.dtype for x in back] == [A.dtype, B.dtype, C.dtype]
    for ours, given in zip(back, (A, B, C), strict=True):
        np.testing.assert_array_equal(ours, given)


def test_plain_numbers_are_taken_for_scalars_of_their_kind() -> None:
    ports = (Port("a", "f32", ()), Port("b", "s32", ()), Port("c", "pred", ()))
    found = given_arrays(ports, [1.25, 7, True])
    assert (float(found["a"]), int(found["b"]), bool(found["c"])) == (1.25, 7, True)
    with pytest.raises(UsageError):
        given_arrays(ports, [1.25, 7.5, True])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([A, B], "E3141", "takes 3 arrays, 2 were given"),
        ([A, B, C, C], "E3141", "takes 3 arrays, 4 were given"),
        ([A[:1], B, C], "E3142", r"argument 0 has shape \(1,\), parameter has \(2,\)"),
        ([A, B, C[0]], "E3142", "argument 2 has shape"),
        ([A.astype(np.float64), B, C], "E3142", "argument 0 has type float64"),
        ([A, B, C.astype(np.uint32)], "E3142", "argument 2 has type uint32"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: list[object], code: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        given_arrays(PORTS, arguments)
    assert caught.value.code == code
