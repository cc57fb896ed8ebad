"""Collectives on tiles against XLA:CPU on eight host devices; shardings by hand against numpy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu.inputs import flat
from hloipu.xla_cpu.runner import for_partitioner
from hloipu_compiler.compilation import CompileRequest
from hloipu_compiler.driver import compile_module
from hloipu_compiler.errors import CodegenError
from hloipu_compiler.hlo.printing.printer import FULL, print_module
from hloipu_compiler.interpret.participants import evaluate_participants
from hloipu_compiler.interpret.random_inputs import random_arguments
from hloipu_compiler.ir.graph import Module
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import MachineError, UsageError
from hloipu_runtime.machine.load import load_machine
from tests.support.arrays import Array
from tests.support.collective_cases import LOOP, ONE_OP, ROUNDS, SEVERAL_OPS
from tests.support.collectives import ADD, PAIRS, R8, Counts, inputs, module_of
from tests.support.xla_oracle import Oracle

MACHINE = load_machine("tiny")
SAMPLE = Path(__file__).resolve().parents[4] / "hlo_samples" / "sharded_mlp.hlo"


def on_tiles(module: Module) -> CompiledProgram:
    return CompiledProgram(compile_module(module, CompileRequest(MACHINE)).program, MACHINE)


def against_xla(module: Module, counts: Counts, given: list[list[Array]], oracle: Oracle) -> None:
    """Compare every participant's results in both modes, exactly."""
    program = on_tiles(module)
    assert (program.program.replicas, program.program.partitions) == counts
    carried = for_partitioner(module) if counts[1] > 1 else module
    judge = oracle.load(print_module(carried, FULL), replicas=counts[0], partitions=counts[1])
    theirs = judge.run_each(given)
    judge.unload()
    for mode in ("functional", "exact"):
        ours = program.run(each=given, mode=mode, poison=mode == "exact").everyone
        for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            for x, y in zip(a, b, strict=True):
                np.testing.assert_array_equal(x, y.reshape(x.shape), f"{mode}, {number}")


@pytest.mark.parametrize(("opcode", "shape", "attributes", "counts"), ONE_OP)
def test_one_op(opcode: str, shape: str, attributes: str, counts: Counts, oracle: Oracle) -> None:
    module = module_of(f"ROOT r = {shape} {opcode}(p), {attributes}", counts)
    against_xla(module, counts, inputs(8), oracle)


@pytest.mark.parametrize(("body", "counts"), SEVERAL_OPS)
def test_several_ops(body: str, counts: Counts, oracle: Oracle) -> None:
    against_xla(module_of(body, counts), counts, inputs(8), oracle)


def test_rounds_of_a_loop(oracle: Oracle) -> None:
    against_xla(module_of(ROUNDS, R8, LOOP), R8, inputs(8), oracle)


@pytest.mark.parametrize("monoid", ["add", "multiply", "minimum", "maximum"])
def test_reductions_by_monoid(monoid: str) -> None:
    how = f"how {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] {monoid}(a, b) }}"
    body = f"ROOT r = f32[8,4] all-reduce(p), {PAIRS}, to_apply=how"
    given = inputs(8)
    wanted = {"add": np.add, "multiply": np.multiply, "minimum": np.minimum, "maximum": np.maximum}
    for mode in ("functional", "exact"):
        found = on_tiles(module_of(body, R8, how)).run(each=given, mode=mode).everyone
        for n, (x,) in enumerate(found):
            pair = given[n // 2 * 2][0], given[n // 2 * 2 + 1][0]
            np.testing.assert_array_equal(x, wanted[monoid](*pair))


def test_a_reducer_that_is_no_monoid() -> None:
    """|a| + |b|: written as an expression, applied in the order of the group."""
    how = (
        "how { a = f32[] parameter(0)  b = f32[] parameter(1)  c = f32[] abs(a)  d = f32[] abs(b)  "
        "ROOT r = f32[] add(c, d) }"
    )
    body = f"ROOT r = f32[8,4] all-reduce(p), {PAIRS}, to_apply=how"
    given = inputs(8)
    found = on_tiles(module_of(body, R8, how)).run(each=given, mode="exact").everyone
    wanted = np.abs(given[2][0]) + np.abs(given[3][0])
    np.testing.assert_array_equal(found[3][0], wanted)


@pytest.mark.parametrize(
    ("kind", "monoid"),
    [("bf16", "add"), ("f16", "multiply"), ("f64", "add"), ("s8", "add"), ("u4", "add"),
     ("s64", "maximum"), ("pred", "and"), ("pred", "or"), ("c64", "add"), ("u16", "xor")],
)  # fmt: skip
def test_reductions_by_type(kind: str, monoid: str) -> None:
    """As the evaluator has them, to the bit: narrow floats round, narrow integers wrap."""
    how = f"how {{ a = {kind}[] parameter(0)  b = {kind}[] parameter(1)"
    text = (
        f"HloModule m, replica_count=4\n\n{how}  ROOT r = {kind}[] {monoid}(a, b) }}\n\n"
        f"ENTRY e {{\n  p = {kind}[8,3] parameter(0)\n"
        f"  s = {kind}[8,3] all-reduce(p), replica_groups={{{{3,0,1,2}}}}, to_apply=how\n"
        f"  t = {kind}[4,3] reduce-scatter(p), replica_groups={{{{0,2}},{{3,1}}}}, "
        f"dimensions={{0}}, to_apply=how\n  ROOT r = ({kind}[8,3], {kind}[4,3]) tuple(s, t)\n}}\n"
    )
    module = hloipu.parse(text)
    given = [flat(random_arguments(module, seed)) for seed in range(4)]
    wanted = evaluate_participants(module, given, replicas=4)
    program = on_tiles(module)
    for mode in ("functional", "exact"):
        for mine, theirs in zip(program.run(each=given, mode=mode).everyone, wanted, strict=True):
            for a, b in zip(mine, theirs, strict=True):
                assert a.dtype == b.dtype
                assert a.tobytes() == np.ascontiguousarray(b).tobytes()


@pytest.mark.parametrize(("partition", "seen"), [("auto", 1), ("off", 8)])
@pytest.mark.parametrize("mode", ["functional", "exact"])
def test_a_manually_sharded_sample(mode: str, partition: str, seen: int) -> None:
    random = np.random.default_rng(1)
    x, first, second = (
        random.normal(size=shape).astype(np.float32) for shape in ((16, 32), (32, 64), (64, 32))
    )
    given: Any = {"partition": partition, "cache": False}
    program = hloipu.compile(SAMPLE, target="tiny", over_memory="allow", **given)
    assert program.program.participants == 8
    result = program.run(x, first, second, mode=mode)
    wanted = np.maximum(x.astype(np.float64) @ first, 0) @ second
    assert len(result.everyone) == seen
    for (found,) in result.everyone:
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def without_header(statement: str) -> Module:
    body = f"  p = f32[8,4] parameter(0)\n  ROOT r = {statement}\n"
    return hloipu.parse(f"HloModule m\n\n{ADD}\n\nENTRY e {{\n{body}}}\n")


@pytest.mark.parametrize(
    "op",
    ["f32[8,4] all-reduce(p), {}, to_apply=add", "f32[16,4] all-gather(p), {}, dimensions={{0}}"],
)
def test_groups_must_have_all_participants(op: str) -> None:
    with pytest.raises(CodegenError) as error:
        on_tiles(without_header(op.format("replica_groups={{0,1},{3,4}}")))
    assert error.value.code == "E0512"
    assert "'r'" in error.value.message


def test_replicas_that_a_module_is_not_written_for() -> None:
    module = module_of(f"ROOT r = f32[8,4] all-reduce(p), {PAIRS}, to_apply=add", R8)
    with pytest.raises(UsageError) as error:
        compile_module(module, CompileRequest(MACHINE, replicas=4))
    assert error.value.code == "E0510"


@pytest.mark.parametrize("count", [257, 10**9, 2**62])
def test_more_participants_than_there_are_ipus_are_refused_before_anything_is_made(
    count: int,
) -> None:
    statement = "ROOT r = f32[8,4] all-reduce(p), to_apply=add"
    body = f"p = f32[8,4] parameter(0)\n  {statement}"
    module = hloipu.parse(f"HloModule m, replica_count={count}\n{ADD}\nENTRY e {{\n  {body}\n}}\n")
    with pytest.raises(MachineError, match=f"1 to 256 IPUs, not {count}") as error:
        compile_module(module, CompileRequest(MACHINE))
    assert error.value.code == "E3210"


def test_replicas_of_what_meets_nobody() -> None:
    module = hloipu.parse(
        "HloModule m\n\nENTRY e {\n  p = f32[8,4] parameter(0)\n  ROOT r = f32[8,4] negate(p)\n}\n"
    )
    program = CompiledProgram(
        compile_module(module, CompileRequest(MACHINE, replicas=3)).program, MACHINE
    )
    assert program.program.replicas == 3
    given = inputs(3)
    for (x,), (y,) in zip(program.run(each=given).everyone, given, strict=True):
        np.testing.assert_array_equal(x, -y)
