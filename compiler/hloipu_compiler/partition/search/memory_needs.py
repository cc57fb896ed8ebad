"""Memory that a candidate needs on its IPUs."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.lowering.core.offloading import LEAST_BYTES
from hloipu_compiler.partition.search.candidate import Candidate
from hloipu_compiler.partition.search.cut import Cut
from hloipu_compiler.partition.search.slots import Floats
from hloipu_compiler.plan.schedule import Schedule
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.plan import available_bytes

_GAPS = 1.01
"""Bytes that variables take with gaps between them: 0.4 % on average, 3.5 % at worst, as planned
for samples and networks."""


class NeededBytes(NamedTuple):
    """Of all tiles of an IPU."""

    kept: float
    """Of the fullest IPU, from slot to slot."""
    needed: float
    """Of the fullest IPU, in all."""
    copies_kept: tuple[float, ...]
    """Of each IPU: the share of copies of weights for which there is room from slot to slot."""


def bytes_of(
    machine: Machine, candidate: Candidate, schedule: Schedule, cut: Cut, *, is_offloading: bool
) -> NeededBytes:
    """Return what IPUs need at least, copies of weights made in each micro-batch.

    `is_offloading`: whether what only the update reads lies in remote memory.
    """
    is_grouped = candidate.batch_serialization > 1
    parts = cut.parts_of_beside if candidate.offload_weights and not is_grouped else cut.parts
    ipu = np.array(candidate.ipu_of_stage)
    share = 1 / candidate.replicas if candidate.shard_optimizer else 1.0
    state, gradients = cut.state, cut.gradients
    working, largest = parts.working_bytes, np.zeros(candidate.stages)
    if candidate.offload_weights:
        state = np.maximum(state - _sums(cut.weights), 0.0) + cut.constants_beside
        if is_grouped:  # they stay while a position does its group
            there = _sums(cut.fetched)
            back = there[::-1][: candidate.stages] if len(there) > candidate.stages else there
            working = working + np.maximum(there[: candidate.stages], back)
    else:
        state = state + cut.constants
    if candidate.offload_accumulators:
        largest = _largest(cut.accumulators)
        gradients = np.maximum(gradients - _sums(cut.accumulators), 0.0)
        working = working + (_sums(cut.accumulators) if is_grouped else largest)
    optimizer = cut.optimizer * share
    kept = state + gradients + waiting(candidate, schedule, cut) + parts.kept_bytes
    if not is_offloading:
        kept = kept + optimizer
    resident, passing = _update(candidate, cut, share, is_offloading=is_offloading)
    resident = resident + state + gradients

    def on_ipus(sizes: Floats) -> Floats:
        found = np.zeros(candidate.ipus)
        np.add.at(found, ipu, sizes)
        return found

    def most(sizes: Floats) -> Floats:
        found = np.zeros(candidate.ipus)
        np.maximum.at(found, ipu, sizes)
        return found

    held = on_ipus(kept)
    updating = on_ipus(resident) + most(passing + largest)
    code = parts.code_on(candidate.ipu_of_stage) * machine.chip.tiles_per_ipu
    fuller = _GAPS * cut.form.survey.fullest_to_mean
    needed = fuller * np.maximum(held + most(working), updating) + code
    free = machine.chip.tiles_per_ipu * available_bytes(machine) - needed
    copies = np.maximum(on_ipus(fuller * parts.copy_bytes), 1.0)
    shares = np.clip(free / copies, 0.0, 1.0)
    return NeededBytes(float(held.max()), float(needed.max()), tuple(shares.tolist()))


def _update(
    candidate: Candidate, cut: Cut, share: float, *, is_offloading: bool
) -> tuple[Floats, Floats]:
    """Return what the update has on tiles of each stage beside weights and gradients there.

    All the time, and one weight at a time: what comes from remote memory, with all that belongs to
    a weight.
    """
    total = max(float(cut.state.sum()), 1.0)
    made = cut.form.survey.update_bytes * share * cut.state / total
    resident = np.zeros(candidate.stages) if is_offloading else cut.optimizer * share
    if not is_offloading and not candidate.offload_weights:
        return resident + made, np.zeros(candidate.stages)
    of_one = np.maximum(_largest(cut.aside) * share, _largest(cut.weights))
    passing = np.zeros(candidate.stages)
    if is_offloading:
        of_each = float(cut.optimizer.sum()) / total
        passing += np.maximum(of_each * _largest(cut.weights), _largest(cut.aside)) * share
    if candidate.offload_weights:
        passing += _largest(cut.weights)
    return resident, passing + np.minimum(made, passing + of_one)


def _sums(sizes: tuple[tuple[int, ...], ...]) -> Floats:
    return np.array([float(sum(each)) for each in sizes])


def _largest(sizes: tuple[tuple[int, ...], ...]) -> Floats:
    return np.array([float(max(each, default=0)) for each in sizes])


def held(schedule: Schedule, cut: Cut) -> Floats:
    """Return of how many micro-batches each array that is handed on waits at once."""
    handed = cut.parts.handed
    count = len(handed.reader)
    if schedule.group > 1:
        return np.full(count, float(schedule.timetable.held(0, 1)))
    most = -(-(handed.reader - handed.maker) // schedule.interval)
    found: Floats = np.minimum(most, schedule.micro_batches).astype(float)
    return found


def is_offloaded(candidate: Candidate, schedule: Schedule, cut: Cut) -> NDArray[np.bool_]:
    """Return which arrays that are handed on wait in remote memory."""
    handed = cut.parts.handed
    together = min(schedule.group, schedule.micro_batches)
    waits = (handed.reader - handed.maker) * together > 1
    found: NDArray[np.bool_] = waits & (handed.bytes >= LEAST_BYTES)
    return found if candidate.offload_activations else np.zeros_like(found)


def waiting(candidate: Candidate, schedule: Schedule, cut: Cut) -> Floats:
    """Return the bytes of each stage that channels take, whatever micro-batch is at work."""
    handed = cut.parts.handed
    found = np.zeros(candidate.stages)
    stage = np.array([schedule.stage_of(n) for n in range(schedule.positions)])
    count = held(schedule, cut)
    places = np.where(is_offloaded(candidate, schedule, cut) | (count <= 1), 1, count + 1)
    np.add.at(found, stage[handed.reader], handed.bytes * places)
    first = handed.is_first
    np.add.at(found, stage[handed.maker[first]], handed.bytes[first])
    return found
