"""The table of divided programs, on two IPUs."""

import pytest

pytest.importorskip("jax")

from tools.sharding_table.__main__ import cost, lines
from tools.sharding_table.programs import rows

ROWS = {row.name: row for row in rows()}


@pytest.mark.parametrize(
    ("name", "collectives"),
    [("Megatron MLP", "1 AR"), ("FSDP, Adam", "2 AG, 2 RS"), ("decoding with a cache", "-")],
)
def test_programs_send_what_theory_says(name: str, collectives: str) -> None:
    row = ROWS[name]
    found = cost(row, 2)
    assert found.collectives == collectives
    assert found.sent_bytes == pytest.approx(row.sent_bytes(2), rel=1e-4)
    assert 0 <= found.link_cycles < found.cycles
    assert (found.link_cycles > 0) == (found.sent_bytes > 0)
    assert any(line.startswith(f"| 2 | {collectives} |") for line in lines(row, [found]))
