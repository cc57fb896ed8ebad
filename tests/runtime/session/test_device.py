"""Several executables on one device: what a swap costs, and who is told."""

import warnings
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from hloipu_runtime.errors import UsageError
from hloipu_runtime.machine.transfers import host_transfer
from hloipu_runtime.session.device import Device, EngineSwapWarning, footprint
from hloipu_runtime.session.session import Session
from tests.support.sessions import SCALE, START, compiled, rows, sums

MEMORY = sums(3).memory.to_json()


@pytest.fixture
def opened() -> Iterator[tuple[Device, Session, Session]]:
    """Return a device, and two sessions on it."""
    device = Device()
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(
                sums(loop).session(
                    state=START, constants=SCALE, infeeds={"data": rows(60)}, device=device
                )
            )
            for loop in (3, 2)
        )
        yield device, first, second


def test_what_lies_there_is_not_loaded_again(opened: tuple[Device, Session, Session]) -> None:
    device, first, _ = opened
    assert device.resident == ""
    first.run(3)
    first.run(6)
    assert (device.resident, device.swaps, device.swap_cycles) == ("sums", 0, 0)
    assert first.cycles == 3 * (sums(3).estimate().total_cycles or 0)


def test_a_swap_is_a_transfer_each_way(opened: tuple[Device, Session, Session]) -> None:
    """State of the one to the host; code, constants and state of the other to the device."""
    device, first, second = opened
    first.run(3)
    run = second.run(2)
    parts, peak = MEMORY["parts"], MEMORY["peak"]["parts"]
    machine = second.costs.machine
    out = host_transfer(
        machine, [parts["state"]], to_device=False, busiest_tile_bytes=peak["state"]
    )
    names = ("vertex code", "control code", "exchange code", "vertex state", "constants", "state")
    mine = sums(2).memory.to_json()
    into = host_transfer(
        machine,
        [sum(mine["parts"][name] for name in names)],
        to_device=True,
        busiest_tile_bytes=sum(mine["peak"]["parts"][name] for name in names),
    )
    swap = out.cycles + into.cycles
    assert swap > 2 * 1000  # a round trip each
    assert (device.swaps, device.swap_cycles, second.loading_cycles) == (1, swap, swap)
    assert run.cycles == second.cycles == swap + (sums(2).estimate().total_cycles or 0)
    assert run.profile.lower_bound_cycles == run.cycles
    assert second.profile().by_bucket["idle"] == swap
    assert first.loading_cycles == 0


def test_there_is_one_warning_where_they_alternate(
    opened: tuple[Device, Session, Session],
) -> None:
    device, first, second = opened
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first.run(3)
        second.run(2)
        first.run(3)
    with pytest.warns(EngineSwapWarning, match=r"'sums' and 'sums' alternate .* cycles"):
        second.run(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            first.run(3)
            second.run(2)
    assert device.swaps == 11


def test_a_device_may_be_told_not_to_warn() -> None:
    device = Device(warns=False)
    with (
        sums(3).session(
            state=START, constants=SCALE, infeeds={"data": rows(60)}, device=device
        ) as a,
        sums(2).session(
            state=START, constants=SCALE, infeeds={"data": rows(60)}, device=device
        ) as b,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        for _ in range(4):
            a.run(3)
            b.run(2)
    assert device.swaps == 7


def test_state_stays_with_its_session(opened: tuple[Device, Session, Session]) -> None:
    _, first, second = opened
    first.run(3)
    second.run(4)
    first.run(3)
    assert first.state()["b"] == 5 + 6
    assert second.state()["b"] == 5 + 4


def test_a_session_of_its_own_swaps_nothing() -> None:
    for _ in range(3):
        with sums(3).session(state=START, constants=SCALE, infeeds={"data": rows(3)}) as session:
            session.run()
            assert session.loading_cycles == 0


def test_a_device_is_one_machine() -> None:
    device = Device()
    text = "ENTRY e {\n  a = f32[2] parameter(0)\n  ROOT r = (f32[2]) tuple(a)\n}\n"
    programs = [compiled(text, target, loop=1, roles={"0": "carry"}) for target in ("tiny", "bow")]
    programs[0].session(device=device).close()
    with pytest.raises(UsageError, match="the device is tiny") as caught:
        programs[1].session(device=device)
    assert caught.value.code == "E2043"


def test_nothing_is_known_of_what_was_not_planned() -> None:
    assert sum(footprint({})) == 0
