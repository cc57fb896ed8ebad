"""Whether an update can wait until all micro-batches are done; if not, why."""

from collections.abc import Sequence, Set

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.ir.ops import Trait, with_trait
from hloipu_compiler.partition.training.carried_state import has_slope
from hloipu_compiler.partition.training.errors import StagingError
from hloipu_compiler.partition.training.gradient_walk import GradientWalk
from hloipu_compiler.partition.training.losses import around_steps
from hloipu_compiler.partition.training.reach import Mask, ancestors, dependants

_MIXING = with_trait(Trait.ELEMENTWISE) | {
    "reshape", "bitcast", "copy", "transpose", "convert", "reverse", "slice", "opt-barrier",
}  # fmt: skip
_CHANGING = ("add", "subtract")
"""What an update ends in: a weight and its change."""
_CONTRACTING = ("dot", "convolution", "scatter", "gather")
_MOVING = ("get-tuple-element", "reshape", "bitcast", "copy", "transpose")


def check_order(entry: Computation, walk: GradientWalk) -> None:
    """Raise StagingError E0503 where gradients or the loss read the update.

    E0502 where the update reads what the loss is made of, such as the loss itself.
    """
    after = dependants(entry, walk.gradients)
    learned = [i for i in sorted(walk.update) if walk.forward[i]]
    if learned and not after[learned[-1]]:
        _cross(entry, learned[-1], frozenset())
    if learned:
        raise StagingError(
            "E0503",
            f"{entry.instructions[learned[0]].name!r} is part of the update, and what is taken for "
            "the loss depends on it",
            hint="name the loss with --loss-output N: metrics of new weights are none",
        )
    cone = ancestors(entry, walk.gradients)
    early = [i for i in sorted(walk.update) if cone[i] and i not in walk.gradients]
    if early:
        raise StagingError(
            "E0503",
            f"{entry.instructions[early[0]].name!r} is part of the update, and a gradient "
            "depends on it: the update cannot be put off",
            hint="steps that compute gradients of an updated model cannot be cut",
        )


def check_crossings(entry: Computation, walk: GradientWalk, carried: Set[int]) -> None:
    """Raise where the update reads what it may not.

    `carried`: where state is taken that goes from micro-batch to micro-batch. StagingError E0502,
    E0505.
    """
    for position in sorted(walk.crossings | (walk.gradients & carried)):
        _cross(entry, position, carried)


def check_noise(entry: Computation, walk: GradientWalk, carried: Sequence[int], data: Mask) -> None:
    """Raise StagingError E0505 where what micro-batches carry on is mixed into a gradient.

    Such as noise drawn from the key that dropout is drawn from: a mean of gradients each with noise
    of its own is not their mean with one. `carried`: positions of that state; `data`: what
    depends on data, as the noise does not, nor on floats that the loss is made of.
    """
    after = dependants(entry, carried)
    used = [i for i, op in enumerate(entry.instructions) if walk.forward[i] and has_slope(op)]
    made_forward = dependants(entry, [i for i in used if walk.varying[i]])
    waiting = [i for i in walk.gradients if not walk.forward[i]]
    seen = set(waiting)
    while waiting:
        position = waiting.pop()
        op, mark = entry.instructions[position], walk.marks.get(position)
        if op.opcode not in _MIXING or mark == "bwd":
            continue
        for i in op.operands:
            if walk.forward[i] or i in seen or not after[i]:
                continue
            if not data[i] and not made_forward[i] and walk.marks.get(i) != "bwd":
                raise StagingError(
                    "E0505",
                    f"{op.name!r} mixes {entry.instructions[i].name!r} into a gradient, which is "
                    "made of state that goes from micro-batch to micro-batch and of no data",
                    hint="keep a key of its own for the update, or mark what each micro-batch "
                    'does to its gradients with frontend_attributes={ipu_phase="bwd"}',
                )
            seen.add(i)
            waiting.append(i)


def check_statistics(entry: Computation, walk: GradientWalk, carried: Sequence[int]) -> None:
    """Raise StagingError E0505 where a gradient reads statistics that the loss is not made of.

    Such as a covariance of inputs that it is multiplied with: what is taken for the gradient is
    the update's. `carried`: where floats are taken that micro-batches hand on. A gradient that the
    text itself marks is one.
    """
    aside = [i for i in carried if not walk.forward[i]]
    after = dependants(entry, aside)
    for position in sorted(walk.gradients):
        if after[position] and walk.marks.get(position) != "bwd":
            read = next(i for i in aside if dependants(entry, [i])[position])
            _cross(entry, read, frozenset(aside))


def _cross(entry: Computation, position: int, carried: Set[int]) -> None:
    op = entry.instructions[position]
    if position in carried:
        raise StagingError(
            "E0505",
            f"the update reads {op.name!r}, which goes from micro-batch to micro-batch",
            hint="keep two counters, one of updates and one of micro-batches",
        )
    raise StagingError(
        "E0502",
        f"the update reads {op.name!r} ({op.opcode}), which differs from micro-batch to "
        "micro-batch and is not a gradient",
        hint='mark it with frontend_attributes={ipu_phase="bwd"} if it is a gradient, or '
        "compute it outside of the step",
    )


def check_update(entry: Computation, walk: GradientWalk, parameter: int, result: int) -> None:
    """Raise where the new value of a weight is taken for a gradient itself.

    StagingError E0503 where a second loss is made of it, as that of a generator is against a critic
    just updated; else E0504: it comes out of an op that holds the whole update, such as a loop, and
    a mean of such values over micro-batches would be no update by the mean of gradients.
    """
    position = result
    while entry.instructions[position].opcode in _MOVING and position not in walk.gradients:
        position = entry.instructions[position].operands[0]
    if position not in walk.gradients:
        return
    if walk.forward[position] and entry.instructions[position].opcode in _CHANGING:
        raise StagingError(
            "E0503",
            f"{entry.instructions[position].name!r} is the new value of parameter {parameter}, "
            "and the loss reads it: the update cannot be put off",
            hint="take all gradients where the weights are before the step; steps that compute "
            "gradients of an updated model cannot be cut",
        )
    while entry.instructions[position].opcode in _MOVING:
        position = entry.instructions[position].operands[0]
    op = entry.instructions[position]
    raise StagingError(
        "E0504",
        f"the new value of parameter {parameter} comes out of {op.name!r} ({op.opcode}) as it is: "
        "where its gradient ends and its update begins is within",
        hint="print one step without a loop around it or its update, or mark the update's ops "
        'with frontend_attributes={ipu_phase="wu"}; if each micro-batch makes it anew, say so: '
        f"--role {parameter}=carry",
    )


def check_bases(entry: Computation, walk: GradientWalk, sloped: Mask) -> None:
    """Raise StagingError E0504 where what is taken for a gradient is state with parts written.

    Such as rows of an embedding that are added to in place. `sloped`: what depends on state.
    """
    for position in sorted(walk.gradients):
        op = entry.instructions[position]
        if op.opcode not in ("scatter", "dynamic-update-slice") or walk.forward[position]:
            continue
        base = op.operands[0]
        if walk.terms[base] or (sloped[base] and not walk.varying[base]):
            raise StagingError(
                "E0504",
                f"{op.name!r} ({op.opcode}) writes into state, and its gradient ends and its "
                "update "
                "begins within",
                hint="add up the gradient in an array of zeros, and let the update take that from "
                "the state; or say of state that each micro-batch writes that its role is carry",
            )


class SwallowedModelError(StagingError):
    """What is taken for the update has a part of the model in it."""


def check_products(entry: Computation, walk: GradientWalk, sloped: Mask) -> None:
    """Raise SwallowedModelError E0504 where the update multiplies data that no weight goes into.

    A product of data and state belongs to a model: to one that the loss has no part in, such as a
    critic with a target network beside an actor. `sloped`: what depends on state by floats.
    """
    raw = [i for i in sorted(walk.gradients) if not sloped[i]]
    after = dependants(entry, raw)
    for position in sorted(walk.update):
        op = entry.instructions[position]
        if after[position] and op.opcode in _CONTRACTING:
            given = next(i for i in op.operands if after[i])
            raise SwallowedModelError(
                "E0504",
                f"{op.name!r} ({op.opcode}) is taken for a part of the update, and it multiplies "
                f"{entry.instructions[given].name!r}, which is made of data without any weight",
                hint="return the loss of every model from the step, or mark the update's ops with "
                'frontend_attributes={ipu_phase="wu"}',
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
