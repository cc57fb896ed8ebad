"""Tables of ops and their plans, for sizes and types that whole programs would take too long for.

Each `plans/NAME.expect` is a table as `tests/support/plan_golden.py` tells; a new case is its line
alone, and `pytest --update-goldens` writes what goes under it.
"""

from pathlib import Path

import pytest

from tests.support.goldens import check_golden
from tests.support.plan_golden import table_text

TABLES = sorted((Path(__file__).parent / "plans").glob("*.expect"))


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.stem)
def test_plans_are_those_of_the_table(table: Path, pytestconfig: pytest.Config) -> None:
    check_golden(table, table_text(table.read_text()), pytestconfig)
