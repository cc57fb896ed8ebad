"""Ops placed by annotation: the same values on several IPUs, and each value sent once."""

import numpy as np
import pytest

import hloipu
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.sharding.placing import placed
from hloipu_runtime.program.steps import Exchange, Sequence, Step

# Four pairs of numbers, each added up on an IPU of its own, and the sums on the last one.
FOUR = """HloModule four
ENTRY main {
  a = f32[2]{0} parameter(0)
  b = f32[2]{0} parameter(1)
  c = f32[2]{0} parameter(2)
  d = f32[2]{0} parameter(3)
  one = f32[2]{0} add(a, b), sharding={maximal device=0}
  two = f32[2]{0} add(c, d), frontend_attributes={ipu_shard="1"}
  three = f32[2]{0} multiply(one, two), sharding={maximal device=2}
  far = f32[2]{0} negate(three), sharding={maximal device=3}
  ROOT all = f32[2]{0} add(far, three), sharding={maximal device=3}
}
"""


def test_ops_without_a_shard_take_that_of_their_users_then_of_their_operands() -> None:
    text = FOUR.replace(", sharding={maximal device=2}", "").replace(
        "ROOT all = f32[2]{0} add(far, three), sharding={maximal device=3}",
        "ROOT all = f32[2]{0} tanh(far)",
    )
    found = {name: ipu for (_, name), ipu in shards_of(hloipu.parse(text), {}).items()}
    ipus = (0, 0, 1, 1, 0, 1, 3, 3, 3)
    assert found == dict(zip("a b c d one two three far all".split(), ipus, strict=True))


def test_nothing_is_placed_without_an_annotation_or_where_devices_are_partitions() -> None:
    plain = FOUR.replace('frontend_attributes={ipu_shard="1"}', "sharding={maximal device=1}")
    assert shards_of(hloipu.parse(plain), {}, partitions=4) == {}
    assert shards_of(hloipu.parse("HloModule m\nENTRY e { ROOT a = f32[] parameter(0) }"), {}) == {}


@pytest.mark.parametrize("mode", ["functional", "exact"])
def test_values_are_the_same_on_four_ipus(mode: str) -> None:
    exe = hloipu.compile(FOUR, target="tiny", cache=False, over_memory="allow")
    a, b, c, d = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    (found,) = exe.run(a, b, c, d, mode=mode).outputs
    three = (a + b) * (c + d)
    np.testing.assert_array_equal(found, three - three)
    assert exe.program.ipus == 4


def test_a_value_crosses_once_to_each_ipu_that_reads_it() -> None:
    exe = hloipu.compile(FOUR, target="tiny", cache=False, over_memory="allow")
    program = exe.program
    crossing = [
        (transfer.value, program.variables[transfer.destination].ipu)
        for step in steps(program.body)
        if isinstance(step, Exchange)
        for transfer in step.transfers
        if program.variables[transfer.source].ipu != program.variables[transfer.destination].ipu
    ]
    assert len(crossing) == len(set(crossing)) == 3


def steps(step: Step) -> list[Step]:
    if isinstance(step, Sequence):
        return [x for each in step.steps for x in steps(each)]
    return [step]
