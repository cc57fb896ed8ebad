"""Where parameters are born: each element once, on no more tiles than wanted it, in few pieces."""

import numpy as np
import pytest

from hloipu_compiler.codegen.birthplaces import birthplaces, spread_over_copies
from hloipu_compiler.codegen.placing import row_major
from hloipu_compiler.codegen.site import array_shape
from hloipu_compiler.codegen.tuning import Tuning
from hloipu_compiler.hlo.parse import parse
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.mapping import Mapping, Span, covers, whole

PRODUCTS = """HloModule products
ENTRY e {
  w = f32[96,64] parameter(0)
  x = f32[64,8] parameter(1)
  y = f32[64,1000] parameter(2)
  z = f32[5] parameter(3)
  a = f32[96,8] dot(w, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  b = f32[96,1000] dot(w, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (f32[96,8], f32[96,1000], f32[5]) tuple(a, b, z)
}"""


@pytest.mark.parametrize("target", ["tiny", "gc200"])
def test_parameters_of_dots_have_a_place(target: str) -> None:
    machine = load_machine(target)
    entry = parse(PRODUCTS).entry
    found = birthplaces(machine, Tuning(), entry)
    assert set(found) == {entry.parameters[n] for n in (0, 1, 2)}
    for position, mapping in found.items():
        shape = array_shape(entry.instructions[position].shape).dimensions
        assert mapping.tiles.last < machine.chip.tiles_per_ipu
        assert mapping.is_partition
        assert not mapping.replicated_axes
        for span, size in zip(mapping.spans, shape, strict=True):
            assert covers(mapping.tiles, span, size)


@pytest.mark.parametrize(("rows", "columns", "copies"), [(64, 32, 4), (45, 7, 8), (1, 9, 3)])
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
