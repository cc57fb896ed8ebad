"""Imports rarely needed parts of the compiler, when a cheap test shows a module needs them.

Signs are necessary, not sufficient: what is imported looks closely.
"""

from typing import TYPE_CHECKING

from hloipu_compiler.ir.graph import Computation, Instruction, Module

if TYPE_CHECKING:
    from hloipu_compiler.graphcore.encoding.flat_step import FlatStep

_ENCODED_OPCODES = frozenset({"custom-call", "fifo", "inter-ipu-copy"})
_CALL_CONFIGS = ("callConfig", "call_config")


def flat_step(
    module: Module, micro_batches: int | None = None, *, is_cut: bool = False
) -> "FlatStep | None":
    """Return what `encoding.reading.flat_step` does: None unless a module is in an encoding."""
    has_opaque = "opaque[" in module.source.text
    opcodes = _ENCODED_OPCODES | ({"infeed"} if is_cut else set())
    if not has_opaque and not any(_may_be_encoded(op, opcodes) for op in _instructions(module)):
        return None
    from hloipu_compiler.graphcore.encoding.reading import flat_step as read

    return read(module, micro_batches, is_cut=is_cut)


def with_call_marks(module: Module) -> Module:
    """Return the module with marks of calls on what they call, as `staging.call_marks` does."""
    if not any(op.opcode == "call" and _attributes(op) for op in _instructions(module)):
        return module
    from hloipu_compiler.partition.stages.call_marks import with_call_marks as marked

    return marked(module)


def says_anything(module: Module, partitions: int = 1) -> bool:
    """Whether an op states an IPU other than the first, as `sharding.handing_down` tells."""
    if not any(map(_may_state_ipu, _instructions(module))):
        return False
    from hloipu_compiler.partition.placement.handing_down import says_anything as says

    return says(module, partitions)


def is_divided(module: Module) -> bool:
    """Whether annotations divide an array between devices, as `spmd.partitioning` tells."""
    if not may_be_divided(module):
        return False
    from hloipu_compiler.partition.spmd.partitioning import is_divided as divided

    return divided(module)


def may_be_divided(module: Module) -> bool:
    """Whether an op has an annotation that may divide an array."""
    return any(map(_may_divide, _instructions(module)))


def marked_stages(computation: Computation) -> dict[int, int]:
    """Return the stage of every op that states one, as `staging.marks` does."""
    if not any("ipu_stage" in _attributes(op) for op in computation.instructions):
        return {}
    from hloipu_compiler.partition.training.marks import marked_stages as marked

    return marked(computation)


def _instructions(module: Module) -> list[Instruction]:
    return [op for computation in module.computations for op in computation.instructions]


def _attributes(op: Instruction) -> str:
    return op.attributes.text("frontend_attributes")


def _may_be_encoded(op: Instruction, opcodes: frozenset[str]) -> bool:
    if op.opcode != "call":
        return op.opcode in opcodes
    said = "CALL_CONFIG_TYPE" in _attributes(op)
    return said or any(key in op.backend_config for key in _CALL_CONFIGS)


def _may_divide(op: Instruction) -> bool:
    sharding = op.attributes.text("sharding")
    return "devices=[" in sharding or "mesh[" in sharding or "xla.sdy.sharding" in _attributes(op)


def _may_state_ipu(op: Instruction) -> bool:
    return "ipu_shard" in _attributes(op) or "maximal" in op.attributes.text("sharding")
