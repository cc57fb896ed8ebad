"""Collectives of every element type and group form, evaluated and on tiles, against XLA:CPU.

Values are whole numbers so small that no order of sums rounds them.
"""

import ml_dtypes
import numpy as np
import pytest

from hloipu.xla_cpu.runner import for_partitioner
from hloipu_compiler.compilation import CompileRequest
from hloipu_compiler.driver import compile_module
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printing.printer import FULL, print_module
from hloipu_compiler.interpret.participants import evaluate_participants, participants_of
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.machine.load import load_machine
from tests.support.arrays import Array
from tests.support.collectives import HEADERS, P8, R2P4, R4P2, R8, Counts
from tests.support.xla_oracle import Oracle

MACHINE = load_machine("tiny")
TYPES = {
    "pred": np.bool_, "s8": np.int8, "s16": np.int16, "s32": np.int32, "s64": np.int64,
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
    "bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "f64": np.float64,
    "c64": np.complex64,
}  # fmt: skip
MONOIDS = {
    "pred": ("and", "or"),
    "c64": ("add", "multiply"),
}
"""Which reductions of a type XLA:CPU knows; of integers, WHOLE."""
WHOLE = ("add", "multiply", "minimum", "maximum")


def given_of(kind: str) -> list[list[Array]]:
    """Return one array of a type, of eight rows and two columns, for each participant."""
    random = np.random.default_rng(len(kind))
    signed = kind[0] not in "up"
    found = []
    for _ in range(8):
        x = random.integers(-1 if signed else 0, 2 if kind == "pred" else 3, (8, 2))
        found.append([(x > 0 if kind == "pred" else x).astype(TYPES[kind])])
    return found


def judged(lines: str, kind: str, counts: Counts, oracle: Oracle, *hows: str) -> None:
    """Compare every participant's results, evaluated and in both modes, with XLA's."""
    entry = f"ENTRY e {{\n  p = {kind}[8,2] parameter(0)\n  {lines}\n}}\n"
    module = parse("\n\n".join([f"HloModule m{HEADERS[counts]}", *hows, entry]))
    verify(module)
    given = given_of(kind)
    carried = for_partitioner(module) if counts[1] > 1 else module
    judge = oracle.load(print_module(carried, FULL), replicas=counts[0], partitions=counts[1])
    wanted = judge.run_each(given)
    judge.unload()
    program = CompiledProgram(compile_module(module, CompileRequest(MACHINE)).program, MACHINE)
    ours = evaluate_participants(module, given, replicas=counts[0], partitions=counts[1])
    for name, found in (
        ("evaluated", ours),
        ("functional", program.run(each=given, mode="functional").everyone),
        ("exact", program.run(each=given, mode="exact", poison=True).everyone),
    ):  # fmt: skip
        for number, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
            for a, b in zip(mine, theirs, strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b.reshape(a.shape), f"{name}, {number}")


def reducer(kind: str, monoid: str) -> str:
    return (
        f"{monoid}.how {{ a = {kind}[] parameter(0)  b = {kind}[] parameter(1)  "
        f"ROOT r = {kind}[] {monoid}(a, b) }}"
    )


@pytest.mark.parametrize("kind", TYPES)
def test_every_reduction_of_a_type(kind: str, oracle: Oracle) -> None:
    """All-reduces over groups of unlike sizes, and a reduce-scatter of each."""
    monoids = MONOIDS.get(kind, WHOLE)
    lines, shapes, names = [], [], []
    for monoid in monoids:
        lines.append(
            f"{monoid}.all = {kind}[8,2] all-reduce(p), replica_groups={{{{4}},{{0,7}},"
            f"{{6,5,3,2,1}}}}, to_apply={monoid}.how"
        )
        lines.append(
            f"{monoid}.part = {kind}[2,2] reduce-scatter(p), replica_groups={{{{7,0,3,4}},"
            f"{{2,1,6,5}}}}, dimensions={{0}}, to_apply={monoid}.how"
        )
        shapes += [f"{kind}[8,2]", f"{kind}[2,2]"]
        names += [f"{monoid}.all", f"{monoid}.part"]
    lines.append(f"ROOT t = ({', '.join(shapes)}) tuple({', '.join(names)})")
    judged("\n  ".join(lines), kind, R8, oracle, *(reducer(kind, monoid) for monoid in monoids))


@pytest.mark.parametrize("kind", TYPES)
def test_everything_that_moves_values_of_a_type(kind: str, oracle: Oracle) -> None:
    lines = f"""
  joined = {kind}[16,2] all-gather(p), replica_groups={{{{0,1}},{{3,2}},{{4,7}},{{6,5}}}},
    dimensions={{0}}
  turned = {kind}[8,2] all-to-all(p), replica_groups={{{{7,0,3,4}},{{2,1,6,5}}}}, dimensions={{0}}
  passed = {kind}[8,2] collective-permute(p),
    source_target_pairs={{{{0,3}},{{3,6}},{{6,0}},{{1,2}}}}
  ROOT t = ({kind}[16,2], {kind}[8,2], {kind}[8,2]) tuple(joined, turned, passed)"""
    judged(lines, kind, R8, oracle)


LISTS = {4: "{{7,0,3,4},{2,1,6,5}}", 2: "{{1,0},{3,2}}", 1: "{{0},{1}}", 8: "{{3,1,0,2,7,6,5,4}}"}
FORMS = [
    # who: in groups of replicas, of partitions, of both, or of flattened ids
    ("replica_groups={}", R8, 8), ("replica_groups={}", R4P2, 4), ("replica_groups={}", R2P4, 2),
    (f"replica_groups={LISTS[8]}", R8, 8), (f"replica_groups={LISTS[2]}", R4P2, 2),
    ("replica_groups=[2,4]<=[8]", R8, 4), ("replica_groups=[4,2]<=[8]", R8, 2),
    ("replica_groups=[4,2]<=[2,2,2]T(2,0,1)", R8, 2), ("replica_groups=[1,4]<=[4]", R4P2, 4),
    ("replica_groups=[2,2]<=[2,2]T(1,0)", R4P2, 2),
    ("channel_id=1, replica_groups={}", P8, 8), ("channel_id=1, replica_groups={}", R2P4, 8),
    ("channel_id=1, replica_groups={{0},{1}}", R2P4, 4),
    (f"channel_id=1, replica_groups={LISTS[2]}", R4P2, 4),
    ("channel_id=1, replica_groups=[2,2]<=[2,2]T(1,0)", R4P2, 4),
    (f"channel_id=1, use_global_device_ids=true, replica_groups={LISTS[4]}", R4P2, 4),
    ("channel_id=1, use_global_device_ids=true, replica_groups=[2,4]<=[8]", P8, 4),
    ("channel_id=1, use_global_device_ids=true, replica_groups=[4,2]<=[2,2,2]T(2,0,1)", R2P4, 2),
    ("channel_id=1, use_global_device_ids=true, replica_groups=[2,4]<=[4,2]T(1,0)", P8, 4),
    ("channel_id=1, use_global_device_ids=true, replica_groups=mesh['a'=2,'b'=4] {'b'}", P8, 4),
]  # fmt: skip


@pytest.mark.parametrize(("groups", "counts", "size"), FORMS)
def test_every_form_of_groups(groups: str, counts: Counts, size: int, oracle: Oracle) -> None:
    lines = f"""
  summed = f32[8,2] all-reduce(p), {groups}, to_apply=add.how
  part = f32[{8 // size},2] reduce-scatter(p), {groups.replace("channel_id=1", "channel_id=2")},
    dimensions={{0}}, to_apply=add.how
  joined = f32[8,{2 * size}] all-gather(p), {groups.replace("channel_id=1", "channel_id=3")},
    dimensions={{1}}
  ROOT t = (f32[8,2], f32[{8 // size},2], f32[8,{2 * size}]) tuple(summed, part, joined)"""
    judged(lines, "f32", counts, oracle, reducer("f32", "add"))


PAIRS = [
    ("f32[8,2] all-reduce-start(p), replica_groups={{0,1,2},{3,4,5,6,7}}, to_apply=add.how",
     "f32[8,2] all-reduce-done(s)"),
    ("(f32[8,2], f32[16,2]) all-gather-start(p), replica_groups=[4,2]<=[8], dimensions={0}",
     "f32[16,2] all-gather-done(s)"),
    ("((f32[8,2]), f32[4,2]) reduce-scatter-start(p), replica_groups=[4,2]<=[8], dimensions={0}, "
     "to_apply=add.how", "f32[4,2] reduce-scatter-done(s)"),
    ("(f32[8,2], f32[8,2]) collective-permute-start(p), source_target_pairs={{0,1},{1,5}}",
     "f32[8,2] collective-permute-done(s)"),
]  # fmt: skip


@pytest.mark.parametrize(("start", "done"), PAIRS)
def test_pairs(start: str, done: str, oracle: Oracle) -> None:
    """A start and its done, with an op between them."""
    shape = done.split()[0]
    lines = f"""s = {start}
  n = f32[8,2] negate(p)
  d = {done}
  ROOT t = ({shape}, f32[8,2]) tuple(d, n)"""
    judged(lines, "f32", R8, oracle, reducer("f32", "add"))


def test_the_widest_group_tells_how_many_take_part() -> None:
    """One group of all replicas and partitions is no group of replicas alone."""
    text = """HloModule m, num_partitions=8

ENTRY e {
  p = f32[2] parameter(0)
  ROOT r = f32[16] all-gather(p), channel_id=1, replica_groups={}, dimensions={0}
}
"""
    assert participants_of(parse(text)) == (1, 8)
    header = "HloModule m, replica_count=2, num_partitions=4"
    assert participants_of(parse(text.replace("HloModule m, num_partitions=8", header))) == (2, 4)


def sent(given: list[list[Array]], groups: list[list[int]]) -> list[Array]:
    """Return what a ragged all-to-all leaves, by its definition."""
    outputs = [mine[1].copy() for mine in given]
    for group in groups:
        for sender, me in enumerate(group):
            x, _, begins, sizes, to, _ = given[me]
            for rank, other in enumerate(group):
                taken = x[begins[rank] : begins[rank] + sizes[rank]]
                outputs[other][to[rank] : to[rank] + sizes[rank]] = taken
                assert given[other][5][sender] == sizes[rank]
    return outputs


@pytest.mark.parametrize("kind", ["f32", "bf16", "s8"])
def test_ragged_exchanges_of_two_groups(kind: str) -> None:
    """XLA:CPU has no rule for these: what each sends goes where it says, the rest stays."""
    groups, random = [[2, 0, 3], [5, 1, 4]], np.random.default_rng(3)
    text = f"""HloModule m, replica_count=6

ENTRY e {{
  x = {kind}[9,2] parameter(0)
  y = {kind}[9,2] parameter(1)
  from = s32[3] parameter(2)
  sizes = s32[3] parameter(3)
  to = s32[3] parameter(4)
  taken = s32[3] parameter(5)
  ROOT r = {kind}[9,2] ragged-all-to-all(x, y, from, sizes, to, taken),
    replica_groups={{{{2,0,3}},{{5,1,4}}}}
}}
"""
    module = parse(text)
    verify(module)
    size = random.integers(0, 4, (6, 3)).astype(np.int32)
    given: list[list[Array]] = []
    for me in range(6):
        group = next(g for g in groups if me in g)
        rank = group.index(me)
        to = [sum(size[other, n] for other in group[:rank]) for n in range(3)]
        given.append(
            [random.integers(1, 9, (9, 2)).astype(TYPES[kind]), np.zeros((9, 2), TYPES[kind]),
             (size[me].cumsum() - size[me]).astype(np.int32), size[me],
             np.array(to, np.int32), np.array([size[other, rank] for other in group], np.int32)]
        )  # fmt: skip
    wanted = sent(given, groups)
    program = CompiledProgram(compile_module(module, CompileRequest(MACHINE)).program, MACHINE)
    for found in (
        evaluate_participants(module, given, replicas=6),
        program.run(each=given, mode="functional").everyone,
        program.run(each=given, mode="exact").everyone,
    ):
        for (a,), b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b)
