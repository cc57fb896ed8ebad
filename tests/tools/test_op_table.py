"""The table of op classes: poplibs's formulas by hand, and one row."""

from dataclasses import replace
from pathlib import Path

import pytest

from hloipu_runtime.codelets.costs.amp import Product, product_work
from hloipu_runtime.machine.load import load_machine
from tools.bench.codegen.limits import Limit
from tools.fidelity import vertex_formulas as popops
from tools.fidelity.op_classes import op_classes
from tools.fidelity.op_reasons import REASONS
from tools.fidelity.op_rows import softmaxes
from tools.fidelity.op_table import document, row_of
from tools.fidelity.product_formulas import Sizes, product


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
def test_formulas_by_hand(cycles: int, found: popops.PoplibsEstimate) -> None:
    assert found.cycles == cycles
    assert ".cpp:" in found.source


def test_columns_are_dealt_or_their_rows() -> None:
    dealt = 11 + 6 * (16 + 16 * (16 + 2))
    assert popops.reduce_columns(2, 768, 2).cycles == dealt
    shared = 22 + 6 * (16 + 2 * (16 + 100) + 16 + 2 * (16 + 6))
    assert popops.reduce_columns(600, 16, 2).cycles == shared


def test_a_row_names_the_tightest_bound() -> None:
    softmax = next(softmaxes())
    row = row_of(softmax)
    assert (row.limit.kind, round(row.limit.cycles)) == ("float ops", 2003)
    assert softmax.poplibs is not None
    assert row.bound.cycles == softmax.poplibs.cycles > row.limit.cycles
    assert 1 / 1.2 < row.share == softmax.poplibs.cycles / row.spent.total
    assert not row.needs_a_reason
    assert "* popnn/NonLinearity.cpp: 71 softmax" in document([row])
    slow = row._replace(limit=Limit("load", 3 * row.spent.total))
    assert slow.share == 3
    slow = row._replace(spent=replace(row.spent, exchange=9 * row.spent.total))
    with pytest.raises(KeyError):
        document([slow])
    why = REASONS["gelu, erf"][0]
    assert why in document([slow._replace(of=replace(softmax, name="gelu, erf"))])


def test_the_cheapest_plan_of_a_product() -> None:
    """One tile has it all, by hand; more tiles never take longer."""
    one = Sizes(1, 16, 1, 16, 16)
    vertex = product_work(load_machine("bow"), Product(1, 16, 16, 16), ("f16", "f16"), "f16",
                          half_partials=True).cycles  # fmt: skip
    assert product(one, "f16").cycles <= 2 * 16 * 16 * 2 // 4 + vertex
    assert product(Sizes(1, 512, 1, 512, 512), "f16").cycles > 512**3 / 64 / 1472


def test_the_document_is_of_today() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "fidelity-ops.md").read_text()
    rows = [line.split(" | ") for line in text.splitlines() if line.endswith(" |")][1:]
    classes = [(x.name, x.size) for x in op_classes()]
    assert [(row[0].removeprefix("| "), row[1]) for row in rows] == classes


def test_reasons_are_of_classes() -> None:
    assert {*REASONS} <= {x.name for x in op_classes()}
