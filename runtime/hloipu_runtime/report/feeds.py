"""Host-bound or device-bound: needed against given rate of elements."""

from collections.abc import Mapping
from math import prod
from typing import Any

from hloipu_runtime.costs.costs import Costs
from hloipu_runtime.costs.step_times import step_times
from hloipu_runtime.element_types import ELEMENT_TYPES
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
    elements_by_queue = elements_per_step(costs.program)
    slowest = min(rates, key=lambda name: rates[name] / elements_by_queue[name], default="")
    of_a_step = (
        elements_by_queue[slowest] if slowest else max(elements_by_queue[name] for name in names)
    )
    of_a_second = of_a_step * steps * costs.machine.chip.clock_hz
    needed = of_a_second / times.run_cycles
    host_rate = rates[slowest] if slowest else None
    is_host_bound = host_rate is not None and host_rate < needed
    return {
        "verdict": "host-bound" if is_host_bound else "device-bound",
        "device_elements_per_second": of_a_second / device_cycles,
        "needed_elements_per_second": needed,
        "given_elements_per_second": host_rate,
        "slowest": slowest or None,
        "given_over_needed": None if host_rate is None else host_rate / needed,
        "infeeds": {name: rates.get(name) for name in names},
    }


def queues_record(
    costs: Costs,
    feeds: Mapping[str, Any],
    steps: int,
    idle_cycles: int,
    host_counts: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, Any], ...]:
    """Return every queue of a program as JSON data: what goes through it, and who waits for whom.

    `steps` were done, `idle_cycles` of them waited for the slowest feed. `host_counts`: by name,
    what a session's queues counted in the host's own time (`Session.queues`); an estimate has none.
    """
    program, clock_hz = costs.program, costs.machine.chip.clock_hz
    elements_by_queue, records = elements_per_step(program), []
    run_cycles = step_times(costs).run_cycles
    for queue in program.queues:
        bits = sum(
            prod(port.shape) * ELEMENT_TYPES[port.element_type].bits for port in queue.streams
        )
        rate = feeds.get("infeeds", {}).get(queue.name)
        a_second = elements_by_queue[queue.name] * program.steps_per_run * clock_hz
        needed = a_second / run_cycles if run_cycles else 0.0
        is_late = rate is not None and rate < needed
        records.append(
            {
                "name": queue.name,
                "to_device": queue.to_device,
                "element_bytes": -(-bits // 8),
                "elements_per_step": elements_by_queue[queue.name],
                "elements": steps * elements_by_queue[queue.name],
                "needed_elements_per_second": needed,
                "given_elements_per_second": rate,
                "starved_share": 1 - rate / needed if is_late else 0.0,
                "starved_cycles": idle_cycles if queue.name == feeds.get("slowest") else 0,
                "waits": "device" if is_late else "host" if rate else "nobody",
                "mode": "" if queue.to_device else queue.mode or "all",
                "host": dict(host_counts.get(queue.name, {})),
            }
        )
    return tuple(records)


def feeds_line(feeds: Mapping[str, Any]) -> str:
    """Return the verdict in words."""
    alone, needed = feeds["device_elements_per_second"], feeds["needed_elements_per_second"]
    host_rate = feeds["given_elements_per_second"]
    takes = f"takes {alone:,.4g} elements/s on its own, {needed:,.4g} with its host's transfers"
    if f"{alone:.4g}" == f"{needed:.4g}":
        takes = f"takes {alone:,.4g} elements/s, on its own and with its host's transfers"
    if host_rate is None:
        return f"feeds: device-bound, {takes}, if data is always ready"
    if feeds["verdict"] == "host-bound":
        waits = 1 - host_rate / needed
        return (
            f"feeds: host-bound, {feeds['slowest']} gives {host_rate:,.4g} elements/s; the device "
            f"{takes}: it waits {waits:.1%} of a long run"
        )
    return (
        f"feeds: device-bound, {takes}; {feeds['slowest']} could give {host_rate:,.4g}, "
        f"{host_rate / needed:,.3g} times as many"
    )
