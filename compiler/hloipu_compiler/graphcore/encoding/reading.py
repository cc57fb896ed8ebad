"""Entry point: read a module in Graphcore's encoding as a flat step."""

from hloipu_compiler.graphcore.encoding.core.errors import placing
from hloipu_compiler.graphcore.encoding.core.pipeline_checks import checked_stages
from hloipu_compiler.graphcore.encoding.core.stated import Stated
from hloipu_compiler.graphcore.encoding.core.survey import survey, update_count
from hloipu_compiler.graphcore.encoding.flat_step import FlatStep
from hloipu_compiler.graphcore.encoding.loop_step import fed_step, loop_step
from hloipu_compiler.graphcore.encoding.pipeline_step import pipeline_step
from hloipu_compiler.graphcore.encoding.plain_module import written_out
from hloipu_compiler.graphcore.encoding.window_writing import NoStep
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.vendor.expanding import expanded


def flat_step(
    module: Module, micro_batches: int | None = None, *, is_cut: bool = False
) -> FlatStep | None:
    """Return the plain step of a verified module in Graphcore's encoding; None for any other.

    `micro_batches`: how many an update has, whatever the module says of it. `is_cut`: also of a
    plain module, if a loop of its entry reads queues. Raises FormulaError E0530 and E0531,
    and PoplarError E0540 to E0549.
    """
    with placing(module):
        return _flat_step(module, micro_batches, is_cut)


def _flat_step(original: Module, micro_batches: int | None, is_cut: bool) -> FlatStep | None:
    module = expanded(original)
    surveyed = survey(module)
    if is_cut and not (
        surveyed.pipeline or surveyed.stages or surveyed.updates or surveyed.windows
    ):
        step = fed_step(module, micro_batches or 1)
        if step is not None and step.stated.why and not surveyed.is_plain:
            return FlatStep(written_out(module, surveyed, micro_batches), step.stated)
        if step is not None:
            return step
    if surveyed.is_plain:
        return None if module is original else FlatStep(module, Stated())
    if surveyed.pipeline is not None:
        return pipeline_step(module, surveyed, micro_batches)
    if surveyed.stages:
        checked_stages(module, surveyed)
    if not surveyed.updates and not surveyed.windows:
        return FlatStep(written_out(module, surveyed, micro_batches), Stated())
    count = update_count(module, surveyed.updates) if micro_batches is None else micro_batches
    try:
        return loop_step(module, surveyed, count)
    except NoStep as error:
        return FlatStep(written_out(module, surveyed, micro_batches), Stated(why=error.message))
