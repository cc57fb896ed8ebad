"""Trip counts of loops, and how many iterations are micro-batches of one update."""

from hloipu_compiler.analysis.trip_count import trip_count
from hloipu_compiler.graphcore.encoding.core.call_config import CallConfig
from hloipu_compiler.graphcore.encoding.core.errors import PoplarError
from hloipu_compiler.ir.graph import Computation, Instruction, Module


def repeat_count(instruction: Instruction, config: CallConfig | None) -> int:
    """Return how often a RepeatLoop call runs; PoplarError E0540 where it does not say so."""
    count = config.counts.get("REPEAT_COUNT") if config is not None else None
    if count is None:
        raise PoplarError(
            "E0540",
            f"call {instruction.name!r} is a RepeatLoop, and says nowhere how often it runs",
            hint='write {"callConfig":{"type":"RepeatLoop","repeatConfig":{"repeatCount":"N"}}}',
            op=instruction,
        )
    return count


def while_count(module: Module, computation: Computation, instruction: Instruction) -> int:
    """Return how often a `while` runs in which something is accumulated.

    Raises PoplarError E0546 where nobody can tell.
    """
    iterations = trip_count(module, computation, instruction)
    if iterations is None:
        raise PoplarError(
            "E0546",
            f"micro-batches are accumulated in the loop {instruction.name!r}, whose trip count is "
            "not known",
            hint="count its iterations by a constant",
            op=instruction,
        )
    return iterations


def updates_of(name: str, iterations: int, micro_batches: int) -> int:
    """Return the number of updates in a loop of some iterations.

    Raises PoplarError: E0541 where no count of micro-batches is known, which is 0 then, E0546
    where it does not divide the iterations.
    """
    if not micro_batches:
        raise PoplarError(
            "E0541",
            f"nothing says how many micro-batches the update in the loop {name!r} has",
            hint="put a GradientAccumulationCount of a constant into the update",
        )
    if iterations % micro_batches:
        raise PoplarError(
            "E0546",
            f"the loop {name!r} runs {iterations} times, which is no multiple of its "
            f"{micro_batches} micro-batches an update",
            hint=f"let it run {-(-iterations // micro_batches) * micro_batches} times",
        )
    return iterations // micro_batches
