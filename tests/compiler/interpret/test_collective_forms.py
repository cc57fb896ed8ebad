"""Forms of collectives that XLA:CPU does not run: closed forms, and pairs against the plain op."""

import numpy as np
import pytest

from hloipu_compiler.compilation import CompileRequest
from hloipu_compiler.driver import compile_module
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.participants import evaluate_participants, participants_of
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import UnsupportedError
from hloipu_runtime.machine.load import load_machine
from tests.support.arrays import Array, s32
from tests.support.collectives import CROSSED, FLATTENED, P8, PAIRS, R8, Counts, inputs, module_of

TINY = load_machine("tiny")


def run(body: str, counts: Counts, given: list[list[Array]] | None = None) -> list[list[Array]]:
    """Evaluate statements on all participants, and run them on tiles to the same values."""
    module, given = module_of(body, counts), given or inputs(8)
    replicas, partitions = counts
    found = evaluate_participants(module, given, replicas=replicas, partitions=partitions)
    on_tiles = CompiledProgram(compile_module(module, CompileRequest(TINY)).program, TINY)
    for mode in ("functional", "exact"):
        for mine, theirs in zip(on_tiles.run(each=given, mode=mode).everyone, found, strict=True):
            for a, b in zip(mine, theirs, strict=True):
                np.testing.assert_array_equal(a, b)
    return found


@pytest.mark.parametrize(("channel", "counts"), [("", R8), ("channel_id=1, ", P8)])
def test_broadcast(channel: str, counts: Counts) -> None:
    """Members have the value of their group's first, participants in no group have zeros."""
    body = f"ROOT r = f32[8,4] collective-broadcast(p), {channel}replica_groups={{{{3,1}},{{5,2}}}}"
    given = inputs(8)
    sources = {3: 3, 1: 3, 5: 5, 2: 5}
    for number, (result,) in enumerate(run(body, counts)):
        wanted = given[sources[number]][0] if number in sources else np.zeros((8, 4))
        np.testing.assert_array_equal(result, wanted)


def test_broadcast_from_a_computed_root() -> None:
    """A root that is a value is refused."""
    body = (
        "i = s32[1] constant({0}); ROOT r = f32[8,4] collective-broadcast(p, i), "
        f"{PAIRS}, has_dynamic_root=true"
    )
    with pytest.raises(UnsupportedError, match="has_dynamic_root"):
        run(body, R8)


def test_variadic_reduce_scatter() -> None:
    """Each operand is reduced and split for itself."""
    body = (
        "q = f32[8,4] negate(p); ROOT r = (f32[4,4], f32[4,4]) reduce-scatter(p, q), "
        f"{PAIRS}, dimensions={{0}}, to_apply=add"
    )
    given = [x for (x,) in inputs(8)]
    for number, (a, b) in enumerate(run(body, R8)):
        total = given[number // 2 * 2] + given[number // 2 * 2 + 1]
        half = total[4:] if number % 2 else total[:4]
        np.testing.assert_array_equal(a, half)
        np.testing.assert_array_equal(b, -half)


CALLS = f"{FLATTENED}, {CROSSED}"
ASYNC = [
    (f"all-reduce(p), {CALLS}, to_apply=add", "f32[8,4]", "f32[8,4]"),
    (f"all-gather(p), {CALLS}, dimensions={{0}}", "(f32[8,4], f32[32,4])", "f32[32,4]"),
    ("collective-permute(p), channel_id=1, source_target_pairs={{0,1},{1,5}}",
     "(f32[8,4], f32[8,4], u32[], u32[])", "f32[8,4]"),
    ("all-to-all(p), channel_id=1, replica_groups={{7,0,3,4},{2,1,6,5}}, dimensions={0}",
     "((f32[8,4]), f32[8,4], u32[])", "f32[8,4]"),
    (f"reduce-scatter(p), {CALLS}, dimensions={{0}}, to_apply=add",
     "((f32[8,4]), f32[2,4])", "f32[2,4]"),
    (f"collective-broadcast(p), channel_id=1, {CROSSED}", "((f32[8,4]), f32[8,4])", "f32[8,4]"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "started", "shape"), ASYNC)
def test_pair_is_the_plain_op(call: str, started: str, shape: str) -> None:
    """A start and its done, native or short for async-start, make what the plain op makes."""
    opcode, rest = call.split("(", 1)
    pair = f"s = {started} {opcode}-start({rest}; ROOT r = {shape} {opcode}-done(s)"
    plain = run(f"ROOT r = {shape} {call}", P8)
    assert any(np.any(x) for (x,) in plain)
    for (a,), (b,) in zip(run(pair, P8), plain, strict=True):
        np.testing.assert_array_equal(a, b)


def test_variadic_all_gather_pair() -> None:
    """The operands of a variadic start stand before its results."""
    body = (
        "q = f32[8,4] negate(p); s = ((f32[8,4], f32[8,4]), (f32[16,4], f32[16,4])) "
        f"all-gather-start(p, q), {PAIRS}, dimensions={{0}}; "
        "ROOT r = (f32[16,4], f32[16,4]) all-gather-done(s)"
    )
    given = [x for (x,) in inputs(8)]
    for number, (a, b) in enumerate(run(body, R8)):
        first = number // 2 * 2
        joined = np.concatenate(given[first : first + 2])
        np.testing.assert_array_equal(a, joined)
        np.testing.assert_array_equal(b, -joined)


RAGGED = """
HloModule m, replica_count=2

ENTRY e {
  x = f32[6] parameter(0)
  y = f32[8] parameter(1)
  from = s32[2] parameter(2)
  sizes = s32[2] parameter(3)
  to = s32[2] parameter(4)
  taken = s32[2] parameter(5)
  ROOT r = f32[8] ragged-all-to-all(x, y, from, sizes, to, taken), replica_groups={{0,1}}
}
"""


def test_ragged_all_to_all() -> None:
    """Rows go where their sender says; other rows of the output stay (StableHLO-like example)."""
    a, b = np.arange(1, 7, dtype=np.float32), np.arange(11, 17, dtype=np.float32)
    blank = np.full(8, -1, np.float32)
    given = [
        [a, blank, s32([0, 2]), s32([2, 3]), s32([0, 0]), s32([2, 1])],
        [b, blank, s32([0, 1]), s32([1, 4]), s32([2, 3]), s32([3, 4])],
    ]
    module = parse(RAGGED)
    assert participants_of(module) == (2, 1)
    (first,), (second,) = evaluate_participants(module, given, replicas=2)
    np.testing.assert_array_equal(first, [1, 2, 11, -1, -1, -1, -1, -1])
    np.testing.assert_array_equal(second, [3, 4, 5, 12, 13, 14, 15, -1])
