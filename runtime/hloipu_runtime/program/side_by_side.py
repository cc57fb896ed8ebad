"""Runs IPUs side by side: a branch for each between meetings.

Lowering writes steps in one order, whichever IPU they are on. Every variable lies on one IPU, so
steps on different IPUs never touch the same one, and need each other only by way of meetings:
exchanges between IPUs, and collectives. What the IPUs do from one meeting to the next are the
branches of a `Parallel`, which lasts as long as the slowest. Streams of the host, pipelines, and
loops and branches over several IPUs stay where they are; within a position of a pipeline that is on
several IPUs, and within loops, it is done as well.

Meetings are as early as what they need lets them be; those that nothing needs come last. A step
runs before a meeting if something at that meeting needs it, or if its IPU would only wait for
slower ones meanwhile. All but small steps of an IPU keep their order, so memory changes by what
comes from other IPUs alone. Where a stretch of tiles would hold clearly more than it held at its
fullest before, large copies between IPUs keep their places, too.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import groupby
from typing import NamedTuple

from hloipu_runtime.machine.costs import sync
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.machine.transfers import remote_transfer
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.collective import Collective, RemoteCopy
from hloipu_runtime.program.live_bytes import live_bytes_of
from hloipu_runtime.program.owners import owners
from hloipu_runtime.program.program import Program, Role
from hloipu_runtime.program.rebuilding import with_blocks
from hloipu_runtime.program.uses import steps_within, used, written


class Kind(Enum):
    """Kinds of steps for scheduling."""

    LOCAL = "on one IPU"
    MEETING = "between IPUs"
    BARRIER = "behind all before it, before all behind it"


class Timed(NamedTuple):
    """A step, as far as its time depends on it."""

    kind: Kind
    ipus: tuple[int, ...]
    """On which it keeps its place; none of a step that may go past others, or of a barrier."""
    needs: tuple[int, ...]
    """Steps before it that must be through."""
    weight: int
    """About how many cycles it takes."""


def times_of(steps: Sequence[Timed]) -> list[int]:
    """Return the time of each step; at one time, steps keep their order.

    Time grows with the steps and what they need, and with IPUs times meetings.
    """
    earliest, segments = _earliest(steps)
    times = _sinks_last(steps, earliest, segments)
    latest = _latest(steps, times, segments)
    _filled(steps, earliest, latest, times)
    for number, step in enumerate(steps):
        if step.kind is Kind.LOCAL and not step.ipus:
            times[number] = max((earliest[number], *(_after(times[n]) for n in step.needs)))
    return times


def _after(time: int) -> int:
    """Return the first time at which steps of one IPU can need what is there at a time."""
    return time + time % 2


def _earliest(steps: Sequence[Timed]) -> tuple[list[int], list[int]]:
    times: list[int] = []
    last: dict[int, int] = {}
    base = latest = 0
    for step in steps:
        time = max(
            (base, *(times[n] for n in step.needs), *(last.get(ipu, 0) for ipu in step.ipus))
        )
        match step.kind:
            case Kind.LOCAL:
                time = _after(time)
            case Kind.MEETING:
                time |= 1
            case Kind.BARRIER:
                base = time = latest | 1
        last.update(dict.fromkeys(step.ipus, time))
        latest = max(latest, time)
        times.append(time)
    segments, behind = [0] * len(steps), latest | 1
    for number in range(len(steps) - 1, -1, -1):
        segments[number] = behind
        if steps[number].kind is Kind.BARRIER:
            behind = times[number]
    return times, segments


def _sinks_last(
    steps: Sequence[Timed], earliest: Sequence[int], segments: Sequence[int]
) -> list[int]:
    """Return times at which meetings are that nothing needs as late as the next barrier."""
    needed = {n for step in steps for n in step.needs}
    return [
        segments[n]
        if step.kind is Kind.MEETING and not step.ipus and n not in needed
        else earliest[n]
        for n, step in enumerate(steps)
    ]


def _latest(steps: Sequence[Timed], times: Sequence[int], segments: Sequence[int]) -> list[int]:
    """Return the latest times of local steps at which no meeting is kept waiting."""
    latest_times = [end - 1 for end in segments]
    following: dict[int, int] = {}
    for number in range(len(steps) - 1, -1, -1):
        step = steps[number]
        if step.kind is not Kind.LOCAL:
            latest_times[number] = times[number] - 1
        for ipu in step.ipus:
            latest_times[number] = min(
                latest_times[number], following.get(ipu, latest_times[number])
            )
        following.update(dict.fromkeys(step.ipus, latest_times[number]))
        for n in step.needs:
            latest_times[n] = min(latest_times[n], latest_times[number])
    return latest_times


def _filled(
    steps: Sequence[Timed], earliest: Sequence[int], latest: Sequence[int], times: list[int]
) -> None:
    """Set the times of local steps that keep their order."""
    queues: dict[int, list[int]] = {}
    for number, step in enumerate(steps):
        if step.kind is Kind.LOCAL and step.ipus:
            queues.setdefault(step.ipus[0], []).append(number)
    waiting = dict.fromkeys(queues, 0)
    for time in range(0, max(latest, default=-1) + 1, 2):
        weight_by_ipu = dict.fromkeys(waiting, 0)
        for ipu, queue in queues.items():
            while waiting[ipu] < len(queue) and latest[queue[waiting[ipu]]] <= time:
                weight_by_ipu[ipu] += steps[queue[waiting[ipu]]].weight
                times[queue[waiting[ipu]]] = time
                waiting[ipu] += 1
        longest = max(weight_by_ipu.values(), default=0)
        for ipu, queue in queues.items():
            while waiting[ipu] < len(queue) and earliest[queue[waiting[ipu]]] <= time:
                weight_by_ipu[ipu] += steps[queue[waiting[ipu]]].weight
                if weight_by_ipu[ipu] > longest:
                    break
                times[queue[waiting[ipu]]] = time
                waiting[ipu] += 1


_CROSSING = -1


SMALL_BYTES = 128
"""Of what steps touch that may go past others. Assumed: less than what tiles round up to."""
_NEGLIGIBLE = 0.002
"""Of a tile's memory: so much more at its fullest counts for nothing. Assumed: gaps between
variables take 0.004. A bias that waits for its update is no reason for IPUs to wait."""


def side_by_side(program: Program, machine: Machine) -> Program:
    """Return the program with its IPUs at work at the same time; the same one where none can be.

    What is computed and the order of each host stream stay the same.
    Time grows with the steps.
    """
    return SideBySide(machine).side_by_side(program)


class _Unit(NamedTuple):
    """A step with the syncs before it."""

    steps: tuple[s.Step, ...]
    touched: frozenset[s.VariableId]
    writes: frozenset[s.VariableId]
    ipus: tuple[int, ...]
    kind: Kind


class SideBySide:
    """Does what `side_by_side` does, of programs that have sequences and variables in common."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._known: dict[int, tuple[s.Sequence, frozenset[s.VariableId], s.Sequence]] = {}
        """By identity of a sequence: it, kept so that this stays its own, what it owns, and what
        became of it."""

    def side_by_side(self, program: Program) -> Program:
        """Return the program with its IPUs at work at the same time."""
        if program.ipus == 1:
            return program
        self.program: Program = program
        self.owners: dict[int, frozenset[s.VariableId]] = owners(program)
        return program.with_sequences(self.sequence)

    def sequence(self, body: s.Sequence) -> s.Sequence:
        """Return a sequence whose steps on different IPUs are branches, inner ones first."""
        owned = self.owners.get(id(body), frozenset())
        known = self._known.get(id(body))
        if known is None or known[1] != owned:
            known = self._known[id(body)] = body, owned, self._written(body, owned)
        return known[2]

    def _written(self, body: s.Sequence, owned: frozenset[s.VariableId]) -> s.Sequence:
        steps = tuple(map(self._inside, body.steps))
        units = list(self._units(steps))
        if len({unit.ipus for unit in units if unit.kind is Kind.LOCAL}) > 1:
            times = times_of(self._timed(units, all_move=True))
            if self._takes_more(owned, units, times):
                times = times_of(self._timed(units, all_move=False))
            steps = tuple(_written_out(units, times))
        if len(steps) == len(body.steps) and all(
            a is b for a, b in zip(steps, body.steps, strict=True)
        ):
            return body
        return s.Sequence(steps)

    # --- units ------------------------------------------------------------------------------------

    def _units(self, steps: Sequence[s.Step]) -> Iterator[_Unit]:
        syncs: list[s.Step] = []
        for step in steps:
            if isinstance(step, s.Sync):
                syncs.append(step)
                continue
            for part in parts_by_ipu(self.program, step):
                yield self._unit(tuple(syncs), part)
            syncs.clear()
        if syncs:
            yield _Unit(tuple(syncs), frozenset(), frozenset(), (), Kind.BARRIER)

    def _unit(self, syncs: tuple[s.Step, ...], step: s.Step) -> _Unit:
        touched, writes = used(step, self.program), written(step, self.program)
        ipus = tuple(sorted({self.program.variables[v].ipu for v in touched}))
        kind = Kind.BARRIER
        if isinstance(step, Collective) or (isinstance(step, s.Exchange) and len(ipus) > 1):
            kind = Kind.MEETING
        elif len(ipus) == 1 and not any(map(_is_shared, steps_within(step, self.program))):
            kind = Kind.LOCAL
            if any(isinstance(sync, s.Sync) and sync.ipus > 1 for sync in syncs):
                syncs = tuple(s.Sync() for _ in syncs)
        return _Unit((*syncs, step), touched, writes, ipus, kind)

    def _inside(self, step: s.Step) -> s.Step:
        """Return a step with the sequences in it made so."""
        if isinstance(step, s.Parallel):
            return step
        return with_blocks(step, self.sequence)

    # --- times ------------------------------------------------------------------------------------

    def _timed(self, units: Sequence[_Unit], *, all_move: bool) -> list[Timed]:
        """Return what the time of each unit depends on; `all_move`: large meetings, too."""
        timed: list[Timed] = []
        writer: dict[s.VariableId, int] = {}
        readers: dict[s.VariableId, list[int]] = {}
        for number, unit in enumerate(units):
            needs: set[int] = set()
            for variable in unit.touched:
                if variable in writer:
                    needs.add(writer[variable])
                if variable in unit.writes:
                    needs.update(readers.pop(variable, ()))
                    writer[variable] = number
                else:
                    readers.setdefault(variable, []).append(number)
            moves = unit.kind is Kind.BARRIER or self._is_small(unit)
            moves = moves or (all_move and unit.kind is Kind.MEETING)
            ipus = () if moves else unit.ipus
            timed.append(Timed(unit.kind, ipus, tuple(sorted(needs)), self._weight(unit)))
        return timed

    def _is_small(self, unit: _Unit) -> bool:
        """Whether what a unit touches, or brings from other IPUs, hardly takes memory."""
        variables = self.program.variables
        touched = unit.writes if unit.kind is Kind.MEETING else unit.touched
        return not any(s.inner_steps(step) for step in unit.steps) and all(
            variables[v].role is not Role.REMOTE
            and variables[v].bytes_per_tile * variables[v].mapping.tiles.count <= SMALL_BYTES
            for v in touched
        )

    def _weight(self, unit: _Unit) -> int:
        """Return about how many cycles a unit takes: a byte that a tile touches each. Assumed."""
        variables = self.program.variables
        size = sum(variables[v].bytes_per_tile for v in unit.touched)
        last = unit.steps[-1]
        if isinstance(last, RemoteCopy):
            write = variables[last.destination].role is Role.REMOTE
            remote = variables[last.source if write else last.destination]
            remote_bytes = remote.bytes_per_tile * remote.mapping.tiles.count
            return remote_transfer(self.machine, remote_bytes, write=write).cycles
        iterations = last.count if isinstance(last, s.Repeat) else 1
        return iterations * (size + sync(self.machine).cycles)

    # --- memory -----------------------------------------------------------------------------------

    def _takes_more(
        self, owned: frozenset[s.VariableId], units: Sequence[_Unit], times: Sequence[int]
    ) -> bool:
        """Whether any stretch of tiles would hold clearly more than in the order as written."""
        order = sorted(range(len(units)), key=lambda n: (times[n], n))
        tiles = self.machine.chip.tiles_per_ipu
        before, after = (
            live_bytes_of(self.program, [units[n].touched for n in numbers], owned, tiles)
            for numbers in (range(len(units)), order)
        )
        negligible_bytes = int(_NEGLIGIBLE * self.machine.memory.bytes_per_tile)
        return bool((after.most > before.most + negligible_bytes).any())


def _is_shared(step: s.Step) -> bool:
    """Whether others than the IPU that a step works on have a part in it."""
    match step:
        case s.StreamIn() | s.StreamOut() | Collective() | s.Pipeline():
            return True
        case s.Sync():
            return step.ipus > 1
        case _:
            return False


def _written_out(units: Sequence[_Unit], times: Sequence[int]) -> Iterator[s.Step]:
    """Yield what runs at each time, side by side where that is on several IPUs."""
    order = sorted(range(len(units)), key=lambda n: (times[n], n))
    for time, numbers in groupby(order, key=times.__getitem__):
        together = [units[n] for n in numbers]
        if time % 2:
            for unit in together:
                yield from unit.steps
            continue
        branches: dict[int, list[s.Step]] = {}
        for unit in together:
            branches.setdefault(unit.ipus[0], []).extend(unit.steps)
        if len(branches) == 1:
            yield from branches.popitem()[1]
        else:
            yield s.Parallel(tuple(s.Sequence(tuple(branches[ipu])) for ipu in sorted(branches)))


def parts_by_ipu(program: Program, step: s.Step) -> Sequence[s.Step]:
    """Return what of a step is on single IPUs, each by itself, and the rest; else the step."""
    match step:
        case s.ComputeSet():
            return _compute_sets(program, step)
        case s.Exchange():
            return _exchanges(program, step)
        case _:
            return (step,)


def _compute_sets(program: Program, step: s.ComputeSet) -> Sequence[s.Step]:
    by_ipu: dict[int, list[int]] = {}
    for number, group in enumerate(step.groups):
        operands = (*group.outputs, *group.inputs)
        ipu = program.variables[operands[0].variable].ipu if operands else 0
        by_ipu.setdefault(ipu, []).append(number)
    if len(by_ipu) < 2:
        return (step,)
    return [s.ComputeSet(tuple(step.groups[n] for n in numbers)) for numbers in by_ipu.values()]


def _exchanges(program: Program, step: s.Exchange) -> Sequence[s.Step]:
    """Return an exchange in parts, if none of them reads what another one fills."""
    ipus = {variable: program.variables[variable].ipu for variable in used(step, program)}
    sources = {transfer.source for transfer in step.transfers}
    filled = {transfer.destination for transfer in step.transfers} | {
        transfer.variable for transfer in step.definitions
    }
    if len(set(ipus.values())) < 2 or sources & filled:
        return (step,)
    crossing = {
        transfer.destination
        for transfer in step.transfers
        if ipus[transfer.source] != ipus[transfer.destination]
    }
    transfers: dict[int, list[s.Transfer]] = {}
    definitions: dict[int, list[s.Definition]] = {}

    def part(variable: s.VariableId) -> int:
        return _CROSSING if variable in crossing else ipus[variable]

    for transfer in step.transfers:
        transfers.setdefault(part(transfer.destination), []).append(transfer)
    for definition in step.definitions:
        definitions.setdefault(part(definition.variable), []).append(definition)
    parts = sorted(transfers.keys() | definitions.keys())
    if len(parts) == 1:
        return (step,)
    return [
        s.Exchange(tuple(transfers.get(n, ())), tuple(definitions.get(n, ())), step.name)
        for n in parts
    ]
