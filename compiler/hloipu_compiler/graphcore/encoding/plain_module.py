"""Writes a module in Graphcore's encoding with HLO's own loops.

This is what the encoding computes, whatever is cut how: the evaluator runs it, and so can
everything else that knows plain HLO.
"""

from dataclasses import replace

from hloipu_compiler.analysis.call_graph import without_unreached
from hloipu_compiler.graphcore.encoding.core.errors import placing
from hloipu_compiler.graphcore.encoding.core.pipeline_checks import checked_stages
from hloipu_compiler.graphcore.encoding.core.survey import Survey, survey, update_count
from hloipu_compiler.graphcore.encoding.core.values import OUTSIDE
from hloipu_compiler.graphcore.encoding.loops.loop_body import DirectBody
from hloipu_compiler.graphcore.encoding.loops.repeating import Loops
from hloipu_compiler.graphcore.encoding.pipeline_step import pipeline_count
from hloipu_compiler.hlo.attributes.frontend_attributes import (
    frontend_attributes_text,
    read_frontend_attributes,
)
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Module
from hloipu_compiler.passes.framework.call_forms import MOST_INSTRUCTIONS, check_inlined_size
from hloipu_compiler.passes.remove_annotations import annotations_removed
from hloipu_compiler.vendor.expanding import expanded


def plain_module(module: Module, micro_batches: int | None = None) -> Module:
    """Return a verified module without annotations and Graphcore's encoding.

    Raises UnsupportedError E0470 for annotations that change a shape, FormulaError E0530 and E0531,
    and PoplarError E0540 to E0549.
    """
    module = expanded(annotations_removed(module))
    with placing(module):
        surveyed = survey(module)
        if surveyed.is_plain:
            return module
        check_inlined_size(module, MOST_INSTRUCTIONS)
        return written_out(module, surveyed, micro_batches)


def written_out(module: Module, surveyed: Survey, micro_batches: int | None) -> Module:
    """Return a module with its loops written out."""
    count = micro_batches
    if surveyed.pipeline is not None:
        stages = checked_stages(module, surveyed)
        count = count or stages.parts * pipeline_count(module, surveyed)
    else:
        count = count or update_count(module, surveyed.updates)
    loops = Loops(module, count, places=surveyed.pipeline is None)
    writer = DirectBody(loops)
    entry = module.entry
    arguments = []
    for position in entry.parameters:
        instruction = entry.instructions[position]
        writer.made.append(instruction)
        writer.names.fresh(instruction.name)
        arguments.append(len(writer.made) - 1)
    result = writer.computation(entry, arguments, OUTSIDE)
    last = entry.instructions[entry.root]
    with placing(module, last):
        root = writer.settled(result, last, OUTSIDE)
    plain_entry = Computation(entry.name, tuple(writer.made), root)
    return with_entry(module, loops, plain_entry)


def with_entry(module: Module, loops: Loops, entry: Computation) -> Module:
    """Return a module with another entry, and what that reaches."""
    callees = [c for c in module.computations if c.name != module.entry.name]
    callees += loops.computations
    frontend_attributes = read_frontend_attributes(
        str(module.attributes.get("frontend_attributes", ""))
    )
    header = dict(module.attributes)
    if frontend_attributes:
        header["frontend_attributes"] = frontend_attributes_text(frontend_attributes)
    attributes = Attributes(header)
    return without_unreached(
        replace(
            module,
            computations=(*callees, entry),
            entry_position=len(callees),
            attributes=attributes,
        )
    )
