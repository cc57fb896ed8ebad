"""Charges of collectives and remote copies.

Participant p of a program on S IPUs takes the IPUs p * S to p * S + S - 1 of the system. Reductions
and gathers go round a ring of the group's members, each handing one part on to its neighbour: n - 1
times for a reduce-scatter or an all-gather, both one after the other for an all-reduce, which is as
few bytes as can be (Patarasuk and Yuan: Bandwidth optimal all-reduce algorithms for clusters of
workstations, 2009). A broadcast doubles the members that have it in each phase. All others go in
one phase, straight from sender to receiver. Each phase is a meeting of all IPUs and a transfer over
the links; getting data to the links on a chip is taken to go on beside that.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from math import prod
from typing import NamedTuple

from hloipu_runtime.costs.spent import FREE, Spent
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.charges import NOTHING, Charge, charge_of, over
from hloipu_runtime.machine.costs import sync
from hloipu_runtime.machine.links import Flow, check_system, link_transfer
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.machine.transfers import remote_transfer
from hloipu_runtime.program import collective as c
from hloipu_runtime.program.channels import stored
from hloipu_runtime.program.program import Program, Variable
from hloipu_runtime.program.steps import Pipeline
from hloipu_runtime.program.timetable import Pattern


class Phase(NamedTuple):
    """A transfer over the links that is done several times alike."""

    times: int
    parts: int
    """Of each member's operands: one of so many is handed on."""
    pairs: tuple[tuple[int, int], ...]
    """Participants that send and receive."""
    reduces: bool = False


class CollectiveCost(NamedTuple):
    """What one execution of a collective costs."""

    spent: Spent
    tiles: int
    ipus: tuple[int, ...]
    """Of the first participant."""
    moved_bytes: int
    """That the participants send, all together."""


def collective_cost(program: Program, step: c.Collective, machine: Machine) -> CollectiveCost:
    """Return the cost of a collective on a machine.

    Raises MachineError E3210 where the machine has not so many IPUs.
    """
    check_system(machine, program.ipus * program.participants)  # before pairs are written out
    variables = [program.variables[moved.variable] for moved in (*step.inputs, *step.outputs)]
    ipus = tuple(sorted({variable.ipu for variable in variables}))
    tiles = sum(max(v.mapping.tiles.count for v in variables if v.ipu == ipu) for ipu in ipus)
    sizes = _bytes_by_ipu(program, step)
    spent, moved = FREE, 0
    for phase in phases(step.form):
        spent = spent.plus(_phase_cost(program, machine, phase, sizes, tiles).times(phase.times))
        sent = sum(over(size, phase.parts) for size in sizes.values())
        moved += phase.times * len(phase.pairs) * sent
    return CollectiveCost(spent, tiles, ipus, moved)


def phases(form: c.CollectiveForm) -> Iterator[Phase]:
    """Yield the transfers of a collective, those that are alike together."""
    size = form.group_size
    if form.kind == c.PERMUTE:
        pairs = tuple(pair for pair in form.pairs if pair[0] != pair[1])
        if pairs:
            yield Phase(1, 1, pairs)
        return
    if size < 2:
        return
    ring = tuple(
        (member, group[(place + 1) % len(group)])
        for group in form.groups
        if len(group) > 1
        for place, member in enumerate(group)
    )
    if form.kind in c.REDUCING:
        yield Phase(size - 1, size, ring, reduces=True)
    if form.kind == c.ALL_REDUCE:
        yield Phase(size - 1, size, ring)
    elif form.kind == c.ALL_GATHER:
        yield Phase(size - 1, 1, ring)
    elif form.kind == c.BROADCAST:
        reach = 1
        while reach < size:
            yield Phase(1, 1, _doubled(form.groups, reach))
            reach *= 2
    elif form.kind in (c.ALL_TO_ALL, c.RAGGED):
        everyone = tuple((a, b) for group in form.groups for a in group for b in group if a != b)
        yield Phase(1, size, everyone)


def _doubled(groups: c.Groups, reach: int) -> tuple[tuple[int, int], ...]:
    """Return who sends to whom where the first `reach` members of each group have it."""
    return tuple(
        pair
        for group in groups
        for pair in zip(group[:reach], group[reach : 2 * reach])  # noqa: B905 - the last may have no partner
    )


def collective_flows(program: Program, step: c.Collective) -> Iterator[tuple[int, Flow]]:
    """Yield what one execution sends between IPUs, each flow with how often it is sent."""
    sizes = _bytes_by_ipu(program, step)
    for phase in phases(step.form):
        for flow in _phase_flows(program, phase, sizes):
            yield phase.times, flow


def _phase_flows(program: Program, phase: Phase, sizes: dict[int, int]) -> list[Flow]:
    return [
        Flow(program.place(ipu, source), program.place(ipu, target), over(size, phase.parts))
        for source, target in phase.pairs
        for ipu, size in sizes.items()
    ]


def _bytes_by_ipu(program: Program, step: c.Collective) -> dict[int, int]:
    """Return the bytes that a participant brings, by its IPUs."""
    brought = step.inputs[:1] if step.form.kind == c.RAGGED else step.inputs
    found: Counter[int] = Counter()
    for moved in brought:
        variable = program.variables[moved.variable]
        found[variable.ipu] += bytes_of(variable)
    return dict(found)


def bytes_of(variable: Variable) -> int:
    """Return the bytes of a variable's elements, each once."""
    return over(prod(variable.shape) * ELEMENT_TYPES[variable.element_type].bits, 8)


def _phase_cost(
    program: Program, machine: Machine, phase: Phase, sizes: dict[int, int], tiles: int
) -> Spent:
    system = program.ipus * program.participants
    flows = _phase_flows(program, phase, sizes)
    exchange = link_transfer(machine, flows, program.system_ipus or system)
    part = max(over(size, phase.parts) for size in sizes.values()) if sizes else 0
    compute = _added(machine, over(part, max(tiles, 1))) if phase.reduces else NOTHING
    return Spent(compute=compute, exchange=exchange, sync=sync(machine, system))


def _added(machine: Machine, tile_bytes: int) -> Charge:
    """Return the charge of adding what came in to what is there: a load for each store, paired."""
    tile = machine.tile
    return charge_of(
        machine,
        (tile.supervisor_vertex_cycles, "tile.supervisor_vertex_cycles"),
        (tile.run_workers_cycles, "tile.run_workers_cycles"),
        (2 * over(tile_bytes, tile.store_bytes_per_cycle), "tile.store_bytes_per_cycle"),
    )


class RemotePhase:
    """Copies in one direction at one IPU, one after the other: the access is paid once."""

    def __init__(self, machine: Machine, ipu: int, *, write: bool) -> None:
        self.machine = machine
        self.ipu = ipu
        self.write = write
        self.size_bytes = 0
        self.charged = NOTHING

    def add(self, variable: Variable) -> Charge:
        """Return what a variable's copy adds to the phase."""
        self.size_bytes += bytes_of(variable)
        total = remote_transfer(self.machine, self.size_bytes, write=self.write)
        before, self.charged = self.charged, total
        return Charge(
            total.cycles - before.cycles, max(0, total.assumed_cycles - before.assumed_cycles)
        )


def stored_cost(
    program: Program, step: Pipeline, patterns: Iterable[Pattern], machine: Machine
) -> tuple[Charge, int]:
    """Return cycles and bytes of what goes to remote memory at the ends of a pipeline's slots.

    Each IPU has remote memory of its own: a slot's end takes as long as that with most to do.
    """
    total, moved = NOTHING, 0
    for pattern in patterns:
        active = [c for c in step.channels if c.producer in pattern.positions]
        sizes: Counter[int] = Counter()
        for copy in stored(program, active):
            variable = program.variables[copy.destination]
            sizes[variable.ipu] += bytes_of(variable)
        most = remote_transfer(machine, max(sizes.values(), default=0), write=True)
        total = total.plus(most.times(pattern.slots))
        moved += pattern.slots * sizes.total()
    return total, moved
