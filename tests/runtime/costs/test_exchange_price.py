"""Prices of exchanges, worked out by hand on `tiny`.

An exchange begins with a sync of 100 and 30 of set-up and way; a fragment takes 2, and a tile moves
4 bytes a cycle, or 8 of what both tiles of a bus receive.
"""

import numpy as np
import pytest

from hloipu_runtime.costs.exchange_price import (
    ExchangePrice,
    TransferPrice,
    arriving,
    exchange_price,
    side_by_side_cycles,
)
from hloipu_runtime.machine.costs import TileTraffic
from hloipu_runtime.machine.load import load_machine

TINY = load_machine("tiny")
STEP = TINY.memory.step_code_bytes


def test_transfers_of_one_exchange_begin_once() -> None:
    sending = TransferPrice(TileTraffic(sent_bytes=400), copying_cycles=7, code_bytes=50)
    receiving = TransferPrice(TileTraffic(received_bytes=240, received_fragments=3))
    both = exchange_price(TINY, [sending, receiving])
    assert both == ExchangePrice(7, 30 + 100 + 3 * 2, 100, 50 + STEP)
    assert both.cycles == 243
    # One tile sends while another receives: the longer of both, not their sum.
    alone = [exchange_price(TINY, [x]).exchange_cycles for x in (sending, receiving)]
    assert alone == [30 + 100, 30 + 60 + 6]
    assert exchange_price(TINY, []) == ExchangePrice()


def test_further_rounds_sync_and_begin_again() -> None:
    transfer = TransferPrice(TileTraffic(received_bytes=40, received_fragments=1), rounds=3)
    price = exchange_price(TINY, [transfer])
    assert (price.exchange_cycles, price.sync_cycles) == (3 * 30 + 10 + 2, 3 * 100)
    assert price.plus(price) == price.times(2)


def test_what_arrives_takes_code_for_each_piece() -> None:
    price = exchange_price(TINY, [arriving(TINY, 400, 5)])
    pieces = 5 * TINY.memory.exchange_fragment_code_bytes
    assert price == ExchangePrice(0, 30 + 100 + 5 * 2, 100, pieces + STEP)
    assert arriving(TINY, 0, 5) == TransferPrice()


@pytest.mark.parametrize(("alike", "cycles"), [(3, 30 + 100 + 20 + 4), (4, 30 + 50 + 20 + 4)])
def test_tiles_of_one_bus_share_what_is_the_same(alike: int, cycles: int) -> None:
    assert side_by_side_cycles(TINY, 400, 80, alike, 2) == cycles
    columns = (np.array([400, 0]), np.array([80, 0]), np.array([alike, 2]), np.array([2, 9]))
    assert np.array_equal(side_by_side_cycles(TINY, *columns), [cycles, 0])
