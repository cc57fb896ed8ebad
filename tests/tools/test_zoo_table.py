"""The table of dumps: rows, comparison with an older table, what counts as worse."""

import json
from pathlib import Path

import pytest

from tools.zoo_table import Row, dumps_in, header, line, main, measured, older_rows

TEXT = """HloModule product
ENTRY e {
  a = f32[64,64] parameter(0)
  b = f32[64,64] parameter(1)
  ROOT d = f32[64,64] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "product.hlo"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_a_dump_is_measured(dump: Path) -> None:
    row = measured(dump, "gc200", 10)
    assert row.name == "product"
    assert min(row.compute, row.exchange, row.sync, row.peak_bytes, row.mean_bytes) > 0
    assert row.cycles == row.compute + row.exchange + row.sync


def test_folders_stand_for_their_dumps(dump: Path) -> None:
    assert dumps_in([dump.parent]) == dumps_in([dump]) == [dump]


def test_a_line_says_how_many_times_the_older_figures() -> None:
    older = Row("m", 100, 50, 10, 1000, 900, 2.0)
    text = line(Row("m", 100, 25, 10, 500, 450, 1.0), older)
    assert text.split("|")[1].split() == ["0.500", "0.844", "0.500", "0.500"]
    assert len(header(against=True).split("|")) == 2


def test_more_cycles_than_before_are_a_failure(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "table.json"
    monkeypatch.setattr("sys.argv", ["zoo_table", str(dump), "--json", str(file)])
    assert main() == 0
    record = json.loads(file.read_text(encoding="utf-8"))
    assert older_rows(file)["product"].cycles == record["rows"][0]["cycles"]
    record["rows"][0]["compute"] //= 2
    file.write_text(json.dumps(record), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["zoo_table", str(dump), "--against", str(file)])
    assert main() == 1
    assert "more cycles than before: product" in capsys.readouterr().out
