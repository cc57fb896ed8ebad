"""What the proof asks of descriptors alone: two coordinates never share a tile."""

from hypothesis import given
from hypothesis import strategies as st

from hloipu_runtime.program.descriptors import variable_faults
from hloipu_runtime.program.mapping import Mapping, Tiles

AXES = st.lists(st.tuples(st.integers(2, 4), st.integers(1, 9)), max_size=3)


@given(AXES, st.integers(0, 5))
def test_shared_tiles_are_found(axes: list[tuple[int, int]], first: int) -> None:
    tiles = Tiles(tuple(n for n, _ in axes), tuple(s for _, s in axes), first)
    numbers = [first]
    for extent, stride in axes:
        numbers = [n + c * stride for n in numbers for c in range(extent)]
    faults = variable_faults(Mapping(tiles, ()), (), 1000)
    assert ("has two grid coordinates on one tile" in faults) == (len(set(numbers)) < len(numbers))
