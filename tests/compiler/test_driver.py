"""Compiling phase by phase: what it comes to, and where it may stop."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import hloipu
from hloipu_compiler import driver
from hloipu_compiler.analysis.live_bytes import peak_bytes
from hloipu_compiler.compilation import CompileRequest, Distribution, Phase
from hloipu_compiler.cost_survey.op_prices import OpPrice
from hloipu_compiler.driver import compile_module, continued
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import leaves_of
from hloipu_compiler.partition.placement.request import ShardRequest
from hloipu_compiler.passes import outline_blocks, run_passes
from hloipu_compiler.passes.pipelines import STAGED
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.wrapping import WrappingRequest
from hloipu_compiler.planners.planned import PlannedOp
from hloipu_runtime.machine.load import load_machine
from hloipu_runtime.program.steps import Pipeline, Step, inner_steps
from tests.support.passes import SUM, entry
from tests.support.same_programs import assert_same

TINY = load_machine("tiny")
SAMPLE = Path(__file__).parents[2] / "hlo_samples" / "convnet_train_step.hlo"
STEP = """HloModule step
ENTRY main {
  w = f32[9,9] parameter(0)
  v = f32[9,9] parameter(1)
  x = f32[4,9] parameter(2)
  h = f32[4,9] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t = f32[4,9] tanh(h)
  y = f32[4,9] dot(t, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT out = (f32[4,9]) tuple(y)
}
"""
MODULE = hloipu.verify(STEP)
REQUESTS = {
    Distribution.PLAIN: CompileRequest(TINY),
    Distribution.PLACED: CompileRequest(TINY, shards=ShardRequest(2)),
    Distribution.CUT: CompileRequest(
        TINY,
        wrapping=WrappingRequest(3, feeds={"data": (2,)}),
        pipelining=PipelineRequest(4, 2),
        replicas=2,
    ),
}


@pytest.mark.parametrize("distribution", Distribution)
def test_stopping_after_a_phase_changes_nothing(distribution: Distribution) -> None:
    request = REQUESTS[distribution]
    whole = compile_module(MODULE, request)
    assert whole.distribution is distribution
    made = compile_module(MODULE, request, Phase.READ)
    for phase in Phase:
        made = continued(made, phase)
        assert made.phase is phase
        if phase < Phase.LOWERED:
            with pytest.raises(ValueError, match=f"no program after {phase.name}"):
                _ = made.program
    assert_same(made.program, whole.program)
    assert (made.plan, made.pipelining, made.keys) == (whole.plan, whole.pipelining, whole.keys)


def test_each_phase_does_its_part() -> None:
    """Of a step in two stages on two replicas: what there is when it stops, and not before."""
    request = REQUESTS[Distribution.CUT]
    read, flat, cut, lowered = (
        compile_module(MODULE, request, x)
        for x in (Phase.READ, Phase.FLAT, Phase.CUT, Phase.LOWERED)
    )
    assert read.module is MODULE
    assert read.wrapping is None
    assert [feed.places for feed in flat.wrapped.feeds] == [(2,)]
    assert flat.pipelining is None
    assert cut.pipelining is not None
    assert cut.pipelining.ipus == ((0,), (1,))
    assert [x.opcode for x in cut.module.entry.instructions].count("call") == 2
    assert any(isinstance(x, Pipeline) for x in steps_of(lowered.program.body))
    assert lowered.program.replicas == 1
    assert compile_module(MODULE, request).program.replicas == 2


def test_blocks_of_a_placed_step_are_on_as_many_ipus_as_asked_for() -> None:
    made = compile_module(MODULE, REQUESTS[Distribution.PLACED], Phase.APART)
    assert not made.plan.ipus
    made = continued(made, Phase.CUT)
    assert {made.plan.ipus[made.module.entry.name, x] for x in ("h", "y")} == {0, 1}


ANNOTATED = STEP.replace("tanh(h)", 'tanh(h), frontend_attributes={ipu_stage="0"}').replace(
    "dims={0}\n  ROOT", 'dims={0}, frontend_attributes={ipu_stage="1"}\n  ROOT'
)


@pytest.mark.parametrize(
    ("text", "stages", "cycles", "first"),
    [
        (STEP, 2, {"h": 2e6, "t": 1e6, "y": 1e6}, ["dot"]),
        (STEP, 2, {"h": 1e6, "t": 1e6, "y": 2e6}, ["dot", "tanh"]),
        (STEP, 1, {}, ["dot", "tanh", "dot"]),
        (ANNOTATED, None, {}, ["dot", "tanh"]),
    ],
)
def test_ops_are_priced_where_stages_are_looked_for(
    text: str,
    stages: int | None,
    cycles: dict[str, float],
    first: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stages are alike in cycles; no op is priced where its stage is known before."""
    asked: list[Module] = []

    def priced(module: Module, *_: object) -> list[OpPrice]:
        asked.append(module)
        return [OpPrice(cycles.get(x.name, 0.0)) for x in module.entry.instructions]

    monkeypatch.setattr(driver, "op_prices", priced)
    request = replace(REQUESTS[Distribution.CUT], pipelining=PipelineRequest(4, stages))
    made = compile_module(hloipu.verify(text), request, Phase.CUT)
    assert bool(asked) is bool(cycles)
    call = next(x for x in made.module.entry.instructions if x.opcode == "call")
    body = made.module.computation[call.attributes.called[0]].instructions
    assert [x.opcode for x in body if x.opcode in ("dot", "tanh")] == first


def test_clocks_are_told_of_every_phase() -> None:
    told: list[str] = []

    @contextmanager
    def clock(name: str) -> Iterator[None]:
        told.append(name)
        yield

    compile_module(MODULE, REQUESTS[Distribution.PLAIN], clock=clock)
    assert list(dict.fromkeys(told)) == ["passes", "codegen"]


def test_plans_are_kept_where_that_is_asked_for() -> None:
    assert compile_module(MODULE, CompileRequest(TINY)).plans == ()
    kept = compile_module(MODULE, CompileRequest(TINY, keeps_plans=True)).plans
    assert any(isinstance(x, PlannedOp) and x.op == "y" for x in kept)


def steps_of(step: Step) -> Iterator[Step]:
    yield step
    for inner in inner_steps(step):
        yield from steps_of(inner)


def test_stages_that_are_made_again_keep_no_cheap_values_within() -> None:
    step = hloipu.verify(SAMPLE.read_text(encoding="utf-8"))
    request = CompileRequest(
        load_machine("gc200"),
        wrapping=WrappingRequest(1),
        pipelining=PipelineRequest(2, 2, recompute="full"),
    )
    cut = compile_module(step, request, Phase.CUT)
    made = continued(cut, Phase.PASSES)
    kept, _ = run_passes(cut.module, cut.plan, STAGED)
    assert peak_bytes(made.module) < peak_bytes(kept)


def test_reshapes_are_absorbed_before_blocks_become_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A norm in the sizes of its groups, that is a function, reads its convolution as it is."""
    layer = """\
  x{n} = f32[2,{size},32] parameter({n})
  c{n} = f32[2,{size},32] convolution(x{n}, w), window={{size=1x1}}, dim_labels=b01f_01io->b01f
  r{n} = f32[2,12,4,8] reshape(c{n})
  s{n} = f32[2,4] reduce(r{n}, z), dimensions={{1,3}}, to_apply=sum
  b{n} = f32[2,12,4,8] broadcast(s{n}), dimensions={{0,2}}
  d{n} = f32[2,12,4,8] subtract(r{n}, b{n})
  e{n} = f32[2,{size},32] reshape(d{n})
"""
    sizes = ("3,4", "2,6") * 2
    lines = "".join(layer.format(n=n, size=size) for n, size in enumerate(sizes))
    types = ", ".join(f"f32[2,{size},32]" for size in sizes)
    text = entry(
        f"  z = f32[] constant(0)\n  w = f32[1,1,32,32] parameter(4)\n{lines}"
        f"  ROOT r = ({types}) tuple(e0, e1, e2, e3)",
        SUM,
    )
    outlined = outline_blocks.blocks_outlined
    least = outline_blocks.Least(0, 1, 1)
    monkeypatch.setattr(
        outline_blocks,
        "blocks_outlined",
        lambda module, plan, _, ipus: outlined(module, plan, least, ipus),
    )
    made = compile_module(
        hloipu.verify(text), CompileRequest(TINY, outlines=True), Phase.PASSES
    ).module
    ops = [x for computation in made.computations for x in computation.instructions]
    assert "call" in {x.opcode for x in ops}
    merged = [leaf for x in ops for leaf in leaves_of(x.shape) if 12 in leaf.dimensions]
    assert not merged
