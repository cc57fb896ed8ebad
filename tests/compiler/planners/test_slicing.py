"""Where a value best lies of which slices are taken, and that slices arrive from there."""

import numpy as np

from hloipu_compiler.planners.placing import row_major
from hloipu_compiler.planners.slicing import Slices, spread_for_slices
from hloipu_compiler.planners.tuning import Tuning
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.costs.exchange_price import NO_CODE_PRICE
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.mapping import Mapping, Span, Tiles, covers, whole
from hloipu_runtime.program.steps import Exchange, Sequence
from tests.support.tile_runs import same_on_tiles

BOW = load_machine("bow")


def test_rows_on_many_tiles_are_spread_by_columns_before_slices_of_columns() -> None:
    """Each tile wants some columns of all rows, which lie on 1,366 tiles."""
    tensor = Tensor("f16", (4096, 3072))
    lying = Mapping(row_major((1366,), 0), (Span(0, 3, 0, 3), whole(3072)))
    wanted = Mapping(Tiles((128, 11), (11, 1), 0), (whole(4096), Span(1, 9, 0, 9)))
    slices = Slices(1, 96, wanted)
    spread = spread_for_slices(BOW, tensor, lying, slices, NO_CODE_PRICE)
    assert spread is not None
    assert spread.is_partition
    assert spread.tiles.count <= BOW.chip.tiles_per_ipu
    for span, size in zip(spread.spans, tensor.shape, strict=True):
        assert covers(spread.tiles, span, size)
    rows = spread.spans[0]
    assert 4096 / rows.size < 1366 / 4
    # What is spread so already is taken as it is.
    assert spread_for_slices(BOW, tensor, spread, slices, NO_CODE_PRICE) is None


def test_a_value_without_elements_is_not_spread() -> None:
    """A product of many slices, one operand of which is empty."""
    tensor = Tensor("f32", (18, 0, 36))
    lying = Mapping(Tiles((), (), 0), (whole(18), whole(0), whole(36)))
    wanted = Mapping(Tiles((), (), 0), (whole(18), whole(0), whole(6)))
    assert spread_for_slices(BOW, tensor, lying, Slices(2, 6, wanted), NO_CODE_PRICE) is None


def test_slices_come_from_where_a_value_was_spread() -> None:
    """A product of little memory: rows that many tiles made, in slices of columns."""
    text = """HloModule spread
    ENTRY e {
      x = f32[1399,1024] parameter(0)
      h = f32[1399,1024] negate(x)
      g = f32[1399,1024] parameter(1)
      ROOT r = f32[1024,1024] dot(h, g), lhs_contracting_dims={0}, rhs_contracting_dims={0}
    }"""
    rng = np.random.default_rng(3)
    x, g = (rng.integers(-2, 3, (1399, 1024)).astype(np.float32) for _ in range(2))
    run = same_on_tiles(text, BOW, [x, g], Tuning(memory_percent=3))
    body = run.program.body
    assert isinstance(body, Sequence)
    variables = run.program.variables
    spread = [
        transfer
        for step in body.steps
        if isinstance(step, Exchange)
        for transfer in step.transfers
        if variables[transfer.destination].shape == (1399, 1024)
        and variables[transfer.destination].mapping.is_partition
        and not variables[transfer.destination].mapping.replicated_axes
    ]
    taken = {
        transfer.source
        for step in body.steps
        if isinstance(step, Exchange)
        for transfer in step.transfers
        if variables[transfer.source].shape == (1399, 1024)
        and variables[transfer.destination].shape != (1399, 1024)
    }
    assert taken & {transfer.destination for transfer in spread}
