"""What stages keep and make, from a survey written down by hand."""

from dataclasses import replace

import numpy as np
import pytest

from hloipu_compiler.cost_survey.stage_memory import FIRST, Again, Parts, Reads, parts_of
from hloipu_compiler.cost_survey.survey import Survey

# Ops: 0 and 1 forward, 2 and 3 backward (3 belongs to 0, 2 to 1).
PHASE = ("fwd", "fwd", "bwd", "bwd")
SIZES = (100.0, 40.0, 30.0, 20.0)


def survey() -> Survey:
    # Arrays: a of op 0, read by 1, 2 and 3; b of 1, read by 2; c of 2, read by 3; scratch of 1.
    touches = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (2, 2), (2, 3), (3, 1)]
    both = np.array(touches)
    return Survey(
        cycles=[10.0, 20.0, 30.0, 40.0],
        update_cycles=5.0,
        point_op=np.arange(4),
        array_bytes=np.array([100, 40, 30, 7]),
        is_value=np.array([True, True, True, False]),
        touched=both[:, 0],
        touched_at=both[:, 1],
        kept_bytes=np.array([1000, 500]),
        kept=np.array([0, 0, 1]),
        kept_op=np.array([0, 3, 2]),
        op_code=[1.0, 2.0, 4.0, 8.0],
        code_bytes=np.array([16.0, 32.0]),
        code=np.array([0, 0, 1]),
        code_op=np.array([0, 3, 1]),
        stack_bytes=64,
    )


def reads() -> Reads:
    pairs = np.array([(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)])
    return Reads(pairs[:, 0], pairs[:, 1], np.array(SIZES), np.zeros(0, np.int64))


def two_stages(again: Again | None = None) -> Parts:
    return parts_of(survey(), reads(), PHASE, (0, 1, 1, 0), 2, again or {}, {}, has_backward=True)


def test_one_stage_makes_everything_at_once() -> None:
    parts = parts_of(survey(), reads(), PHASE, (0, 0, 0, 0), 1, {}, {}, has_backward=False)
    assert parts.cycles.tolist() == [100]
    assert parts.working_bytes.tolist() == [100 + 40 + 30]  # at op 2: a, b and c
    assert parts.kept_bytes.tolist() == [1500]
    assert parts.code_on([0]).tolist() == [64 + 15 + 48]
    assert not len(parts.handed.bytes)


def test_parts_of_two_stages_hand_on_what_others_read() -> None:
    parts = two_stages()
    assert parts.cycles.tolist() == [10, 20, 30, 40]  # F0, F1, B1, B0
    handed = parts.handed
    rows = zip(handed.bytes, handed.maker, handed.reader, handed.op, strict=True)
    assert sorted(rows) == [
        (30, 2, 3, 2), (40, 1, 2, 1), (100, 0, 1, 0), (100, 0, 2, 0), (100, 0, 3, 0),
    ]  # fmt: skip
    assert parts.working_bytes.tolist() == [0, 7, 0, 0]  # what is handed on counts there
    assert parts.kept_bytes.tolist() == [1000, 500]
    assert parts.code_on([0, 1]).tolist() == [64 + 9 + 16, 64 + 6 + 32]
    assert parts.code_on([0, 0]).tolist() == [64 + 15 + 48]


def test_what_is_made_again_takes_cycles_and_is_not_handed_on() -> None:
    parts = two_stages({0: {0: FIRST}})
    assert parts.cycles.tolist() == [10, 20, 30, 50]
    assert (100, 0, 3) not in zip(
        parts.handed.bytes, parts.handed.maker, parts.handed.reader, strict=True
    )
    assert parts.working_bytes[3] == 100  # a, made once more by B0
    assert parts.code_on([0, 1])[0] == 64 + 9 + 1 + 16


def test_fed_arrays_come_to_the_first_reader_and_go_on_from_there() -> None:
    pairs = np.array([(4, 1), (4, 3)])
    fed = Reads(pairs[:, 0], pairs[:, 1], np.array([*SIZES, 60.0]), np.array([4]))
    five = replace(survey(), cycles=[10.0, 20.0, 30.0, 40.0, 0.0], op_code=[0.0] * 5)
    parts = parts_of(five, fed, (*PHASE, ""), (0, 1, 1, 0, -1), 2, {}, {}, has_backward=True)
    handed = parts.handed
    assert (handed.bytes.tolist(), handed.maker.tolist(), handed.reader.tolist()) == (
        [60], [1], [3]
    )  # fmt: skip


LAYERS = (100, 50, 70, 20, 90, 30)
"""Bytes that each of a chain of ops makes; the backward op of each reads it and the one before."""


def chain() -> Survey:
    count = len(LAYERS)
    touches = [(op, op) for op in range(2 * count)]
    for op in range(1, count):
        touches.append((op - 1, op))
    for op in range(count, 2 * count):
        layer = 2 * count - 1 - op
        touches += [(read, op) for read in (layer, layer - 1, op - 1) if read >= 0]
    both = np.array(sorted(set(touches)))
    return replace(
        survey(), cycles=[1.0] * 2 * count, point_op=np.arange(2 * count),
        array_bytes=np.array((*LAYERS, *[10] * count)), is_value=np.ones(2 * count, np.bool_),
        touched=both[:, 0], touched_at=both[:, 1], op_code=[0.0] * 2 * count,
        kept=np.zeros(0, np.int64), kept_op=np.zeros(0, np.int64),
        kept_bytes=np.zeros(0, np.int64), code=np.zeros(0, np.int64), code_op=np.zeros(0, np.int64),
    )  # fmt: skip


@pytest.mark.parametrize("before", [{}, {3: 6, 4: 6, 0: 9, 1: 9}, {0: 9}])
def test_blocks_made_again_take_what_a_walk_through_the_step_finds(before: dict[int, int]) -> None:
    count, found = len(LAYERS), chain()
    walk = [(op, False) for op in range(count)]
    for op in range(count, 2 * count):
        walk += [(other, True) for other in sorted(before) if before[other] == op] + [(op, False)]
    spans: dict[tuple[int, bool], list[int]] = {}
    for moment, (op, is_again) in enumerate(walk):
        arrays = found.touched[found.touched_at == op].tolist()
        for array in arrays:
            spans.setdefault((array, array in before and (is_again or op >= count)), []).append(
                moment
            )
    most = max(
        sum(
            int(found.array_bytes[array])
            for (array, _), at in spans.items()
            if at[0] <= moment <= at[-1]
        )
        for moment in range(len(walk))
    )
    phase = ("fwd",) * count + ("bwd",) * count
    pairs = np.array([(0, 1)])
    read = Reads(pairs[:, 0], pairs[:, 1], np.zeros(2 * count), np.zeros(0, np.int64))
    again = {0: before} if before else {}
    parts = parts_of(found, read, phase, (0,) * 2 * count, 1, again, {}, has_backward=False)
    assert parts.working_bytes.tolist() == [most]
    assert parts.cycles.tolist() == [2 * count + len(before)]
