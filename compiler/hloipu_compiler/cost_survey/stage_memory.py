"""Memory that each IPU of a staged step keeps, from a survey of the step.

Each stage has a forward and a backward part. An array that one part alone touches is there from its
first touch in it to its last, and so is what a part computes again in place of receiving it. What a
part makes and others receive is handed on; how long that is there depends on the schedule.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_compiler.cost_survey.survey import Floats, Numbers, Survey
from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.ir.shapes import byte_count
from hloipu_compiler.partition.training.step_phases import BACKWARD, FORWARD, Phases

Again = Mapping[int, Mapping[int, int]]
"""By stage: forward ops that its backward part computes again, each with the backward op that it
comes right before, or `FIRST`."""
FIRST = -1
"""Before all that a part does for the first time."""

_MOST_SOURCES = 8
"""Of a value that is made wherever it is read."""


@dataclass(frozen=True)
class Reads:
    """Pairs of producers and readers; views and the like are looked through."""

    maker: Numbers
    reader: Numbers
    size_bytes: Floats
    """Of what the maker makes."""
    fed: Numbers
    """Makers that are parameters which queues feed: they come to the first part that reads them."""


@dataclass(frozen=True)
class Handed:
    """Arrays that one part of a stage hands to others, one row for each reader.

    Rows of an array follow each other, earlier readers first.
    """

    bytes: Floats
    op: Numbers
    """That makes the array."""
    maker: Numbers
    """Position in the pipeline."""
    reader: Numbers


@dataclass(frozen=True)
class Parts:
    """Costs of a cut step's parts, for any schedule and number of micro-batches."""

    stages: int
    cycles: Floats
    """Of each position of the pipeline, without the host and channels."""
    working_bytes: Floats
    """Of each position: most that it makes at once, without what is handed on."""
    kept_bytes: Floats
    """What each stage has throughout beside its state."""
    copy_bytes: Floats
    """Of each stage: copies of weights that are made in each micro-batch, or kept, ..."""
    copy_cycles: Floats
    """... and what making them takes, of the cycles of each position."""
    handed: Handed
    own_code: Floats
    """Of each stage, on a tile: what no other stage shares."""
    shared_code: Numbers
    """Code of vertices, by pairs: what it is, ..."""
    shared_code_stage: Numbers
    """... and stages that have it."""
    shared_code_bytes: Floats
    """By what it is."""
    common_code_bytes: float
    """That every IPU has."""

    def code_on(self, ipus: Sequence[int]) -> Floats:
        """Return the bytes of code on a tile of each IPU; `ipus`: that of each stage."""
        place = np.array(ipus, np.int64)
        code = np.full(int(place.max()) + 1, self.common_code_bytes)
        np.add.at(code, place, self.own_code)
        if len(self.shared_code):
            pairs = np.stack((self.shared_code, place[self.shared_code_stage]))
            pairs = np.unique(pairs, axis=1)
            np.add.at(code, pairs[1], self.shared_code_bytes[pairs[0]])
        return code


def reads_of(entry: Computation, phases: Phases, fed: Collection[int]) -> Reads:
    """Return which forward and backward ops read what others make, and what queues feed.

    What is cheap and alike for all micro-batches is made wherever it is read. `fed`: positions of
    parameters.
    """
    fed_positions = frozenset(fed)
    made_of: list[tuple[int, ...]] = []
    pairs: list[tuple[int, int]] = []
    sizes = np.zeros(len(entry.instructions))
    for position, instruction in enumerate(entry.instructions):
        works = phases.phase[position] in (FORWARD, BACKWARD)
        sources = {source for i in instruction.operands for source in made_of[i]}
        if works:
            pairs.extend((source, position) for source in sources)
        if works or position in fed_positions:
            sizes[position] = byte_count(instruction.shape)
            made_of.append((position,))
        else:
            made_of.append(tuple(sources)[:_MOST_SOURCES])
    source_and_reader = np.array(pairs, np.int64).reshape(-1, 2)
    return Reads(
        source_and_reader[:, 0],
        source_and_reader[:, 1],
        sizes,
        np.array(sorted(fed_positions), np.int64),
    )


def parts_of(
    survey: Survey,
    reads: Reads,
    phase: Sequence[str],
    stage_of: Sequence[int],
    stages: int,
    again: Again,
    remade: Mapping[int, Collection[int]],
    *,
    has_backward: bool,
) -> Parts:
    """Return what a cut makes of a step, whose stages have backward parts or one part only.

    `stage_of` has the stage of every position of the entry; `remade`, by position of the pipeline:
    ops that it computes again in place of receiving what they make.
    """
    positions = 2 * stages if has_backward else stages
    remade_by_part = {positions - 1 - stage: frozenset(ops) for stage, ops in again.items()}
    for number, ops in remade.items():
        remade_by_part[number] = remade_by_part.get(number, frozenset()).union(ops)
    of_op = np.array(stage_of, np.int64)
    behind = np.array([op_phase == BACKWARD for op_phase in phase])
    place = np.where(behind & has_backward, 2 * stages - 1 - of_op, of_op)
    cycles = np.zeros(positions)
    used = of_op >= 0
    np.add.at(cycles, place[used], np.array(survey.cycles)[used])
    of_point = _filled(np.where(used, place, -1)[survey.point_op])
    by = survey.ops_of_touches
    part = np.where((by >= 0) & used[by], place[by], of_point[survey.touched_at])
    for number, ops in remade_by_part.items():
        cycles[number] += sum(survey.cycles[op] for op in ops)
    touches = _touches(survey, part, behind, again, positions)
    working = _working(survey, touches, remade_by_part, positions)
    handed = _handed(reads, np.where(used, place, -1), remade_by_part)
    copy_bytes, copy_cycles = _copies(survey, of_op, place, stages, positions)
    return Parts(
        stages, cycles, working, _kept_bytes(survey, of_op, stages), copy_bytes, copy_cycles,
        handed, *_code(survey, of_op, remade_by_part, stages),
    )  # fmt: skip


def _filled(part: Numbers) -> Numbers:
    """Return the parts of points; those of ops without a stage go with the point before."""
    known = np.where(part >= 0, np.arange(len(part)), -1)
    last = np.maximum.accumulate(known) if len(part) else known
    filled: Numbers = np.where(last >= 0, part[np.maximum(last, 0)], 0)
    return filled


class _Touches(NamedTuple):
    """When parts touch arrays: rows of all touches."""

    array: Numbers
    """What is made again in the part that made it is another array: its number, and so many more as
    there are arrays."""
    part: Numbers
    rank: Numbers
    """Later ones are greater, those of later parts than all of earlier ones."""
    maker: Numbers
    """By array: the op that makes it."""


def _touches(
    survey: Survey, part: Numbers, behind: NDArray[np.bool_], again: Again, positions: int
) -> _Touches:
    """Return when parts touch arrays, for the first time and where they compute ops again.

    `part`: of each touch; `behind`: which ops are backward ones.
    """
    array, at, by = survey.touched, survey.touched_at, survey.ops_of_touches
    points, count = len(survey.point_op), len(survey.array_bytes)
    # Between two points there is room for as many as are made again in between.
    scale = points + 1
    made_at = np.flatnonzero(np.r_[True, array[1:] != array[:-1]])
    maker = np.full(2 * count, -1, np.int64)
    maker[array[made_at]] = by[made_at]
    maker[count:] = maker[:count]
    rows = [np.stack((array, part, (at + points) * scale))]
    first = _first_points(survey)
    for stage, ops in again.items():
        number = positions - 1 - stage
        before = np.full(len(survey.cycles), FIRST, np.int64)
        before[np.fromiter(ops, np.int64)] = np.fromiter(ops.values(), np.int64)
        mine = np.isin(by, np.fromiter(ops, np.int64)) & (part == stage)
        reader = before[by[mine]]
        when = np.where(
            reader == FIRST, at[mine] * scale, (first[reader] + points - 1) * scale + at[mine] + 1
        )
        array_offset = 0
        if number == stage:
            array_offset = count
            late = behind[by] & (by >= 0) & np.isin(maker[array], np.fromiter(ops, np.int64))
            rows[0][0, late] += count
        rows.append(np.stack((array[mine] + array_offset, np.full(len(when), number), when)))
    arrays, parts, when = np.concatenate(rows, axis=1)
    return _Touches(arrays, parts, parts * (2 * points * scale) + when, maker)


def _first_points(survey: Survey) -> Numbers:
    """Return the first point of each op; of one that has none, that of the next one."""
    points = np.arange(len(survey.point_op))
    known = survey.point_op >= 0
    first = np.full(len(survey.cycles), len(points))
    np.minimum.at(first, survey.point_op[known], points[known])
    none = first == len(points)
    following = np.minimum.accumulate(first[::-1])[::-1]
    points_of: Numbers = np.minimum(np.where(none, following, first), len(points) - 1)
    return points_of


def _working(
    survey: Survey, touches: _Touches, remade: Mapping[int, Collection[int]], positions: int
) -> Floats:
    """Return the most bytes that each part makes at once.

    What ops make and several parts touch is handed on, and left out, but in parts that compute it
    again, `remade` by part.
    """
    if not len(touches.array):
        return np.zeros(positions)
    order = np.lexsort((touches.rank, touches.part, touches.array))
    arrays, in_part, rank = touches.array[order], touches.part[order], touches.rank[order]
    begins = np.r_[True, (arrays[1:] != arrays[:-1]) | (in_part[1:] != in_part[:-1])]
    first = np.flatnonzero(begins)
    last = np.r_[first[1:] - 1, len(arrays) - 1]
    array_in_part, where = arrays[first], in_part[first]
    count = len(survey.array_bytes)
    is_remade = np.zeros(len(array_in_part), np.bool_)
    for number, ops in remade.items():
        theirs = np.isin(touches.maker[array_in_part], np.fromiter(ops, np.int64))
        is_remade |= (where == number) & theirs
    mine = np.bincount(array_in_part[~is_remade], minlength=2 * count)
    inside = ~survey.is_value[array_in_part % count] | (mine[array_in_part] < 2) | is_remade
    sizes = survey.array_bytes[array_in_part % count].astype(float)[inside]
    return _peaks(rank[first][inside], rank[last][inside], sizes, where[inside], positions)


def _handed(reads: Reads, place: Numbers, remade: Mapping[int, Collection[int]]) -> Handed:
    """Return what parts hand to each other; `remade`: by part, ops that it computes again."""
    maker, reader = reads.maker, reads.reader
    place = place.copy()
    if len(reads.fed):
        first = np.full(len(place), len(place), np.int64)
        known = place[reader] >= 0
        np.minimum.at(first, maker[known], place[reader[known]])
        place[reads.fed] = np.where(first[reads.fed] < len(place), first[reads.fed], -1)
    pairs = [np.stack((maker, place[reader]))]
    for number, ops in remade.items():
        theirs = np.isin(reader, np.fromiter(ops, np.int64))
        pairs.append(np.stack((maker[theirs], np.full(int(theirs.sum()), number))))
    handed = np.unique(np.concatenate(pairs, axis=1), axis=1)
    goes = (handed[1] >= 0) & (place[handed[0]] >= 0) & (handed[1] != place[handed[0]])
    for number, ops in remade.items():
        goes &= ~((handed[1] == number) & np.isin(handed[0], np.fromiter(ops, np.int64)))
    makers, readers = handed[0][goes], handed[1][goes]
    return Handed(reads.size_bytes[makers], makers, place[makers], readers)


def _peaks(first: Numbers, last: Numbers, sizes: Floats, part: Numbers, positions: int) -> Floats:
    """Return the most bytes that are there at once in each part."""
    # At one moment arrays begin before others end: all that an op touches is there together.
    when = np.concatenate((2 * first, 2 * last + 1))
    change = np.concatenate((sizes, -sizes))
    parts = np.concatenate((part, part))
    order = np.argsort(when, kind="stable")
    level = np.cumsum(change[order])
    peaks = np.zeros(positions)
    np.maximum.at(peaks, parts[order], level)
    return peaks


def _kept_bytes(survey: Survey, of_op: Numbers, stages: int) -> Floats:
    """Return what each stage keeps of arrays that its ops touch."""
    bytes_by_stage = np.zeros(stages)
    if len(survey.kept):
        pairs = np.stack((survey.kept, of_op[survey.kept_op]))
        pairs = np.unique(pairs[:, pairs[1] >= 0], axis=1)
        np.add.at(bytes_by_stage, pairs[1], survey.kept_bytes[pairs[0]].astype(float))
    return bytes_by_stage


def _copies(
    survey: Survey, of_op: Numbers, place: Numbers, stages: int, positions: int
) -> tuple[Floats, Floats]:
    """Return bytes of copies by stage, and cycles of making them by position."""
    sizes, cycles = np.zeros(stages), np.zeros(positions)
    for copy in survey.copies:
        ops = [op for op in copy.ops if of_op[op] >= 0]
        for stage in {int(of_op[op]) for op in ops}:
            sizes[stage] += copy.size_bytes
        for op in ops:
            cycles[place[op]] += copy.cycles
    return sizes, cycles


def _code(
    survey: Survey, of_op: Numbers, remade: Mapping[int, Collection[int]], stages: int
) -> tuple[Floats, Numbers, Numbers, Floats, float]:
    """Return the last fields of `Parts`; `remade`: by part, ops that it computes again."""
    code = np.zeros(stages)
    op_code_bytes = np.array(survey.op_code)
    used = of_op >= 0
    np.add.at(code, of_op[used], op_code_bytes[used])
    for number, ops in remade.items():
        code[min(number, 2 * stages - 1 - number)] += sum(survey.op_code[op] for op in ops)
    common = float(survey.stack_bytes)
    pairs = np.zeros((2, 0), np.int64)
    if len(survey.code):
        # What is run before micro-batches or after them runs wherever there is state.
        where = np.where(survey.code_op >= 0, of_op[survey.code_op], -1)
        pairs = np.stack((survey.code, where))
        everywhere = np.unique(pairs[0, pairs[1] < 0])
        pairs = np.unique(pairs[:, (pairs[1] >= 0) & ~np.isin(pairs[0], everywhere)], axis=1)
        common += float(survey.code_bytes[everywhere].sum())
    return code, pairs[0], pairs[1], survey.code_bytes, common
