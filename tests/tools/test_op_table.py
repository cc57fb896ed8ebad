"""The table of op classes: poplibs's formulas by hand, and one row."""

from dataclasses import replace

import pytest

from tools.fidelity import vertex_formulas as popops
from tools.fidelity.op_classes import op_classes
from tools.fidelity.op_reasons import REASONS
from tools.fidelity.op_table import document, row_of


@pytest.mark.parametrize(
    ("cycles", "found"),
    [
        # 240 halves: 40 a worker, ten vectors.
        (20 + 6 * (17 + 10 * 4), popops.unary(240, 2, 4)),
        (11 + 6 * (26 + 10 * 3), popops.binary(240, 2)),
        (11 + 6 * (15 + 2 * (7 + 2 * 10)), popops.by_row(12, 40, 2)),
        (13 + 6 * (19 + 12 + 2 * (15 + 2 * 99)), popops.by_channel(600, 16, 2)),
        (11 + 6 * (17 + 2 * (12 + 10)), popops.reduce_rows(12, 40, 2)),
        (9 + 6 * (23 + 10 + 9 * 5), popops.nonlinearity(240, 2, 5)),
        (6 + 144 + 2 * 60, popops.dropout(240, 2)),
    ],
)
def test_formulas_by_hand(cycles: int, found: popops.Library) -> None:
    assert found.cycles == cycles
    assert ".cpp:" in found.source


def test_columns_are_dealt_or_their_rows() -> None:
    dealt = 11 + 6 * (16 + 16 * (16 + 2))
    assert popops.reduce_columns(2, 768, 2).cycles == dealt
    shared = 22 + 6 * (16 + 2 * (16 + 100) + 16 + 2 * (16 + 6))
    assert popops.reduce_columns(600, 16, 2).cycles == shared


def test_a_row_names_the_tightest_limit() -> None:
    softmax = next(iter(op_classes()))
    row = row_of(softmax)
    assert (row.limit.kind, round(row.limit.cycles)) == ("float ops", 2003)
    assert softmax.library is not None
    assert row.limit.cycles < row.spent.compute < 1.2 * softmax.library.cycles
    text = document([row])
    assert "popnn/NonLinearity.cpp:71" in text
    assert row.needs_a_reason
    assert f"* **softmax**: {REASONS['softmax'][0]}" in text
    unknown = row._replace(of=replace(row.of, name="another"))
    with pytest.raises(KeyError):
        document([unknown])


def test_reasons_are_of_classes() -> None:
    assert {*REASONS} <= {x.name for x in op_classes()}
