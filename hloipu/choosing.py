"""From options to the ways of cutting a step over IPUs, their table, and the best of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hloipu.options.table import Options
from hloipu.pipelining import pipeline_request
from hloipu.wrapping import wrapping_request
from hloipu_compiler.choosing.outlook import Step, best_of, choice_of
from hloipu_compiler.choosing.priced_step import priced_step
from hloipu_compiler.choosing.way import Outlook, Way
from hloipu_compiler.choosing.ways import swept, ways_on
from hloipu_compiler.ir.graph import Module
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.machine.load import load_machine

SCHEMA = "hloipu.sweep/1"
MOST_ROWS = 12
"""Of a table for people."""
_TRIALS = 4
"""Compilations before a way is taken that may not fit."""


@dataclass(frozen=True)
class Choice:
    """What was looked at, and what to compile."""

    rows: list[Outlook]
    """Those that no other beats, or all that were asked for."""
    best: Outlook
    looked_at: int
    is_tried: bool = False
    """Whether the best one was compiled, and fits."""

    def options(self, options: Options) -> Options:
        """Return options that ask for the best way."""
        way = self.best.way
        return replace(
            options, plan="none", ipus=1, stages=way.stages, schedule=way.schedule,
            micro_batches=way.micro_batches, replicas=way.replicas,
            recompute="full" if way.recompute == "full" else options.recompute,
        )  # fmt: skip


def chosen(
    module: Module, options: Options, tried: Callable[[Options], CompiledProgram] | None = None
) -> Choice:
    """Return the best way to cut a verified module's step over `options.ipus` IPUs, by estimate.

    Stages, schedules, micro-batches (unless more than one is asked for), recomputation and replicas
    are looked at. With `tried`, which compiles, a way that does not fit after all makes room for
    one that keeps less, a few times. Raises what finding the phases of a step raises.
    """
    step = priced(module, options)
    given = options.micro_batches if options.micro_batches > 1 else None
    found = [step.outlook(way) for way in ways_on(step, options.ipus, given)]
    choice = Choice(best_of(found), choice_of(found), len(found))
    if tried is None or not choice.best.fits:
        return choice
    left = found
    for _ in range(_TRIALS):
        memory = tried(choice.options(options)).memory
        if memory.fits:
            return replace(choice, is_tried=True)
        over = memory.peak.total_bytes / memory.available_bytes
        least, kept = min(x.needed_bytes for x in left), choice.best.needed_bytes
        left = [x for x in left if x.needed_bytes <= max(kept / over, least) < kept]
        if not left:
            break
        choice = replace(choice, best=choice_of(left))
    return choice


def sweep(module: Module, options: Options, asked: Mapping[str, Sequence[str]]) -> Choice:
    """Return the outlook of every combination of the values asked for, in their order.

    Raises StagingError E0520 for what cannot be swept over.
    """
    step = priced(module, options)
    again = "full" if options.recompute == "full" else "none"
    start = Way(
        options.stages or 1, options.schedule, options.micro_batches, again, options.replicas or 1
    )
    found = [step.outlook(way) for way in swept(step, asked, start)]
    return Choice(found, choice_of(found), len(found))


def priced(module: Module, options: Options) -> Step:
    """Return a verified module's step, priced on the machine that options ask for."""
    machine = load_machine(options.target, dict(options.set))
    return priced_step(module, machine, wrapping_request(options), pipeline_request(options))[0]


def choice_record(choice: Choice) -> dict[str, Any]:
    """Return a choice as JSON data."""
    return {
        "schema": SCHEMA,
        "looked_at": choice.looked_at,
        "best": choice.best.record(),
        "rows": [row.record() for row in choice.rows],
    }
