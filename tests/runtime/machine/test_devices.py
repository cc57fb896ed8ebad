"""Ids of devices and orders of their IPUs, as Graphcore's tools have them."""

import pytest

from hloipu_runtime.errors import MachineError
from hloipu_runtime.machine.devices import HOOF, SNAKE, ZIGZAG, devices_of, in_order, places_of
from hloipu_runtime.machine.links import Flow, link_transfer, route
from hloipu_runtime.machine.load import load_machine

TINY = load_machine("tiny")


def test_ids_of_a_system_of_sixteen() -> None:
    found = {device.id: device.ipus for device in devices_of(TINY)}
    assert list(found) == list(range(31))
    assert [len(found[n]) for n in range(31)] == [1] * 16 + [2] * 8 + [4] * 4 + [8] * 2 + [16]
    assert found[3] == (3,)
    assert found[17] == (2, 3)
    assert found[25] == (4, 5, 6, 7)
    assert found[29] == tuple(range(8, 16))


def test_ids_of_a_server_of_cards_are_those_of_graphcores_listing() -> None:
    machine = load_machine("gc2")
    found = {device.id: device.ipus for device in devices_of(machine)}
    # graphcore/tensorflow: tensorflow/python/ipu/utils.py, `gc-info -l` of 16 IPUs.
    listed = {16: (5, 7), 19: (2, 0), 22: (9, 11), 24: (5, 7, 4, 6), 25: (3, 1, 2, 0)}
    assert {number: found[number] for number in listed} == listed
    assert found[28] == found[24] + found[25]
    assert sorted(found[30]) == list(range(16))
    assert places_of(machine, [24]) == places_of(machine, [5, 7, 4, 6]) == (0, 1, 2, 3)
    for count in (1, 2, 4, 8, 16):
        fewer = list(devices_of(load_machine("gc2", {"system_ipus": str(count)})))
        assert sorted(fewer[-1].ipus) == list(range(count))
    with pytest.raises(MachineError, match="IPU 7 is in two of the devices 24, 7"):
        places_of(machine, [24, 7])


def test_ids_count_in_the_system_that_the_machine_says() -> None:
    machine = load_machine("tiny", {"system_ipus": "64"})
    assert len(list(devices_of(machine))) == 127
    assert places_of(machine, [64, 2]) == (0, 1, 2)


@pytest.mark.parametrize(("ids", "said"), [([31], "0 to 30, not 31"), ([16, 1], "IPU 1 is in two")])
def test_what_a_system_has_not_is_refused(ids: list[int], said: str) -> None:
    with pytest.raises(MachineError, match=said) as told:
        places_of(TINY, ids)
    assert told.value.code == "E0554"


def test_a_system_is_a_power_of_two() -> None:
    with pytest.raises(MachineError):
        load_machine("tiny", {"system_ipus": "12"})


def test_orders_of_eight() -> None:
    assert in_order(ZIGZAG, 8) == tuple(range(8))
    assert in_order(SNAKE, 8) == (0, 1, 3, 2, 4, 5, 7, 6)
    assert in_order(HOOF, 8) == (0, 2, 4, 6, 7, 5, 3, 1)


@pytest.mark.parametrize("order", [ZIGZAG, SNAKE, HOOF])
def test_orders_take_each_ipu_once(order: str) -> None:
    for count in range(1, 33):
        assert sorted(in_order(order, count)) == list(range(count))


def test_neighbours_are_a_hop_apart_by_snake_within_four_and_all_round_by_hoof() -> None:
    def hops(order: str, count: int, ends: list[tuple[int, int]]) -> list[int]:
        there = in_order(order, count)
        return [len(list(route(TINY, there[a], there[b], count))) for a, b in ends]

    chain = [(n, n + 1) for n in range(3)]
    assert hops(ZIGZAG, 4, chain) == [1, 2, 1]
    assert hops(SNAKE, 4, chain) == [1, 1, 1]
    ring = [(n, (n + 1) % 8) for n in range(8)]
    assert hops(HOOF, 8, ring) == [1] * 8


def test_a_hop_more_costs_its_time() -> None:
    near, far = (link_transfer(TINY, [Flow(1, target, 200)], 4) for target in (3, 2))
    # 1 GHz; both ways are over two links of 1 GB/s, the longer one crosses its rung first.
    assert (near.cycles, far.cycles) == (100 + 100, 200 + 100)
