"""One model's state on several replicas: what differs there, and how it is joined.

Weights and optimizer state are alike on all replicas, which combine gradients. Metrics hold sums
over samples, so that what each replica has added is added up; statistics that are floats are
averaged, as those of batch norms. Each replica draws random numbers from a seed of its own.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import Shape, TupleShape
from hloipu_runtime.errors import UsageError
from hloipu_runtime.kernels.replica_keys import folded

import jax  # isort: skip  # its absence is told by hloipu.jax

Array = np.ndarray[Any, Any]

TRAINABLE, STATISTICS, OPTIMIZER, METRICS = "trainable", "statistics", "optimizer", "metrics"
"""Groups of a model's state: weights, what forward passes write, optimizer's, sums of metrics."""
SEEDS = "seeds"
"""Of statistics, the states of Keras's seed generators."""
DIFFERING = frozenset({STATISTICS, SEEDS, METRICS})
"""Groups that replicas change each in its own way."""


def spread(array: Array, group: str, replicas: int) -> Array:
    """Return what a session is given of a leaf: for seeds, one with a first axis of replicas."""
    if group != SEEDS or replicas == 1:
        return array
    return np.stack([folded(array, replica) for replica in range(replicas)])


def joined(parts: Sequence[Array], before: Array, group: str) -> Array:
    """Return one array of the replicas'; `before`: what all of them began with.

    Seeds go on from the first replica's, which is as it would be alone.
    """
    first, *other_replicas = parts
    if other_replicas and group == METRICS:
        return np.asarray(before + sum(part - before for part in parts), first.dtype)
    if (
        other_replicas
        and group == STATISTICS
        and jax.numpy.issubdtype(first.dtype, jax.numpy.floating)
    ):
        return np.mean(parts, 0, dtype=np.float64).astype(first.dtype)
    return first


def require_sums(
    module: Module, numbers: Sequence[int], results: Sequence[int], names: Sequence[str]
) -> None:
    """Raise UsageError E3178 unless metrics are sums, which replicas may be added up to.

    `numbers`: of the parameters that are metrics' variables, in the order of the `results` that
    replace them; `names`: of all of the state.
    """
    metrics = frozenset(numbers)
    values = _values(module, module.entry, _parameter_uses(module.entry))
    for number, result in zip(numbers, results, strict=True):
        use = values[result]
        if use.added & metrics != {number} or use.mixed & metrics:
            raise UsageError(
                "E3178",
                f"a metric keeps {names[result]}, which is not a sum over samples: what "
                "replicas have of it cannot be added up",
                hint="write metrics whose variables only have values added to them, leave that "
                "one out, or train on one replica",
            )


class _Use(NamedTuple):
    """Parameters that a value depends on."""

    added: frozenset[int]
    """It is their sum with something else."""
    mixed: frozenset[int]
    """It is made of them in any other way."""


_UNCHANGED = frozenset("copy reshape bitcast opt-barrier".split())


def _parameter_uses(entry: Computation) -> list[list[_Use]]:
    parameters = [entry.instructions[position] for position in entry.parameters]
    return [[_Use(frozenset({number}), frozenset())] for number in range(len(parameters))]


def _values(
    module: Module, computation: Computation, parameter_uses: Sequence[Sequence[_Use]]
) -> Sequence[_Use]:
    """Return what each array of a computation's result depends on, by those of its parameters."""
    uses_by_position: list[Sequence[_Use]] = []
    for instruction in computation.instructions:
        operands = [uses_by_position[position] for position in instruction.operands]
        if instruction.parameter_number >= 0:
            uses_by_position.append(parameter_uses[instruction.parameter_number])
        elif instruction.opcode == "tuple":
            uses_by_position.append([use for uses in operands for use in uses])
        elif instruction.opcode == "get-tuple-element":
            uses_by_position.append(_element(computation, instruction, operands[0]))
        elif instruction.opcode == "call":
            called = module.computation[instruction.attributes.called[0]]
            uses_by_position.append(_values(module, called, operands))
        else:
            uses_by_position.append([_of_op(instruction, operands)] * _leaves(instruction.shape))
    return uses_by_position[computation.root]


def _element(
    computation: Computation, instruction: Instruction, uses: Sequence[_Use]
) -> Sequence[_Use]:
    tuple_shape = computation.instructions[instruction.operands[0]].shape
    index = instruction.attributes.integer("index")
    before = tuple_shape.elements[:index] if isinstance(tuple_shape, TupleShape) else ()
    first = sum(map(_leaves, before))
    return uses[first : first + _leaves(instruction.shape)]


def _of_op(instruction: Instruction, operands: Sequence[Sequence[_Use]]) -> _Use:
    uses = [use for operand_uses in operands for use in operand_uses]
    added = frozenset[int]().union(*(use.added for use in uses))
    mixed = frozenset[int]().union(*(use.mixed for use in uses))
    if instruction.opcode in _UNCHANGED or instruction.opcode == "add":
        twice = {n for n in added if sum(n in use.added for use in uses) > 1}
        return _Use(added - twice, mixed | twice)
    return _Use(frozenset(), mixed | added)


def _leaves(shape: Shape | None) -> int:
    return sum(map(_leaves, shape.elements)) if isinstance(shape, TupleShape) else 1
