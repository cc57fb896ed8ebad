import numpy as np
import pytest

from hloipu_compiler.hlo.attributes.replica_groups import read_replica_groups
from hloipu_compiler.hlo.syntax.text_fault import TextFault


def listed(array: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, array.tolist()))


EIGHT = np.arange(8)
MESH = np.arange(32).reshape(2, 8, 2)

CASES = {
    "{}": (),
    "{{0,1},{2,3}}": ((0, 1), (2, 3)),
    "{ {0} , {1} }": ((0,), (1,)),
    "[2,4]<=[8]": listed(EIGHT.reshape(2, 4)),
    "[2,4]<=[4,2]T(1,0)": listed(EIGHT.reshape(4, 2).T.reshape(2, 4)),
    "[2,4]<=[2,2,2]T(2,0,1)": listed(EIGHT.reshape(2, 2, 2).transpose(2, 0, 1).reshape(2, 4)),
    "mesh['a'=2,'b'=4] {'a'}": listed(EIGHT.reshape(2, 4).T),
    "mesh['a'=2,'b'=4] {'b','a'}": listed(EIGHT.reshape(2, 4).T.reshape(1, 8)),
    "mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}": listed(
        EIGHT.reshape(4, 2).T.reshape(2, 4).T
    ),
    "mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'b'}": ((0, 2), (1, 3)),
    "mesh['a'=8] {'a':(2)2}": listed(
        EIGHT.reshape(2, 2, 2).transpose(0, 2, 1).reshape(4, 2)
    ),
    "mesh['a'=8] {'a':(4)2,'a':(1)2}": listed(
        EIGHT.reshape(2, 2, 2).transpose(1, 2, 0).reshape(2, 4)
    ),
    "mesh['a'=2,'b'=8,'c'=2] {'c','b':(2)2,'a'}": listed(
        MESH.reshape(2, 2, 2, 2, 2).transpose(1, 3, 4, 2, 0).reshape(4, 8)
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", CASES)
def test_groups(text: str) -> None:
    groups = read_replica_groups(text)
    assert groups.groups == CASES[text]
    assert groups.text == ("" if text.startswith("{") else text)


@pytest.mark.parametrize(
    "text",
    [
        "{0,1}",
        "{{0,1}",
        "0,1",
        "[8]<=[8]",
        "[2,2,2]<=[8]",
        "[2,2]0,1,2,3",
        "[2,2]<=[2,2]",
        "[2,4]<=[2,2,2]T(2,0,0)",
        "[2,2]<=[5]",
        "mesh['a'=4]",
        "mesh['a'=4] {'b'}",
        "mesh['a'=8] {'a','a'}",
        "[1048576,1048576]<=[1099511627776]",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(TextFault):
        read_replica_groups(text)


def test_equal_texts_are_equal_groups() -> None:
    one, other = read_replica_groups("[2,4]<=[8]"), read_replica_groups(" [2,4]<=[8] ")
    assert one == other
    assert hash(one) == hash(other)
    assert one != read_replica_groups("[4,2]<=[8]")


def test_many_large_forms_take_no_room() -> None:
    made = [read_replica_groups(f"[{2**k},{2 ** (20 - k)}]<=[1048576]") for k in range(21)]
    assert [len(groups.groups) for groups in made[:2]] == [1, 2]
