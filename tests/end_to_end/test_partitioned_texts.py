"""Sharding annotations of texts written by hand: followed, or refused, and arrays stay whole."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.partition.spmd.partitioning import partitioned
from hloipu_compiler.plan.entry_arrays import aliased
from hloipu_runtime.compiled import load
from hloipu_runtime.errors import HloipuError
from tests.support.comparing import assert_close
from tests.support.poplar_small import WEIGHTS, changed, elements
from tests.support.poplar_small import trained as small_trained

MODES = ("functional", "exact")


def test_aliases_are_kept() -> None:
    text = (
        "HloModule m, input_output_alias={ {1}: (0, {}, may-alias) }\n"
        "ENTRY e {\n  p = f32[8,4] parameter(0), sharding={devices=[4,1]<=[4]}\n"
        "  q = f32[8,4] parameter(1)\n  s = f32[8,4] add(p, q)\n  t = f32[8,4] negate(p), "
        "sharding={devices=[1,4]<=[4]}\n  ROOT r = (f32[8,4], f32[8,4]) tuple(s, t)\n}\n"
    )
    made = partitioned(parse(text))
    assert [(x.parameter, x.result) for x in aliased(made.module)] == [(0, 1)]
    given, _, _, kept = made.partitioning.arrays
    assert kept.axes == given.axes == ((0, 1), ())
    program = hloipu.compile(text)
    p, q = (np.arange(32, dtype=np.float32).reshape(8, 4) + n for n in range(2))
    assert_close(program.run(p, q).outputs, [p + q, -p])


def test_layouts_and_pairs_of_the_text_are_those_of_whole_arrays() -> None:
    text = """HloModule m
ENTRY e {
  p = f32[8,4]{0,1} parameter(0), sharding={devices=[4,1]<=[4]}
  s = (f32[8,4]{0,1}, f32[8,4]{0,1}, u32[]) copy-start(p)
  q = f32[8,4]{0,1} copy-done(s)
  r = f32[4,8]{1,0} bitcast(q)
  ROOT n = f32[4,8] negate(r)
}"""
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    assert_close(hloipu.compile(text).run(x).outputs, [-x.T])


X = "p = f32[8,4] parameter(0), sharding={devices=[4,1]<=[4]}\n"
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "arrays of two sizes in one queue": (
        f"  {X}  q = f32[2,4] slice(p), slice={{[0:2], [0:4]}}\n  t = token[] after-all()\n"
        "  o = token[] outfeed(p, t)\n  u = token[] outfeed(q, o)\n  ROOT n = f32[8,4] negate(p)",
        {}, "E0479",
    ),
    "ops on IPUs of their own": (
        f'  {X}  ROOT n = f32[8,4] negate(p), frontend_attributes={{ipu_shard="1"}}', {}, "E0481",
    ),
    "too few IPUs": (f"  {X}  ROOT n = f32[8,4] negate(p)", {"ipus": 2}, "E0475"),
    "no common mesh": (
        f"  {X}  q = f32[8,3] parameter(1), sharding={{devices=[1,3]<=[3]}}\n"
        "  ROOT n = f32[8,4] negate(p)", {}, "E0476",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused(case: str) -> None:
    body, options, code = REFUSED[case]
    text = f"HloModule m\nENTRY e {{\n{body}\n}}\n"
    with pytest.raises(HloipuError) as caught:
        hloipu.compile(text, **options)
    assert caught.value.code == code
    assert caught.value.hint


FED = """HloModule m
body {
  s = (s32[], f32[8,4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  w = f32[8,4] get-tuple-element(s), index=1
  t = token[] after-all()
  f = ((f32[8,4], f32[6]), token[]) infeed(t), infeed_config="data", sharding={{devices=[4,1]<=[4]}, {devices=[4]<=[4]}, {maximal device=0}}
  d = (f32[8,4], f32[6]) get-tuple-element(f), index=0
  a = f32[8,4] get-tuple-element(d), index=0
  b = f32[6] get-tuple-element(d), index=1
  c = f32[4] slice(b), slice={[1:5]}
  e = f32[8,4] broadcast(c), dimensions={1}
  m = f32[8,4] multiply(a, e)
  n = f32[8,4] add(w, m)
  u = token[] outfeed(n, t), outfeed_config="sums", outfeed_shape=f32[8,4], sharding={devices=[1,4]<=[4]}
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT r = (s32[], f32[8,4]) tuple(j, n)
}
condition {
  s = (s32[], f32[8,4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  k = s32[] constant(3)
  ROOT c = pred[] compare(i, k), direction=LT
}
ENTRY e {
  p = f32[8,4] parameter(0), sharding={devices=[4,1]<=[4]}
  z = s32[] constant(0)
  s = (s32[], f32[8,4]) tuple(z, p)
  w = (s32[], f32[8,4]) while(s), body=body, condition=condition
  ROOT n = f32[8,4] get-tuple-element(w), index=1
}"""  # noqa: E501
"""A loop that adds up what a queue feeds."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("replicas", [1, 2])
def test_queues_of_the_text_carry_blocks(mode: Any, replicas: int, tmp_path: Path) -> None:
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    rows = np.stack([x + n for n in range(6)])
    factors = np.arange(36, dtype=np.float32).reshape(6, 6)
    sums = x + np.cumsum(rows * factors[:, None, 1:5], 0, dtype=np.float32)[:3]
    if replicas == 1:
        program = hloipu.compile(FED)
        shapes = [each.shape for queue in program.program.queues for each in queue.streams]
        assert shapes == [(2, 4), (2,), (8, 1)]
        program.save(tmp_path / "p.ipux")
        session = load(tmp_path / "p.ipux").session(
            infeeds={"data": (rows, factors)}, constants=[x], mode=mode
        )
    else:  # an iteration of the loop is a step, then: replicas take turns
        program = hloipu.compile(FED, replicas=2, role={"0": "carry"}, loop=1)
        taken = np.repeat(rows[:3], 2, 0), np.repeat(factors[:3], 2, 0)
        session = program.session(infeeds={"data": taken}, state=[x], mode=mode)
    with session:
        session.run(1 if replicas == 1 else 3)
        found = session.stream("sums").drain()
    assert program.program.partitions == 4
    each = [e.element if hasattr(e, "element") else e[-1] for e in found]
    assert_close(each, sums if replicas == 1 else np.stack([sums, sums], 1))


@pytest.mark.parametrize("said", ["{devices=[1,4]<=[4]}, {replicated}", "{devices=[1,4]<=[4]}"])
def test_shardings_of_what_an_outfeed_takes_are_followed_or_refused(said: str) -> None:
    text = (
        f"HloModule m\nENTRY e {{\n  {X}  r = f32[4] parameter(1)\n"
        "  q = (f32[8,4]) tuple(p)\n  o = ((f32[8,4]), f32[4]) tuple(q, r)\n"
        "  t = token[] after-all()\n"
        f"  u = token[] outfeed(o, t), outfeed_shape=((f32[8,4]), f32[4]), sharding={{{said}}}\n"
        "  ROOT n = f32[8,4] negate(p)\n}"
    )
    if "replicated" in said:
        (queue,) = hloipu.compile(text).program.queues
        assert [x.shape for x in queue.streams] == [(8, 1), (4,)]
    else:
        with pytest.raises(HloipuError, match="1 stand for 2 arrays"):
            hloipu.compile(text)


def test_steps_in_the_encoding_of_graphcore_are_divided() -> None:
    first, halves = "ENTRY main {\n  w0 = f32[2] parameter", "sharding={devices=[2]<=[2]}"
    text = changed(
        ("infeed(ready),", "infeed(ready), sharding={{devices=[2]<=[2]}, {replicated}},"),
        (f"{first}(0)", f"{first}(0), {halves}"),
    )
    program = hloipu.compile(text)
    assert (program.program.partitions, program.program.ipus) == (2, 2)  # two stages on each
    with program.session(infeeds={"x": np.stack(elements())}, state=WEIGHTS) as session:
        session.run(program.program.steps_per_run)
        assert_close([*session.state().values()], small_trained()[0])


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_random_numbers_are_those_of_one_device(kind: str) -> None:
    text = (
        f"HloModule m\nENTRY e {{\n  {X}  z = f32[] constant(0)\n  o = f32[] constant(2)\n"
        f"  a = f32[8,4] rng(z, o), distribution=rng_{kind}\n  b = f32[8,4] rng(z, o), "
        f"distribution=rng_{kind}\n  c = f32[8,4] multiply(a, p)\n"
        "  ROOT d = f32[8,4] add(c, b), sharding={devices=[1,4]<=[4]}\n}"
    )
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    (whole,) = hloipu.compile(text, partition="off").run(x).outputs
    for mode in MODES:
        np.testing.assert_array_equal(hloipu.compile(text).run(x, mode=mode).outputs[0], whole)


def test_stages_that_the_text_states_are_kept() -> None:
    first, second = (f'frontend_attributes={{ipu_stage="{n}"}}' for n in (0, 1))
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    text = (
        "HloModule m\nENTRY e {\n  w = f32[8,8] parameter(0), sharding={devices=[1,2]<=[2]}\n"
        "  v = f32[8,8] parameter(1), sharding={devices=[2,1]<=[2]}\n  x = f32[4,8] parameter(2)\n"
        f"  a = f32[4,8] dot(x, w), {dims}, {first}\n  b = f32[4,8] tanh(a), {second}\n"
        f"  ROOT c = f32[4,8] dot(b, v), {dims}, {second}\n}}"
    )
    program = hloipu.compile(text, feed={"x": (2,)}, micro_batches=2, stages=2).program
    assert program.partitions == 2
    assert {"b.1"} <= {variable.origin for variable in program.variables if variable.ipu == 1}


@pytest.mark.parametrize("wanted", ["{devices=[1,4]<=[4]}", "{{devices=[1,4]<=[4]}}"])
def test_shardings_of_calls_are_followed(wanted: str) -> None:
    is_tuple = wanted.startswith("{{")
    shape = "(f32[8,4])" if is_tuple else "f32[8,4]"
    root = "n = f32[8,4] negate(p)\n  ROOT r = (f32[8,4]) tuple(n)" if is_tuple else (
        "ROOT n = f32[8,4] negate(p)"
    )  # fmt: skip
    text = (
        f"HloModule m\nf {{\n  p = f32[8,4] parameter(0)\n  {root}\n}}\n"
        f"ENTRY e {{\n  p = f32[8,4] parameter(0)\n"
        f"  ROOT c = {shape} call(p), to_apply=f, sharding={wanted}\n}}"
    )
    program = hloipu.compile(text)
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    assert program.program.partitions == 4
    assert_close(program.run(x).outputs, [-x])


def test_one_device_of_several_is_all_and_it_is_said() -> None:
    text = (
        f"HloModule m\nENTRY e {{\n  {X}  n = f32[8,4] negate(p), sharding={{maximal device=3}}\n"
        "  ROOT m = f32[8,4] add(n, n), sharding={devices=[2,2]3,1,0,2}\n}"
    )
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    program = hloipu.compile(text)
    assert_close(program.run(x).outputs, [-2 * x])


def test_sizes_need_not_divide() -> None:
    text = (
        "HloModule m\nENTRY e {\n  p = f32[10,6] parameter(0), sharding={devices=[4,2]<=[8]}\n"
        "  q = f32[6,9] parameter(1), sharding={devices=[2,4]<=[8]}\n"
        "  d = f32[10,9] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        "  ROOT r = (f32[10,9], f32[10,6]) tuple(d, p), "
        "sharding={{devices=[8,1]<=[8]}, {devices=[4,2]<=[8]}}\n}\n"
    )
    p, q = (np.arange(n, dtype=np.float32) for n in (60, 54))
    given = p.reshape(10, 6), q.reshape(6, 9)
    for mode in MODES:
        found = hloipu.compile(text).run(*given, mode=mode, poison=mode == "exact")
        assert_close(found.outputs, [given[0] @ given[1], given[0]])


def test_text_that_is_partitioned_is_not_cut_again() -> None:
    text = f"HloModule m, num_partitions=4\nENTRY e_spmd {{\n  {X}  ROOT n = f32[8,4] negate(p)\n}}"
    program = hloipu.compile(text)
    assert program.program.partitioning is None
    assert program.inputs[0].shape == (8, 4)
