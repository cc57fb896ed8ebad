"""Memory that a candidate needs on its IPUs."""

from typing import NamedTuple

import numpy as np

from hloipu_compiler.partition.search.candidate import Candidate
from hloipu_compiler.partition.search.channels import channels_of
from hloipu_compiler.partition.search.cut import Cut
from hloipu_compiler.partition.search.slots import Floats
from hloipu_compiler.plan.schedule import Schedule
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.plan import available_bytes

GAPS = 1.01
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
    stage = np.array([schedule.stage_of(n) for n in range(schedule.positions)])
    if candidate.offload_weights:
        state = np.maximum(state - _sums(cut.weights), 0.0) + cut.constants_beside
        if is_grouped:  # they stay while a position does its group
            working = working + _sums(cut.fetched)
    else:
        state = state + cut.constants
    if candidate.offload_accumulators:
        largest = _largest(cut.accumulators)
        gradients = np.maximum(gradients - _sums(cut.accumulators), 0.0)
        working = working + (_sums(cut.accumulators) if is_grouped else largest)[stage]
    gradients = gradients + _elsewhere(candidate, cut)
    optimizer = cut.optimizer * share
    kept = state + gradients + parts.kept_bytes
    if not is_offloading:
        kept = kept + optimizer
    resident, passing = _update(candidate, cut, share, is_offloading=is_offloading)
    resident = resident + state + gradients

    def on_ipus(sizes: Floats) -> Floats:
        bytes_by_ipu = np.zeros(candidate.ipus)
        np.add.at(bytes_by_ipu, ipu, sizes)
        return bytes_by_ipu

    def most(sizes: Floats) -> Floats:
        largest_by_ipu = np.zeros(candidate.ipus)
        np.maximum.at(largest_by_ipu, ipu, sizes)
        return largest_by_ipu

    channels = channels_of(candidate, schedule, cut)
    kept_by_ipu = on_ipus(kept) + channels.throughout(ipu[stage], candidate.ipus)
    between, most_in_slots = channels.in_slots(schedule, ipu[stage], working, candidate.ipus)
    updating = on_ipus(resident) + most(passing + largest)
    code = parts.code_on(candidate.ipu_of_stage) * machine.chip.tiles_per_ipu
    fuller = GAPS * cut.form.survey.fullest_to_mean
    needed = fuller * np.maximum(kept_by_ipu + most_in_slots, updating) + code
    free = machine.chip.tiles_per_ipu * available_bytes(machine) - needed
    copies = np.maximum(on_ipus(fuller * parts.copy_bytes), 1.0)
    shares = np.clip(free / copies, 0.0, 1.0)
    return NeededBytes(
        float((kept_by_ipu + between).max()), float(needed.max()), tuple(shares.tolist())
    )


def _update(
    candidate: Candidate, cut: Cut, share: float, *, is_offloading: bool
) -> tuple[Floats, Floats]:
    """Return what the update has on tiles of each stage beside weights and gradients there.

    All the time, and one weight at a time: what comes from remote memory, and what is made.
    """
    resident = np.zeros(candidate.stages) if is_offloading else cut.optimizer * share
    passing = cut.updates[:, int(is_offloading)] * share
    if candidate.offload_weights:
        passing = passing + _largest(cut.weights)
    return resident, passing


def _elsewhere(candidate: Candidate, cut: Cut) -> Floats:
    """Return what stages have of weights of other IPUs: a copy, and what is added up for them."""
    bytes_by_stage = np.zeros(candidate.stages)
    ipu = candidate.ipu_of_stage
    times = 2 - candidate.offload_weights - candidate.offload_accumulators
    for first, stage, size in cut.tied:
        if ipu[first] != ipu[stage]:
            bytes_by_stage[stage] += times * size
    return bytes_by_stage


def _sums(sizes: tuple[tuple[int, ...], ...]) -> Floats:
    return np.array([float(sum(each)) for each in sizes])


def _largest(sizes: tuple[tuple[int, ...], ...]) -> Floats:
    return np.array([float(max(each, default=0)) for each in sizes])
