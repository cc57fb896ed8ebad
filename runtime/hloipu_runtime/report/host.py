"""Split a run's time into the device's own and what its host adds.

Transfers either stop the device, or go on beside its computing on tiles set apart for them. What a
program for sessions keeps on the device is loaded once. So is, in use, what a plain run is known to
keep from one run to the next, although each run transfers it.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

from hloipu_runtime.costs.costs import Costs, Pipelined, Together, blocks_inside
from hloipu_runtime.costs.counting import BlockCounts, count_blocks, spent_of
from hloipu_runtime.costs.single_steps import HostPhase
from hloipu_runtime.costs.spent import Spent, sum_of
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.program.program import Program, Variable
from hloipu_runtime.program.steps import Step, StreamIn, StreamOut, inner_steps


class HostTime(NamedTuple):
    """Time that the host adds to the device's own cycles, over all runs."""

    stops_cycles: int = 0
    """In which the device waits for transfers and calls."""
    beside_cycles: int = 0
    """Of transfers that go on while the device computes."""
    bytes_in: int = 0
    bytes_out: int = 0
    once_cycles: int = 0
    """Of transferring what stays on the device, before the first run and after the last."""
    once_bytes_in: int = 0
    once_bytes_out: int = 0
    once_is_counted: bool = False
    """Whether `stops_cycles` has these cycles, too, and `bytes_in` and `bytes_out` these bytes."""
    evidence: str = ""
    """What says that it stays."""

    @property
    def each_run_cycles(self) -> int:
        """Cycles for which the device is stopped when what stays is there already."""
        return self.stops_cycles - (self.once_cycles if self.once_is_counted else 0)

    @property
    def each_run_bytes(self) -> tuple[int, int]:
        """Bytes that come in and go out when what stays is there already."""
        if not self.once_is_counted:
            return self.bytes_in, self.bytes_out
        return self.bytes_in - self.once_bytes_in, self.bytes_out - self.once_bytes_out


class StayingPorts(NamedTuple):
    """Parameters and results of a plain program that would stay on the device between runs."""

    parameters: frozenset[int] = frozenset()
    results: frozenset[int] = frozenset()
    evidence: str = ""


def staying_ports(options: Mapping[str, Any]) -> StayingPorts:
    """Return what the options of a compiled program say of it, nothing where they do not."""
    record = options.get("kept_between_runs")
    if not isinstance(record, Mapping):
        return StayingPorts()
    parameters, results = (
        frozenset(n for n in record.get(name, ()) if isinstance(n, int))
        for name in ("parameters", "results")
    )
    return StayingPorts(parameters, results, str(record.get("evidence", "")))


def device_alone(costs: Costs, counts: BlockCounts) -> Spent:
    """Return what a program spends where its host takes no time.

    What transfers would hide, beside it or on another IPU, is shown then.
    """
    beside = (Together, Pipelined)
    if not any(isinstance(inner, beside) for block in costs.blocks for inner in block.inner):
        return spent_of(costs, counts).without_host
    steps = tuple(step._replace(spent=step.spent.without_host) for step in costs.steps)
    blocks = tuple(
        block._replace(spent=sum_of(steps[n].spent for n in block.steps)) for block in costs.blocks
    )
    alone = Costs(costs.program, costs.machine, steps, blocks)
    again = count_blocks(
        alone,
        lambda inner, _: [counts.counts[block] for block in blocks_inside(inner)],
        counts.counts[costs.root],
    )
    return spent_of(alone, again)


def host_time(
    costs: Costs, counts: BlockCounts, alone_cycles: int, options: Mapping[str, Any]
) -> HostTime:
    """Return what the host adds to `alone_cycles`, those of the device on its own."""
    program, runs = costs.program, counts.counts[costs.root]
    stops_cycles = spent_of(costs, counts).total.cycles - alone_cycles
    transfers, sizes = 0, {"stream in": 0, "stream out": 0}
    for number, block in enumerate(costs.blocks):
        for place in block.steps:
            step = costs.steps[place]
            transfers += step.spent.host.cycles * counts.counts[number]
            if step.kind in sizes:
                sizes[step.kind] += step.moved_bytes * counts.counts[number]
    host = HostTime(stops_cycles, transfers - stops_cycles, sizes["stream in"], sizes["stream out"])
    if program.is_resident:
        names = [port.variable for port in program.state]
        names += [n for n, (value, _) in program.constants.items() if value in program.loaded]
        staying = [program.variables[n] for n in names]
        return host._replace(
            once_cycles=_transferred(costs, [("", v) for v in staying], to_device=True),
            once_bytes_in=_bytes(staying),
        )
    numbers_staying = staying_ports(options)
    if not (numbers_staying.parameters or numbers_staying.results):
        return host
    sides = (
        (True, _streamed(program, StreamIn), program.parameters, numbers_staying.parameters),
        (False, _streamed(program, StreamOut), program.results, numbers_staying.results),
    )
    passing_cycles, once_bytes = 0, []
    for to_device, variables, ports, staying_numbers in sides:
        staying_streams = {
            result_or_parameter.stream
            for n, result_or_parameter in enumerate(ports)
            if n in staying_numbers
        }
        passing = [
            stream_and_variable
            for stream_and_variable in variables
            if stream_and_variable[0] not in staying_streams
        ]
        passing_cycles += _transferred(costs, passing, to_device=to_device)
        once_bytes.append(runs * _bytes(v for name, v in variables if name in staying_streams))
    return host._replace(
        once_cycles=max(0, stops_cycles - runs * passing_cycles),
        once_bytes_in=once_bytes[0],
        once_bytes_out=once_bytes[1],
        once_is_counted=True,
        evidence=numbers_staying.evidence,
    )


def _streamed(
    program: Program, kind: type[StreamIn] | type[StreamOut]
) -> list[tuple[str, Variable]]:
    """Return what a plain program streams in one direction, by name of the stream."""
    return [
        (step.stream, program.variables[step.variable])
        for step in _leaves(program.body)
        if isinstance(step, kind)
    ]


def _leaves(step: Step) -> Iterator[Step]:
    inner = inner_steps(step)
    if not inner:
        yield step
    for child in inner:
        yield from _leaves(child)


def _transferred(
    costs: Costs, variables: Iterable[tuple[str, Variable]], *, to_device: bool
) -> int:
    """Return the cycles of transferring variables together, on all participants at once.

    With the streams that carry them; empty: none.
    """
    phase = HostPhase(costs.program, costs.machine, to_device=to_device)
    return sum(phase.add(variable, stream).cycles for stream, variable in variables)


def _bytes(variables: Iterable[Variable]) -> int:
    """Return the bytes of the elements of variables, each once."""
    return sum(-(-prod(v.shape) * ELEMENT_TYPES[v.element_type].bits // 8) for v in variables)
