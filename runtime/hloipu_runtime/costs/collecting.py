"""Charges of collectives and remote copies.

Participant p of a program on S IPUs takes the IPUs p * S to p * S + S - 1 of the system. Reductions
and gathers go round a ring of the group's members, each handing one part on to its neighbour: n - 1
times for a reduce-scatter or an all-gather, both one after the other for an all-reduce, which is as
few bytes as can be (Patarasuk and Yuan: Bandwidth optimal all-reduce algorithms for clusters of
workstations, 2009). The ring is in the members' order, or up the ladder of links and down it. Few
bytes take fewer phases: members exchange halves with one at twice the distance each time, or all
with all at once (Thakur, Rabenseifner and Gropp: Optimization of Collective Communication
Operations in MPICH, 2005, sections 4.4 and 4.5). A broadcast doubles the members that have it in
each phase. All others go in one phase, straight from sender to receiver. Each phase is a meeting of
all IPUs and a transfer over the links; getting data to the links on a chip is taken to go on beside
that.

Where members of a group are in several link domains, as many in each, it may go by levels: members
of a domain reduce over IPU-Links, those with the same part over gateways, and the domain's members
hand the sums round (Jia et al.: Highly scalable deep learning training system with mixed-precision,
2018, hierarchical all-reduce). Of all these ways the cheapest counts.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from hloipu_runtime.costs.spent import FREE, Spent
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.charges import NOTHING, Charge, charge_of, over
from hloipu_runtime.machine.costs import TileTraffic, exchange, sync
from hloipu_runtime.machine.links import (
    NO_LINK_CYCLES,
    Bundle,
    Flow,
    LinkCycles,
    bundle_price,
    check_system,
)
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
    reduces: int = 0
    """How many parts a member takes in to add them to its own."""
    copies: int = 1
    """Parts that are handed on together."""

    def bytes_of(self, size_bytes: int) -> int:
        """Return the bytes that are handed on, of a member's that brings so many."""
        return over(size_bytes * self.copies, self.parts)


class CollectiveCost(NamedTuple):
    """What one execution of a collective costs."""

    spent: Spent
    tiles: int
    ipus: tuple[int, ...]
    """Of the first participant."""
    moved_bytes: int
    """That the participants send, all together."""
    links: LinkCycles
    """Of its cycles, those on links by their kind."""


def collective_cost(program: Program, step: c.Collective, machine: Machine) -> CollectiveCost:
    """Return the cost of a collective on a machine.

    Raises MachineError E3210 where the machine has not so many IPUs.
    """
    check_system(machine, program.ipus * program.participants)  # before pairs are written out
    ipus, tiles = _tiles(program, step)
    if step.form.kind == c.OWN_PART:
        spent, moved = _own_part(program, step, machine)
        return CollectiveCost(spent, tiles, ipus, moved, NO_LINK_CYCLES)
    chosen, cost = _chosen(program, step, machine, tiles)
    sizes = _bytes_by_ipu(program, step)
    moved = sum(
        phase.times * len(phase.pairs) * phase.bytes_of(size)
        for phase in chosen
        for size in sizes.values()
    )
    return CollectiveCost(cost.spent, tiles, ipus, moved, cost.links)


def _own_part(program: Program, step: c.Collective, machine: Machine) -> tuple[Spent, int]:
    """Return the cost of an exchange on one chip, and the bytes that it moves.

    As if none of the part lay where it is to lie: parts begin at other places on other IPUs.
    """
    source, target = (program.variables[moved.variable] for moved in (*step.inputs, *step.outputs))
    moved = bytes_of(target)
    traffic = TileTraffic(min(source.bytes_per_tile, moved), target.bytes_per_tile)
    return Spent(exchange=exchange(machine, [traffic])), moved


def _tiles(program: Program, step: c.Collective) -> tuple[tuple[int, ...], int]:
    """Return the first participant's IPUs, and how many tiles of them take part."""
    variables = [program.variables[moved.variable] for moved in (*step.inputs, *step.outputs)]
    ipus = tuple(sorted({variable.ipu for variable in variables}))
    return ipus, sum(max(v.mapping.tiles.count for v in variables if v.ipu == ipu) for ipu in ipus)


class _Cost(NamedTuple):
    """What phases cost."""

    spent: Spent
    links: LinkCycles


def _chosen(
    program: Program, step: c.Collective, machine: Machine, tiles: int
) -> tuple[tuple[Phase, ...], _Cost]:
    """Return the phases that a collective takes, round a ring or by levels, and what they cost."""
    sizes = _bytes_by_ipu(program, step)

    def priced(phases_taken: tuple[Phase, ...]) -> tuple[tuple[Phase, ...], _Cost]:
        spent, links = FREE, NO_LINK_CYCLES
        for phase in phases_taken:
            cost = _phase_cost(program, machine, phase, sizes, tiles)
            spent = spent.plus(cost.spent.times(phase.times))
            links = links.plus(cost.links, phase.times)
        return phases_taken, _Cost(spent, links)

    ipu = min(sizes, default=0)
    places = [program.place(ipu, p) for p in range(program.participants)]
    # Participants that are in several domains count as in that of their first IPU.
    domains = [place // machine.links.ipus_per_link_domain for place in places]
    forms = [step.form]
    if step.form.kind in _ROUND_RINGS:
        forms.append(replace(step.form, groups=_folded_groups(step.form.groups, places)))
    ways = [tuple(phases(form)) for form in forms]
    ways += [candidate for form in forms if (candidate := tuple(phases_by_level(form, domains)))]
    ways += [candidate for candidate in short_ways(step.form, domains) if candidate]
    candidates = [priced(candidate) for candidate in dict.fromkeys(ways)]
    return min(candidates, key=lambda each: each[1].spent.total.cycles)


_ROUND_RINGS = (c.ALL_REDUCE, c.REDUCE_SCATTER, c.ALL_GATHER)


def _folded_groups(groups: c.Groups, places: Sequence[int]) -> c.Groups:
    return tuple(tuple(folded(sorted(group, key=places.__getitem__))) for group in groups)


def folded(members: Sequence[int]) -> list[int]:
    """Return members along a ladder as a ring without a long way back: up it, and down.

    >>> folded([0, 1, 2, 3, 4, 5])
    [0, 2, 4, 5, 3, 1]
    """
    return [*members[::2], *reversed(members[1::2])]


def phases(form: c.CollectiveForm) -> Iterator[Phase]:
    """Yield the transfers of a collective round a ring, those that are alike together."""
    size = form.group_size
    if form.kind == c.PERMUTE:
        pairs = tuple(pair for pair in form.pairs if pair[0] != pair[1])
        if pairs:
            yield Phase(1, 1, pairs)
        return
    if size < 2:
        return
    ring = _rings(form.groups)
    if form.kind in c.REDUCING:
        yield Phase(size - 1, size, ring, reduces=1)
    if form.kind == c.ALL_REDUCE:
        yield Phase(size - 1, size, ring)
    elif form.kind == c.ALL_GATHER:
        yield Phase(size - 1, 1, ring)
    elif form.kind == c.BROADCAST:
        yield from _broadcast(form.groups)
    elif form.kind in (c.ALL_TO_ALL, c.RAGGED):
        yield Phase(1, size, _everyone(form.groups))


def short_ways(form: c.CollectiveForm, domains: Sequence[int]) -> Iterator[tuple[Phase, ...]]:
    """Yield the ways of a collective that take few phases, where groups are in one link domain.

    `domains`: of each participant.
    """
    size, groups = form.group_size, form.groups
    if size < 3 or form.kind not in _ROUND_RINGS:  # two members have no shorter way
        return
    if any(len({domains[member] for member in group}) > 1 for group in groups):
        return
    scatters, gathers = form.kind in c.REDUCING, form.kind != c.REDUCE_SCATTER
    everyone = _everyone(groups)
    parts = size if scatters else 1
    first = (Phase(1, size, everyone, reduces=size - 1),) if scatters else ()
    last = (Phase(1, parts, everyone),) if gathers else ()
    yield first + last
    if size & (size - 1):
        return
    reaches = [1 << n for n in range(size.bit_length() - 1)]
    halves = [Phase(1, 2 * reach, _partners(groups, reach), reduces=1) for reach in reaches]
    doubles = [
        Phase(1, parts, _partners(groups, reach), copies=size // reach // 2)
        for reach in reversed(reaches)
    ]
    yield (*(halves if scatters else ()), *(doubles if gathers else ()))


def _everyone(groups: c.Groups) -> tuple[tuple[int, int], ...]:
    return tuple((a, b) for group in groups for a in group for b in group if a != b)


def _partners(groups: c.Groups, reach: int) -> tuple[tuple[int, int], ...]:
    """Return who sends to whom where members exchange with the one at a distance."""
    return tuple((m, group[n ^ reach]) for group in groups for n, m in enumerate(group))


def phases_by_level(form: c.CollectiveForm, domains: Sequence[int]) -> Iterator[Phase]:
    """Yield the transfers of a collective within link domains and between them.

    `domains`: of each participant. Nothing where the members of a group are not in several, as
    many in each, or where the kind has no such form.
    """
    split = [_by_domain(group, domains) for group in form.groups if len(group) > 1]
    sizes = {(len(parts), len(parts[0])) for parts in split}
    if len(sizes) != 1 or any(len(part) != len(parts[0]) for parts in split for part in parts):
        return
    ((count, within),) = sizes
    if count < 2 or within < 2:
        return
    inner = _rings([part for parts in split for part in parts])
    outer = _rings([tuple(same) for parts in split for same in zip(*parts, strict=True)])
    if form.kind in c.REDUCING:
        yield Phase(within - 1, within, inner, reduces=1)
        yield Phase(count - 1, within * count, outer, reduces=1)
    if form.kind == c.ALL_REDUCE:
        yield Phase(count - 1, within * count, outer)
        yield Phase(within - 1, within, inner)
    elif form.kind == c.ALL_GATHER:
        yield Phase(count - 1, 1, outer)
        yield Phase(within - 1, 1, inner, copies=count)
    elif form.kind == c.BROADCAST:
        # First those that are alone in their domain: few copies go over gateways.
        yield from _broadcast(
            [tuple(member for same in zip(*p, strict=True) for member in same) for p in split]
        )


def _by_domain(group: Sequence[int], domains: Sequence[int]) -> list[tuple[int, ...]]:
    members_by_domain: dict[int, list[int]] = {}
    for member in group:
        members_by_domain.setdefault(domains[member], []).append(member)
    return [tuple(members) for members in members_by_domain.values()]


def _rings(groups: Iterable[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """Return who hands on to whom, each member to the next one of its group."""
    return tuple(
        (member, group[(place + 1) % len(group)])
        for group in groups
        if len(group) > 1
        for place, member in enumerate(group)
    )


def _broadcast(groups: Sequence[Sequence[int]]) -> Iterator[Phase]:
    reach, size = 1, max(map(len, groups))
    while reach < size:
        yield Phase(1, 1, _doubled(groups, reach))
        reach *= 2


def _doubled(groups: Sequence[Sequence[int]], reach: int) -> tuple[tuple[int, int], ...]:
    """Return who sends to whom where the first `reach` members of each group have it."""
    return tuple(
        pair
        for group in groups
        for pair in zip(group[:reach], group[reach : 2 * reach])  # noqa: B905 - the last may have no partner
    )


def collective_flows(
    program: Program, step: c.Collective, machine: Machine
) -> Iterator[tuple[int, Flow]]:
    """Yield what one execution sends between IPUs, each flow with how often it is sent."""
    sizes = _bytes_by_ipu(program, step)
    for phase in _chosen(program, step, machine, _tiles(program, step)[1])[0]:
        for flow in _phase_flows(program, phase, sizes):
            yield phase.times, flow


def _phase_flows(program: Program, phase: Phase, sizes: dict[int, int]) -> list[Flow]:
    return [
        Flow(program.place(ipu, source), program.place(ipu, target), phase.bytes_of(size))
        for source, target in phase.pairs
        for ipu, size in sizes.items()
    ]


def _bytes_by_ipu(program: Program, step: c.Collective) -> dict[int, int]:
    brought = step.inputs[:1] if step.form.kind == c.RAGGED else step.inputs
    bytes_by_ipu: Counter[int] = Counter()
    for moved in brought:
        variable = program.variables[moved.variable]
        bytes_by_ipu[variable.ipu] += bytes_of(variable)
    return dict(bytes_by_ipu)


def bytes_of(variable: Variable) -> int:
    """Return the bytes of a variable's elements, each once."""
    return over(prod(variable.shape) * ELEMENT_TYPES[variable.element_type].bits, 8)


def _phase_cost(
    program: Program, machine: Machine, phase: Phase, sizes: dict[int, int], tiles: int
) -> _Cost:
    system = program.ipus * program.participants
    bundles = [
        Bundle(_places(program, phase.pairs, ipu), phase.bytes_of(size))
        for ipu, size in sizes.items()
    ]
    exchange, links = bundle_price(machine, bundles, program.system_ipus or system)
    part = max(map(phase.bytes_of, sizes.values()), default=0) * phase.reduces
    compute = _added(machine, over(part, max(tiles, 1))) if phase.reduces else NOTHING
    return _Cost(Spent(compute=compute, exchange=exchange, sync=sync(machine, system)), links)


def _places(
    program: Program, pairs: tuple[tuple[int, int], ...], ipu: int
) -> tuple[tuple[int, int], ...]:
    places = [program.place(ipu, participant) for participant in range(program.participants)]
    return tuple((places[source], places[target]) for source, target in pairs)


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
