"""What the ends of a pipeline's slots cost: copies to where values are read, and a meeting."""

from hloipu_runtime.costs.collecting import stored_cost
from hloipu_runtime.costs.costs import StepCost
from hloipu_runtime.costs.deciding import branches
from hloipu_runtime.costs.exchanging import SlotCopies
from hloipu_runtime.costs.forms import Forms
from hloipu_runtime.costs.single_steps import plain
from hloipu_runtime.costs.spent import Spent
from hloipu_runtime.machine.costs import sync
from hloipu_runtime.machine.links import NO_LINK_CYCLES
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import Pipeline
from hloipu_runtime.program.timetable import Pattern


def slot_ends(
    program: Program,
    step: Pipeline,
    patterns: tuple[Pattern, ...],
    machine: Machine,
    forms: Forms,
    path: str,
) -> StepCost:
    """Return what the ends of all slots of a pipeline cost: copies, and a meeting of all."""
    ipus = _all_ipus(step)
    meeting = Spent(sync=sync(machine, len(ipus)))
    iteration = branches(machine, 1)
    total, moved, links = Spent(), 0, NO_LINK_CYCLES
    slot_copies = SlotCopies(program, step, machine, forms)
    for pattern in patterns:
        copies = slot_copies.cost(pattern.positions)
        total = total.plus(copies.spent.plus(meeting).plus(iteration).times(pattern.slots))
        moved += pattern.slots * copies.moved_bytes
        links = links.plus(copies.links, pattern.slots)
    tiles = len(ipus) * machine.chip.tiles_per_ipu
    step_cost = plain(path, "slots", step.name, total, tiles, ipus, moved)
    return step_cost._replace(step=step, links=links)


def stored(
    program: Program, step: Pipeline, patterns: tuple[Pattern, ...], machine: Machine, path: str
) -> StepCost:
    """Return what the ends of all slots cost to bring to remote memory what waits there."""
    total, moved = stored_cost(program, step, patterns, machine)
    return plain(path, "remote out", step.name, Spent(remote=total), 0, _all_ipus(step), moved)


def _all_ipus(step: Pipeline) -> tuple[int, ...]:
    return tuple(sorted({ipu for stage in step.stages for ipu in stage.ipus}))
