"""Finds cuts anew from what pieces of a step need by estimate: all ways to join pieces to stages.

Cuts that go by single ops know neither the code of equal layers, which is there once, nor what is
alive beside an op. A cut into many pieces tells both of each piece: what pieces take adds up, but
for what they work with, of which the most counts, and code that they share.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from math import comb

import numpy as np

from hloipu_compiler.partition.search.cut import Cut
from hloipu_compiler.partition.search.slots import Floats
from hloipu_compiler.partition.stages.cut_tables import NEARLY, CutTables, between
from hloipu_compiler.partition.stages.loads import Loads

ROOMS = (1.0, 1.1, 1.2)
"""Of the memory of an IPU, for each of which the fastest cut is found: programs may take less than
by estimate. Assumed."""
_MOST_PIECES = 48
_MOST_WAYS = 50_000
"""To join pieces: a quarter of a second."""


def pieces_of(loads: Loads, stages: int) -> tuple[int, ...]:
    """Return where to cut a step into pieces: in parts of like work and size, where least crosses.

    Into as many as make not too many ways to join them; nowhere where stages are too many for that,
    or pieces too few.
    """
    count = _MOST_PIECES
    while comb(count - 1, stages - 1) > _MOST_WAYS:
        count -= 1
    if count < 2 * stages:
        return ()
    ahead = range(1, len(loads.ahead))
    borders = [place for place in ahead if place not in loads.inside]
    at = np.array(borders if len(borders) >= stages - 1 else ahead)
    work = loads.forward_until + loads.backward_until
    size = loads.state_until + loads.gradients_until + loads.stash_until
    measure = sum(until[at] / max(float(until[-1]), 1.0) for until in (work, size))
    parts = np.floor(measure * ((count - 1) / 2))
    order = np.lexsort((at, loads.crossing[at]))
    _, best = np.unique(parts[order], return_index=True)
    places = tuple(sorted(at[order[best]].tolist()))
    return places if len(places) >= stages else ()


def joined(
    pieces: Cut,
    tables: CutTables,
    ipus: Sequence[int],
    room_bytes: float,
    fuller: float,
    tiles: int,
) -> Iterator[tuple[int, ...]]:
    """Yield the fastest cuts that need no more than each of `ROOMS` times the memory of an IPU.

    And of those about as fast, that across which least moves.

    `tables`: of the ends of the pieces; `ipus`: of each stage; `fuller`: bytes of the fullest tile
    to those of a mean one.
    """
    stages, count = len(ipus), len(tables.ends) - 1
    ways = np.array([(0, *inner, count) for inner in combinations(range(1, count), stages - 1)])
    cycles, own_code, shared_code, working = _tables(pieces, count)
    shape = max(ipus) + 1, len(ways)
    cost, kept, own, most, shared = (np.zeros(shape) for _ in range(5))
    for stage, (first, last) in enumerate(pairwise(ways.T)):
        ipu = ipus[stage]
        cost[ipu] += cycles[first, last]
        kept[ipu] += tables.kept(stage)[first, last]
        own[ipu] += own_code[first, last]
        most[ipu] = np.maximum(most[ipu], working[first, last])
        shared[ipu] = np.maximum(shared[ipu], shared_code[first, last])
    begins, on = tables.ends[ways[:, 1:-1]], np.array(ipus)
    for *places, size in tables.tied:  # which two stages of one IPU have once
        one, other = ((begins <= place).sum(axis=1) for place in places)
        kept[on[other], np.arange(len(ways))] -= size * ((one != other) & (on[one] == on[other]))
    code_bytes = tiles * (own + shared + pieces.parts.common_code_bytes)
    needed = (fuller * (kept + most) + code_bytes).max(axis=0)
    dearest, moves = cost.max(axis=0), tables.into[ways[:, 1:-1]].sum(axis=1)
    for room in ROOMS:
        fits = needed <= room * room_bytes
        if fits.any():
            least = dearest[fits].min()
            near = fits & (dearest <= NEARLY * least)
            for wanted in (fits & (dearest == least), near):
                best = int(np.argmin(np.where(wanted, moves, np.inf)))
                yield tables.places(ways[best, 1:-1].tolist())


def _tables(pieces: Cut, count: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Return by first and last piece: cycles, code of single ops and of kinds, working memory."""
    parts = pieces.parts
    has_backward = len(parts.cycles) > count

    def of_pieces(sizes: Floats) -> Floats:
        return np.stack((sizes[:count], sizes[: count - 1 : -1] if has_backward else sizes))

    def sums(sizes: Floats) -> Floats:
        return between(np.concatenate(([0.0], np.cumsum(sizes))))

    cycles = sums(of_pieces(parts.cycles).sum(axis=0))
    each = of_pieces(parts.working_bytes).max(axis=0)
    working, shared = np.zeros((2, count + 1, count + 1))
    has = np.zeros((count, len(parts.shared_code_bytes)), np.bool_)
    has[parts.shared_code_stage, parts.shared_code] = True
    for first in range(count):
        working[first, first + 1 :] = np.maximum.accumulate(each[first:])
        shared[first, first + 1 :] = np.logical_or.accumulate(has[first:]) @ parts.shared_code_bytes
    return cycles, sums(parts.own_code), shared, working
