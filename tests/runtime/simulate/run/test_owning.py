"""Arrays that change hands without a copy: only those that nobody else holds."""

import numpy as np

from hloipu_runtime.simulate.run.host import Arrays
from hloipu_runtime.simulate.run.owning import is_held_alone, references_here
from tests.support.arrays import Array


def references() -> int:
    array = np.empty(1)
    return references_here(array)


def test_an_array_with_two_names_is_not_held_alone() -> None:
    array = np.ones(4)
    assert is_held_alone(array, references())
    other = array
    assert not is_held_alone(array, references())
    del other
    assert is_held_alone(array, references())


def test_a_view_is_held_alone_if_its_base_is() -> None:
    base = np.ones((4, 4))
    view = base[1:]
    assert not is_held_alone(view, references())
    del base
    assert is_held_alone(view, references())
    turned = np.ones((4, 3)).T
    assert not is_held_alone(turned, references())
    assert not is_held_alone(np.broadcast_to(np.ones(1), (4,)), references())
    assert not is_held_alone(np.frombuffer(b"12345678"), references())


def given(array: Array) -> Array:
    host = Arrays({})
    host.give("x", array)
    return host.outputs["x"]


def test_hosts_take_over_what_nobody_else_holds() -> None:
    host = Arrays({})

    def give(made: list[Array]) -> int:
        array = made.pop()
        address = array.ctypes.data
        host.give("x", array)
        return address

    address = give([np.ones(8)])
    assert host.outputs["x"].ctypes.data == address
    address = give([np.ones((2, 8)).reshape(16)])
    assert host.outputs["x"].ctypes.data == address


def test_hosts_copy_what_others_hold_and_what_is_no_array_of_its_own() -> None:
    held = np.ones(8)
    assert not np.may_share_memory(given(held), held)
    kept = [np.arange(8.0)]
    assert not np.may_share_memory(given(kept[0]), kept[0])
    assert given(np.arange(100.0)[3:5]).base is None
    turned = given(np.arange(6.0).reshape(2, 3).T)
    assert turned.flags.c_contiguous
    np.testing.assert_array_equal(turned, [[0, 3], [1, 4], [2, 5]])
    assert given(np.broadcast_to(np.float32(2), (3,))).flags.writeable
