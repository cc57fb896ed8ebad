"""Graphcore ops that each computation uses, its callees included."""

from collections.abc import Mapping
from typing import NamedTuple

from hloipu_compiler.analysis.call_graph import callees_first
from hloipu_compiler.graphcore.encoding.core import errors
from hloipu_compiler.graphcore.encoding.core.call_config import (
    CALL,
    FUNCTION,
    LOOP,
    MULTI_CONV,
    STAGES,
    UPDATE,
    config_of,
)
from hloipu_compiler.graphcore.encoding.core.custom_ops import WINDOWED, target_of
from hloipu_compiler.graphcore.encoding.loops.windows import window_of
from hloipu_compiler.ir.graph import Computation, Instruction, Module


class Facts(NamedTuple):
    """Graphcore ops of one computation."""

    updates: bool
    """An update, itself or by plain calls."""
    accumulates: bool
    """That, or an accumulator of the older form."""
    is_plain: bool
    """None of Graphcore's ops, in all that it calls."""


_NOTHING = Facts(False, False, True)


def facts_of(module: Module) -> Mapping[str, Facts]:
    """Return what each computation has."""
    facts_by_computation: dict[str, Facts] = {}
    for computation in callees_first(module):
        updates = accumulates = False
        plain = True
        for instruction in computation.instructions:
            config = config_of(instruction)
            target = target_of(instruction)
            plain = plain and not target and config is None
            updates = updates or (config is not None and config.type == UPDATE)
            accumulates = accumulates or target in WINDOWED
            for name in instruction.attributes.called:
                callee = facts_by_computation.get(name, _NOTHING)
                plain = plain and callee.is_plain
                if runs_along(instruction):
                    updates = updates or callee.updates
                    accumulates = accumulates or callee.accumulates
        facts_by_computation[computation.name] = Facts(updates, updates or accumulates, plain)
    return facts_by_computation


def fed_body(module: Module) -> str:
    """Return what the one loop of the entry that reads queues repeats; else nothing."""
    reads: set[str] = set()

    def is_fed(instruction: Instruction) -> bool:
        return instruction.opcode == "infeed" or not reads.isdisjoint(instruction.attributes.called)

    for computation in callees_first(module):
        if any(map(is_fed, computation.instructions)):
            reads.add(computation.name)
    fed = [instruction for instruction in module.entry.instructions if is_fed(instruction)]
    if len(fed) != 1:
        return ""
    config = config_of(fed[0])
    if config is not None and config.type == LOOP:
        return fed[0].attributes.called[0]
    return fed[0].attributes.text("body") if fed[0].opcode == "while" else ""


def runs_along(instruction: Instruction) -> bool:
    """Whether an op is a call that is but a part of what is around it."""
    if instruction.opcode != "call":
        return False
    config = config_of(instruction)
    return config is None or config.type in (CALL, FUNCTION, MULTI_CONV) or config.type in STAGES


def window_in(module: Module, computation: Computation) -> int:
    """Return after how many iterations older accumulators give their sums out; 0: there are none.

    Raises PoplarError E0541 where they do not agree.
    """
    accumulator_by_window: dict[int, str] = {}
    waiting = [computation]
    while waiting:
        for instruction in waiting.pop().instructions:
            if target_of(instruction) in WINDOWED:
                accumulator_by_window.setdefault(window_of(instruction), instruction.name)
            elif runs_along(instruction):
                waiting.extend(module.computation[name] for name in instruction.attributes.called)
    if len(accumulator_by_window) > 1:
        (window, first), (other, second) = list(accumulator_by_window.items())[:2]
        raise errors.MICRO_BATCHES(
            f"{first!r} accumulates {window} micro-batches and {second!r} {other}, in one loop",
            hint="give all accumulators of a loop one num_mini_batches",
        )
    return next(iter(accumulator_by_window), 0)
