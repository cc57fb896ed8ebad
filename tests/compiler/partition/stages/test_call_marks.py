"""Stages given by calls, as such and as Graphcore's plugin writes them."""

import numpy as np
import pytest

import hloipu
from hloipu_compiler.hlo.attributes.frontend_attributes import read_frontend_attributes
from hloipu_compiler.partition.stages.call_marks import with_call_marks
from hloipu_compiler.partition.training.errors import StagingError

TEXT = """HloModule m, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
first {
  w = f32[4]{0} parameter(0)
  x = f32[4]{0} parameter(1)
  ROOT y = f32[4]{0} multiply(w, x)
}
second {
  v = f32[4]{0} parameter(0)
  y = f32[4]{0} parameter(1)
  z = f32[4]{0} multiply(v, y)
  zero = f32[] constant(0)
  ROOT loss = f32[] reduce(z, zero), dimensions={0}, to_apply=sum
}
ENTRY main {
  w = f32[4]{0} parameter(0)
  v = f32[4]{0} parameter(1)
  x = f32[4]{0} parameter(2)
  y = f32[4]{0} call(w, x), to_apply=first, frontend_attributes={FIRST}
  loss = f32[] call(v, y), to_apply=second, frontend_attributes={SECOND}
  dw = f32[4]{0} multiply(v, x), frontend_attributes={ipu_phase="bwd"}
  dv = f32[4]{0} multiply(y, x), frontend_attributes={ipu_phase="bwd"}
  neww = f32[4]{0} subtract(w, dw), frontend_attributes={ipu_phase="wu"}
  newv = f32[4]{0} subtract(v, dv), frontend_attributes={ipu_phase="wu"}
  ROOT all = (f32[4]{0}, f32[4]{0}, f32[]) tuple(neww, newv, loss)
}
"""
PLAIN = [f'{{ipu_stage="{n}",ipu_phase="fwd"}}' for n in (0, 1)]
POPLAR = [f'{{CALL_CONFIG_TYPE="PipelineStage",PIPELINE_STAGE_ID="{n}"}}' for n in (0, 1)]


def text_of(marks: list[str]) -> str:
    return TEXT.replace("{FIRST}", marks[0]).replace("{SECOND}", marks[1])


@pytest.mark.parametrize("marks", [PLAIN, POPLAR])
def test_ops_of_a_call_have_its_stage(marks: list[str]) -> None:
    module = with_call_marks(hloipu.parse(text_of(marks)))
    for name, inner, stage in (("first", "y", "0"), ("second", "z", "1")):
        said = read_frontend_attributes(
            module.computation[name][inner].attributes.text("frontend_attributes")
        )
        assert said == {"ipu_stage": stage, "ipu_phase": "fwd"}
    assert not module.computation["sum"]["c"].attributes


def test_what_two_stages_call_is_there_for_each() -> None:
    twice = text_of(PLAIN).replace("call(v, y), to_apply=second", "call(v, y), to_apply=first")
    module = with_call_marks(hloipu.parse(twice.replace("loss = f32[]", "loss = f32[4]{0}")))
    stages = {}
    for call in ("y", "loss"):
        (called,) = module.entry[call].attributes.called
        said = module.computation[called]["y"].attributes.text("frontend_attributes")
        stages[call] = read_frontend_attributes(said)["ipu_stage"]
    assert stages == {"y": "0", "loss": "1"}


def test_a_module_without_marks_stays_as_it_is() -> None:
    module = hloipu.parse(
        TEXT.replace(", frontend_attributes={FIRST}", "").replace("{SECOND}", "{}")
    )
    assert with_call_marks(module) is module


@pytest.mark.parametrize("marks", [PLAIN, POPLAR])
def test_stages_are_those_of_the_calls(marks: list[str]) -> None:
    exe = hloipu.compile(
        text_of(marks), target="tiny", cache=False, over_memory="allow", micro_batches=2,
        feed={"data": (2,)}, loop=1,
    )  # fmt: skip
    assert exe.program.ipus == 2
    w, v = np.array([[1, 2, 3, 4], [2, 3, 5, 7]], np.float32)
    batches = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    with exe.session(state=[w, v], infeeds={"data": iter(batches)}) as session:
        session.run(1)
        new_w, new_v = session.state().values()
    np.testing.assert_allclose(new_w, w - np.mean([v * x for x in batches], 0), rtol=1e-5)
    np.testing.assert_allclose(new_v, v - np.mean([w * x * x for x in batches], 0), rtol=1e-5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ipu_stage", "-1"), ("ipu_stage", "first"), ("ipu_stage", ""), ("ipu_stage", "1.0"),
        ("ipu_stage", "1000000"), ("ipu_stage", "²"), ("ipu_phase", "forward"), ("ipu_shard", "x"),
    ],
)  # fmt: skip
def test_marks_that_cannot_be_read_are_refused(key: str, value: str) -> None:
    text = text_of([f'{{{key}="{value}"}}', "{}"])
    with pytest.raises(StagingError, match="is annotated with") as caught:
        hloipu.compile(
            text, target="tiny", cache=False, loop=1, feed={"data": (2,)},
            micro_batches=1 if key == "ipu_shard" else 2,
        )  # fmt: skip
    assert caught.value.code == "E0519"
    assert f"{key}={value!r}" in caught.value.message


def test_stages_that_nothing_asks_for_are_told_of() -> None:
    program = hloipu.compile(text_of(PLAIN), target="tiny", cache=False, over_memory="allow")
    (line,) = program.options["cut"]
    assert line.startswith("ops are annotated with 2 stages, and the step is not cut")
