"""How elements of streams are nested: taken apart, put together, and no deeper than told."""

from collections.abc import Callable
from typing import Any

import pytest

from hloipu_runtime.errors import StreamError
from hloipu_runtime.streams.structure import MAX_DEPTH, flatten, rebuild


@pytest.mark.parametrize(
    ("element", "leaves", "told"),
    [
        (5, [5], "*"),
        ({"b": 1, "a": (2, 3)}, [2, 3, 1], "{a: (*, *), b: *}"),
        ([1, [2], (3,)], [1, 2, 3], "[*, [*], (*,)]"),
        ((), [], "()"),
    ],
)
def test_elements_are_taken_apart_and_put_together(
    element: Any, leaves: list[int], told: str
) -> None:
    found, structure = flatten(element)
    assert found == leaves
    assert str(structure) == told
    assert rebuild(structure, leaves) == element


@pytest.mark.parametrize(
    "wrap", [lambda x: {"k": x}, lambda x: [x], lambda x: (x,)], ids=["dict", "list", "tuple"]
)
def test_an_element_may_be_nested_as_deep_as_told(wrap: Callable[[Any], Any]) -> None:
    element: Any = 1
    for _ in range(MAX_DEPTH):
        element = wrap(element)
    assert flatten(element)[0] == [1]
    with pytest.raises(StreamError) as caught:
        flatten(wrap(element))
    assert caught.value.code == "E2023"
