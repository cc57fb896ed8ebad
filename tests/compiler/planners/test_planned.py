"""Records of what planners chose: as text, as data, and which of the losers are kept."""

import pytest

from hloipu_compiler.planners.planned import (
    MOST_ALTERNATIVES,
    Alternative,
    Choice,
    Cycles,
    PlacedValue,
    PlannedOp,
    losers,
    plans_record,
    plans_text,
)

CHOSEN = Choice("rows whole", (("rows", 4),), 4, Cycles(90, 7, 3), 640, (("kind", "strided"),))
OTHER = Choice("in two stages", (("pieces", 2), ("rows", 2)), 4, Cycles(together=150), 1280)
OP = PlannedOp(
    "r.1", "reduce", ("f32[8,4]", "f32[]"), ("f32[8]",), CHOSEN, (Alternative(OTHER, "slower"),)
)
VALUE = PlacedValue("p", "f32[8,4]", "8 rows over 4 tiles", "r.1", "its rows are summed", 12)

TEXT = """\
r.1 = f32[8] reduce(f32[8,4], f32[])
  chosen: rows whole, on 4 tiles: 4 x rows, kind strided
    100 cycles (compute 90, exchange 7, sync 3); 640 bytes a tile
  slower: in two stages, on 4 tiles: 2 x pieces, 2 x rows
    150 cycles, 1.50 times; 1,280 bytes a tile

values placed for their users
  p f32[8,4]: 8 rows over 4 tiles for r.1, its rows are summed, saves 12 cycles
"""


def test_the_text() -> None:
    assert plans_text([OP, VALUE]) == TEXT
    assert plans_text([]) == "no op of this program was planned\n"


def test_the_data() -> None:
    record = plans_record([OP, VALUE])
    assert record["schema"] == "hloipu.plans/1"
    (op,) = record["ops"]
    assert op["chosen"]["cycles"] == {"total": 100, "compute": 90, "exchange": 7, "sync": 3}
    assert op["alternatives"][0]["cycles"] == {"total": 150}
    assert op["alternatives"][0]["lost"] == "slower"
    assert record["values"][0]["saved_cycles"] == 12


def choice(number: int, cycles: int, held: int) -> Choice:
    return Choice(f"way {number}", (), 1, Cycles(cycles), held)


def test_losers_are_the_cheapest_once_each_and_say_why() -> None:
    chosen = choice(0, 10, 5)
    others = [choice(n, 10 + n, 5 if n % 2 else 50) for n in (4, 2, 1, 3, 5, 6)]
    found = losers(chosen, [chosen, *others, choice(1, 99, 5)], budget_bytes=20)
    assert [a.choice.words for a in found] == ["way 1", "way 2", "way 3", "way 4"]
    assert [a.lost for a in found] == ["slower", "does not fit", "slower", "does not fit"]
    assert len(found) == MOST_ALTERNATIVES


@pytest.mark.parametrize("budget_bytes", [None, 1000])
def test_nothing_is_too_large_without_a_bound(budget_bytes: int | None) -> None:
    assert {a.lost for a in losers(choice(0, 1, 1), [choice(1, 2, 900)], budget_bytes)} == {
        "slower"
    }
