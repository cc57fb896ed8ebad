"""Cycles of single tiles within a step: the slowest, and the balance."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.costs.computing import codelet_work, group_cost, ipu_of, work_charge
from hloipu_runtime.costs.costs import Costs, StepCost
from hloipu_runtime.costs.counting import BlockCounts
from hloipu_runtime.costs.exchanging import cycles_by_tile
from hloipu_runtime.costs.forms import Forms
from hloipu_runtime.costs.parts import bounds
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import ComputeSet, Exchange, Operand, VertexGroup

Cycles = NDArray[np.int64]
MOST_STEPS = 100
"""That are looked into: the dearest."""
MOST_RUNS = 60_000
"""Runs of tiles alike, of all steps together: about 600 kB of a page before it is compressed."""
_MOST_CLASSES = 4_096
"""Of one vertex group; where its tiles have more kinds of parts, all are taken as the largest."""


def step_tiles_record(
    costs: Costs, counts: BlockCounts, forms: Forms, most: int = MOST_STEPS
) -> dict[str, Any]:
    """Return the cycles of single tiles in one execution of the dearest steps, as JSON data.

    `steps`: the number of the `step`, and of each of its `ipus` the `runs` `[tiles, cycles]` in the
    order of tiles. Compute sets are priced by each tile's own parts, so that the slowest tile takes
    what the step is charged, or less where the largest parts of several operands lie on different
    tiles. Exchanges are priced by what their transfers ask of the range of tiles from the first to
    the last that takes part. `left_out`: dear steps that there was no room for.
    """
    dearest: list[tuple[int, int]] = []
    for number, block in enumerate(costs.blocks):
        for place in block.steps if counts.shown(number) else ():
            cost = costs.steps[place]
            if isinstance(cost.step, ComputeSet | Exchange) and cost.spent.total.cycles:
                dearest.append((-cost.spent.total.cycles * counts.shown(number), place))
    chosen, room = sorted(dearest)[:most], MOST_RUNS
    rows: list[dict[str, Any]] = []
    for _, place in chosen:
        tiles = step_tiles(costs.program, costs.steps[place], costs.machine, forms)
        by_ipu = {ipu: _runs(cycles) for ipu, cycles in sorted(tiles.items())}
        room -= sum(len(runs) for runs in by_ipu.values())
        if room < 0:
            break
        ipus = [{"ipu": ipu, "runs": runs} for ipu, runs in by_ipu.items()]
        rows.append({"step": place, "ipus": ipus})
    return {"steps": rows, "left_out": len(chosen) - len(rows)}


def step_tiles(
    program: Program, cost: StepCost, machine: Machine, forms: Forms
) -> Mapping[int, Cycles]:
    """Return the cycles of every tile in one execution of a compute set or an exchange, by IPU."""
    tiles = machine.chip.tiles_per_ipu
    if isinstance(cost.step, Exchange):
        return cycles_by_tile(program, cost.step, machine, forms)
    cycles_by_ipu: dict[int, Cycles] = {}
    for group in cost.step.groups if isinstance(cost.step, ComputeSet) else ():
        on_ipu = cycles_by_ipu.setdefault(ipu_of(program, group), np.zeros(tiles, np.int64))
        on_ipu[group.tiles.numbers] += _group_cycles(program, group, machine)
    return cycles_by_ipu


def _group_cycles(program: Program, group: VertexGroup, machine: Machine) -> Cycles:
    """Return the cycles of a vertex group on each tile, in the shape of its grid."""
    extents = group.tiles.extents
    operands = (*group.inputs, *group.outputs)
    lengths = [_lengths(program, operand, extents) for operand in operands]
    # Along each axis of the grid, coordinates with parts of the same lengths are of one class.
    classes, of_coordinate = [], []
    for axis, extent in enumerate(extents):
        columns = [
            length
            for operand, operand_lengths in zip(operands, lengths, strict=True)
            for span, length in zip(operand.spans, operand_lengths, strict=True)
            if span.axis == axis
        ]
        table = np.stack(columns) if columns else np.zeros((1, extent), np.int64)
        _, first, inverse = np.unique(table, axis=1, return_index=True, return_inverse=True)
        classes.append(first)
        of_coordinate.append(inverse.reshape(-1))
    if prod(map(len, classes)) > _MOST_CLASSES:
        work = group_cost(program, group, machine).work
        return np.full(extents, work_charge(machine, work).cycles, np.int64)
    counts = tuple(map(len, classes))
    cycles_by_class = np.zeros(counts, np.int64)
    for place in np.ndindex(counts):
        at = [int(classes[axis][number]) for axis, number in enumerate(place)]
        parts = [
            _part(program, operand, operand_lengths, at)
            for operand, operand_lengths in zip(operands, lengths, strict=True)
        ]
        inputs, results = parts[: len(group.inputs)], parts[len(group.inputs) :]
        if results and not prod(results[0].shape):
            continue  # nothing to make: no vertex
        work = codelet_work(group.codelet, machine, tuple(inputs), tuple(results))
        cycles_by_class[place] = work_charge(machine, work).cycles
    return cycles_by_class[np.ix_(*of_coordinate)] if extents else cycles_by_class


def _lengths(program: Program, operand: Operand, extents: Sequence[int]) -> list[Cycles]:
    """Return the lengths of an operand's parts by coordinate, for each dimension."""
    shape = program.variables[operand.variable].shape
    lengths = []
    for span, size in zip(operand.spans, shape, strict=True):
        starts, ends = bounds(span, extents[span.axis] if span.axis >= 0 else 1, 0, size)
        lengths.append(ends - starts)
    return lengths


def _part(
    program: Program, operand: Operand, lengths: Sequence[Cycles], at: Sequence[int]
) -> Tensor:
    """Return what a vertex at a coordinate of the grid has of an operand."""
    sizes = tuple(
        int(length[at[span.axis] if span.axis >= 0 else 0])
        for span, length in zip(operand.spans, lengths, strict=True)
    )
    return Tensor(program.variables[operand.variable].element_type, sizes)


def _runs(cycles: Cycles) -> list[list[int]]:
    """Return runs `[tiles, cycles]` of neighbours that take as long."""
    starts = np.flatnonzero(np.diff(cycles, prepend=cycles[0] - 1))
    counts = np.diff(starts, append=len(cycles))
    return np.stack([counts, cycles[starts]], axis=1).tolist()  # type: ignore[no-any-return]
