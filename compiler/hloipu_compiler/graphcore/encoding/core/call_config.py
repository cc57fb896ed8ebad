"""Configuration of a call's part in a step, in either spelling of Graphcore's plugin.

`frontend_attributes={CALL_CONFIG_TYPE="Pipeline",PIPELINE_SCHEDULE="1",…}` is what TensorFlow's
bridge writes, `{"callConfig":{"type":"Pipeline",…}}` in `backend_config` what the plugin makes of
it (graphcore/tensorflow: tensorflow/compiler/plugin/poplar/driver/backend_config.proto and
driver/passes/parse_poplar_backend_config.cc). Where both are there, the attributes count.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from hloipu_compiler.graphcore.encoding.core import errors
from hloipu_compiler.graphcore.encoding.core.errors import PoplarError
from hloipu_compiler.hlo.attributes.frontend_attributes import (
    read_backend_config,
    read_frontend_attributes,
)
from hloipu_compiler.ir.graph import Instruction

CALL, LOOP, STAGE, BACKWARD = ("Call", "RepeatLoop", "PipelineStage", "PipelineStageBackward")
PIPELINE, RECOMPUTATION = "Pipeline", "PipelineStageRecomputation"
UPDATE, FUNCTION, MULTI_CONV = "ResourceUpdate", "Function", "MultiConv"
TYPES = (CALL, LOOP, STAGE, BACKWARD, PIPELINE, RECOMPUTATION, UPDATE, FUNCTION, MULTI_CONV)
"""In the order of their numbers."""
STAGES = (STAGE, BACKWARD, RECOMPUTATION)

SCHEDULES = ("Grouped", "Interleaved", "Sequential")
RECOMPUTATIONS = (
    "Auto", "Recompute_then_backpropagate", "Recompute_and_backpropagate_interleaved",
)  # fmt: skip
STATES = ("THREESTATE_OFF", "THREESTATE_ON", "THREESTATE_UNDEFINED")

_COUNTS = {
    "PIPELINE_STAGE_ID": ("pipelineStageConfig", "stageId"),
    "PIPELINE_REPEAT_COUNT": ("pipelineConfig", "repeatCount"),
    "PIPELINE_BATCH_SERIALIZATION_ITERATIONS": ("pipelineConfig", "batchSerializationIterations"),
    "GradientAccumulationOperandIndex": ("pipelineConfig", "gradientAccumulationIndex"),
    "GRADIENT_ACCUMULATION_COUNT": ("pipelineConfig", "gradientAccumulationCount"),
    "NUM_BATCHES_TO_ACCUMULATE": ("resourceUpdateConfig", "numBatchesToAccumulate"),
    "REPEAT_COUNT": ("repeatConfig", "repeatCount"),
}
"""Numbers: attribute -> where the JSON has it. Most digits: those of 2^63."""
_CHOICES = {
    "PIPELINE_SCHEDULE": ("pipelineConfig", "schedule", SCHEDULES),
    "RECOMPUTATION_MODE": ("pipelineConfig", "recomputationMode", RECOMPUTATIONS),
    "OFFLOAD_ACTIVATIONS": ("pipelineConfig", "offloadActivations", STATES),
    "OFFLOAD_GRADIENT_ACCUMULATION_BUFFERS": (
        "pipelineConfig", "offloadGradientAccumulationBuffers", STATES,
    ),
    "OFFLOAD_VARIABLES": ("pipelineConfig", "offloadVariables", STATES),
    "PARTITION_VARIABLES": ("pipelineConfig", "partitionVariables", STATES),
    "OFFLOAD_WEIGHT_UPDATE_VARIABLES": ("resourceUpdateConfig", "offloadVariables", STATES),
    "PARTITION_OFFLOADED_WEIGHT_UPDATE_VARIABLES": (
        "resourceUpdateConfig", "partitionOffloadedVariables", STATES,
    ),
}  # fmt: skip
"""Words of a list, or their numbers."""
_MOST_DIGITS = 19
_KEY = re.compile("callConfig|call_config")
_CAPITAL = re.compile("[A-Z]")


@dataclass(frozen=True, slots=True)
class CallConfig:
    """A call's part in a step, and the numbers and words that go with it, by attribute."""

    type: str
    counts: Mapping[str, int]
    choices: Mapping[str, str]

    def count(self, key: str, default: int = 0) -> int:
        """Return a number, or `default` where the call does not say it."""
        return self.counts.get(key, default)

    def state(self, key: str) -> str:
        """Return `on`, `off`, or nothing where it is left open."""
        choice = self.choices.get(key, STATES[2])
        return {"THREESTATE_ON": "on", "THREESTATE_OFF": "off"}.get(choice, "")


def config_of(instruction: Instruction) -> CallConfig | None:
    """Return what a call says of its part; None for other ops, and for calls that say nothing.

    Raises PoplarError E0540 for what cannot be read.
    """
    if instruction.opcode != "call":
        return None
    attributes = instruction.attributes.text("frontend_attributes")
    is_configured = (
        "CALL_CONFIG_TYPE" in attributes or _KEY.search(instruction.backend_config) is not None
    )
    try:
        return (
            _parsed_config(instruction.name, attributes, instruction.backend_config)
            if is_configured
            else None
        )
    except PoplarError as error:
        error.op = instruction
        raise


@lru_cache(maxsize=1024)
def _parsed_config(name: str, attributes: str, config: str) -> CallConfig | None:
    words = read_frontend_attributes(attributes)
    parts = _call_config(name, config)
    kind = words.get("CALL_CONFIG_TYPE", parts.get("type", CALL))
    part_of_step = _chosen(name, "CALL_CONFIG_TYPE", kind, TYPES)
    counts, choices = {}, {}
    for key, (group, field) in _COUNTS.items():
        value = words.get(key, _field(parts, group, field))
        if value is not None:
            counts[key] = _number(name, key, value)
    for key, (group, field, allowed) in _CHOICES.items():
        value = words.get(key, _field(parts, group, field))
        if value is not None:
            choices[key] = _chosen(name, key, value, allowed)
    if part_of_step in STAGES and "PIPELINE_STAGE_ID" not in counts:
        if not parts:
            raise _unreadable(name, "its PIPELINE_STAGE_ID is missing")
        counts["PIPELINE_STAGE_ID"] = 0  # JSON of a proto leaves zeros out
    return CallConfig(part_of_step, counts, choices)


def _call_config(name: str, config: str) -> Mapping[str, object]:
    if _KEY.search(config) is None:
        return {}
    try:
        parsed = json.loads(read_backend_config(config))
    except (json.JSONDecodeError, RecursionError) as error:
        raise _unreadable(name, "its backend_config is not JSON") from error
    return _part(parsed if isinstance(parsed, dict) else {}, "callConfig")


def _field(parts: Mapping[str, object], group: str, field: str) -> object:
    fields = _part(parts, group)
    return fields.get(field, fields.get(_snaked(field)))


def _part(parts: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = parts.get(key, parts.get(_snaked(key)))
    return value if isinstance(value, dict) else {}


def _snaked(key: str) -> str:
    """Return a field's own name, which JSON of a message may have in place of `lowerCamel`."""
    return _CAPITAL.sub(lambda capital: "_" + capital.group().lower(), key)


def _number(name: str, key: str, value: object) -> int:
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdecimal()):
        raise _unreadable(name, f"{key}={text[:40]!r} is not a number from 0 on")
    if len(text) > _MOST_DIGITS:
        raise _unreadable(name, f"{key} has {len(text)} digits")
    return int(text)


def _chosen(name: str, key: str, value: object, allowed: tuple[str, ...]) -> str:
    text = str(value)
    if text in allowed:
        return text
    if text.isascii() and text.isdecimal() and len(text) < 3 and int(text) < len(allowed):
        return allowed[int(text)]
    raise _unreadable(name, f"{key}={text[:40]!r} is none of {', '.join(allowed)}")


def _unreadable(name: str, why: str) -> PoplarError:
    return errors.CALL_CONFIG(
        f"call {name!r}: {why}",
        hint="print the module again, or correct the call's frontend_attributes",
    )
