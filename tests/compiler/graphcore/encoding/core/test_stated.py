"""What texts ask for, and what comes before it."""

from dataclasses import replace

from hloipu_compiler.compilation import CompileRequest
from hloipu_compiler.driver import compile_module
from hloipu_compiler.graphcore.encoding.core.stated import Stated
from hloipu_compiler.graphcore.encoding.reading import flat_step
from hloipu_compiler.hlo.attributes.frontend_attributes import read_frontend_attributes
from hloipu_compiler.plan.pipelining import PipelineRequest
from hloipu_compiler.plan.wrapping import WrappingRequest
from hloipu_runtime.machine.load import load_machine
from tests.support.poplar_small import TEXT, changed, read
from tests.support.poplar_variants import VARIANTS


def stated(text: str) -> Stated:
    """Return what a text asks for."""
    step = flat_step(read(text))
    assert step is not None
    return step.stated


def test_a_pipeline_says_how_it_is_cut() -> None:
    assert stated(TEXT) == Stated(
        micro_batches=3, stages=2, schedule="grouped", reduction="sum", device_map=((0,), (1,)),
        loop=2, feeds=(("x", (2,)),), outfeeds=(("l", (2,)),),
    )  # fmt: skip


def test_what_is_to_lie_in_remote_buffers_is_read() -> None:
    text = changed(
        ('PIPELINE_SCHEDULE="0"',
         'PIPELINE_SCHEDULE="0",OFFLOAD_ACTIVATIONS="THREESTATE_ON",'
         'OFFLOAD_VARIABLES="THREESTATE_ON",RECOMPUTATION_MODE="Recompute_then_backpropagate",'
         'OFFLOAD_GRADIENT_ACCUMULATION_BUFFERS="THREESTATE_OFF"'),
        ('{CALL_CONFIG_TYPE="ResourceUpdate"}',
         '{CALL_CONFIG_TYPE="ResourceUpdate",OFFLOAD_WEIGHT_UPDATE_VARIABLES="THREESTATE_OFF",'
         'PARTITION_OFFLOADED_WEIGHT_UPDATE_VARIABLES="THREESTATE_ON"}'),
    )  # fmt: skip
    found = stated(text)
    assert (found.offload_activations, found.offload_weights) == (True, True)
    assert found.offload_accumulators is False
    assert (found.recompute, found.offload, found.shard_optimizer) == ("full", "off", True)


def test_the_header_of_the_step_says_the_same() -> None:
    step = flat_step(read(VARIANTS["branches"].text))
    assert step is not None
    header = read_frontend_attributes(str(step.module.attributes["frontend_attributes"]))
    assert header["ipu_device_map"] == "[0,1],2"
    assert header["ipu_micro_batches"] == "3"
    assert header == step.stated.attributes()


def test_requests_come_before_it() -> None:
    found = stated(TEXT)
    assert found.pipelining(PipelineRequest()).schedule == "grouped"
    asked = PipelineRequest(schedule="sequential", micro_batches=5)
    merged = found.pipelining(asked)
    assert (merged.schedule, merged.micro_batches, merged.stages) == ("sequential", 5, 2)
    wrapping = found.wrapping(WrappingRequest(loop=7))
    assert (wrapping.loop, dict(wrapping.feeds)) == (7, {"x": (2,)})


def test_the_compiler_itself_follows_what_a_text_says() -> None:
    made = compile_module(read(TEXT), CompileRequest(load_machine("tiny")))
    assert made.pipelining is not None
    assert (made.program.ipus, made.pipelining.micro_batches) == (2, 3)
    assert made.wrapping is not None
    assert made.wrapping.loop == 2


def test_devices_keep_their_numbers_and_those_between_are_idle() -> None:
    text = TEXT
    for stage, device in enumerate((6, 2)):
        said = f'CALL_CONFIG_TYPE="PipelineStage",PIPELINE_STAGE_ID="{stage}"}}'
        text = changed((said, f"{said}, sharding={{maximal device={device}}}"), text=text)
    assert stated(text) == replace(stated(TEXT), device_map=((6,), (2,)))
    made = compile_module(read(text), CompileRequest(load_machine("tiny"))).pipelining
    assert made is not None
    assert (made.ipus, made.numbers, made.span) == (((1,), (0,)), (2, 6), 8)
