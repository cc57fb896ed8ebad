"""Collectives and remote copies against sums done by hand."""

from dataclasses import replace

import pytest

from hloipu_runtime.costs.collecting import (
    RemotePhase,
    collective_cost,
    phases,
    phases_by_level,
    short_ways,
)
from hloipu_runtime.costs.estimate import estimate
from hloipu_runtime.errors import MachineError
from hloipu_runtime.machine.charges import NOTHING
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.machine.transfers import remote_transfer
from hloipu_runtime.program import collective as c
from hloipu_runtime.program.collective import Collective, CollectiveForm, Moved, RemoteCopy
from hloipu_runtime.program.mapping import Mapping, Tiles, whole
from hloipu_runtime.program.program import Program, Role, Variable
from tests.support.program_builder import ProgramBuilder, rows

TINY = load_machine("tiny")
SYNC = 500
"""Between IPUs of `tiny`."""
ADDING = 10 + 6
"""Of a vertex on all workers, besides loads and stores."""


def program_of(form: CollectiveForm, replicas: int, size: int = 4000, ipus: int = 1) -> Program:
    """Return a program that meets once on f32[size], on its last IPU, all of it on 4 tiles."""
    make = ProgramBuilder(ipus=ipus)
    grown = size * form.group_size if form.kind == c.ALL_GATHER else size
    if form.kind == c.REDUCE_SCATTER:
        grown = size // form.group_size
    x = make.variable((size,), rows(4, size // 4), ipu=ipus - 1)
    y = make.variable((grown,), rows(4, grown // 4), ipu=ipus - 1)
    make.stream_in(x)
    value = make.value_like(y)
    make.emit(Collective(form, (Moved(x, make.held[x]),), (Moved(y, value),), "r"))
    return replace(make.program(), replicas=replicas)


def cycles(form: CollectiveForm, replicas: int, **keywords: int) -> int:
    program = program_of(form, replicas, **keywords)
    step = program.body.steps[-1]
    assert isinstance(step, Collective)
    return collective_cost(program, step, TINY).spent.total.cycles


def ring(count: int) -> c.Groups:
    return (tuple(range(count)),)


def test_an_all_reduce_of_two_over_their_rung() -> None:
    # 16,000 bytes in halves; a rung has 4 links of one byte a cycle each way, a hop takes 100
    phase = SYNC + 100 + 8000 // 4
    adding = ADDING + 2 * (2000 // 8)  # 2,000 bytes on each of four tiles
    form = CollectiveForm(c.ALL_REDUCE, ring(2), monoid="add")
    assert cycles(form, 2) == 2 * phase + adding


@pytest.mark.parametrize("count", [4, 6, 8])
def test_an_all_reduce_of_many_is_twice_its_halves(count: int) -> None:
    size = 96 * 4
    reduce_scatter = CollectiveForm(c.REDUCE_SCATTER, ring(count), monoid="add")
    gather = CollectiveForm(c.ALL_GATHER, ring(count))
    whole_way = CollectiveForm(c.ALL_REDUCE, ring(count), monoid="add")
    halves = cycles(reduce_scatter, count, size=size)
    halves += cycles(gather, count, size=size // count)
    assert cycles(whole_way, count, size=size) == halves


@pytest.mark.parametrize("count", [2, 3, 5, 8, 16])
def test_bytes_that_a_ring_moves(count: int) -> None:
    size = 4 * count * 10
    form = CollectiveForm(c.ALL_REDUCE, ring(count), monoid="add")
    program = program_of(form, count, size=size)
    step = program.body.steps[-1]
    assert isinstance(step, Collective)
    # every member sends 2 (n - 1) of its n parts
    sent = count * 2 * (count - 1) * (4 * size // count)
    assert collective_cost(program, step, TINY).moved_bytes == sent


@pytest.mark.parametrize("kind", [c.ALL_REDUCE, c.REDUCE_SCATTER, c.ALL_GATHER])
@pytest.mark.parametrize("count", [3, 4, 6, 8, 16, 64])
def test_short_ways_bring_all_to_all(kind: str, count: int) -> None:
    form = CollectiveForm(kind, ring(count), monoid="add")
    ways = list(short_ways(form, [0] * count))
    assert len(ways) == 1 + (count & (count - 1) == 0)
    lengths = [1, (count - 1).bit_length()]
    for way, length in zip(ways, lengths, strict=False):
        halves = 2 if kind == c.ALL_REDUCE else 1
        assert sum(phase.times for phase in way) == halves * length
        known = [{member} for member in range(count)]
        for phase in way[:length]:  # whose values members have, or have added to some part
            known = [
                {x for a, b in phase.pairs if b == n for x in known[a]} | own
                for n, own in enumerate(known)
            ]
        assert all(own == set(range(count)) for own in known)
        # as few bytes as a ring's: every half brings (n - 1) / n of all
        sent = dict.fromkeys(range(count), 0.0)
        for phase in way:
            for a, _ in phase.pairs:
                sent[a] += phase.copies / phase.parts
        whole = 1 if kind == c.ALL_GATHER else 1 / count
        assert list(sent.values()) == pytest.approx([halves * (count - 1) * whole] * count)
        added = sum(phase.reduces / phase.parts for phase in way)
        assert added == pytest.approx(0 if kind == c.ALL_GATHER else (count - 1) / count)


def test_few_bytes_take_few_phases() -> None:
    small = cycles(CollectiveForm(c.ALL_REDUCE, ring(8), monoid="add"), 8, size=8)
    # 32 bytes in eighths, all with all: 4 hops at most; 16 flows share each rail
    assert small < 3 * (SYNC + 400) < 14 * (SYNC + 100)
    assert not list(short_ways(CollectiveForm(c.ALL_REDUCE, ring(4)), [0, 0, 1, 1]))


@pytest.mark.parametrize("count", range(2, 18))
def test_a_broadcast_reaches_all_in_as_few_phases_as_doubling_can(count: int) -> None:
    form = CollectiveForm(c.BROADCAST, ring(count))
    there = {0}
    made = list(phases(form))
    assert len(made) == (count - 1).bit_length()
    for phase in made:
        assert {a for a, _ in phase.pairs} <= there
        there |= {b for _, b in phase.pairs}
    assert there == set(range(count))


def test_a_permutation_is_one_phase() -> None:
    pairs = ((0, 1), (1, 0), (2, 2))
    form = CollectiveForm(c.PERMUTE, ring(3), pairs)
    assert cycles(form, 3) == SYNC + 100 + 16000 // 4


def test_an_all_to_all_shares_the_links() -> None:
    # two members: one phase of a half over the rung
    form = CollectiveForm(c.ALL_TO_ALL, ring(2))
    assert cycles(form, 2) == SYNC + 100 + 8000 // 4


def test_replicas_of_two_ipus_lie_two_apart() -> None:
    # IPUs 1 and 3: a rail of 2 links
    form = CollectiveForm(c.ALL_REDUCE, ring(2), monoid="add")
    adding = ADDING + 2 * (2000 // 8)
    assert cycles(form, 2, ipus=2) == 2 * (SYNC + 100 + 8000 // 2) + adding


@pytest.mark.parametrize("kind", [c.ALL_REDUCE, c.ALL_GATHER, c.ALL_TO_ALL, c.BROADCAST])
def test_who_stands_alone_pays_nothing(kind: str) -> None:
    form = CollectiveForm(kind, ((0,), (1,)), monoid="add")
    assert cycles(form, 2) == 0


DOMAINS = replace(TINY, links=replace(TINY.links, ipus_per_link_domain=4))
"""Four IPUs, those of a chassis, in each link domain."""


def test_an_all_reduce_by_levels() -> None:
    # 16,000 bytes on eight members, four in each domain. Within: quarters round two rungs,
    # up one rail and down the other, whose links carry 2 bytes a cycle. Between: eighths, four
    # of them over the 2 links of a chassis, in 1000 for the way.
    form = CollectiveForm(c.ALL_REDUCE, ring(8), monoid="add")
    program = program_of(form, 8)
    step = program.body.steps[-1]
    assert isinstance(step, Collective)
    cost = collective_cost(program, step, DOMAINS)
    within, between = 100 + 4000 // 2, 1000 + 4 * 2000 // 2
    quarter, eighth = ADDING + 2 * (1000 // 8), ADDING + 2 * (500 // 8 + 1)
    expected = 6 * (SYNC + within) + 3 * quarter + 2 * (SYNC + between) + eighth
    assert cost.spent.total.cycles == expected
    assert cost.links == (6 * within, 2 * between)
    assert cost.moved_bytes == 8 * (6 * 4000 + 2 * 2000)


@pytest.mark.parametrize("kind", [c.ALL_GATHER, c.BROADCAST])
@pytest.mark.parametrize(
    "groups", [ring(8), ((0, 4, 1, 5), (2, 6, 3, 7)), ((7, 6, 3, 2), (5, 4, 1, 0))]
)
def test_levels_bring_all_to_all(kind: str, groups: c.Groups) -> None:
    domains = [member // 4 for member in range(8)]
    has = {x: {x} if kind == c.ALL_GATHER else set() for group in groups for x in group}
    for group in groups:
        has[group[0]] = {group[0]}
    handed = {x: set(parts) for x, parts in has.items()}
    for phase in phases_by_level(CollectiveForm(kind, groups), domains):
        crosses = {domains[a] != domains[b] for a, b in phase.pairs}
        assert len(crosses) == 1  # a phase goes over one kind of link
        handed = {x: set(parts) for x, parts in has.items()}
        for _ in range(phase.times):
            came = {b: handed[a] for a, b in phase.pairs}
            assert all(len(parts) <= phase.copies for parts in came.values())
            for member, parts in came.items():
                has[member] |= parts
            handed = {x: came.get(x, set()) for x in has}
    for group in groups:
        wanted = set(group) if kind == c.ALL_GATHER else {group[0]}
        assert all(has[member] == wanted for member in group)


@pytest.mark.parametrize(
    ("groups", "domains"),
    [
        (ring(4), [0, 0, 0, 0]),  # all in one domain
        (ring(4), [0, 1, 2, 3]),  # each in its own
        (ring(4), [0, 0, 0, 1]),  # not as many in each
        (((0, 1), (2, 3)), [0, 1, 0, 0]),  # one group crosses, the other does not
    ],
)
def test_groups_without_levels(groups: c.Groups, domains: list[int]) -> None:
    form = CollectiveForm(c.ALL_REDUCE, groups, monoid="add")
    assert not list(phases_by_level(form, domains))


def test_more_ipus_than_there_are() -> None:
    form = CollectiveForm(c.ALL_REDUCE, ring(300), monoid="add")
    with pytest.raises(MachineError) as error:
        cycles(form, 300, size=1200)
    assert error.value.code == "E3210"


def test_remote_copies_stream_at_the_machines_rate() -> None:
    make = ProgramBuilder()
    here = make.variable((4000,), rows(4, 1000))
    there = make.variable((4000,), Mapping(Tiles((), (), 0), (whole(4000),)), role=Role.REMOTE)
    make.stream_in(here)
    before = estimate(make.program(), TINY).total_cycles
    value = make.held[here]
    make.emit(RemoteCopy(here, there, value))
    make.emit(RemoteCopy(there, here, value))
    after = estimate(make.program(), TINY).total_cycles
    assert before is not None
    assert after is not None
    # 16,000 bytes out at one byte a cycle, in at two, 100 cycles each to begin
    assert after - before == 16_000 + 100 + 8_000 + 100
    make.emit(RemoteCopy(there, here, value))  # goes on with the one before
    assert estimate(make.program(), TINY).total_cycles == after + 8_000


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("name", ["tiny", "gc200"])
def test_copies_of_one_phase_cost_what_one_copy_of_all_their_bytes_does(
    name: str, write: bool
) -> None:
    """The first of them pays for the access; parts that are assumed add up, too."""
    machine = load_machine(name)
    phase = RemotePhase(machine, 0, write=write)
    sizes = (7, 1_000, 33, 250_000, 1)
    charged = NOTHING
    for elements in sizes:
        part = Mapping(Tiles(), (whole(elements),))
        charged = charged.plus(phase.add(Variable("v", "f32", (elements,), part)))
    assert charged == remote_transfer(machine, 4 * sum(sizes), write=write)
    assert charged.assumed_cycles > 0
