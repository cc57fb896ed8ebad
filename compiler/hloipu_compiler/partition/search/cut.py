"""A cut of a step: work and memory of its stages, for any micro-batches and replicas."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hloipu_compiler.cost_survey.stage_memory import Again, Parts, Reads, parts_of
from hloipu_compiler.cost_survey.survey import (
    CAST,
    CONSTANT,
    CONSTANT_CAST,
    STATE,
    STATE_CAST,
    Numbers,
    Survey,
)
from hloipu_compiler.lowering.core.offloading import LEAST_BYTES
from hloipu_compiler.partition.search.forms import Form
from hloipu_compiler.partition.search.slots import Floats
from hloipu_compiler.partition.stages.assignment import owners, split_gradients
from hloipu_compiler.partition.stages.handing import Handing
from hloipu_compiler.partition.stages.loads import size_of
from hloipu_compiler.partition.training.reach import parameter_positions, result_positions
from hloipu_compiler.partition.training.step_phases import BACKWARD, FORWARD, UPDATE

Sizes = tuple[tuple[int, ...], ...]
"""Bytes of arrays, by stage or by position of the pipeline."""


@dataclass(frozen=True, eq=False)
class Cut:
    """What follows from where a step is cut."""

    form: Form
    parts: Parts
    offloading: Callable[[], Parts]
    state: Floats
    """Of each stage: weights and statistics, bytes."""
    gradients: Floats
    optimizer: Floats
    """What only the update reads."""
    fed: Floats
    """Bytes from the host for each micro-batch, by stage."""
    given: Floats
    """Bytes to the host."""
    updates: Floats
    """Of each stage: `Loads.updates` of all that it reads."""
    tied: tuple[tuple[int, int, int], ...]
    """Stages that read one weight, that which has it first, and bytes that the other adds up."""
    update_cycles: Floats
    """Of each stage, without remote memory."""
    common_cycles: float
    """Of the update, that all stages wait for."""
    aside: Sizes
    """By stage: arrays that only the update reads, those worth a remote buffer."""
    accumulators: Sizes
    """By stage: those worth a remote buffer."""
    weights: Sizes
    """By stage: those that are updated and worth a remote buffer."""
    fetched: Sizes
    """By position: weights that it reads, and what is made of them before."""
    cast: Sizes
    """By stage: what is made of weights before micro-batches."""
    read_before: Sizes
    """By stage: weights that are read for that alone."""
    constants: Floats
    """By stage: weights that nothing updates, ..."""
    constants_beside: Floats
    """... and those of them that stay on tiles whatever is asked for."""

    @cached_property
    def parts_of_beside(self) -> Parts:
        """As `parts`, if weights are on tiles only while they are read."""
        return self.offloading()


def cut_of(
    form: Form, of_op: Sequence[int], stages: int, again: Again, *, has_backward: bool
) -> Cut:
    """Return what a cut of a form comes to.

    `of_op`: the stage of each position of the entry.
    """
    survey, phase = form.survey, form.phases.phase
    remade = _remade(form, of_op, stages, again, has_backward=has_backward)
    reads, tied = _apart(form, of_op)

    def parts(survey: Survey) -> Parts:
        return parts_of(
            survey, reads, phase, of_op, stages, again, remade, has_backward=has_backward
        )

    at = np.array([of_op[position] for position in form.loads.ahead])

    def by_stage(until: Floats) -> Floats:
        sums = np.zeros(stages)
        np.add.at(sums, at, np.diff(until))
        return sums

    updates = np.zeros((stages, 2))
    np.maximum.at(updates, at, form.loads.updates.T)
    homes = _homes(form, of_op)
    aside, optimizer = _aside(form, homes, stages)
    state = by_stage(form.loads.state_until)
    cycles, common = _update_cycles(survey, homes, state)
    by_kind = _by_kind(survey, np.array(of_op, np.int64), stages)
    constants, left = (
        np.array([float(sum(sizes)) for sizes in by_kind(0, *kinds)])
        for kinds in ((CONSTANT, CONSTANT_CAST), (CONSTANT_CAST,))
    )
    return Cut(
        form, parts(survey), lambda: parts(form.survey_of_beside), state,
        by_stage(form.loads.gradients_until), optimizer,
        *_host(form, of_op, stages), updates, tied, cycles, common, aside,
        _accumulators(form, of_op, stages),
        by_kind(LEAST_BYTES, STATE, STATE_CAST),
        _fetched(survey, form, of_op, again, stages, has_backward=has_backward),
        by_kind(LEAST_BYTES, CAST), by_kind(LEAST_BYTES, STATE_CAST), constants, left,
    )  # fmt: skip


def _apart(form: Form, of_op: Sequence[int]) -> tuple[Reads, tuple[tuple[int, int, int], ...]]:
    """Return what is handed on where stages add up a gradient apart, and `Cut.tied`."""
    entry, split = form.module.entry, split_gradients(form.module.entry, form.phases, of_op)
    if split is form.phases:
        return form.reads, ()
    known = {gradient.position for gradient in form.phases.gradients}
    stages: dict[tuple[int, ...], dict[int, int]] = {}
    for gradient in split.gradients:
        if gradient.position not in known:
            size = size_of(entry.instructions[gradient.position].shape)
            stages.setdefault(gradient.parameters, {})[of_op[gradient.position]] = size
    tied = [
        (min(sizes), stage, size)
        for sizes in stages.values()
        for stage, size in sizes.items()
        if stage > min(sizes)
    ]
    reads = form.reads
    stays = np.array([x != UPDATE for x in split.phase])[reads.reader]
    return replace(reads, maker=reads.maker[stays], reader=reads.reader[stays]), tuple(tied)


def _remade(
    form: Form,
    of_op: Sequence[int],
    stages: int,
    again: Mapping[int, Collection[int]],
    *,
    has_backward: bool,
) -> dict[int, frozenset[int]]:
    """Return what positions of the pipeline compute again in place of receiving it.

    As for stages on IPUs of their own, whatever the device map.
    """
    if stages == 1:
        return {}
    entry, phase, written_out = form.module.entry, form.phases.phase, form.written_out
    positions = 2 * stages if has_backward else stages
    place, bodies = [-1] * len(of_op), [list[int]() for _ in range(positions)]
    for op, stage in enumerate(of_op):
        if stage >= 0 and not written_out[op] and phase[op] in (FORWARD, BACKWARD):
            behind = has_backward and phase[op] == BACKWARD
            place[op] = 2 * stages - 1 - stage if behind else stage
            bodies[place[op]].append(op)
    for stage, ops in again.items():
        bodies[2 * stages - 1 - stage] += [op for op in ops if not written_out[op]]
    ipus = [min(n, 2 * stages - 1 - n) for n in range(positions)]
    handing = Handing(entry, form.phases, written_out, place, bodies, ipus)
    return {n: ops for n, ops in enumerate(handing.remade()) if ops}


def _pairs(number: Numbers, place: Numbers) -> Numbers:
    if not len(number):
        return np.zeros((2, 0), np.int64)
    pairs: Numbers = np.unique(np.stack((number, place))[:, place >= 0], axis=1)
    return pairs


def _by_kind(survey: Survey, stage: Numbers, stages: int) -> Callable[..., Sizes]:
    """Return what gives the bytes of weights of some kinds, from so many bytes on, by stage."""
    pairs = _pairs(survey.weight, stage[survey.weight_op])
    sizes, kinds = survey.weight_bytes[pairs[0]], survey.weight_kind[pairs[0]]

    def sizes_from(least: int, *wanted: int) -> Sizes:
        mine = (sizes >= least) & np.isin(kinds, wanted)
        return _listed(sizes[mine], pairs[1][mine], stages)

    return sizes_from


def _fetched(
    survey: Survey,
    form: Form,
    of_op: Sequence[int],
    again: Mapping[int, Collection[int]],
    stages: int,
    *,
    has_backward: bool,
) -> Sizes:
    """Return the bytes of weights that each position reads."""
    stage = np.array(of_op, np.int64)
    behind = np.array([x == BACKWARD for x in form.phases.phase])
    place = np.where(behind & has_backward & (stage >= 0), 2 * stages - 1 - stage, stage)
    op = survey.weight_op
    read_at = [np.stack((survey.weight, place[op]))]
    positions = 2 * stages if has_backward else stages
    for number, ops in again.items():
        theirs = np.isin(op, np.fromiter(ops, np.int64))
        where = np.full(int(theirs.sum()), positions - 1 - number)
        read_at.append(np.stack((survey.weight[theirs], where)))
    both = np.concatenate(read_at, axis=1)
    wanted = survey.weight_bytes[both[0]] >= LEAST_BYTES
    wanted &= np.isin(survey.weight_kind[both[0]], (STATE, CONSTANT, CAST))
    pairs = _pairs(both[0][wanted], both[1][wanted])
    return _listed(survey.weight_bytes[pairs[0]], pairs[1], positions)


def _listed(sizes: Numbers, place: Numbers, count: int) -> Sizes:
    sizes_by_place: list[list[int]] = [[] for _ in range(count)]
    for size, at in zip(sizes.tolist(), place.tolist(), strict=True):
        sizes_by_place[at].append(size)
    return tuple(map(tuple, sizes_by_place))


def _homes(form: Form, of_op: Sequence[int]) -> list[int]:
    """Return the stage of each position, of the update's ops too: where most of what they read is.

    State that only the update reads lies where its next value is made; -1: not known.
    """
    entry = form.module.entry
    stage_by_position, places = list(of_op), parameter_positions(entry)
    for number, stage in enumerate(owners(entry, form.phases, of_op, places)):
        for position in places[number]:
            stage_by_position[position] = max(stage_by_position[position], stage)
    for position in form.others:
        if stage_by_position[position] < 0:
            here = [
                stage_by_position[i]
                for i in entry.instructions[position].operands
                if stage_by_position[i] >= 0
            ]
            if here:
                stage_by_position[position] = (
                    here[0] if len(here) == 1 else max(here, key=here.count)
                )
    results = result_positions(entry)
    for pair in form.wrapping.state:
        new = results[pair.result]
        for position in places[pair.parameter]:
            if stage_by_position[position] < 0 and new is not None:
                stage_by_position[position] = stage_by_position[new]
    return stage_by_position


def _aside(form: Form, homes: Sequence[int], stages: int) -> tuple[Sizes, Floats]:
    """Return arrays of state that only the update reads, and the bytes of all of them, by stage."""
    entry, phase = form.module.entry, form.phases.phase
    sizes_by_stage: list[list[int]] = [[] for _ in range(stages)]
    places = parameter_positions(entry)
    for pair in form.wrapping.state:
        positions = places[pair.parameter]
        users = {phase[user] for i in positions for user in entry.users[i]}
        if positions and not users & {FORWARD, BACKWARD}:
            stage = max(homes[positions[0]], 0)
            sizes_by_stage[stage].append(size_of(entry.instructions[positions[0]].shape))
    large = tuple(tuple(size for size in sizes if size >= LEAST_BYTES) for sizes in sizes_by_stage)
    return large, np.array([float(sum(sizes)) for sizes in sizes_by_stage])


def _accumulators(form: Form, of_op: Sequence[int], stages: int) -> Sizes:
    sizes_by_stage: list[list[int]] = [[] for _ in range(stages)]
    for gradient in form.phases.gradients:
        stage = of_op[gradient.position]
        size = size_of(form.module.entry.instructions[gradient.position].shape)
        if stage >= 0 and size >= LEAST_BYTES:
            sizes_by_stage[stage].append(size)
    return tuple(map(tuple, sizes_by_stage))


def _update_cycles(survey: Survey, homes: Sequence[int], state: Floats) -> tuple[Floats, float]:
    """Return the cycles of an update by stage, and those that all wait for.

    What no op of the entry is known to take goes by the bytes of state.
    """
    cycles_by_stage = np.zeros(len(state))
    own = np.array(survey.update_op)
    if not len(own):
        return cycles_by_stage, survey.update_cycles
    where = np.array(homes)
    known = where >= 0
    np.add.at(cycles_by_stage, where[known], own[known])
    common = float(own[~known].sum())
    rest = max(survey.update_cycles - float(own.sum()), 0.0)
    whole = float(state.sum())
    return cycles_by_stage + (rest * state / whole if whole else rest / len(state)), common


def _host(form: Form, of_op: Sequence[int], stages: int) -> tuple[Floats, Floats]:
    """Return the bytes that go from and to the host for each micro-batch, by stage."""
    entry = form.module.entry
    fed, given = np.zeros(stages), np.zeros(stages)
    places = parameter_positions(entry)
    for number in (n for feed in form.wrapping.feeds for n in feed.places):
        for i in places[number]:
            readers = [of_op[user] for user in entry.users[i] if of_op[user] >= 0]
            fed[min(readers, default=0)] += size_of(entry.instructions[i].shape)
    results = result_positions(entry)
    for number in (n for each in form.wrapping.outfeeds for n in each.places):
        result = results[number]
        if result is not None and of_op[result] >= 0:
            given[of_op[result]] += size_of(entry.instructions[result].shape)
    return fed, given
