"""Participants that do not come together: prompt, typed errors; and how many a module asks for."""

import time
from threading import active_count

import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import EvaluationLimits
from hloipu_compiler.interpret.ops.custom_calls import REGISTRY, Call, register_custom_call
from hloipu_compiler.interpret.participants import (
    evaluate_everywhere,
    evaluate_participants,
    participants_of,
)
from hloipu_compiler.interpret.planning.meeting import MeetingError
from hloipu_runtime.errors import LimitError, UsageError
from tests.support.arrays import Array
from tests.support.collectives import ADD, PAIRS, R8, inputs, module_of

PROMPT_SECONDS = 10.0
"""Far above what these take; a wait for nobody would take for ever."""


class BrokenError(Exception):
    """What a participant's own code raises."""


def test_one_participant_raises() -> None:
    """Its error is what the caller sees; the others are sent home and no thread is left."""

    def broken(call: Call) -> list[Array]:
        if call.site.effects.replica == 5:
            raise BrokenError
        return call.operands

    register_custom_call("test.broken", broken)
    try:
        body = (
            'q = f32[8,4] custom-call(p), custom_call_target="test.broken"; '
            f"ROOT r = f32[8,4] all-reduce(q), {PAIRS}, to_apply=add"
        )
        threads, start = active_count(), time.monotonic()
        with pytest.raises(BrokenError):
            evaluate_participants(module_of(body, R8), inputs(8), replicas=8)
    finally:
        del REGISTRY["test.broken"]
    assert time.monotonic() - start < PROMPT_SECONDS
    assert active_count() == threads


BRANCHES = """
left { x = f32[8,4] parameter(0)
  ROOT s = f32[8,4] all-reduce(x), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=add }

right { y = f32[8,4] parameter(0)
  ROOT t = f32[8,4] negate(y) }

other { z = f32[8,4] parameter(0)
  ROOT u = f32[8,4] all-reduce(z), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=add }
"""


def branching(first: str, second: str) -> str:
    """Return statements by which replica 0 goes another way than the rest."""
    return (
        "i = u32[] replica-id(); n = u32[] constant(0); c = pred[] compare(i, n), direction=EQ; "
        f"ROOT r = f32[8,4] conditional(c, p, p), true_computation={first}, "
        f"false_computation={second}"
    )


@pytest.mark.parametrize(
    ("first", "second", "waiting"),
    [
        ("left", "right", r"'s' \(0 of"),
        ("right", "left", r"'s' \(1, 2, 3, 4, 5, 6, 7 of"),
        ("left", "other", r"'s' \(0 of .*; 'u' \(1, 2, 3, 4, 5, 6, 7 of"),
    ],
)
def test_different_branches(first: str, second: str, waiting: str) -> None:
    """Nobody waits for who never comes, and the error says who waits where."""
    module = module_of(branching(first, second), R8, BRANCHES)
    start = time.monotonic()
    with pytest.raises(MeetingError, match=waiting) as caught:
        evaluate_participants(module, inputs(8), replicas=8)
    assert caught.value.code == "E2011"
    assert time.monotonic() - start < PROMPT_SECONDS


def test_groups_in_different_branches() -> None:
    """Participants of other groups may do other things."""
    body = (
        "i = u32[] replica-id(); n = u32[] constant(4); c = pred[] compare(i, n), direction=LT; "
        "ROOT r = f32[8,4] conditional(c, p, p), true_computation=halves, false_computation=right"
    )
    halves = (
        "halves { h = f32[8,4] parameter(0)\n  ROOT k = f32[8,4] all-reduce(h), "
        "replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=add }"
    )
    results = evaluate_participants(module_of(body, R8, BRANCHES, halves), inputs(8), replicas=8)
    given = [x for (x,) in inputs(8)]
    for number, (result,) in enumerate(results):
        wanted = sum(given[:4]) if number < 4 else -given[number]
        np.testing.assert_array_equal(result, wanted)


def test_wrong_counts() -> None:
    """Too few participants, lists of arguments, and too many participants, are typed errors."""
    module = module_of(f"ROOT r = f32[8,4] all-reduce(p), {PAIRS}, to_apply=add", R8)
    with pytest.raises(UsageError) as caught:
        evaluate_participants(module, inputs(4), replicas=4)
    assert caught.value.code == "E3104"
    with pytest.raises(UsageError) as caught:
        evaluate_participants(module, inputs(3), replicas=8)
    assert caught.value.code == "E3105"
    with pytest.raises(LimitError):
        evaluate_participants(module, inputs(1), replicas=1000)
    tight = EvaluationLimits(live_bytes=8 * 200)
    with pytest.raises(LimitError):
        evaluate_participants(module, inputs(8), replicas=8, limits=tight)


def test_same_arguments_for_all() -> None:
    """One list of arguments serves every participant."""
    module = module_of(f"ROOT r = f32[8,4] all-reduce(p), {PAIRS}, to_apply=add", R8)
    (given,) = inputs(1)
    (result,) = evaluate_everywhere(module, *given)
    np.testing.assert_array_equal(result, 2 * given[0])


REDUCE = "all-reduce(p), to_apply=add"


@pytest.mark.parametrize(
    ("header", "op", "counts"),
    [
        ("", "negate(p)", (1, 1)),
        (", num_partitions=8", "negate(p)", (1, 1)),
        ("", f"{REDUCE}, replica_groups={{}}", (1, 1)),
        ("", f"{REDUCE}, replica_groups={{{{0,1}},{{2,3}}}}", (4, 1)),
        ("", f"{REDUCE}, channel_id=1, replica_groups={{{{0,1}}}}", (2, 1)),
        ("", f"{REDUCE}, channel_id=1, replica_groups=[2,3]<=[6], use_global_device_ids=true",
         (1, 6)),
        (", replica_count=2",
         f"{REDUCE}, channel_id=1, replica_groups=[2,3]<=[6], use_global_device_ids=true", (2, 3)),
        (", num_partitions=3",
         f"{REDUCE}, channel_id=1, replica_groups=[2,3]<=[6], use_global_device_ids=true", (2, 3)),
        (", replica_count=4, num_partitions=2", f"{REDUCE}, replica_groups={{{{2,1,0,3}}}}",
         (4, 2)),
        ("", "collective-permute(p), source_target_pairs={{0,5}}", (6, 1)),
        ("", "collective-permute(p), channel_id=1, source_target_pairs={{0,5}}", (1, 6)),
    ],
)  # fmt: skip
def test_participants_of(header: str, op: str, counts: tuple[int, int]) -> None:
    """The header says it, else the ids do; who does not meet needs nobody."""
    entry = f"ENTRY e {{ p = f32[8] parameter(0)\n  ROOT r = f32[8] {op} }}"
    assert participants_of(parse(f"HloModule m{header}\n\n{ADD}\n\n{entry}\n")) == counts
