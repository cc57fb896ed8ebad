"""Charge of a compute set: the tile with most work."""

from collections.abc import Iterable
from functools import lru_cache
from math import prod
from typing import NamedTuple

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.costs.loads import Load, peaks
from hloipu_runtime.costs.parts import present
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.machine.charges import NOTHING, Charge
from hloipu_runtime.machine.costs import TileWork, compute_set
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
        by_ipu.setdefault(ipu_of(program, group), []).append(number)
    worst: tuple[int, ...] = (-1,)
    slowest: list[int] = []
    for numbers in by_ipu.values():
        loads = [
            Load(step.groups[n].tiles.first, step.groups[n].tiles.last, tuple(costs[n].work))
            for n in numbers
        ]
        for peak in peaks(loads):
            if peak.amounts > worst:
                worst = peak.amounts
                slowest = [
                    number
                    for number, load in zip(numbers, loads, strict=True)
                    if load.first <= peak.tile <= load.last
                ]
    shares = tuple((n, work_charge(machine, costs[n].work)) for n in slowest)
    alone = [c.bytes_per_tile for c, g in zip(costs, step.groups, strict=True) if g.tiles.count < 2]
    return ComputeCost(
        _sum_of(charge for _, charge in shares),
        shares,
        min(sum(c.busy_tiles for c in costs), max(1, len(by_ipu)) * machine.chip.tiles_per_ipu),
        tuple(sorted(by_ipu)),
        max(alone, default=0),
    )


def group_cost(program: Program, group: VertexGroup, machine: Machine) -> GroupCost:
    """Return the cost of a vertex group."""
    operands = tuple(operand_part(program, operand) for operand in group.inputs)
    results = tuple(operand_part(program, operand) for operand in group.outputs)
    first = group.outputs[0] if group.outputs else None
    return GroupCost(
        codelet_work(group.codelet, machine, operands, results),
        _busy(group.tiles, first.spans, program.variables[first.variable].shape)
        if first
        else group.tiles.count,
        sum(_bytes(tensor) for tensor in (*operands, *results)),
    )


@lru_cache(1 << 14)
def codelet_work(
    codelet: Codelet, machine: Machine, operands: tuple[Tensor, ...], results: tuple[Tensor, ...]
) -> TileWork:
    """Return the work of one tile whose parts are these tensors."""
    return codelet.work(machine, operands, results)


def work_charge(machine: Machine, work: TileWork) -> Charge:
    """Return the charge of one tile's work."""
    return compute_set(machine, (work,))


def _sum_of(charges: Iterable[Charge]) -> Charge:
    total = NOTHING
    for charge in charges:
        total = total.plus(charge)
    return total


def ipu_of(program: Program, group: VertexGroup) -> int:
    """Return the IPU that a vertex group is on."""
    operands = group.outputs or group.inputs
    return program.variables[operands[0].variable].ipu if operands else 0


def operand_part(program: Program, operand: Operand) -> Tensor:
    """Return the largest part that a vertex has of an operand."""
    variable = program.variables[operand.variable]
    sizes = tuple(min(s.size, n) for s, n in zip(operand.spans, variable.shape, strict=True))
    return Tensor(variable.element_type, sizes)


def _bytes(tensor: Tensor) -> int:
    return -(-prod(tensor.shape) * ELEMENT_TYPES[tensor.element_type].bits // 8)


@lru_cache(1 << 12)
def _busy(tiles: Tiles, spans: Spans, shape: Sizes) -> int:
    """Return how many tiles have a part that is not empty."""
    extents = list(tiles.extents)
    for span, size in zip(spans, shape, strict=True):
        if span.axis >= 0:
            first, last = present(span, tiles.extents[span.axis], 0, size)
            extents[span.axis] = min(extents[span.axis], last - first + 1)
    return prod(extents)
