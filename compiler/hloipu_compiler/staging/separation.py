"""Whether an update can be put off until all micro-batches are through; if not, why."""

from collections.abc import Sequence, Set

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.staging.errors import StagingError
from hloipu_compiler.staging.gradient_walk import GradientWalk
from hloipu_compiler.staging.losses import around_steps
from hloipu_compiler.staging.reach import ancestors

_MOVING = ("get-tuple-element", "reshape", "bitcast", "copy", "transpose")


def check_separable(entry: Computation, walk: GradientWalk, carried: Set[int]) -> None:
    """Raise where the update reads what it may not, or gradients read the update.

    `carried`: where state is taken that goes from micro-batch to micro-batch. StagingError E0502,
    E0503, E0505.
    """
    for position in sorted(walk.crossings | (walk.gradients & carried)):
        _cross(entry, position, carried)
    cone = ancestors(entry, walk.gradients)
    early = [i for i in sorted(walk.update) if cone[i] and i not in walk.gradients]
    if early:
        raise StagingError(
            "E0503",
            f"{entry.instructions[early[0]].name!r} is part of the update, and a gradient "
            "depends on it: the update cannot be put off",
            hint="steps that compute gradients of an updated model cannot be cut",
        )


def _cross(entry: Computation, position: int, carried: Set[int]) -> None:
    x = entry.instructions[position]
    if position in carried:
        raise StagingError(
            "E0505",
            f"the update reads {x.name!r}, which goes from micro-batch to micro-batch",
            hint="keep two counters, one of updates and one of micro-batches",
        )
    raise StagingError(
        "E0502",
        f"the update reads {x.name!r} ({x.opcode}), which differs from micro-batch to "
        "micro-batch and is no gradient",
        hint='mark it with frontend_attributes={ipu_phase="bwd"} if it is a gradient, or '
        "compute it outside of the step",
    )


def check_update(entry: Computation, walk: GradientWalk, parameter: int, result: int) -> None:
    """Raise StagingError E0504 where the new value of a weight is taken for a gradient itself.

    It comes out of an op that holds the whole update, such as a loop: a mean of such values over
    micro-batches would be no update by the mean of gradients.
    """
    position = result
    while entry.instructions[position].opcode in _MOVING and position not in walk.gradients:
        position = entry.instructions[position].operands[0]
    if position not in walk.gradients:
        return
    while entry.instructions[position].opcode in _MOVING:
        position = entry.instructions[position].operands[0]
    x = entry.instructions[position]
    raise StagingError(
        "E0504",
        f"the new value of parameter {parameter} comes out of {x.name!r} ({x.opcode}) as it is: "
        "where its gradient ends and its update begins is within",
        hint="print one step without a loop around it or its update, or mark the update's ops "
        'with frontend_attributes={ipu_phase="wu"}',
    )


def no_gradient(entry: Computation, parameters: Sequence[int], new: Sequence[int]) -> StagingError:
    """Return the refusal of a step in whose state no gradient is found.

    `parameters`: state that an update makes anew; `new`: the results that are state.
    """
    stopped = ", ".join(map(str, parameters[:5])) or "none"
    said = f"no gradient is found behind the new values of parameters {stopped}"
    return around_steps(entry, new, "E0504", said) or StagingError(
        "E0504",
        said,
        hint='mark the update with frontend_attributes={ipu_phase="wu"}, or give the '
        "parameters' roles with --role",
    )
