"""Finds the loss among a step's results, as asked for or by its form."""

from collections.abc import Sequence

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.partition.training.carried_state import is_float
from hloipu_compiler.partition.training.errors import StagingError
from hloipu_compiler.partition.training.marks import marked_phases
from hloipu_compiler.partition.training.reach import (
    Mask,
    ancestors,
    dependants,
    parameter_positions,
    result_positions,
)

Pairs = Sequence[tuple[int, int]]
"""Parameters that are state, and the results that are their next values."""


def losses_of(
    entry: Computation, state: Pairs, data: Sequence[int], asked: int | None
) -> list[int]:
    """Return the results that may be the loss, the nearest to data first; -1: marks tell.

    Norms of gradients, too, are numbers that depend on data and on state; they come last.
    Raises StagingError E0501 where what is asked for is none.
    """
    parameters, results = parameter_positions(entry), result_positions(entry)
    varying = dependants(entry, [at for number in data for at in parameters[number]])
    weights = [at for pair in state for at in parameters[pair[0]]]
    if asked is not None:
        return [_asked(entry, asked, {pair[1] for pair in state}, results, varying)]
    if "fwd" in marked_phases(entry).values():
        return [-1]
    new = {pair[1] for pair in state}
    candidates = []
    for number, position in enumerate(results):
        if position is None or number in new or not varying[position]:
            continue
        shape = entry.instructions[position].shape
        if not isinstance(shape, ArrayShape) or shape.dimensions:
            continue
        cone = ancestors(entry, [position])
        if is_float(entry.instructions[position]) and any(cone[i] for i in weights):
            candidates.append((sum(cone), number))
    return [number for _, number in sorted(candidates)]


def _asked(
    entry: Computation, asked: int, new: set[int], results: Sequence[int | None], varying: Mask
) -> int:
    what = ""
    if asked >= len(results):
        what = f"there are results 0 to {len(results) - 1}"
    elif asked in new:
        what = "it is the next value of state"
    else:
        position = results[asked]
        if position is None or not varying[position] or not is_float(entry.instructions[position]):
            what = "it is not a float that depends on data"
    if not what:
        return asked
    raise StagingError(
        "E0501",
        f"result {asked} is asked for as the loss, and {what}",
        hint="leave --loss-output out, or give the number of the loss among the results",
    )


def no_loss(entry: Computation, new: Sequence[int]) -> StagingError:
    """Return the refusal of a step without a loss; `new`: the results that are state."""
    return around_steps(entry, new, "E0501", "no result is a loss") or StagingError(
        "E0501",
        "no result is a loss: a float of no dimensions that depends on data and on state",
        hint="return the loss from the step, name it with --loss-output N, or mark ops "
        'with frontend_attributes={ipu_phase="fwd"}; for inference, name its data, --feed data=N, '
        "and state that each micro-batch makes anew, --role N=carry",
    )


def around_steps(
    entry: Computation, new: Sequence[int], code: str, said: str
) -> StagingError | None:
    """Return the refusal of a loop that makes new state, if one does: whole steps are in it."""
    results = result_positions(entry)
    for number in new:
        position = results[number]
        while position is not None and entry.instructions[position].opcode == "get-tuple-element":
            position = entry.instructions[position].operands[0]
        if position is not None and entry.instructions[position].opcode == "while":
            return StagingError(
                code,
                f"{said}, and the loop {entry.instructions[position].name!r} makes the new state, "
                f"result {number}: whole steps are in it",
                hint="print one step, without a loop around it, and let --loop N repeat it",
            )
    return None
