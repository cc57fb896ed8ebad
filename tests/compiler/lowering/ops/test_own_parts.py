"""Blocks that each IPU cuts out of what all have: no index is computed on tiles."""

from pathlib import Path

import numpy as np
import pytest

import hloipu
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.plan.own_numbers import own_numbers
from hloipu_runtime.compiled import load
from hloipu_runtime.costs.step_costs import step_charges
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.machine.transfers import host_transfer
from hloipu_runtime.program import collective as c
from hloipu_runtime.program.steps import StreamOut
from hloipu_runtime.simulate.functional.functional import FunctionalEngine
from hloipu_runtime.simulate.run.host import Arrays

NUMBERS = """HloModule m, num_partitions=4, replica_count=2
ENTRY e {
  x = f32[8,6] parameter(0)
  start = s32[] parameter(1)
  me = u32[] partition-id()
  table = s32[4] constant({0, 4, 2, 9})
  row = s32[1] dynamic-slice(table, me), dynamic_slice_sizes={1}
  at = s32[] reshape(row)
  zero = s32[] constant(0)
  part = f32[2,6] dynamic-slice(x, at, zero), dynamic_slice_sizes={2,6}
  places = s32[4,2] constant({{0,1},{2,3},{4,5},{6,7}})
  none = u32[] constant(0)
  place = s32[1,2] dynamic-slice(places, me, none), dynamic_slice_sizes={1,2}
  both = s32[] add(at, at)
  moved = s32[] add(both, start)
  other = f32[2,6] dynamic-slice(x, moved, zero), dynamic_slice_sizes={2,6}
  ROOT r = (f32[2,6], s32[1,2], f32[2,6]) tuple(part, place, other)
}
"""


def test_what_participants_know_is_found() -> None:
    entry = parse(NUMBERS).entry
    own = own_numbers(entry, replicas=2, partitions=4)
    named = {entry.instructions[i].name: starts for i, starts in own.parts.items()}
    once = {"part": ((0, 0), (4, 0), (2, 0), (6, 0)), "place": tuple((i, 0) for i in range(4))}
    assert named == {name: starts * 2 for name, starts in once.items()}
    numbers = {entry.instructions[i].name: list(n) for i, n in own.numbers.items()}
    assert numbers == {"both": [0, 8, 4, 18] * 2}
    assert {entry.instructions[i].name for i in own.unread} == {*"me table row at none".split()}


@pytest.mark.parametrize(
    ("kind", "last", "begin"),
    [("u64", 2**64 - 1, 6), ("s64", -(2**63), 0), ("u8", 255, 6), ("s8", -1, 0)],
)
def test_numbers_out_of_bounds_begin_the_nearest_part(kind: str, last: int, begin: int) -> None:
    entry = parse(NUMBERS.replace("s32", kind).replace("4, 2, 9", f"4, 2, {last}")).entry
    own = own_numbers(entry, replicas=1, partitions=4)
    assert own.parts[entry.position["part"]][3] == (begin, 0)


@pytest.mark.parametrize("mode", ["functional", "exact"])
def test_each_takes_its_own_without_indices(mode: str, tmp_path: Path) -> None:
    text = NUMBERS.replace("num_partitions=4, replica_count=2", "replica_count=4")
    program = hloipu.compile(text.replace("partition-id", "replica-id"), replicas=4, target="tiny")
    steps = program.program.body.steps
    parts = [x for x in steps if isinstance(x, c.Collective) and x.form.kind == c.OWN_PART]
    assert [x.name for x in parts] == ["at", "part", "place"]
    path = tmp_path / "own.ipuexe"
    program.save(path)
    x = np.arange(48, dtype=np.float32).reshape(8, 6)
    ran = load(path).run(x, np.int32(1), mode=mode, poison=mode == "exact")
    assert len(ran.everyone) == 4
    for partition, (part, place, other) in enumerate(ran.everyone):
        at = [0, 4, 2, 9][partition]
        begin, behind = min(at, 6), min(2 * at + 1, 6)
        np.testing.assert_array_equal(part, x[begin : begin + 2])
        np.testing.assert_array_equal(place, [[2 * partition, 2 * partition + 1]])
        np.testing.assert_array_equal(other, x[behind : behind + 2])


FAULTS = {
    "beyond": (((0,), (3,)), ("f32", (2,)), "within"),
    "before": (((0,), (-1,)), ("f32", (2,)), "within"),
    "rank": (((0, 0), (0, 0)), ("f32", (2,)), "within"),
    "type": (((0,), (1,)), ("s32", (2,)), "within"),
    "too few": (((0,),), ("f32", (2,)), "each of 2"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_parts_that_cannot_be_are_refused(fault: str) -> None:
    starts, part, said = FAULTS[fault]
    form = c.CollectiveForm(c.OWN_PART, starts=starts)
    (message,) = c.form_faults(form, [("f32", (4,))], [part], 2)
    assert said in message


def test_one_for_all_cannot_say_which_part() -> None:
    text = NUMBERS.replace("num_partitions=4, replica_count=2", "replica_count=4")
    program = hloipu.compile(text.replace("partition-id", "replica-id"), replicas=4, target="tiny")
    engine = FunctionalEngine(program.program)
    given = Arrays(
        {"parameter.0": np.zeros((8, 6), np.float32), "parameter.1": np.zeros((), np.int32)}
    )
    with pytest.raises(HloipuError, match="identical") as raised:
        engine.run(given)
    assert raised.value.code == "E2071"


SENT = """HloModule m
ENTRY e {
  x = f32[64,64] parameter(0), sharding={devices=[8,1]<=[8]}
  ROOT y = f32[64,64] negate(x), sharding={SHARDING}
}
"""


@pytest.mark.parametrize(
    ("sharding", "senders"),
    [
        ("replicated", 1),
        ("devices=[8,1]<=[8]", 8),
        ("devices=[2,1,4]<=[8] last_tile_dim_replicate", 2),
    ],
)
def test_one_of_those_that_have_a_block_sends_it(sharding: str, senders: int) -> None:
    program = hloipu.compile(SENT.replace("SHARDING", sharding))
    machine = program.machine
    (out,) = [x for x in step_charges(program.program, machine).steps if x.kind == "stream out"]
    block = 4 * 64 * 64 // senders
    holders = {0, *range(0, 8, 8 // senders)}
    by_ipu = [block * (ipu in holders) for ipu in range(8)]
    tile = next(
        program.program.variables[step.variable].bytes_per_tile
        for step in program.program.body.steps
        if isinstance(step, StreamOut)
    )
    expected = host_transfer(machine, by_ipu, to_device=False, busiest_tile_bytes=tile)
    assert out.spent.host == expected
