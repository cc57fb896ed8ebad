"""Writes a module with a Pipeline call as one plain step."""

from hloipu_compiler.graphcore.encoding.core import errors
from hloipu_compiler.graphcore.encoding.core.call_config import PIPELINE
from hloipu_compiler.graphcore.encoding.core.errors import PoplarError
from hloipu_compiler.graphcore.encoding.core.ops import Op
from hloipu_compiler.graphcore.encoding.core.pipeline_checks import Stages, checked_stages
from hloipu_compiler.graphcore.encoding.core.stated import Stated
from hloipu_compiler.graphcore.encoding.core.survey import (
    ConfiguredCall,
    Survey,
    constant_number,
    disagree,
    update_count,
)
from hloipu_compiler.graphcore.encoding.core.values import TupleValue, Value
from hloipu_compiler.graphcore.encoding.flat_step import Ending, FlatStep, check_size
from hloipu_compiler.graphcore.encoding.flat_writing import FlatWriter
from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.ir.shapes import ArrayShape

_RECOMPUTES = ("Recompute_then_backpropagate", "Recompute_and_backpropagate_interleaved")


class _PipelineWriter(FlatWriter):
    """Writes an entry with a pipeline in it."""

    stated_count = 1
    """What the operand that counts micro-batches is."""

    def called(self, op: Op) -> Value:
        if op.config is None or op.kind != PIPELINE:
            return super().called(op)
        initial = self.operands(op)
        index = op.config.counts.get("GradientAccumulationOperandIndex", -1)
        if 0 <= index < len(initial):  # whatever the text says, it is as many as are asked for
            shape = self.made[initial[index]].shape
            if isinstance(shape, ArrayShape) and shape.is_scalar:
                initial[index] = self.number("micro_batches", shape, str(self.stated_count))
        self.inputs = list(initial)
        result = self.computation(self.callee(op.instruction), self.inputs, op.context)
        if not isinstance(result, TupleValue):
            raise errors.PIPELINE(f"pipeline {op.name!r} does not return a tuple")
        self.outputs = list(result.parts)
        if len(self.outputs) > len(self.inputs):
            raise errors.CARRIED(
                f"pipeline {op.name!r} takes {len(self.inputs)} values and returns "
                f"{len(self.outputs)}",
                hint="return every operand at its own place, changed or not, and nothing else",
            )
        return result


def pipeline_step(module: Module, survey: Survey, micro_batches: int | None) -> FlatStep:
    """Return the step of a module that has a pipeline.

    `micro_batches`: how many are asked for, whatever the module says.
    Raises what `checked_stages` raises, and PoplarError E0541 where nothing says how many
    micro-batches an update has.
    """
    if survey.pipeline is None:
        raise errors.PIPELINE("there is no pipeline")
    check_size(module)
    stages = checked_stages(module, survey)
    pipeline = survey.pipeline
    count = micro_batches or stages.parts * pipeline_count(module, survey)
    iterations = pipeline.config.count("PIPELINE_REPEAT_COUNT", 1) or 1
    writer = _PipelineWriter(module, count, stages.count, iterations)
    if micro_batches is not None:
        writer.written_count = _stated_count(module, survey)
    writer.stated_count = count // stages.parts
    writer.has_backward = bool(stages.backward)
    writer.returns = stages.returns
    writer.trains = survey.update is not None
    entry = module.entry
    root = writer.entry(entry)
    ending = Ending(
        module, writer, root, iterations if survey.update is not None else iterations * count
    )
    return ending.step(_stated(survey, stages, count, iterations))


def pipeline_count(module: Module, survey: Survey) -> int:
    """Return the micro-batches of an update, as a module with a pipeline says.

    Raises PoplarError E0541 where it does not, or says different things.
    """
    pipeline = survey.pipeline
    if pipeline is None:
        raise errors.PIPELINE("there is no pipeline")
    operand_count = _operand_count(module, pipeline)
    stated_count = update_count(module, survey.updates)
    if (
        None not in (operand_count, stated_count)
        and operand_count != stated_count
        and survey.update is not None
    ):
        raise disagree(pipeline.call, operand_count or 0, survey.update.call, stated_count or 0)
    count = operand_count or stated_count
    if not count:
        raise errors.MICRO_BATCHES(
            f"pipeline {pipeline.call.name!r} says nowhere how many micro-batches an update has, "
            "or not by a constant",
            hint="give --micro-batches K, or make the operand GradientAccumulationOperandIndex a "
            "constant",
            op=pipeline.call,
        )
    return count


def _stated_count(module: Module, survey: Survey) -> int:
    """Return the micro-batches that a text speaks of; 0 where it does not, or not clearly."""
    try:
        return pipeline_count(module, survey)
    except PoplarError:
        return 0


def _operand_count(module: Module, pipeline: ConfiguredCall) -> int | None:
    config, call = pipeline.config, pipeline.call
    if "GRADIENT_ACCUMULATION_COUNT" in config.counts:
        return config.counts["GRADIENT_ACCUMULATION_COUNT"]
    index = config.counts.get("GradientAccumulationOperandIndex")
    if index is not None and index >= len(call.operands):
        raise errors.MICRO_BATCHES(
            f"pipeline {call.name!r} takes the number of micro-batches from operand {index}, and "
            f"has {len(call.operands)}",
            hint="set GradientAccumulationOperandIndex to the operand that is the number",
            op=call,
        )
    if index is None:
        index = len(call.operands) - 1
        if index < 0 or not _is_count(pipeline.computation, call.operands[index]):
            return None
    return constant_number(module, pipeline.computation, call.operands[index])


def _is_count(computation: Computation, position: int) -> bool:
    return str(computation.instructions[position].shape).startswith("s32[]")


def _stated(survey: Survey, stages: Stages, count: int, iterations: int) -> Stated:
    pipeline = survey.pipeline
    if pipeline is None:
        raise errors.PIPELINE("there is no pipeline")
    config = pipeline.config
    recomputes = bool(stages.again) or config.choices.get("RECOMPUTATION_MODE") in _RECOMPUTES
    return Stated(
        count,
        stages.count,
        config.choices.get("PIPELINE_SCHEDULE", "Grouped").lower(),
        recompute="full" if recomputes and survey.updates else "",
        offload=survey.update_state("OFFLOAD_WEIGHT_UPDATE_VARIABLES"),
        shard_optimizer=survey.update_state("PARTITION_OFFLOADED_WEIGHT_UPDATE_VARIABLES") == "on",
        device_map=tuple(map(tuple, stages.devices)),
        offload_activations=config.state("OFFLOAD_ACTIVATIONS") == "on",
        offload_weights=config.state("OFFLOAD_VARIABLES") == "on",
        offload_accumulators=config.state("OFFLOAD_GRADIENT_ACCUMULATION_BUFFERS") == "on",
        batch_serialization=stages.parts,
        loop=iterations,
    )
