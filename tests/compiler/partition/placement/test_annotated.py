"""Ops placed by annotation: the same values on several IPUs, and each value sent once."""

import numpy as np
import pytest

import hloipu
from hloipu_compiler.partition.placement.placing import placed
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.errors import HloipuError
from tests.support.annotated_texts import crossings

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
    plan = placed(hloipu.parse(text), Plan(), {})
    ops = {name: ipu for (_, name), ipu in plan.ipus.items()}
    assert ops == {"one": 0, "two": 1, "three": 3, "far": 3, "all": 3}
    held = {name: ipu for (_, name, _), ipu in plan.held_ipus.items()}
    assert held == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert plan.shards == 4


def test_nothing_is_placed_without_an_annotation_or_where_devices_are_partitions() -> None:
    plain = FOUR.replace('frontend_attributes={ipu_shard="1"}', "sharding={maximal device=1}")
    assert not placed(hloipu.parse(plain), Plan(partitions=4), {}).ipus
    nothing = hloipu.parse("HloModule m\nENTRY e { ROOT a = f32[] parameter(0) }")
    assert not placed(nothing, Plan(), {}).ipus


@pytest.mark.parametrize(("device", "code"), [(256, "E3210"), (100_000, "E0519"), (2**40, "E0519")])
def test_devices_that_no_ipu_has_are_refused(device: int, code: str) -> None:
    with pytest.raises(HloipuError, match=r"'two'|1 to 256 IPUs") as caught:
        hloipu.compile(FOUR.replace('ipu_shard="1"', f'ipu_shard="{device}"'), cache=False)
    assert caught.value.code == code
    with pytest.raises(HloipuError) as caught:
        hloipu.compile(FOUR.replace("device=0", f"device={device}"), cache=False)
    assert caught.value.code == code


@pytest.mark.parametrize("mode", ["functional", "exact"])
def test_values_are_the_same_on_four_ipus(mode: str) -> None:
    exe = hloipu.compile(FOUR, target="tiny", cache=False, over_memory="allow")
    a, b, c, d = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    (found,) = exe.run(a, b, c, d, mode=mode).outputs
    three = (a + b) * (c + d)
    np.testing.assert_array_equal(found, three - three)
    assert exe.program.ipus == 4


def test_a_value_crosses_once_to_each_ipu_that_reads_it() -> None:
    program = hloipu.compile(FOUR, target="tiny", cache=False, over_memory="allow").program
    found = crossings(program)
    assert len(found) == len(set(found)) == 3


def test_a_copy_to_the_next_ipu_takes_a_hop_and_the_bytes_over_the_links_of_a_rung() -> None:
    text = """HloModule two
ENTRY main {
  a = f32[512]{0} parameter(0)
  b = f32[512]{0} negate(a), sharding={maximal device=0}
  ROOT c = f32[512]{0} tanh(b), sharding={maximal device=1}
}
"""
    exe = hloipu.compile(text, target="tiny", cache=False, over_memory="allow")
    (copy,) = (step for step in exe.costs.steps if step.kind == "exchange" and len(step.ipus) == 2)
    # 1 GHz: a hop of 100 ns, 2,048 bytes over four links of 1 GB/s each.
    assert copy.spent.exchange.cycles == 100 + 2_048 / 4


def test_constants_are_loaded_on_each_ipu_that_reads_them() -> None:
    numbers = ", ".join(map(str, range(40)))
    text = f"""HloModule two
ENTRY main {{
  a = f32[40]{{0}} parameter(0)
  k = f32[40]{{0}} constant({{{numbers}}})
  b = f32[40]{{0}} add(a, k), sharding={{maximal device=0}}
  ROOT c = f32[40]{{0}} multiply(b, k), sharding={{maximal device=1}}
}}
"""
    exe = hloipu.compile(text, target="tiny", cache=False, over_memory="allow")
    assert len(crossings(exe.program)) == 1
    loaded = [exe.program.variables[v] for v in exe.program.constants]
    assert sorted(v.ipu for v in loaded if v.shape == (40,)) == [0, 1]
    a = np.arange(40, dtype=np.float32) / 8
    (found,) = exe.run(a, mode="exact").outputs
    np.testing.assert_array_equal(found, (a + np.arange(40)) * np.arange(40, dtype=np.float32))
