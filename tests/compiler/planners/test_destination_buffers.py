"""Where parameters are born: each element once, on no more tiles than wanted it, in few pieces."""

import numpy as np
import pytest

from hloipu_compiler.planners.destination_buffers import spread_over_copies
from hloipu_compiler.planners.placing import row_major
from hloipu_runtime.program.mapping import Mapping, Span, whole


@pytest.mark.parametrize(
    ("rows", "columns", "copies"), [(64, 32, 4), (320, 7, 8), (32, 9, 3), (1, 200, 3)]
)
def test_copies_share_out_their_part(rows: int, columns: int, copies: int) -> None:
    """Six blocks of rows, each wanted by several tiles: each of them has some of its rows."""
    shape = (6 * rows, columns)
    wanted = Mapping(row_major((6, copies), 0), (Span(0, rows, 0, rows), whole(columns)))
    born = spread_over_copies(wanted, shape, "f32")
    assert born.tiles.count <= 6 * copies
    held = np.zeros(shape, int)
    for tile in np.ndindex(*born.tiles.extents):
        box = tuple(
            slice(tile[s.axis] * s.step, tile[s.axis] * s.step + s.size)
            if s.axis >= 0
            else slice(None)
            for s in born.spans
        )
        held[box] += 1
    assert (held == 1).all()
    assert born.block[0] == -(-rows // copies)


def test_small_parts_lie_on_one_tile_each() -> None:
    """A piece of less than 128 bytes is not worth a tile of its own, and a fragment to receive."""
    wanted = Mapping(row_major((6, 8), 0), (Span(0, 4, 0, 4), whole(8)))
    born = spread_over_copies(wanted, (24, 8), "f32")
    assert born == Mapping(row_major((6,), 0), (Span(0, 4, 0, 4), whole(8)))
