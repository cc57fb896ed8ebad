"""Vertices: each sees its own tile's part, and nothing beyond it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from random import Random

import numpy as np
import pytest

from hloipu_runtime.codelets.core.codelet import Codelet, Index, Indexing
from hloipu_runtime.codelets.core.tensors import Block, Tensor
from hloipu_runtime.program.law import required_spans
from hloipu_runtime.program.mapping import Mapping, Span, Tiles, whole
from hloipu_runtime.program.program import Array, Variable
from hloipu_runtime.program.steps import Operand, VertexGroup
from hloipu_runtime.simulate.exact.storage import TileStorage, allocate, scatter_whole
from hloipu_runtime.simulate.exact.vertices import prepare_group
from hloipu_runtime.simulate.run.faults import TileFault
from hloipu_runtime.simulate.run.pool import Scratch
from tests.support.random_programs import random_mapping


@dataclass(frozen=True)
class WindowSum(Codelet):
    """Sums windows of dimension 0, and adds where in the whole each result stands."""

    window: int = 3
    offset: int = -1
    seen: list[tuple[int, ...]] = field(default_factory=list, compare=False)

    def indexing(self, operands: object, results: object) -> Indexing:
        rows = Index(0, 1, self.offset, self.window)
        return Indexing((0, 0), ((rows, Index(1)),), ((Index(0), Index(1)),))

    def run(self, operands: list[Block], results: list[Block]) -> list[Array]:  # type: ignore[override]
        (x,), (y,) = operands, results
        self.seen.append((*x.grid, *x.part))
        out = np.zeros((*y.grid, *y.part), x.data.dtype)
        for place in np.ndindex(*y.grid):
            row = int(np.broadcast_to(y.starts[0], y.grid or ())[place])
            first = int(np.broadcast_to(x.starts[0], x.grid or ())[place])
            for i in range(y.part[0]):
                low = max(row + i + self.offset, 0) - first
                high = min(row + i + self.offset + self.window, x.whole[0]) - first
                out[place][i] = x.data[place][low : max(low, high)].sum(0) + 1000 * (row + i)
        return [out]


def memory(mapping: Mapping, shape: tuple[int, ...]) -> TileStorage:
    made = allocate(Variable("x", "s32", shape, mapping), shared=False)
    made.merged.fill(-10_000_000)
    return made


@pytest.mark.parametrize("seed", range(30))
def test_parts_together_make_what_the_whole_makes(seed: int) -> None:
    draw = Random(seed)
    shape = (draw.randint(3, 11), draw.randint(1, 5))
    target = memory(random_mapping(draw, shape, 8), shape)
    codelet = WindowSum(draw.randint(1, 4), draw.randint(-3, 0))
    tensor = Tensor("s32", shape)
    needed = required_spans(
        codelet.indexing([tensor], [tensor]), [target.mapping.spans], [shape], [shape]
    )
    assert not isinstance(needed, str)
    source = memory(Mapping(target.mapping.tiles, needed[0]), shape)
    value = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape)
    scatter_whole(source, value)
    group = VertexGroup(
        codelet,
        target.mapping.tiles,
        (Operand(0, needed[0]),),
        (Operand(1, target.mapping.spans),),
        (0,),
        (1,),
    )
    for action in prepare_group(group, [source], [target], Scratch()):
        action()

    expected = np.stack(
        [
            value[max(i + codelet.offset, 0) : max(i + codelet.offset + codelet.window, 0)].sum(0)
            + 1000 * i
            for i in range(shape[0])
        ]
    )
    np.testing.assert_array_equal(target.whole(), expected)
    for coordinate in product(*map(range, target.mapping.tiles.extents)):
        split = [coordinate[s.axis] * s.step if s.axis >= 0 else 0 for s in target.mapping.spans]
        box = tuple(slice(a, a + s.size) for a, s in zip(split, target.mapping.spans, strict=True))
        part = expected[box]
        np.testing.assert_array_equal(
            target.tiles[coordinate][tuple(slice(0, n) for n in part.shape)], part
        )


SHAPE = (6, 4)
TILES = Tiles((2,), (1,))
ROWS = Mapping(TILES, (Span(0, 3, 0, 3), whole(4)))


def group(spans: tuple[Span, ...], tiles: Tiles = TILES) -> VertexGroup:
    codelet = WindowSum(1, 0)
    return VertexGroup(
        codelet, tiles, (Operand(0, spans),), (Operand(1, ROWS.spans),), (0,), (1,), "step"
    )


@pytest.mark.parametrize(
    "spans",
    [
        (Span(0, 3, 1, 3), whole(4)),
        (Span(0, 3, -1, 3), whole(4)),
        (Span(0, 3, 0, 4), whole(4)),
        (Span(0, 2, 0, 3), whole(4)),
        (whole(6), whole(4)),
    ],
)
def test_what_lies_on_another_tile_is_out_of_reach(spans: tuple[Span, ...]) -> None:
    with pytest.raises(TileFault, match="of a part of 3 on its tile"):
        prepare_group(group(spans), [memory(ROWS, SHAPE)], [memory(ROWS, SHAPE)], Scratch())


def test_vertices_stand_on_the_tiles_of_their_operands() -> None:
    elsewhere = group(ROWS.spans, replace(TILES, first=1))
    with pytest.raises(TileFault, match="its vertices on 2 from 1"):
        prepare_group(elsewhere, [memory(ROWS, SHAPE)], [memory(ROWS, SHAPE)], Scratch())


def test_a_part_read_along_another_axis_than_it_is_held_is_out_of_reach() -> None:
    tiles = Tiles((2, 2), (2, 1))
    held = Mapping(tiles, (Span(0, 3, 0, 3), whole(4)))
    other = (Span(1, 3, 0, 3), whole(4))
    crossed = VertexGroup(
        WindowSum(1, 0), tiles, (Operand(0, other),), (Operand(1, held.spans),), (0,), (1,)
    )
    with pytest.raises(TileFault, match="elements -3 to 6"):
        prepare_group(crossed, [memory(held, SHAPE)], [memory(held, SHAPE)], Scratch())


def test_a_tile_that_holds_all_may_read_any_part() -> None:
    all_of_it = Mapping(TILES, (whole(6), whole(4)))
    source, target = memory(all_of_it, SHAPE), memory(ROWS, SHAPE)
    value = np.arange(24, dtype=np.int32).reshape(SHAPE)
    scatter_whole(source, value)
    for action in prepare_group(group(ROWS.spans), [source], [target], Scratch()):
        action()
    np.testing.assert_array_equal(target.whole(), value + 1000 * np.arange(6)[:, None])


def test_equal_parts_are_computed_in_one_call() -> None:
    shape = (1000, 2)
    mapping = Mapping(Tiles((250,), (1,)), (Span(0, 4, 0, 4), whole(2)))
    codelet = WindowSum(1, 0)
    made = VertexGroup(
        codelet,
        mapping.tiles,
        (Operand(0, mapping.spans),),
        (Operand(1, mapping.spans),),
        (0,),
        (1,),
    )
    source = memory(mapping, shape)
    scatter_whole(source, np.zeros(shape, np.int32))
    for action in prepare_group(made, [source], [memory(mapping, shape)], Scratch()):
        action()
    assert codelet.seen == [(250, 4, 2)]


@dataclass(frozen=True)
class Careful(WindowSum):
    """Computes on unused ends of parts where it is told that it may, by their dimensions."""

    may: frozenset[int] = frozenset()
    """Dimensions whose unused ends do no harm."""

    def ignores(self, unused: Sequence[Sequence[bool]]) -> bool:
        return all(d in self.may for ends in unused for d, is_cut in enumerate(ends) if is_cut)


@pytest.mark.parametrize(
    ("rows", "span", "may", "columns", "calls"),
    [
        (6, Span(0, 3, 0, 3), set(), 4, 1),  # all parts are full
        (5, Span(0, 3, 0, 3), set(), 4, 2),  # the last is cut
        (5, Span(0, 3, -1, 3), set(), 4, 2),  # the first is cut
        (5, Span(0, 3, 0, 3), {0}, 4, 1),
        (5, Span(0, 3, -1, 3), {0}, 4, 1),
        (5, Span(0, 3, 0, 3), {1}, 4, 2),
        (4, Span(0, 3, 0, 3), {0}, 4, 1),  # half as much again as there is, of few
        (4, Span(0, 3, 0, 3), {0}, 4096, 2),  # of many that takes longer than a call
    ],
)
def test_unused_ends_are_computed_where_that_is_harmless_and_little(
    rows: int, span: Span, may: set[int], columns: int, calls: int
) -> None:
    mapping = Mapping(TILES, (span, whole(columns)))
    made = VertexGroup(
        Careful(1, 0, may=frozenset(may)),
        TILES,
        (Operand(0, mapping.spans),),
        (Operand(1, mapping.spans),),
        (0,),
        (1,),
    )
    shape = (rows, columns)
    source, target = memory(mapping, shape), memory(mapping, shape)
    value = np.arange(rows * columns, dtype=np.int32).reshape(shape)
    scatter_whole(source, value)
    actions = prepare_group(made, [source], [target], Scratch())
    assert len(actions) == calls
    for action in actions:
        action()
    np.testing.assert_array_equal(target.whole(), value + 1000 * np.arange(rows)[:, None])
