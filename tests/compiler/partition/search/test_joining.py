"""Stages joined from pieces, against every way to join them tried out by hand."""

from bisect import bisect_right
from dataclasses import replace
from itertools import combinations, pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

import hloipu
from hloipu import choosing
from hloipu_compiler.partition.search.candidate import Candidate
from hloipu_compiler.partition.search.cut import Cut
from hloipu_compiler.partition.search.joining import ROOMS, joined, pieces_of
from hloipu_compiler.partition.stages.cut_tables import NEARLY, Budget, CutTables
from hloipu_compiler.partition.stages.loads import Loads
from hloipu_compiler.partition.stages.recomputing import NONE
from hloipu_compiler.plan.schedule import Schedule
from tests.compiler.partition.stages.test_balancing import OPS, loads
from tests.hloipu.test_choosing import GIVEN, TEXT, asked
from tests.support.cases import each

TILES, FULLER = 3, 1.1


def pieces(seed: int) -> Any:
    """Return what a cut of every op comes to: two kinds of code that several share."""
    draw = np.random.default_rng(seed)
    shared = np.unique(draw.integers(0, (2, OPS), (OPS, 2)).T, axis=1)
    return SimpleNamespace(
        cycles=draw.integers(0, 100, 2 * OPS).astype(float),
        working_bytes=draw.integers(0, 400, 2 * OPS).astype(float),
        own_code=draw.integers(0, 9, OPS).astype(float),
        shared_code=shared[0],
        shared_code_stage=shared[1],
        shared_code_bytes=np.array([20.0, 30.0]),
        common_code_bytes=7.0,
    )


@each("ipus", [(0, 1), (0, 1, 2), (0, 1, 0)])
@each("seed", range(4))
def test_the_fastest_way_that_has_room_is_found(seed: int, ipus: tuple[int, ...]) -> None:
    found, parts, stages = replace(loads(seed), tied=((1, 7, 90.0),)), pieces(seed), len(ipus)
    budget, schedule = Budget(0.5, np.inf), Schedule(stages, "grouped", 4)
    tables = CutTables(found, schedule, budget, np.arange(OPS + 1), NONE)

    def of_ipu(ends: tuple[int, ...], ipu: int) -> tuple[float, float]:
        """Return what an IPU costs and needs."""
        cost, kept, working, own, shared = 0.0, 0.0, 0.0, parts.common_code_bytes, 0.0
        for stage, (a, b) in enumerate(pairwise(ends)):
            if ipus[stage] != ipu:
                continue
            both = [*range(a, b), *(2 * OPS - 1 - n for n in range(a, b))]
            cost += sum(parts.cycles[n] for n in both)
            kept += float(tables.kept(stage)[a, b])
            working = max(working, *(parts.working_bytes[n] for n in both))
            own += sum(parts.own_code[a:b])
            pairs = zip(parts.shared_code, parts.shared_code_stage, strict=True)
            kinds = {kind for kind, piece in pairs if a <= piece < b}
            shared = max(shared, sum(parts.shared_code_bytes[kind] for kind in kinds))
        with_it = {bisect_right(ends, place) - 1 for place in (1, 7)}
        if len(with_it) == 2 and {ipus[stage] for stage in with_it} == {ipu}:
            kept -= (
                2 * 90.0
            )  # a weight and what is added up for it, of which each stage counts both
        return cost, FULLER * (kept + working) + TILES * (own + shared)

    def moved(cuts: tuple[int, ...]) -> float:
        return float(sum(found.crossing[place] for place in cuts))

    def of(cuts: tuple[int, ...]) -> tuple[float, float]:
        each_ipu = [of_ipu((0, *cuts, OPS), ipu) for ipu in sorted(set(ipus))]
        return max(cost for cost, _ in each_ipu), max(needed for _, needed in each_ipu)

    ways = {cuts: of(cuts) for cuts in combinations(range(1, OPS), stages - 1)}
    room = float(np.median([needed for _, needed in ways.values()]))
    mine = joined(cast(Cut, SimpleNamespace(parts=parts)), tables, ipus, room, FULLER, TILES)
    for (fastest, cuts), most in zip(zip(mine, mine, strict=True), ROOMS, strict=True):
        with_room = {way: cost for way, (cost, needed) in ways.items() if needed <= most * room}
        assert with_room[fastest] == min(with_room.values())
        near = [way for way, cost in with_room.items() if cost <= NEARLY * min(with_room.values())]
        assert cuts in near
        assert moved(cuts) == min(map(moved, near))


def test_pieces_part_what_is_large_as_well_as_what_is_long() -> None:
    """Work is in the first ops, state in the last ones: both can be cut, where least crosses."""
    many = 600
    crossing = np.full(many + 1, 9.0)
    crossing[[100, 200, 400, 500]] = 1.0
    nothing, work, state = (np.zeros(many + 1) for _ in range(3))
    work[: many // 2] = np.arange(many // 2)
    work[many // 2 :] = many // 2
    state[many // 2 :] = np.arange(many // 2 + 1)
    step = Loads(
        tuple(range(many)), work, work, state, nothing, nothing, nothing, crossing, 0.0, True
    )
    places = pieces_of(step, 2)
    assert {100, 200, 400, 500} <= set(places)
    assert len(places) < 48
    assert pieces_of(replace(step, inside=frozenset(range(many)) - {200, 400}), 2) == (200, 400)
    assert pieces_of(step, 40) == ()


def test_cuts_that_are_found_anew_are_where_compiling_cuts() -> None:
    """The program of cuts that are given is that of the same cuts found, and of others another."""
    module = hloipu.verify(TEXT)
    step = choosing.priced(module, asked())
    candidate = Candidate(2, "grouped", 8)
    estimate = step.estimate(candidate)
    usual = next(iter(step.known.cuts.values()))

    def cycles(**cut: Any) -> int:
        options = {**GIVEN, "plan": None, "ipus": None, "cache": False, **cut}
        return hloipu.compile(TEXT, **options).estimate().spent.total.cycles

    assert cycles(cut_at=usual) == cycles(stages=2)
    assert cycles(cut_at=(usual[0] + 1,)) != cycles(stages=2)
    again = step.estimate(replace(candidate, cut_at=usual))
    assert again.update_cycles == estimate.update_cycles
