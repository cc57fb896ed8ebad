"""Arrays of dictionaries go to the parameters that are named as they are."""

from typing import Any

import numpy as np
import pytest

from hloipu_runtime.errors import StreamError
from hloipu_runtime.streams.binding import keys_of, partly_bound
from hloipu_runtime.streams.element import ElementSpec, Intake, LeafSpec


@pytest.mark.parametrize(
    ("paths", "names", "order"),
    [
        ([("mask",), ("ids",)], ["batch['ids']", "batch['mask']"], (1, 0)),
        ([("mask",), ("ids",)], ["ids.1", "mask.1"], (1, 0)),
        ([("mask",), ("ids",)], ["Arg_0.1", "Arg_1.2"], None),
        ([("mask",), ("ids",)], ["batch['ids']", "other"], None),
        ([("x", "a"), ("y", "a")], ["args[0]['y']['a']", "args[0]['x']['a']"], (1, 0)),
        ([("a",), ("b", "a")], ["args['b']['a']", "args['a']"], (1, 0)),
        ([("a",), ("a.1",)], ["a.1", "a.2"], (1, 0)),
        ([("x", "w"), ("y", "w")], ["p['u']['w']", "p['v']['w']"], None),
        ([("0",), ("1",)], ["batch[0]", "batch[1]"], (0, 1)),
        ([("x",), ("y",)], ["x", "x"], None),
        ([("x",), ("y",)], ["state.x", "state.y"], (0, 1)),
    ],
)
def test_paths_are_ends_of_names(
    paths: list[tuple[str, ...]], names: list[str], order: tuple[int, ...] | None
) -> None:
    assert bound(paths, names) == order


def bound(paths: list[tuple[str, ...]], names: list[str]) -> tuple[int, ...] | None:
    """The number of the path that is each name's; None where names do not tell."""
    path_by_name = partly_bound(paths, names)
    everything = range(len(names))
    return (
        tuple(map(path_by_name.__getitem__, everything))
        if len(path_by_name) == len(names)
        else None
    )


def intake(names: tuple[str, ...], *leaves: LeafSpec) -> Intake:
    return Intake(ElementSpec(leaves, names=names), "data")


ROW = LeafSpec("s32", (2,))
FIRST, SECOND = np.arange(2, dtype=np.int32), np.arange(2, 4, dtype=np.int32)


@pytest.mark.parametrize(
    "element",
    [
        {"mask": SECOND, "ids": FIRST},
        {"batch": {"mask": SECOND, "ids": FIRST}},
        ({"mask": SECOND}, {"ids": FIRST}),
        (FIRST, SECOND),
    ],
)
def test_names_decide_and_not_their_order(element: Any) -> None:
    for _ in range(2):  # the second one from memory
        leaves = intake(("args[0]['ids']", "args[0]['mask']"), ROW, ROW).to_storage(element, 0)
        assert [list(x) for x in leaves] == [[0, 1], [2, 3]]


def test_kinds_decide_where_names_are_none_of_the_parameters() -> None:
    number = LeafSpec("f32", ())
    leaves = intake(("p0", "p1"), ROW, number).to_storage({"a": np.float32(3), "b": FIRST}, 0)
    assert [x.shape for x in leaves] == [(2,), ()]


def test_what_neither_decides_is_refused() -> None:
    with pytest.raises(StreamError, match="expected arrays named p0, p1, found "):
        intake(("p0", "p1"), ROW, ROW).to_storage({"a": FIRST, "b": SECOND}, 0)


def test_without_names_dictionaries_are_in_the_order_of_their_keys() -> None:
    leaves = intake((), ROW, ROW).to_storage({"b": SECOND, "a": FIRST}, 0)
    assert [list(x) for x in leaves] == [[0, 1], [2, 3]]


def test_outer_words_that_differ_are_no_path() -> None:
    assert bound([("b", "x"), ("a", "y")], ["a['x']", "b['y']"]) is None
    assert bound([("all", "b", "x"), ("all", "a", "y")], ["b['x']", "a['y']"]) == (0, 1)


def test_names_are_not_overruled_by_kinds() -> None:
    number = LeafSpec("f32", ())
    with pytest.raises(StreamError, match="expected arrays named mask, p1, found "):
        intake(("mask", "p1"), ROW, number).to_storage({"mask": np.float32(3), "b": FIRST}, 0)


def test_keys_that_are_alike_as_text_are_refused() -> None:
    with pytest.raises(StreamError, match="alike as text: '1', 1"):
        intake(("p0", "p1"), ROW, ROW).to_storage({1: FIRST, "1": SECOND}, 0)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["in_0", "b"], ["in_0", "b"]),
        (["in_0", "a", "b"], [None, "b"]),
        (["in_1", "in_0"], ["in_0", "in_1"]),
        (["x/a", "in_1"], ["x/a", "in_1"]),
        (["x/a", "x.a", "b"], [None, "b"]),
        (["both", "in_1"], [None, "in_1"]),
        (["p.x['a']", "p/x/a", "b"], [None, "b"]),
        (["in_0", "p/x/a", "b"], [None, "b"]),
        (["A", "b"], [None, "b"]),
    ],
)
def test_keys_of_files(keys: list[str], expected: list[str | None]) -> None:
    names = [["a", "both", "in_0", "p.x['a']"], ["b", "both", "in_1", "p.x['b']"]]
    assert keys_of(names, keys) == expected
