"""Fronts of shardings that a search finds: `pytest --update-goldens` writes them anew.

Each `shardings/NAME.expect` has the front of one graph for some IPUs, and why its rows are right.
"""

from pathlib import Path

import pytest

from hloipu.sharding import fitting_text, front_lines
from hloipu_compiler.partition.sharding_search import pricing
from hloipu_compiler.partition.sharding_search.searching import found_shardings
from tests.compiler.partition.sharding_search.test_searching import GRAPHS, graph_module, system_of
from tests.support.goldens import fail_with_moved

GOLDENS = sorted((Path(__file__).parent / "shardings").glob("*.expect"))
NOTE = "#"


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda path: path.stem)
def test_a_front_is_what_its_golden_says(
    golden: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pricing, "CODE_BYTES", 0)  # of graphs so small it would hide the arrays
    head, *rest = golden.read_text().splitlines()
    graph, ipus = head.rsplit(" ", 1)
    notes = [line for line in rest if line.startswith(NOTE)]
    module = graph_module(GRAPHS[graph])
    found = found_shardings(module, system_of(module, int(ipus), 1472))
    now = front_lines(module, found, found.best.sharding(module), fitting_text(found.best))
    if pytestconfig.getoption("--update-goldens"):
        golden.write_text("\n".join([head, *notes, *now]) + "\n")
    else:
        fail_with_moved(golden.name, rest[len(notes) :], now)
