"""Graphcore's encoding read: the face of this room."""

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.poplar.flat_step import FlatStep
from hloipu_compiler.poplar.pipeline_step import pipeline_step
from hloipu_compiler.poplar.survey import survey


def flat_step(module: Module, micro_batches: int | None = None) -> FlatStep | None:
    """Return the plain step of a verified module in Graphcore's encoding; None for any other module.

    `micro_batches`: how many an update has, whatever the module says of it.
    Raises PoplarError E0540 to E0549.
    """
    found = survey(module)
    if found.is_plain:
        return None
    if found.pipeline is not None:
        return pipeline_step(module, found, micro_batches)
    return None
