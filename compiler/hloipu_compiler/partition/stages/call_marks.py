"""Copies marks of calls to the ops that they run, so that they survive inlining.

A call says `frontend_attributes={ipu_stage="1",ipu_phase="fwd"}`, or as Graphcore's plugin prints
it CALL_CONFIG_TYPE="PipelineStage", "PipelineStageBackward" or "ResourceUpdate" with
PIPELINE_STAGE_ID (graphcore/tensorflow:
tensorflow/compiler/plugin/poplar/driver/backend_config.proto). What an op says itself stands.
"""

from collections.abc import Mapping
from dataclasses import replace

from hloipu_compiler.hlo.attributes.frontend_attributes import (
    frontend_attributes_text,
    read_frontend_attributes,
)
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.passes.framework.attribute_edits import renamed
from hloipu_compiler.passes.framework.names import Variants

_KEYS = ("ipu_stage", "ipu_phase", "ipu_branch")
_POPLAR = {"PipelineStage": "fwd", "PipelineStageBackward": "bwd", "ResourceUpdate": "wu"}
_KEY = "frontend_attributes"
_Variant = tuple[str, frozenset[tuple[str, str]]]
"""A computation, and the marks that its ops take unless they say more."""


def with_call_marks(module: Module) -> Module:
    """Return the module with marks of calls on what they call; the same one where none has any.

    What calls with different marks run is there once for each.
    """
    if not any(_marks_of(op) for c in module.computations for op in c.instructions):
        return module
    return _Marking(module).from_entry((module.entry.name, frozenset()))


class _Marking(Variants[_Variant]):
    """Computations as they are needed, each once for each set of marks."""

    def written(self, variant: _Variant) -> Computation:
        """Return a computation with the marks of its call."""
        name, marks = variant
        marked = _marked(self.module.computation[name], dict(marks))
        instructions = []
        for op in marked.instructions:
            handed = frozenset(_marks_of(op).items())
            names = {called: self.named((called, handed)) for called in op.attributes.called}
            instructions.append(
                op._replace(attributes=renamed(op.attributes, names)) if names else op
            )
        return replace(marked, instructions=tuple(instructions))


def _marks_of(op: Instruction) -> dict[str, str]:
    """Return what a call says for all that it calls."""
    text = op.attributes.text(_KEY) if op.opcode == "call" else ""
    if "ipu_" not in text and "CALL_CONFIG_TYPE" not in text:
        return {}
    said = read_frontend_attributes(text)
    mark_by_key = {key: said[key] for key in _KEYS if key in said}
    phase = _POPLAR.get(said.get("CALL_CONFIG_TYPE", ""))
    if phase is not None:
        mark_by_key.setdefault("ipu_phase", phase)
        if phase != "wu" and "PIPELINE_STAGE_ID" in said:
            mark_by_key.setdefault("ipu_stage", said["PIPELINE_STAGE_ID"])
    return mark_by_key


def _marked(computation: Computation, marks: Mapping[str, str]) -> Computation:
    if not marks:
        return computation
    instructions = []
    for op in computation.instructions:
        if op.parameter_number < 0:
            said = dict(marks) | read_frontend_attributes(op.attributes.text(_KEY))
            values = {**op.attributes, _KEY: frontend_attributes_text(said)}
            op = op._replace(attributes=Attributes(values, op.attributes.called))
        instructions.append(op)
    return replace(computation, instructions=tuple(instructions))
