"""Stages whose branches run at once: the same training, sooner."""

import re
from typing import Any

import numpy as np
import pytest

import hloipu
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.program.proof.verify import faults_of
from hloipu_runtime.program_io.text.printer import print_program
from hloipu_runtime.report.pipelines import PipelineRow
from tests.support.concurrent_trials import (
    Concurrent,
    assert_equal_to_jax,
    branches_at_once,
    compiled,
    pipeline_of,
    sample,
)
from tests.support.program_reader.parser import parse_program
from tests.support.tower_models import TOWERS

SAMPLE = sample(24)


@pytest.mark.thinned(24)
@pytest.mark.parametrize("cut", SAMPLE, ids=map(str, SAMPLE))
def test_state_is_that_of_gradients_taken_apart(cut: Concurrent) -> None:
    program = compiled(cut)
    towers = TOWERS[cut.model]
    at_once = branches_at_once(pipeline_of(program))
    forward, backward = at_once[: towers.stages], at_once[towers.stages :]
    wanted = [0] * towers.stages
    wanted[towers.concurrent] = towers.branches
    assert forward == wanted
    assert backward == wanted[::-1]
    assert_equal_to_jax(cut, program)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("cut", SAMPLE[:6], ids=map(str, SAMPLE[:6]))
def test_tiles_by_themselves_come_to_the_same(cut: Concurrent) -> None:
    assert_equal_to_jax(cut, compiled(cut), mode="exact")


@pytest.mark.large
@pytest.mark.parametrize(
    "device_map", [((0, 1), (2, 3), 4), ((0, 1), (0, 1), 0), ((0, 1), (1, 0), 2)]
)
@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.thinned(3)
def test_several_stages_may_have_branches(device_map: Any, marked: bool) -> None:
    cut = Concurrent("lines", marked=marked)
    program = compiled(cut, device_map=device_map)
    assert branches_at_once(pipeline_of(program)) == [2, 2, 0, 0, 2, 2]
    assert_equal_to_jax(cut, program, mode="exact")


MODELS = [name for name in TOWERS if name not in ("tied", "dropped")]
"""Without what begins or ends with ops that cannot be told from those of a neighbouring stage."""


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.thinned(4)
def test_steps_without_annotations_are_cut_where_branches_are(model: str) -> None:
    cut = Concurrent(model, marked=False)
    step, towers = cut.step, TOWERS[model]
    first = step.state_count
    plain = re.sub(r", frontend_attributes=\{[^}]*\}", "", step.text)
    program = hloipu.compile(
        plain, target="tiny", over_memory="allow", cache=False, feed={"data": (first, first + 1)},
        outfeed=[f"loss={first}"], micro_batches=cut.micro_batches, loop=2, stages=towers.stages,
        device_map=cut.device_map,
    )  # fmt: skip
    wanted = [0] * towers.stages
    wanted[towers.concurrent] = towers.branches
    assert branches_at_once(pipeline_of(program)) == wanted + wanted[::-1]
    assert_equal_to_jax(cut, program)


def row_of(program: CompiledProgram) -> PipelineRow:
    (row,) = program.profile().pipelines
    return row


@pytest.mark.parametrize("model", ["concatenated", "heads", "normed", "added"])
@pytest.mark.thinned(4)
def test_branches_at_once_take_fewer_cycles_than_in_turn(model: str) -> None:
    """Folded on one IPU, the same annotated stage does its branches one after the other."""
    cut = Concurrent(model, schedule="sequential")
    towers = TOWERS[model]
    at_once = row_of(compiled(cut))
    folded = row_of(compiled(cut, device_map=tuple(range(towers.stages))))
    for place in (towers.concurrent, 2 * towers.stages - 1 - towers.concurrent):
        assert at_once.positions[place].cycles < folded.positions[place].cycles
        assert len(at_once.positions[place].shares) == towers.branches
        assert len(folded.positions[place].shares) == 1


def test_every_weight_lies_with_its_branch() -> None:
    """As do its accumulator and what the optimizer keeps of it."""
    program = compiled(Concurrent("concatenated", map="apart", offload="off")).program
    ipus = {port.parameter: program.variables[port.variable].ipu for port in program.state}
    of_weights = [0] * 2 + [3] * 2 + [2] * 6 + [1] * 4  # first, head, long and short by name
    assert [ipus[number] for number in sorted(ipus)] == 2 * of_weights


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_programs_stay_what_they_are_as_text(recompute: str) -> None:
    compilation = compiled(Concurrent("multiplied", recompute=recompute))
    program = compilation.program
    assert faults_of(program, compilation.machine.chip.tiles_per_ipu) == []
    text = print_program(program, constants=True)
    assert print_program(parse_program(text, name="text"), constants=True) == text


def test_one_stage_alone_may_have_branches() -> None:
    """Forward and backward in one call of each IPU and level, without a pipeline's stages."""
    text = INFERENCE.replace('ipu_stage="0"', "").replace('ipu_stage="1"', "").replace(",}", "}")
    text = text.replace(", frontend_attributes={}", "")
    program = hloipu.compile(
        text, target="tiny", cache=False, device_map=((0, 1),), feed={"data": (0,)},
        outfeed=["y=0"], micro_batches=3, loop=1,
    )  # fmt: skip
    assert program.program.ipus == 2
    assert branches_at_once(pipeline_of(program)) == [2]
    np.testing.assert_array_equal(run(program, 3), wanted(3))


INFERENCE = """HloModule m
ENTRY e {
  x = f32[3,4] parameter(0)
  a1 = f32[3,4] add(x, x), frontend_attributes={ipu_branch="0",ipu_stage="0"}
  a2 = f32[3,4] multiply(a1, x), frontend_attributes={ipu_branch="0",ipu_stage="0"}
  b1 = f32[3,4] negate(x), frontend_attributes={ipu_branch="1",ipu_stage="0"}
  both = f32[3,8] concatenate(a2, b1), dimensions={1}, frontend_attributes={ipu_stage="0"}
  ROOT y = f32[3,8] multiply(both, both), frontend_attributes={ipu_stage="1"}
}
"""


def run(program: CompiledProgram, count: int) -> Any:
    fed = [(np.full((3, 4), n + 1, np.float32),) for n in range(count)]
    with program.session(infeeds={"data": iter(fed)}) as session:
        session.run(1)
        return np.array([np.asarray(x.element) for x in session.stream("y").drain()])


def wanted(count: int) -> Any:
    x = np.arange(1, count + 1, dtype=np.float32)[:, None, None] * np.ones((3, 4), np.float32)
    return np.concatenate([2 * x * x, -x], 2) ** 2


@pytest.mark.parametrize("device_map", [None, (0, 1), ((0, 1), 2), ((1, 0), 0)])
def test_inference_has_concurrent_stages_too(device_map: Any) -> None:
    program = hloipu.compile(
        INFERENCE, target="tiny", cache=False, micro_batches=4, device_map=device_map,
        feed={"data": (0,)}, outfeed=["y=0"], loop=1,
    )  # fmt: skip
    count = 0 if device_map == (0, 1) else 2
    assert branches_at_once(pipeline_of(program)) == [count, 0]
    np.testing.assert_array_equal(run(program, 4), wanted(4))


def test_what_comes_back_to_an_ipu_never_leaves_it() -> None:
    """A value of stage 0 that stage 2 reads on the same IPU waits there, stage 1 passed by."""
    residual = """HloModule m
    ENTRY e {
      x = f32[3,4] parameter(0)
      a = f32[3,4] add(x, x), frontend_attributes={ipu_stage="0"}
      b = f32[3,4] negate(a), frontend_attributes={ipu_stage="1"}
      ROOT y = f32[3,4] multiply(a, b), frontend_attributes={ipu_stage="2"}
    }
    """
    program = hloipu.compile(
        residual, target="tiny", cache=False, micro_batches=4, device_map=(0, 1, 0),
        feed={"data": (0,)}, outfeed=["y=0"], loop=1,
    )  # fmt: skip
    variables = program.program.variables
    channels = pipeline_of(program).channels
    ways = {
        (x.producer, x.consumer): (variables[x.source].ipu, *(variables[p].ipu for p in x.places))
        for x in channels
    }
    assert ways == {(0, 1): (0, 1), (1, 2): (1, 0), (0, 2): (0, 0, 0)}
    x = np.arange(1, 5, dtype=np.float32)[:, None, None] * np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(run(program, 4), -((2 * x) ** 2))
