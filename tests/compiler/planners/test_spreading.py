"""Where parameters are born: each element once, on no more tiles than wanted it, in few pieces."""

import numpy as np
import pytest

from hloipu_compiler.planners.placing import default_placement, row_major
from hloipu_compiler.planners.spreading import Spreading, finer, spread_over_copies
from hloipu_runtime.codelets.core.expression import Expression, Node
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.machine.load import load_machine
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


MACHINE = load_machine("gc200")


def codelet(op: str) -> Elementwise:
    return Elementwise(Expression(("f32",), (Node(op, (0,), "f32"),), (1,)), ((0,),), 1)


@pytest.mark.parametrize(("op", "spreads"), [("erf", True), ("sine", True), ("negate", False)])
def test_dear_ops_go_to_more_tiles(op: str, spreads: bool) -> None:
    tensors = (Tensor("f32", (4096,)),)
    default = default_placement((4096,), 4096, 32, MACHINE.chip.tiles_per_ipu)
    assert default.tiles.count == 128
    found = finer(Spreading(MACHINE, codelet(op), tensors, tensors, (4096,)), default)
    assert bool(found) is spreads
    assert all(x.tiles.count >= 4 * 128 for x in found)


def test_what_is_on_most_tiles_already_is_left() -> None:
    tensors = (Tensor("f32", (1 << 20,)),)
    default = default_placement((1 << 20,), 1 << 20, 32, MACHINE.chip.tiles_per_ipu)
    work = Spreading(MACHINE, codelet("erf"), tensors, tensors, (1 << 20,))
    assert finer(work, default) == ()
