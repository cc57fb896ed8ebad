"""Tables of ops and their plans, for sizes and types that whole programs would take too long for.

Each `plans/NAME.expect` is a table as `tests/support/plan_golden.py` tells; a new case is its line
alone, and `pytest --update-goldens` writes what goes under it.
"""

from pathlib import Path

import pytest

from tests.support.goldens import fail_with_moved
from tests.support.plan_golden import Case, cases_of, lines_of, with_lines

TABLES = sorted((Path(__file__).parent / "plans").glob("*.expect"))
CASES = [
    pytest.param(table, number, case, id=f"{table.stem}-{number}")
    for table in TABLES
    for number, case in enumerate(cases_of(table.read_text()))
]


@pytest.mark.parametrize(("table", "number", "case"), CASES)
def test_a_plan_is_that_of_the_table(
    table: Path, number: int, case: Case, pytestconfig: pytest.Config
) -> None:
    now = lines_of(case)
    if pytestconfig.getoption("--update-goldens"):
        table.write_text(with_lines(table.read_text(), number, now))
        return
    fail_with_moved(f"{table.name}: {case.op}", case.lines, now)
