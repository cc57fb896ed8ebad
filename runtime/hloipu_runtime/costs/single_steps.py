"""Charges of single steps: compute sets, exchanges, collectives, transfers, decisions."""

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from hloipu_runtime.costs.computing import compute_cost
from hloipu_runtime.costs.costs import StepCost
from hloipu_runtime.costs.exchanging import exchange_cost
from hloipu_runtime.costs.forms import Forms
from hloipu_runtime.costs.spent import Spent
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.collective import Collective, RemoteCopy
from hloipu_runtime.program.program import Program, Role

if TYPE_CHECKING:
    from hloipu_runtime.costs.collecting import RemotePhase

from hloipu_runtime.machine.charges import NOTHING, Charge
from hloipu_runtime.machine.transfers import host_transfer
from hloipu_runtime.program.program import Variable


class HostPhase:
    """Transfers in one direction with nothing but barriers between: one round trip for them all.

    Streams that are connected before the run pay none: the host is ahead of them.
    """

    def __init__(
        self, program: Program, machine: Machine, *, to_device: bool, is_connected: bool = False
    ) -> None:
        self.program, self.machine = program, machine
        self.to_device, self.is_connected = to_device, is_connected
        self.bytes_by_ipu = [0] * (program.ipus * program.participants)
        """Participants are on IPUs of their own, all of which transfer at once."""
        self.busiest_tile_bytes = 0
        self.charged = NOTHING

    def add(self, variable: Variable, stream: str = "") -> Charge:
        """Return what a variable's transfer adds to the phase; the first one pays the round trip.

        The tile with most to move is taken to be the same for all variables: an upper bound.
        """
        program = self.program
        size_bytes = -(-prod(variable.shape) * ELEMENT_TYPES[variable.element_type].bits // 8)
        for participant in self._taking_part(stream):
            self.bytes_by_ipu[participant * program.ipus + variable.ipu] += size_bytes
        self.busiest_tile_bytes += 0 if variable.role is Role.REMOTE else variable.bytes_per_tile
        total = host_transfer(
            self.machine,
            self.bytes_by_ipu,
            to_device=self.to_device,
            busiest_tile_bytes=self.busiest_tile_bytes,
            is_connected=self.is_connected,
            hosts=program.hosts,
        )
        before, self.charged = self.charged, total
        return Charge(
            total.cycles - before.cycles, max(0, total.assumed_cycles - before.assumed_cycles)
        )

    def _taking_part(self, stream: str) -> Sequence[int]:
        """Return who transfers: what several partitions have alike the first of them sends."""
        program = self.program
        everyone = range(program.participants)
        if self.to_device or program.partitioning is None:
            return everyone
        from hloipu_runtime.program.seen import seen_by_users

        blocks = seen_by_users(program).blocks_of_streams.get(stream)
        if blocks is None:
            return everyone
        holders = blocks.first_holders
        count = len(holders)
        return [p for p in everyone if holders[p % count] == p % count]


_NOTHING = Spent()


def computing(program: Program, step: s.ComputeSet, machine: Machine, path: str) -> StepCost:
    """Return the cost of a compute set."""
    cost = compute_cost(program, step, machine)
    codelets = dict.fromkeys(group.codelet.name for group in step.groups)
    return StepCost(
        path,
        "compute",
        ", ".join(codelets),
        Spent(compute=cost.charge),
        tuple((step.groups[number].name, charge) for number, charge in cost.shares),
        cost.busy_tiles,
        cost.ipus,
        0,
        cost.one_tile_bytes,
        step,
    )


def exchanging(
    program: Program, step: s.Exchange, machine: Machine, forms: Forms, path: str
) -> StepCost:
    """Return the cost of an exchange."""
    cost = exchange_cost(program, step, machine, forms)
    name = step.name
    if not name and step.definitions:
        definition = step.definitions[0]
        name = program.values[definition.value].origin
        name = name or program.variables[definition.variable].origin
    step_cost = plain(path, "exchange", name, cost.spent, cost.tiles, cost.ipus, cost.moved_bytes)
    return step_cost._replace(step=step, links=cost.links)


def collecting(program: Program, step: Collective, machine: Machine, path: str) -> StepCost:
    """Return the cost of a collective."""
    from hloipu_runtime.costs.collecting import collective_cost

    cost = collective_cost(program, step, machine)
    kind = step.form.kind
    step_cost = plain(path, kind, step.name, cost.spent, cost.tiles, cost.ipus, cost.moved_bytes)
    return step_cost._replace(step=step, links=cost.links)


def plain(
    path: str,
    kind: str,
    name: str,
    spent: Spent = _NOTHING,
    tiles: int = 0,
    ipus: tuple[int, ...] = (),
    moved_bytes: int = 0,
) -> StepCost:
    """Return the cost of a step that is one thing."""
    return StepCost(path, kind, "", spent, ((name, spent.total),), tiles, ipus, moved_bytes)


def deciding(
    program: Program, variable: s.VariableId, ipus: frozenset[int], machine: Machine, step: StepCost
) -> StepCost:
    """Return a step with the cost of handing what a variable says to all tiles that follow it."""
    at = program.variables[variable].ipu
    there = frozenset(map(program.place, ipus))
    system = program.system_ipus or program.ipus
    from hloipu_runtime.costs.deciding import decision

    spent = decision(machine, program.place(at), there, system)
    everyone = tuple(sorted(ipus | {at}))
    tiles = len(everyone) * machine.chip.tiles_per_ipu
    name = step.shares[0][0]
    return step._replace(spent=spent, shares=((name, spent.total),), tiles=tiles, ipus=everyone)


class Transfers:
    """Costs of transfers to and from host and remote memory, which go on with those before them."""

    def __init__(self, program: Program, machine: Machine) -> None:
        self.program = program
        self.machine = machine
        self.phase: HostPhase | None = None
        self.remote: RemotePhase | None = None

    def follow(self, step: s.Step) -> None:
        """End what a step that comes next does not go on with."""
        if not isinstance(step, s.StreamIn | s.StreamOut | s.Sync):
            self.phase = None
        if not isinstance(step, RemoteCopy):
            self.remote = None

    def remote_copy(self, step: RemoteCopy, path: str) -> StepCost:
        """Return the cost of a copy to or from remote memory."""
        variables = self.program.variables
        source, destination = variables[step.source], variables[step.destination]
        write = destination.role is Role.REMOTE
        here = source if write else destination
        phase = self.remote
        if phase is None or (phase.ipu, phase.write) != (here.ipu, write):
            from hloipu_runtime.costs.collecting import RemotePhase

            phase = self.remote = RemotePhase(self.machine, here.ipu, write=write)
        spent = Spent(remote=phase.add(here))
        bits = prod(here.shape) * ELEMENT_TYPES[here.element_type].bits
        kind = "remote out" if write else "remote in"
        name, tiles = here.origin or here.name, here.mapping.tiles.count
        return plain(path, kind, name, spent, tiles, (here.ipu,), -(-bits // 8))

    def streaming(self, step: s.StreamIn | s.StreamOut, path: str) -> StepCost:
        """Return the cost of a transfer to or from the host."""
        program, machine = self.program, self.machine
        to_device = isinstance(step, s.StreamIn)
        if self.phase is None or self.phase.to_device != to_device:
            self.phase = HostPhase(
                program, machine, to_device=to_device, is_connected=program.is_resident
            )
        variable = program.variables[step.variable]
        spent = Spent(host=self.phase.add(variable, step.stream))
        bits = prod(variable.shape) * ELEMENT_TYPES[variable.element_type].bits
        return StepCost(
            path,
            "stream in" if to_device else "stream out",
            "",
            spent,
            ((variable.origin or step.stream, spent.total),),
            variable.mapping.tiles.count,
            (variable.ipu,),
            -(-bits // 8),
        )
