"""Cuts into stages against every choice of cuts tried out."""

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.partition.stages.balancing import _Shared, burdens, cuts_of
from hloipu_compiler.partition.stages.cut_tables import Budget, CutTables
from hloipu_compiler.partition.stages.cutting import work
from hloipu_compiler.partition.stages.loads import Loads
from hloipu_compiler.partition.stages.recomputing import NONE
from hloipu_compiler.plan.schedule import Schedule
from tests.support.cases import each
from tests.support.texts_rows import rows

OPS = 9
PLENTY = 1e18


def loads(seed: int) -> Loads:
    draw = np.random.default_rng(seed)

    def until() -> np.ndarray:
        return np.concatenate(([0.0], np.cumsum(draw.integers(0, 100, OPS).astype(float))))

    crossing = np.concatenate(([0.0], draw.integers(1, 50, OPS - 1), [0.0])).astype(float)
    return Loads(tuple(range(OPS)), until(), until(), until(), until(), until(), until(),
                 crossing, 0.0, True)  # fmt: skip


def dearest(found: Loads, schedule: Schedule, budget: Budget, cuts: tuple[int, ...]) -> float:
    """Return what the dearest stage costs, infinite where one has no room."""
    worst = 0.0
    ends = (0, *cuts, OPS)
    for part, (a, b) in zip(burdens(found, schedule, budget, cuts), pairwise(ends), strict=True):
        sent = (found.crossing[a] + found.crossing[b]) * budget.cycles_per_byte
        cost = part.forward_cycles + part.backward_cycles + sent
        worst = max(worst, cost if part.memory_bytes <= budget.memory_bytes else np.inf)
    return worst


@each("kind", ["grouped", "interleaved", "sequential"])
@each("memory", [PLENTY, 1500.0])
@each("stages", [2, 3, 4])
@each("seed", range(4))
def test_no_cuts_are_better_by_more_than_a_fiftieth(
    seed: int, stages: int, memory: float, kind: str
) -> None:
    found, budget = loads(seed), Budget(0.5, memory)
    schedule = Schedule(stages, kind, 4)
    best = min(
        dearest(found, schedule, budget, cuts) for cuts in combinations(range(1, OPS), stages - 1)
    )
    cuts = cuts_of(found, schedule, budget)
    assert len(cuts) == stages - 1
    assert sorted(set(cuts)) == list(cuts)
    if np.isfinite(best):
        assert dearest(found, schedule, budget, cuts) <= 1.02 * best


def dearest_ipu(
    found: Loads,
    schedule: Schedule,
    budget: Budget,
    cuts: tuple[int, ...],
    ipus: tuple[int, ...],
    room: float = 1.0,
) -> float:
    """Return what the dearest IPU costs, infinite where one has not so many times the room."""
    sums, kept = np.zeros(max(ipus) + 1), np.zeros(max(ipus) + 1)
    parts = burdens(found, schedule, budget, cuts)
    for ipu, part, (a, b) in zip(ipus, parts, pairwise((0, *cuts, OPS)), strict=True):
        sent = (found.crossing[a] + found.crossing[b]) * budget.cycles_per_byte
        sums[ipu] += part.forward_cycles + part.backward_cycles + sent
        kept[ipu] += part.memory_bytes
    for *places, size in found.tied:  # each stage counts the weight and its gradient
        first, last = (sum(cut <= place for cut in cuts) for place in places)
        if first != last and ipus[first] == ipus[last]:
            kept[ipus[last]] -= 2 * size
    return float(sums.max()) if kept.max() <= room * budget.memory_bytes else np.inf


@each("memory", [PLENTY, 2000.0])
@each("ipus", [(0, 1, 0), (0, 1, 2, 0), (0, 1, 0, 1), (0, 1, 1, 0)])
@each("seed", range(6))
def test_ipus_with_several_stages_are_balanced(
    seed: int, ipus: tuple[int, ...], memory: float
) -> None:
    found, budget, stages = loads(seed), Budget(0.5, memory), len(ipus)
    schedule = Schedule(stages, "grouped", 4)
    best = min(
        dearest_ipu(found, schedule, budget, cuts, ipus)
        for cuts in combinations(range(1, OPS), stages - 1)
    )
    cuts = cuts_of(found, schedule, budget, ipus=ipus)
    assert sorted(set(cuts)) == list(cuts)
    if np.isfinite(best):
        assert dearest_ipu(found, schedule, budget, cuts, ipus, 1.05) <= 1.05 * best


@each("memory", [2000.0, 2600.0])
@each("ipus", [(0, 1, 0), (0, 1, 2, 0), (0, 1, 0, 1), (0, 1, 1, 0), (0, 1, 2)])
@each("seed", range(6))
def test_ipus_that_read_a_weight_of_another_have_it_too(
    seed: int, ipus: tuple[int, ...], memory: float
) -> None:
    found = replace(loads(seed), tied=((1, 7, 200.0), (3, 4, 50.0)))
    schedule, budget = Schedule(len(ipus), "grouped", 4), Budget(0.5, memory)
    best = min(
        dearest_ipu(found, schedule, budget, cuts, ipus)
        for cuts in combinations(range(1, OPS), len(ipus) - 1)
    )
    if np.isfinite(best):
        cuts = cuts_of(found, schedule, budget, ipus=ipus)
        assert dearest_ipu(found, schedule, budget, cuts, ipus, 1.05) <= 1.05 * best


@each("ipus", [(0, 1, 0), (0, 1, 2, 0), (0, 1, 0, 1), (0, 1, 1, 0)])
@each("seed", range(4))
def test_no_one_cut_nor_two_that_follow_are_better_elsewhere(
    seed: int, ipus: tuple[int, ...]
) -> None:
    """From whichever start, and whatever was tried from others before."""
    schedule, budget = Schedule(len(ipus), "grouped", 4), Budget(0.5, 2000.0)
    shared = _Shared(CutTables(loads(seed), schedule, budget, np.arange(OPS + 1), NONE), ipus)
    for start in combinations(range(1, OPS), len(ipus) - 1):
        cuts = shared.moved(start)
        others = (
            others
            for others in combinations(range(1, OPS), len(cuts))
            if len(moved := [n for n, cut in enumerate(cuts) if others[n] != cut]) == 1
            or (len(moved) == 2 and moved[1] == moved[0] + 1)
        )
        assert shared.score(cuts) <= min(map(shared.score, others)) * (1 + 1e-6)


def test_what_waits_is_twice_more_there_and_state_is_there_once() -> None:
    """It is where it was made and where it is read, too, if several micro-batches wait."""
    found, schedule = loads(0), Schedule(3, "grouped", 8)
    parts = burdens(found, schedule, Budget(0.5, PLENTY), (3, 6))
    for part, (a, b), waiting in zip(parts, ((0, 3), (3, 6), (6, OPS)), (7, 5, 1), strict=True):
        stash = found.stash_until[b] - found.stash_until[a]
        assert part.memory_bytes == part.state_bytes + waiting * stash


def test_memory_that_suffices_leaves_stages_even() -> None:
    """Weights of the first op fill most of an IPU; what waits for the backward pass is little."""
    until, none = np.arange(0.0, 10.0), np.zeros(10)
    state = np.concatenate(([0.0], np.full(9, 90.0)))
    found = Loads(tuple(range(OPS)), until, until, state, none, none, 0.1 * until, none, 0.0,
                  True)  # fmt: skip
    assert cuts_of(found, Schedule(3, "grouped", 8), Budget(0.0, 100.0)) == (3, 6)


def test_stages_have_room_for_the_update_of_their_largest_weight() -> None:
    until, none = np.arange(0.0, 10.0), np.zeros(10)
    updates = np.zeros((2, OPS))
    updates[:, 2] = 20.0, 30.0
    found = Loads(tuple(range(OPS)), until, until, 10 * until, none, none, none, none, 0.0, True,
                  updates=updates)  # fmt: skip
    schedule = Schedule(2, "grouped", 4)
    kept, beside = Budget(0.0, 60.0, updating=0.5), Budget(0.0, 60.0, optimizer=0.0, updating=1.0)
    assert [x.memory_bytes for x in burdens(found, schedule, kept, (4,))] == [40.0, 50.0]
    assert [x.memory_bytes for x in burdens(found, schedule, beside, (4,))] == [70.0, 50.0]
    assert cuts_of(found, schedule, kept) == (4,)
    assert cuts_of(found, schedule, beside) == (3,)


def most_waiting(found: Loads, cuts: tuple[int, ...]) -> float:
    """Return what waits at once of stages in turn: inputs of all so far, and what one makes."""
    waiting, most = 0.0, 0.0
    for a, b in pairwise((0, *cuts, OPS)):
        waiting += found.crossing[a]
        most = max(most, waiting + found.stash_until[b] - found.stash_until[a])
    return most


def ends_of_blocks(found: Loads, stages: int) -> list[int]:
    """Return where no more crosses than anywhere within a quarter of an even stage's work."""
    work = found.forward_until
    near = 0.25 * work[OPS - 1] / stages
    return [
        n
        for n in range(1, OPS)
        if all(
            found.crossing[n] <= found.crossing[other]
            for other in range(1, OPS)
            if abs(work[other] - work[n]) <= near
        )
    ]


@each("room", [0.0, 100.0, 200.0, 300.0, PLENTY])
@each("stages", [2, 3, 4])
@each("seed", range(4))
def test_stages_in_turn_keep_little_and_make_little_again(
    seed: int, stages: int, room: float
) -> None:
    found, schedule = loads(seed), Schedule(stages, "sequential", 4)
    budget = Budget(0.5, 2 * (float(found.state_until[-1]) + room), 0.0, 0.0)
    ends = ends_of_blocks(found, stages)
    places = ends if len(ends) >= stages - 1 else range(1, OPS)
    every = list(combinations(places, stages - 1))
    least = min(most_waiting(found, cuts) for cuts in every)
    cuts = cuts_of(found, schedule, budget, recompute="full", ipus=(0,) * stages)
    assert cuts in every
    assert most_waiting(found, cuts) <= max(1.03 * least, room)
    assert cuts[-1] == min(x[-1] for x in every if most_waiting(found, x) <= max(least, room))


def test_numbers_of_ipus_may_have_gaps() -> None:
    found, schedule, budget = loads(1), Schedule(4, "grouped", 8), Budget(1e-6, PLENTY)
    expected = cuts_of(found, schedule, budget, ipus=(0, 1, 1, 0))
    assert cuts_of(found, schedule, budget, ipus=(7, 2, 2, 7)) == expected


def test_equal_blocks_are_cut_at_their_borders() -> None:
    """Three ops a block, little crosses between blocks, and any cut there is as good."""
    until = np.arange(0.0, 13.0)
    crossing = np.array([0, 9, 9, 1, 9, 9, 1, 9, 9, 1, 9, 9, 0.0])
    none = np.zeros(13)
    found = Loads(tuple(range(12)), until, none, none, none, none, none, crossing, 0.0, True)
    schedule = Schedule(4, "grouped", 4)
    assert cuts_of(found, schedule, Budget(1e-6, PLENTY)) == (3, 6, 9)


def test_stages_that_keep_more_micro_batches_get_fewer_ops() -> None:
    until = np.arange(0.0, 13.0)
    crossing = np.array([0.0, *([1.0] * 11), 0.0])
    none = np.zeros(13)
    found = Loads(tuple(range(12)), until, until, none, none, none, 10 * until, crossing, 0.0, True)
    schedule = Schedule(3, "grouped", 8)
    roomy = cuts_of(found, schedule, Budget(0.0, PLENTY))
    tight = cuts_of(found, schedule, Budget(0.0, 160.0))
    assert roomy == (4, 8)
    assert tight[0] < roomy[0]
    assert max(x.memory_bytes for x in burdens(found, schedule, Budget(0.0, 160.0), tight)) <= 160


def test_recomputing_stages_keep_their_inputs_only() -> None:
    found, schedule, budget = loads(0), Schedule(3, "grouped", 8), Budget(0.5, PLENTY)
    cuts = (3, 6)
    plain, again = (burdens(found, schedule, budget, cuts, recompute=r) for r in ("none", "full"))
    stash = found.stash_until[6] - found.stash_until[3]
    assert plain[1].stash_bytes == 3 * stash
    assert again[1].stash_bytes == 3 * found.crossing[3] + stash
    assert again[1].backward_cycles == plain[1].backward_cycles + plain[1].forward_cycles
    assert again[2] == plain[2]


def in_trips(cycles: list[float], inside: frozenset[int]) -> Loads:
    """Return loads of ops of which as many bytes go on from each."""
    until = np.concatenate(([0.0], np.cumsum(cycles)))
    nothing, crossing = np.zeros(OPS + 1), np.full(OPS + 1, 5.0)
    return Loads(tuple(range(OPS)), until, nothing, nothing, nothing, nothing, nothing, crossing,
                 0.0, False, inside)  # fmt: skip


@pytest.mark.parametrize(
    ("cycles", "anywhere", "at_borders"),
    [
        ([40, 40, 40, 20, 10, 10, 40, 35, 35], 4, 3),  # 150 in place of 140
        ([30, 30, 30, 60, 1, 59, 30, 30, 30], 4, 4),  # 210 in place of 150
    ],
)
def test_trips_stay_whole_where_that_costs_little(
    cycles: list[float], anywhere: int, at_borders: int
) -> None:
    inside = frozenset((1, 2, 4, 5, 7, 8))
    schedule, budget = Schedule(2, "grouped", 4, trains=False), Budget(0.0, PLENTY)
    assert cuts_of(in_trips(cycles, frozenset()), schedule, budget) == (anywhere,)
    assert cuts_of(in_trips(cycles, inside), schedule, budget) == (at_borders,)


def test_where_nothing_fits_no_stage_has_much_more_than_others() -> None:
    """The first op takes all the time, and needs no memory; the others need it evenly.

    Least crosses between the first four.
    """
    cycles = np.array([0.0, 900, *(900 + np.arange(1, 9))])
    state = np.array([0.0, *(100.0 * np.arange(9))])
    nothing = np.zeros(10)
    crossing = np.array([0.0, 1, 1, 1, 9, 9, 9, 9, 9, 0])
    found = Loads(tuple(range(9)), cycles, nothing, state, nothing, nothing, nothing, crossing,
                  0.0, False)  # fmt: skip
    schedule = Schedule(5, "grouped", 4, trains=False)
    cuts = cuts_of(found, schedule, Budget(1e-6, 50.0))
    kept = [part.state_bytes for part in burdens(found, schedule, Budget(1e-6, 50.0), cuts)]
    assert sorted(kept) == [100, 100, 200, 200, 200]


def test_long_steps_that_are_alike_everywhere_are_cut_evenly() -> None:
    count = 3000
    until, nothing = np.arange(count + 1.0), np.zeros(count + 1)
    crossing = np.concatenate(([0.0], np.ones(count - 1), [0.0]))
    alike = Loads(tuple(range(count)), until, nothing, nothing, nothing, nothing, nothing,
                  crossing, 0.0, True)  # fmt: skip
    cuts = cuts_of(alike, Schedule(4, "grouped", 8), Budget(1.0, PLENTY))
    assert all(abs(cut - wanted) <= 24 for cut, wanted in zip(cuts, (750, 1500, 2250), strict=True))


@pytest.mark.parametrize("memory", [PLENTY, 1500.0])
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("seed", range(6))
def test_of_cuts_that_cost_nearly_the_same_least_crosses(
    seed: int, stages: int, memory: float
) -> None:
    found, budget, schedule = loads(seed), Budget(0.5, memory), Schedule(stages, "grouped", 4)
    costs = {
        cuts: dearest(found, schedule, budget, cuts)
        for cuts in combinations(range(1, OPS), stages - 1)
    }
    if np.isfinite(best := min(costs.values())):
        near = [cuts for cuts, cost in costs.items() if cost <= 1.02 * best]
        crossing = {cuts: sum(found.crossing[cut] for cut in cuts) for cuts in near}
        assert crossing[cuts_of(found, schedule, budget)] == min(crossing.values())


@pytest.mark.parametrize("seed", range(3))
def test_cuts_do_not_depend_on_the_unit_of_time(seed: int) -> None:
    found, schedule, unit = loads(seed), Schedule(3, "grouped", 4), 2.0**-20
    quick = replace(
        found,
        forward_until=found.forward_until * unit,
        backward_until=found.backward_until * unit,
    )
    slow, fast = Budget(0.5, 1500.0), Budget(0.5 * unit, 1500.0)
    assert cuts_of(quick, schedule, fast) == cuts_of(found, schedule, slow)


PRODUCTS = {
    "f32[4,6,10] dot(f32[4,6,8], f32[4,8,10]), lhs_batch_dims={0}, rhs_batch_dims={0}, "
    "lhs_contracting_dims={2}, rhs_contracting_dims={1}": 4 * 6 * 10 * 8,
    "f32[2,7,7,12] convolution(f32[2,7,7,12], f32[3,3,1,12]), window={size=3x3 pad=1_1x1_1}, "
    "dim_labels=b01f_01io->b01f, feature_group_count=12": 2 * 7 * 7 * 12 * 9,
}


@pytest.mark.parametrize("text", PRODUCTS)
def test_products_are_assumed_to_take_as_long_as_they_have_terms(text: str) -> None:
    entry = parse(rows(text)[0].text()).entry
    assert work(entry, entry.instructions[entry.root]) == PRODUCTS[text] / 8
