"""The charge of a compute set: the tile with most work."""

from functools import lru_cache
from math import prod
from typing import NamedTuple

from hloipu_runtime.codelets.codelet import Codelet, Tensor
from hloipu_runtime.costing.loads import Load, peaks
from hloipu_runtime.costing.parts import present
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.charges import NOTHING, Charge
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.mapping import Sizes, Spans, Tiles
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import ComputeSet, Operand, VertexGroup


class GroupCost(NamedTuple):
    """What one vertex group costs on the tile with the largest parts."""

    work: TileWork
    busy_tiles: int
    """Tiles whose parts of the first result are not empty."""
    bytes_per_tile: int
    """Of all operands and results."""


class ComputeCost(NamedTuple):
    """What a compute set costs, and which groups the slowest tile spends it on."""

    charge: Charge
    shares: tuple[tuple[int, Charge], ...]
    """Number of the group, and its part of the charge; they add up to it."""
    busy_tiles: int
    ipus: tuple[int, ...]
    one_tile_bytes: int
    """Most bytes that a group takes in on one tile, of groups that run on one tile alone."""


def compute_cost(program: Program, step: ComputeSet, machine: Machine) -> ComputeCost:
    """Return the cost of a compute set; groups that share a tile run one after the other."""
    costs = [group_cost(program, group, machine) for group in step.groups]
    by_ipu: dict[int, list[int]] = {}
    for number, group in enumerate(step.groups):
        by_ipu.setdefault(_ipu(program, group), []).append(number)
    slowest: tuple[int, int, list[int]] | None = None
    for numbers in by_ipu.values():
        loads = [
            Load(step.groups[n].tiles.first, step.groups[n].tiles.last, tuple(costs[n].work))
            for n in numbers
        ]
        for peak in peaks(loads):
            if slowest is None or peak.amounts[:2] > slowest[:2]:
                meeting = [
                    n for n, load in zip(numbers, loads, strict=True)
                    if load.first <= peak.tile <= load.last
                ]
                slowest = (*peak.amounts[:2], meeting)
    shares: tuple[tuple[int, Charge], ...] = ()
    if slowest is not None:
        shares = tuple((n, work_charge(machine, costs[n].work)) for n in slowest[2])
    alone = [c.bytes_per_tile for c, g in zip(costs, step.groups, strict=True) if g.tiles.count < 2]
    return ComputeCost(
        sum_of(charge for _, charge in shares),
        shares,
        min(sum(c.busy_tiles for c in costs), max(1, len(by_ipu)) * machine.chip.tiles_per_ipu),
        tuple(sorted(by_ipu)),
        max(alone, default=0),
    )
