"""Marks on calls, handed down to the ops that they call, so that they outlive inlining.

A call says `frontend_attributes={ipu_stage="1",ipu_phase="fwd"}`, or as Graphcore's plugin prints
it CALL_CONFIG_TYPE="PipelineStage", "PipelineStageBackward" or "ResourceUpdate" with
PIPELINE_STAGE_ID (graphcore/tensorflow:
tensorflow/compiler/plugin/poplar/driver/backend_config.proto). What an op says itself stands.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from hloipu_compiler.hlo.frontend_attributes import (
    frontend_attributes_text,
    read_frontend_attributes,
)
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module

_KEYS = ("ipu_stage", "ipu_phase", "ipu_shard", "ipu_branch")
_POPLAR = {"PipelineStage": "fwd", "PipelineStageBackward": "bwd", "ResourceUpdate": "wu"}
_KEY = "frontend_attributes"


def with_call_marks(module: Module) -> Module:
    """Return the module with marks of calls on what they call; the same one where none has any.

    Computations that several instructions call keep what they say.
    """
    calls = Counter(
        name for c in module.computations for x in c.instructions for name in x.attributes.called
    )
    wanted: dict[str, Mapping[str, str]] = {}
    made = list(module.computations)
    for number in range(len(made) - 1, -1, -1):  # callers stand behind what they call
        marks = wanted.get(made[number].name)
        if marks:
            made[number] = _marked(made[number], marks)
        for x in made[number].instructions:
            found = _marks_of(x) if x.opcode == "call" else {}
            if found:
                wanted |= {name: found for name in x.attributes.called if calls[name] == 1}
    return replace(module, computations=tuple(made)) if wanted else module


def _marks_of(x: Instruction) -> dict[str, str]:
    text = x.attributes.text(_KEY)
    if "ipu_" not in text and "CALL_CONFIG_TYPE" not in text:
        return {}
    said = read_frontend_attributes(text)
    found = {key: said[key] for key in _KEYS if key in said}
    phase = _POPLAR.get(said.get("CALL_CONFIG_TYPE", ""))
    if phase is not None:
        found.setdefault("ipu_phase", phase)
        if phase != "wu" and "PIPELINE_STAGE_ID" in said:
            found.setdefault("ipu_stage", said["PIPELINE_STAGE_ID"])
    return found


def _marked(computation: Computation, marks: Mapping[str, str]) -> Computation:
    made = []
    for x in computation.instructions:
        if x.parameter_number < 0:
            said = dict(marks) | read_frontend_attributes(x.attributes.text(_KEY))
            values = {**x.attributes, _KEY: frontend_attributes_text(said)}
            x = x._replace(attributes=Attributes(values, x.attributes.called))
        made.append(x)
    return replace(computation, instructions=tuple(made))
