"""Host, remote and link transfers against sums done by hand."""

import itertools

import pytest

from hloipu_runtime.errors import MachineError
from hloipu_runtime.machine.charges import Charge
from hloipu_runtime.machine.links import Flow, Segment, link_transfer, route, segment_rate
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.machine.transfers import (
    cycles_at_rate,
    cycles_of_nanoseconds,
    host_transfer,
    remote_transfer,
    seconds,
)

TINY = load_machine("tiny")
UNIT = load_machine("unit")
GC200 = load_machine("gc200")


def test_time_and_cycles() -> None:
    assert cycles_of_nanoseconds(GC200, 1000) == 1330
    assert cycles_of_nanoseconds(GC200, 1) == 2  # 1.33, rounded up
    assert cycles_at_rate(GC200, 10**9, 10**10) == 133_000_000
    assert seconds(GC200, 1_330_000) == 1e-3


@pytest.mark.parametrize(
    ("by_ipu", "to_device", "busiest_tile", "cycles"),
    [
        # round trip 1000, command 50; 8 bytes a cycle to the device, 4 from it
        ([], True, 0, 0),
        ([0, 0], True, 0, 0),
        ([800], True, 0, 1050 + 100),
        ([800], False, 0, 1050 + 200),
        ([801], True, 0, 1050 + 101),
        ([400, 400], True, 0, 1050 + 100),  # four IPUs share a line
        ([100, 100, 100, 100, 800], True, 0, 1050 + 100),  # the fifth has another
        ([2048], False, 2048, 1050 + 512),
        ([2048], False, 256 * 26, 1050 + 26 * 20),  # 20 cycles a packet of 256 bytes
        ([8192], True, 1024 * 60, 1050 + 60 * 20),
    ],
)
def test_host_transfers(by_ipu: list[int], to_device: bool, busiest_tile: int, cycles: int) -> None:
    charge = host_transfer(TINY, by_ipu, to_device=to_device, busiest_tile_bytes=busiest_tile)
    assert charge.cycles == cycles


def test_host_transfers_of_a_gc200_are_nearly_all_assumed() -> None:
    charge = host_transfer(GC200, [10**6], to_device=True)
    assert charge == Charge(13_300 + 73 + 133_000, 13_300 + 133_000)


def test_remote_transfers() -> None:
    assert remote_transfer(TINY, 1001, write=False).cycles == 100 + 501
    assert remote_transfer(TINY, 1001, write=True).cycles == 100 + 1001
    assert remote_transfer(TINY, 0, write=True).cycles == 0


def ways(machine: Machine, source: int, target: int, ipus: int) -> str:
    return " ".join(
        f"{segment.kind}@{segment.place}" for segment in route(machine, source, target, ipus)
    )


@pytest.mark.parametrize(
    ("source", "target", "ipus", "way"),
    [
        (0, 0, 8, ""),
        (0, 1, 8, "rung@0"),
        (3, 2, 8, "rung@3"),
        (0, 2, 8, "up@0"),
        (0, 6, 8, "up@0 up@2 up@4"),
        (7, 1, 8, "down@7 down@5 down@3"),
        (1, 4, 8, "crossing@1 up@0 up@2"),
        (4, 1, 8, "crossing@4 down@5 down@3"),
        (2, 1, 3, "down@2 crossing@0"),  # nobody beside IPU 2 to cross to
        (1, 2, 3, "crossing@1 up@0"),
        (0, 62, 64, "down@0"),  # 64 IPUs close the ladder
        (0, 32, 64, " ".join(f"up@{ipu}" for ipu in range(0, 32, 2))),
        (0, 34, 64, "down@0 " + " ".join(f"down@{ipu}" for ipu in range(62, 34, -2))),
        (0, 61, 62, "crossing@0 " + " ".join(f"up@{ipu}" for ipu in range(1, 61, 2))),
        (64, 126, 128, "down@64"),
        (5, 70, 128, "gateway out@1 gateway in@17"),
    ],
)
def test_routes_of_a_gc200(source: int, target: int, ipus: int, way: str) -> None:
    assert ways(GC200, source, target, ipus) == way


@pytest.mark.parametrize("ipus", [1, 2, 3, 4, 7, 16, 63, 64])
def test_every_route_arrives_over_ipus_of_the_system(ipus: int) -> None:
    for source, target in itertools.product(range(ipus), repeat=2):
        here = source
        for segment in route(GC200, source, target, ipus):
            assert segment.place == here
            step = {"rung": here ^ 1, "crossing": here ^ 1, "up": here + 2, "down": here - 2}
            here = step[segment.kind] % (64 if ipus == 64 else 1000)
            assert 0 <= here < ipus
        assert here == target


@pytest.mark.parametrize(
    ("flows", "cycles"),
    [
        # a hop 100, one byte a cycle and link: 4 on a rung, 2 across, 2 on a rail
        ([], 0),
        ([Flow(0, 1, 0), Flow(2, 2, 99)], 0),
        ([Flow(0, 1, 400)], 100 + 100),
        ([Flow(0, 1, 400), Flow(1, 0, 400)], 100 + 100),  # each direction has its own links
        ([Flow(0, 2, 400)], 100 + 200),
        ([Flow(0, 6, 400)], 300 + 200),
        ([Flow(0, 6, 400), Flow(2, 4, 100)], 300 + 250),  # they meet on the rail from 2
        ([Flow(0, 3, 400)], 200 + 200),
        ([Flow(0, 3, 400), Flow(0, 1, 800)], 200 + 200),  # crossing has links of its own
    ],
)
def test_link_transfers(flows: list[Flow], cycles: int) -> None:
    assert link_transfer(TINY, flows, 8).cycles == cycles


def test_gateways_join_link_domains() -> None:
    # 2 links of one byte a cycle for a chassis of four; 1000 for the way
    assert link_transfer(TINY, [Flow(0, 64, 400)], 128).cycles == 1000 + 200
    both = [Flow(0, 64, 400), Flow(3, 68, 400), Flow(4, 72, 400)]
    assert link_transfer(TINY, both, 128).cycles == 1000 + 400


def test_the_delay_of_a_hop_is_assumed_and_the_rate_is_not() -> None:
    charge = link_transfer(GC200, [Flow(0, 1, 54_400)], 2)
    # 4 links * 16 GB/s * 0.85 = 54.4 GB/s: one microsecond
    assert charge == Charge(200 + 1330, 200)
    assert segment_rate(GC200, Segment("rung", 0)) == 54_400_000_000


@pytest.mark.parametrize(
    ("name", "ipus", "flow"),
    [
        ("gc2", 17, Flow(0, 1, 8)),
        ("gc2", 0, Flow(0, 1, 8)),
        ("gc200", 4, Flow(0, 4, 8)),
        ("gc200", 4, Flow(-1, 3, 8)),
    ],
)
def test_systems_that_do_not_exist(name: str, ipus: int, flow: Flow) -> None:
    with pytest.raises(MachineError) as caught:
        link_transfer(load_machine(name), [flow], ipus)
    assert caught.value.code == "E3210"


def test_unit_moves_a_byte_a_cycle() -> None:
    assert link_transfer(UNIT, [Flow(0, 2, 50)], 4).cycles == 1 + 50
    assert host_transfer(UNIT, [50], to_device=True).cycles == 1 + 1 + 50
    assert remote_transfer(UNIT, 50, write=True).cycles == 1 + 50
