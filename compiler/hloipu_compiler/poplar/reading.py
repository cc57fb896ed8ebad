"""Graphcore's encoding read: the face of this room."""

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.poplar.flat_step import FlatStep
from hloipu_compiler.poplar.loop_step import NoStep, loop_step
from hloipu_compiler.poplar.pipeline_checks import checked_stages
from hloipu_compiler.poplar.pipeline_step import pipeline_step
from hloipu_compiler.poplar.plain_module import written_out
from hloipu_compiler.poplar.stated import Stated
from hloipu_compiler.poplar.survey import survey, update_count


def flat_step(module: Module, micro_batches: int | None = None) -> FlatStep | None:
    """Return the plain step of a verified module in Graphcore's encoding; None for any other.

    `micro_batches`: how many an update has, whatever the module says of it.
    Raises PoplarError E0540 to E0549.
    """
    found = survey(module)
    if found.is_plain:
        return None
    if found.pipeline is not None:
        return pipeline_step(module, found, micro_batches)
    if found.stages:
        checked_stages(module, found)
    if found.update is None and not found.windows:
        return FlatStep(written_out(module, found, micro_batches), Stated())
    count = micro_batches
    if count is None and found.update is not None:
        count = update_count(module, found.update)
    try:
        return loop_step(module, found, count)
    except NoStep as error:
        return FlatStep(written_out(module, found, micro_batches), Stated(why=error.message))
