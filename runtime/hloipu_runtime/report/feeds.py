"""Whether a device waits for its host: the rate that it takes elements at, and the one given."""

from collections.abc import Mapping
from typing import Any

from hloipu_runtime.costs.costs import Costs
from hloipu_runtime.costs.step_times import step_times
from hloipu_runtime.program.step_elements import elements_per_step


def feeds_record(costs: Costs, rates: Mapping[str, float], device_cycles: float) -> dict[str, Any]:
    """Return the verdict on a program's infeeds as JSON data; empty where it has none.

    A step takes one element of each infeed for each of its micro-batches, on every replica. `rates`
    are elements per second by name of the infeed; others are always there in time. `device_cycles`
    are those of one run on its own, without the transfers that stop it.
    """
    names = [queue.name for queue in costs.program.queues if queue.to_device]
    times = step_times(costs)
    if not names or not times.run_cycles or not device_cycles:
        return {}
    steps = costs.program.steps_per_run
    taken = elements_per_step(costs.program)
    slowest = min(rates, key=lambda name: rates[name] / taken[name], default="")
    of_a_step = taken[slowest] if slowest else max(taken[name] for name in names)
    of_a_second = of_a_step * steps * costs.machine.chip.clock_hz
    needed = of_a_second / times.run_cycles
    given = rates[slowest] if slowest else None
    is_host_bound = given is not None and given < needed
    return {
        "verdict": "host-bound" if is_host_bound else "device-bound",
        "device_elements_per_second": of_a_second / device_cycles,
        "needed_elements_per_second": needed,
        "given_elements_per_second": given,
        "slowest": slowest or None,
        "given_over_needed": None if given is None else given / needed,
        "infeeds": {name: rates.get(name) for name in names},
    }


def feeds_line(feeds: Mapping[str, Any]) -> str:
    """Return the verdict in words."""
    alone, needed = feeds["device_elements_per_second"], feeds["needed_elements_per_second"]
    given = feeds["given_elements_per_second"]
    takes = f"takes {alone:,.4g} elements/s on its own, {needed:,.4g} with its host's transfers"
    if f"{alone:.4g}" == f"{needed:.4g}":
        takes = f"takes {alone:,.4g} elements/s, on its own and with its host's transfers"
    if given is None:
        return f"feeds: device-bound, {takes}, if data is always ready"
    if feeds["verdict"] == "host-bound":
        waits = 1 - given / needed
        return (
            f"feeds: host-bound, {feeds['slowest']} gives {given:,.4g} elements/s; the device "
            f"{takes}: it waits {waits:.1%} of a long run"
        )
    return (
        f"feeds: device-bound, {takes}; {feeds['slowest']} could give {given:,.4g}, "
        f"{given / needed:,.3g} times as many"
    )
