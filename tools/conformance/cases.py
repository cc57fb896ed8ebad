"""All cases, family by family."""

from tools.conformance import (
    collective,
    contractions,
    control,
    elementwise,
    movement,
    random_ops,
    reductions,
)
from tools.conformance.case import Case

FAMILIES = (elementwise, movement, reductions, contractions, control, random_ops, collective)


def all_cases() -> list[Case]:
    """Return every case; names are unique and the order is always the same."""
    return [case for family in FAMILIES for case in family.cases()]
