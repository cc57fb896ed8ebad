"""The judge of the SPMD partitioner: some of its programs, its count of bytes, what it sees."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.partition.spmd.localizing import for_one_device
from tools.spmd_conformance import judging
from tools.spmd_conformance.__main__ import outcomes
from tools.spmd_conformance.judging import judged
from tools.spmd_conformance.traffic import Traffic, traffic_of

MOST_BYTES = {
    "mlp step/both/2x4": 0.83, "adam/zero": 1.0, "sequence block step": 0.75, "experts": 0.72,
    "cross entropy/one hot": 0.8, "product/a,b by -,-": 1.0,
    "product/b,a by a,- to -,a": 1.0, "moved/ab,- to b,-": 1.0, "moved/ab,c to c,ab": 1.0,
    "sums/linear chain": 0.2, "sums/wanted in parts": 0.55, "constraint/free": 1.0,
    "loop/products both": 1.0,
}  # fmt: skip
"""Bytes for each of XLA's, at most; below one is what the partitioner does better."""

ADD = "add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }\n"
WHOLE = f"""HloModule whole
{ADD}
ENTRY e {{
  p = f32[8,4] parameter(0), sharding={{devices=[4,1]<=[4]}}
  z = f32[] constant(0)
  ROOT s = f32[4] reduce(p, z), dimensions={{0}}, to_apply=add
}}"""
MEETING = "channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true"
LOCAL = f"""HloModule e_spmd, num_partitions=4
{ADD}
ENTRY e_spmd {{
  p = f32[2,4] parameter(0)
  z = f32[] constant(0)
  s = f32[4] reduce(p, z), dimensions={{0}}, to_apply=add
  ROOT r = f32[4] all-reduce(s), {MEETING}, to_apply=add
}}"""


def test_programs_have_jax_values_and_no_more_bytes_than_xla() -> None:
    found = {each.name: each for each in outcomes("shardy", tuple(MOST_BYTES), tiles=5)}
    assert set(found) == set(MOST_BYTES)
    assert {name: each.fault for name, each in found.items() if each.fault} == {}
    above = {n: e.ratio for n, e in found.items() if (e.ratio or 9) > MOST_BYTES[n] + 0.01}
    assert above == {}


@pytest.fixture
def record(tmp_path: Path) -> dict[str, Any]:
    values = np.arange(32, dtype=np.float32).reshape(8, 4)
    np.savez(tmp_path / "sum.npz", argument0=values, result0=values.sum(0))
    return {
        "name": "sum", "part": "operations", "text": WHOLE, "theirs": LOCAL,
        "arrays": (tmp_path / "sum.npz").read_bytes(),
    }  # fmt: skip


def test_the_judge_sees_a_sum_that_is_left_out(
    record: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = judged(record, "gspmd")
    assert (right.fault, right.ratio) == ("", 1.0)

    def copied(x: Instruction) -> Instruction:
        return x._replace(opcode="negate") if x.opcode == "all-reduce" else x

    def changed(c: Computation) -> Computation:
        return replace(c, instructions=tuple(map(copied, c.instructions)))

    real = for_one_device

    def wrong(module: Module, known: Any) -> Module:
        local = real(module, known)
        return replace(local, computations=tuple(map(changed, local.computations)))

    on_tiles = {**record, "on_tiles": True}
    assert judged(on_tiles, "gspmd").fault == ""
    real_compile = hloipu.compile

    def other(text: str, **options: Any) -> Any:
        return real_compile(text.replace("constant(0)", "constant(1)"), **options)

    monkeypatch.setattr(hloipu, "compile", other)
    fault = judged(on_tiles, "gspmd").fault
    assert fault == "result 0 in the functional mode on tiles is not JAX's"
    monkeypatch.setattr(judging, "for_one_device", wrong)
    monkeypatch.setattr(judging, "verify", lambda module: None)
    assert "result 0 of device 0 is " in judged(record, "gspmd").fault


BODY = """
body {{
  t = (s32[], f32[8,4]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  x = f32[8,4] get-tuple-element(t), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[8,4] all-to-all(x), channel_id=2, replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}
  ROOT r = (s32[], f32[8,4]) tuple(j, y)
}}
less {{
  t = (s32[], f32[8,4]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  n = s32[] constant(3)
  ROOT r = pred[] compare(i, n), direction=LT
}}
""".format()
CUT = "starts = s32[4] constant({0,2,4,6})  me = u32[] partition-id()  zero = s32[] constant(0)\n"
COLLECTIVES: dict[str, tuple[str, Traffic]] = {
    "gather": (f"ROOT r = f32[32,4] all-gather(p), {MEETING}, dimensions={{0}}", Traffic(384, 1)),
    "scatter": (
        f"ROOT r = f32[2,4] reduce-scatter(p), {MEETING}, dimensions={{0}}, to_apply=add",
        Traffic(96, 1),
    ),
    "sum": (f"ROOT r = f32[8,4] all-reduce(p), {MEETING}, to_apply=add", Traffic(192, 1)),
    "sum cut up": (
        f"s = f32[8,4] all-reduce(p), {MEETING}, to_apply=add\n  {CUT}"
        "  o = s32[1] dynamic-slice(starts, me), dynamic_slice_sizes={1}  at = s32[] reshape(o)\n"
        "  ROOT r = f32[2,4] dynamic-slice(s, at, zero), dynamic_slice_sizes={2,4}",
        Traffic(96, 1),
    ),
    "permute": (
        "ROOT r = f32[8,4] collective-permute(p), channel_id=1, source_target_pairs={{0,1},{1,0}}",
        Traffic(128, 1),
    ),
    "nothing moves": (
        "ROOT r = f32[8,4] collective-permute(p), channel_id=1, source_target_pairs={{0,0},{1,1}}",
        Traffic(),
    ),
    "three trips": (
        "z = s32[] constant(0)  t = (s32[], f32[8,4]) tuple(z, p)\n"
        "  ROOT w = (s32[], f32[8,4]) while(t), condition=less, body=body",
        Traffic(288, 3),
    ),
}


@pytest.mark.parametrize("case", COLLECTIVES)
def test_bytes_are_those_of_rings(case: str) -> None:
    text, expected = COLLECTIVES[case]
    loop = BODY if "while" in text else ""
    entry = f"ENTRY e {{\n  p = f32[8,4] parameter(0)\n  {text}\n}}"
    module = parse(f"HloModule m, num_partitions=4\n{ADD}{loop}{entry}")
    assert traffic_of(module, 4) == expected
