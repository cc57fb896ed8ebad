"""Where an op goes: to its largest operand, where users wish it, by all that it costs."""

from typing import NamedTuple

import pytest

from hloipu_compiler.planners import op_grids as choosing
from hloipu_compiler.planners.op_grids import (
    MOST_PREFERENCES,
    Demand,
    MovableOp,
    candidates,
    cheapest,
)
from hloipu_compiler.planners.placing import Placement, followed
from hloipu_compiler.planners.redistribution import STAYING, Redistribution
from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.expression import Expression, Node
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.costs.exchange_price import CodePrice, TransferPrice
from hloipu_runtime.machine.costs import TileTraffic
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Mapping, Sizes
from tests.support.program_builder import blocks

GC200 = load_machine("gc200")
SHAPE = (64, 64)
ROWS, COLUMNS, FEW = blocks(SHAPE, (64, 1)), blocks(SHAPE, (1, 64), 64), blocks(SHAPE, (4, 1), 200)
WHOLE = Tensor("f32", SHAPE)


def codelet_of(operands: int) -> Codelet:
    """Return a sum of operands; the first may be a vector along the columns."""
    nodes = tuple(
        Node("add", (n + operands - 1 if n else 0, n + 1), "f32") for n in range(operands - 1)
    )
    labels = ((0, 1),) * operands
    return Elementwise(Expression(("f32",) * operands, nodes, (2 * operands - 2,)), labels, 2)


ADD, ADD_THREE = codelet_of(2), codelet_of(3)


def at(mapping: Mapping, codelet: Codelet = ADD) -> Placement:
    """Return the placement of an op that lies as a mapping says."""
    indexing = codelet.indexing([WHOLE] * 2, [WHOLE])
    found = followed(indexing, indexing.results[0], mapping)
    assert found is not None
    return found


def preference(mapping: Mapping, most: int = 1 << 62) -> Demand:
    return Demand(mapping, mapping, 1, "user", most)


def test_candidates_are_where_operands_lie_and_two_wishes() -> None:
    indexing = ADD.indexing([WHOLE] * 2, [WHOLE])
    preferences = [preference(blocks(SHAPE, (8, 8), 256 * n)) for n in range(4)]
    found = candidates(indexing, [COLUMNS, ROWS], preferences, 1, [10, 20])
    assert found == [at(ROWS), at(COLUMNS), *(at(x.born) for x in preferences[:MOST_PREFERENCES])]
    assert MOST_PREFERENCES == 2
    # On too few tiles nothing is gained.
    assert candidates(indexing, [FEW, ROWS], [preference(FEW)], 4, [1, 1]) == [at(FEW), at(ROWS)]
    assert candidates(indexing, [FEW, ROWS], [preference(FEW)], 5, [1, 1]) == [at(ROWS)]
    # A wish for a value of another rank says nothing.
    flat = preference(blocks((4096,), (64,)))
    assert candidates(indexing, [ROWS, ROWS], [flat], 1, [1, 1]) == [at(ROWS)]


class Price(NamedTuple):
    """What it costs to bring a value, of the test's own making."""

    cycles: int
    code_bytes: int = 0


@pytest.fixture
def prices(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[Mapping, Mapping], Price]:
    """Return prices by where a value lies and is wanted; what is not in there stays."""
    table: dict[tuple[Mapping, Mapping], Price] = {}

    def redistribution(
        machine: Machine,
        element_type: str,
        shape: Sizes,
        lying: Mapping,
        wanted: Mapping,
        code_price: CodePrice,
    ) -> Redistribution:
        price = table.get((lying, wanted))
        if price is None:
            return STAYING
        received = (price.cycles - BEGIN) * machine.exchange.receive_bytes_per_cycle
        transfer = TransferPrice(TileTraffic(received_bytes=received), code_bytes=price.code_bytes)
        return Redistribution(*price, None, (transfer,))

    monkeypatch.setattr(choosing, "redistribution", redistribution)
    choosing._cost.cache_clear()
    return table


BEGIN = 9 + 74 + 126
"""Set-up, way and sync of any exchange (the machine's file)."""


def place(
    lying: tuple[Mapping, ...], *preferences: Demand, iterations: int = 1, code_cycles: int = 0
) -> Placement:
    codelet = ADD if len(lying) == 2 else ADD_THREE
    operands = tuple((WHOLE, x) for x in lying)
    price = CodePrice(code_cycles, code_cycles)
    op = MovableOp(codelet, operands, (WHOLE,), preferences, iterations, price)
    return cheapest(GC200, op, [at(ROWS), at(COLUMNS)])


def test_the_cheaper_move_decides(prices: dict[tuple[Mapping, Mapping], Price]) -> None:
    prices[ROWS, COLUMNS], prices[COLUMNS, ROWS] = Price(1000), Price(1001)
    assert place((ROWS, COLUMNS)) == at(COLUMNS)
    prices[ROWS, COLUMNS] = Price(1002)
    choosing._cost.cache_clear()
    assert place((ROWS, COLUMNS)) == at(ROWS)


def test_operands_that_come_together_begin_once(
    prices: dict[tuple[Mapping, Mapping], Price],
) -> None:
    # Two that come to the rows share what their exchange begins with.
    other = blocks(SHAPE, (8, 8), 512)
    prices[COLUMNS, ROWS] = prices[other, ROWS] = Price(1000)
    prices[ROWS, COLUMNS] = Price(2001 - BEGIN)
    assert place((ROWS, COLUMNS, other)) == at(ROWS)
    prices[ROWS, COLUMNS] = Price(1999 - BEGIN)
    choosing._cost.cache_clear()
    assert place((ROWS, COLUMNS, other)) == at(COLUMNS)


def test_code_counts_once_and_cycles_each_turn(
    prices: dict[tuple[Mapping, Mapping], Price],
) -> None:
    prices[ROWS, COLUMNS] = Price(1000, code_bytes=10)
    prices[COLUMNS, ROWS] = Price(1100, code_bytes=5)
    assert place((ROWS, COLUMNS)) == at(COLUMNS)
    assert place((ROWS, COLUMNS), code_cycles=30) == at(ROWS)  # 50 bytes' worth against 100 cycles
    assert place((ROWS, COLUMNS), code_cycles=30, iterations=2) == at(COLUMNS)


def test_the_way_to_users_counts_up_to_what_they_would_pay(
    prices: dict[tuple[Mapping, Mapping], Price],
) -> None:
    prices[ROWS, COLUMNS], prices[COLUMNS, ROWS] = Price(1000), Price(2000)
    assert place((ROWS, COLUMNS)) == at(COLUMNS)
    assert place((ROWS, COLUMNS), preference(ROWS)) == at(ROWS)
    assert place((ROWS, COLUMNS), preference(ROWS, most=999)) == at(COLUMNS)
    assert place((ROWS, COLUMNS), preference(ROWS, most=1001)) == at(ROWS)
    # Its code is spent only where it is really brought.
    prices[COLUMNS, ROWS] = Price(2000, code_bytes=100)
    choosing._cost.cache_clear()
    assert place((ROWS, ROWS), preference(COLUMNS), code_cycles=1) == at(ROWS)


def test_the_work_itself_counts(prices: dict[tuple[Mapping, Mapping], Price]) -> None:
    """Nothing to bring: on four tiles the op takes longer than on 64."""
    op = MovableOp(ADD, ((WHOLE, ROWS), (WHOLE, ROWS)), (WHOLE,), ())
    found = cheapest(GC200, op, [at(FEW), at(ROWS), at(COLUMNS)])
    assert found == at(ROWS)
