"""Tells gradients of one-element weights from numbers that only scale gradients.

The update of a number mixes nothing but numbers: its gradient, norms of all gradients, and what an
update may not read, such as a measure of the forward pass. The gradient is what new weights are
made of by sums and factors, on to where walking ends; what divides it, what decides over it and
what is multiplied with it that is no sum of cotangents is on the way of no weight.
"""

from collections.abc import Iterable, Sequence

from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.partition.training.gradient_walk import GradientWalk


def gradients_of_numbers(walk: GradientWalk, results: Iterable[int]) -> frozenset[int]:
    """Return what may be the gradients of new numbers, given where these are made."""
    sources = walk.sources()
    found, seen = set[int](), set[int]()
    waiting = list(results)
    while waiting:
        position = waiting.pop()
        if position in seen or not walk.varying[position]:
            continue
        seen.add(position)
        if sources[position] == frozenset((position,)):
            found.add(position)
            continue
        op = walk.computation.instructions[position]
        waiting.extend(_carriers(walk, op, sources))
    return frozenset(found)


def _carriers(
    walk: GradientWalk, op: Instruction, sources: Sequence[frozenset[int]]
) -> Sequence[int]:
    """Return the operands that carry gradients on to an op's result."""
    match op.opcode:
        case "divide" | "power":
            return op.operands[:1]
        case "select":
            return op.operands[1:]
        case "clamp":
            return op.operands[1:2]
        case "multiply" | "maximum" | "minimum":
            return _factors(walk, [i for i in op.operands if walk.varying[i]], sources)
        case _:
            return op.operands


def _factors(
    walk: GradientWalk, factors: Sequence[int], sources: Sequence[frozenset[int]]
) -> Sequence[int]:
    """Return which factors may carry a gradient: sums of cotangents before norms of them.

    None where each is such a sum, of other cotangents: which is the gradient is not told.
    """
    if len(factors) < 2 or len({sources[i] for i in factors}) == 1:
        return factors
    straight = [i for i in factors if not walk.is_bent(i)]
    if straight:
        return straight if len(straight) == 1 else []
    least = min(len(sources[i]) for i in factors)
    return [i for i in factors if len(sources[i]) == least]
