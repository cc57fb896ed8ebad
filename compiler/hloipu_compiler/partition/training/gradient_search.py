"""Walks from new state back to gradients, until their ends are consistent.

A first walk may end too early: at a product of gradients, as a preconditioner makes it. And too
late: where a batch is one row, cotangents come to biases without any op in between at which a walk
ends, and a product with one row is a multiplication of broadcasts.

The update of a number mixes nothing but numbers: its gradient, norms of all gradients, and what an
update may not read, such as a measure of the forward pass. The gradient is what new weights are
made of by sums and factors, on to where walking ends; what divides it, what decides over it and
what is multiplied with it that is no sum of cotangents is on the way of no weight.
"""

from collections.abc import Iterable, Mapping, Sequence, Set

from hloipu_compiler.ir.graph import Computation, Instruction
from hloipu_compiler.ir.ops import Trait, with_trait
from hloipu_compiler.ir.shapes import ArrayShape, Shape
from hloipu_compiler.partition.training.carried_state import has_slope
from hloipu_compiler.partition.training.gradient_walk import (
    SHRINKING,
    UPDATING,
    GradientWalk,
    is_number,
)
from hloipu_compiler.partition.training.reach import Mask, ancestors
from hloipu_runtime.reached import reached

_ELEMENTWISE = with_trait(Trait.ELEMENTWISE)
_LINEAR = frozenset(
    {"reshape", "bitcast", "copy", "transpose", "convert", "reverse", "slice", "negate",
     "opt-barrier"}
)  # fmt: skip
"""Ops of one operand that cotangents come out of as they went in, but for place, type and sign."""
_JOINING = frozenset({"concatenate", "pad", "dynamic-update-slice"})
_PRODUCTS = frozenset({"dot", "convolution", "transpose", "multiply", "reduce", "scatter", "add"})
"""What gradients of weights end in; sums of these, where weights are used twice."""
_MOST_WALKS = 8
_MOST_STEPS = 100
"""Ops that are looked back from a gradient."""


def walked(
    entry: Computation,
    varying: Mask,
    optimizing: Mask,
    forward: Mask,
    marks: Mapping[int, str],
    sloped: Mask,
    ends: Sequence[int],
) -> GradientWalk:
    """Return the walk from the new values of weights, `ends`, back to their gradients.

    `sloped`: what depends on state by floats.
    """
    backward = frozenset[int]()
    terms = _terms_of_state(entry, varying, forward, sloped)
    for _ in range(_MOST_WALKS):
        walk = GradientWalk(
            entry, varying, optimizing, forward, marks, terms=terms, backward=backward
        )
        walk_on(walk, ends, sloped)
        more = backward | _spread_out(walk, ends) | _cotangents(walk, sloped)
        more |= frozenset(i for end in walk.gradients if (i := _gradient_within(walk, end)) >= 0)
        if more == backward:
            break
        backward = more
    return walk


def _terms_of_state(entry: Computation, varying: Mask, forward: Mask, sloped: Mask) -> Mask:
    """Return what has state that does not vary as a term, element by element."""
    has_term = Mask(len(entry.instructions))
    for position, op in enumerate(entry.instructions):
        if varying[position] and not forward[position] and op.opcode in UPDATING:
            is_term = op.opcode in ("add", "subtract", "select")
            has_term[position] = any(
                has_term[i] or (is_term and sloped[i] and not varying[i]) for i in op.operands
            )
    return has_term


def walk_on(walk: GradientWalk, ends: Sequence[int], sloped: Mask) -> None:
    """Walk on from some results, tensors first: numbers take part in updates of all of them."""
    instructions = walk.computation.instructions
    tensors = [i for i in ends if not is_number(instructions[i])]
    numbers = [i for i in ends if is_number(instructions[i])]
    if numbers and not walk.numbers:
        heads = gradients_of_numbers(walk, numbers)
        walk.numbers = frozenset(i for i in heads if sloped[i])
    if tensors:
        walk.walk(tensors, walk.sources())
        _give_back(walk)
    if numbers:
        walk.walk(numbers, walk.sources(), gradients_of_numbers(walk, numbers))


def _give_back(walk: GradientWalk) -> None:
    """Give the update what was taken for a gradient and is made of other gradients alone.

    Cotangents go into gradients linearly: what is linear in other gradients can be done after they
    are combined, and what is not, such as g times g transposed, is no gradient.
    """
    of_gradients = _made_of_gradients(walk)
    back = [i for i in walk.gradients if of_gradients[i] == 2]
    walk.gradients.difference_update(back)
    while back:
        position = back.pop()
        if walk.varying[position] and position not in walk.gradients | walk.update:
            walk.update.add(position)
            back.extend(walk.computation.instructions[position].operands)


def _made_of_gradients(walk: GradientWalk) -> Mask:
    """Return what depends on data through gradients alone, as norms do; 2: through others.

    Gradients that the loss is made of are values like others, and do not count.
    """
    kind_by_position = Mask(len(walk.computation.instructions))
    for position, op in enumerate(walk.computation.instructions):
        if walk.varying[position] and not walk.forward[position] and op.operands:
            if op.opcode in SHRINKING and all(
                kind_by_position[i] or not walk.varying[i] for i in op.operands
            ):
                kind_by_position[position] = 2
            elif position in walk.gradients:
                kind_by_position[position] = 1
    return kind_by_position


def _spread_out(walk: GradientWalk, ends: Sequence[int]) -> frozenset[int]:
    """Return gradients that are broadcast.

    Products over one row are written as products of two vectors that are broadcast, and products
    with ones as one vector that is, where a weight has no other gradient. What is made of gradients
    alone is not meant.
    """
    late = _made_of_gradients(walk)
    spread_out: set[int] = set()
    for position in walk.update:
        op = walk.computation.instructions[position]
        varying = {i for i in op.operands if walk.varying[i]}
        if _is_outer_product(walk, position, op, varying) and not late[position]:
            spread_out.add(position)
        if op.opcode == "add" and len(varying) == 2 and not walk.optimizing[position]:
            spread_out |= {i for i in varying if _is_spread_array(walk, i, late)}
    for end in walk.sourceless.intersection(ends):
        spread_out |= _spread_out_behind(walk, end, late)
    return frozenset(spread_out)


def _is_spread_array(walk: GradientWalk, position: int, late: Mask) -> bool:
    """Whether a term is an array that is broadcast, times what does not vary."""
    while True:
        op = walk.computation.instructions[position]
        varying = {i for i in op.operands if walk.varying[i]}
        if op.opcode == "broadcast":
            (given,) = op.operands
            return not late[given] and not is_number(walk.computation.instructions[given])
        if len(varying) != 1 or op.opcode not in (*_LINEAR, "multiply"):
            return False
        (position,) = varying


def _spread_out_behind(walk: GradientWalk, end: int, late: Mask) -> set[int]:
    instructions = walk.computation.instructions
    products, arrays, numbers, seen = set[int](), set[int](), set[int](), set[int]()
    waiting = [end]
    while waiting:
        position = waiting.pop()
        op = instructions[position]
        if position in seen or op.opcode not in UPDATING:
            continue
        seen.add(position)
        varying = {i for i in op.operands if walk.varying[i]}
        if op.opcode == "broadcast":
            if not late[op.operands[0]]:
                (numbers if is_number(instructions[op.operands[0]]) else arrays).add(position)
        elif _is_outer_product(walk, position, op, varying) and not late[position]:
            products.add(position)
        else:
            waiting.extend(varying)
    if products or arrays:
        return products | arrays
    return numbers if len(numbers) == 1 else set()


def _is_outer_product(
    walk: GradientWalk, position: int, op: Instruction, varying: Set[int]
) -> bool:
    instructions = walk.computation.instructions
    if op.opcode != "multiply" or len(varying) != 2 or walk.optimizing[position]:
        return False
    factors = [instructions[i] for i in varying]
    return all(
        y.opcode == "broadcast" and not is_number(instructions[y.operands[0]]) for y in factors
    )


def _gradient_within(walk: GradientWalk, end: int) -> int:
    """Return the gradient that a product of it with itself is made of, or -1.

    So an update without state of its own makes gradients orthogonal. What a gradient is made of,
    values of the forward pass and cotangents, do not come from one array of its own shape.
    """
    instructions = walk.computation.instructions
    shape = instructions[end].shape
    if walk.forward[end] or not _has_axes(shape) or walk.marks.get(end) == "bwd":
        return -1
    product, squares = -1, False
    waiting = {end}
    for _ in range(_MOST_STEPS):
        position = max(waiting)
        op = instructions[position]
        if len(waiting) == 1 and squares and op.opcode in _PRODUCTS and _is_alike(op.shape, shape):
            product = position
        waiting.discard(position)
        varying = {i for i in op.operands if walk.varying[i]}
        if any(walk.forward[i] or instructions[i].parameter_number >= 0 for i in varying):
            return product
        squares |= op.opcode == "dot" and all(walk.varying[i] for i in op.operands)
        waiting |= varying
        if not waiting:
            return product
    return product


def _is_alike(shape: Shape, other: Shape) -> bool:
    """Whether two arrays are of one type and size, however they lie in memory."""
    if not isinstance(shape, ArrayShape) or not isinstance(other, ArrayShape):
        return False
    same = shape.dimensions == other.dimensions
    return same and shape.element_type == other.element_type


def _has_axes(shape: Shape) -> bool:
    return isinstance(shape, ArrayShape) and len(shape.dimensions) > 1


def _cotangents(walk: GradientWalk, sloped: Mask) -> frozenset[int]:
    """Return what was taken for the update and is backward: gradients depend on it.

    Cotangents are made of each other and of the forward pass by factors and sums; what an update
    has begun with, such as new weights, has terms of its own, and stays.
    """
    entry = walk.computation
    behind = ancestors(entry, walk.gradients)
    linear = Mask(len(entry.instructions))
    pure = Mask(len(entry.instructions))
    found = set[int]()
    for position, op in enumerate(entry.instructions):
        if not walk.varying[position]:
            continue
        ends = walk.forward[position] or position in walk.gradients or op.parameter_number >= 0
        linear[position] = position in walk.gradients or _is_linear(walk, position, op, linear)
        pure[position] = ends or _is_pure(walk, position, op, pure, sloped)
        if position not in walk.update or not behind[position] or walk.forward[position]:
            continue
        if has_slope(op) and (linear[position] or (pure[position] and not is_number(op))):
            found.add(position)
    return frozenset(found)


def _is_linear(walk: GradientWalk, position: int, op: Instruction, linear: Mask) -> bool:
    """Whether a value is linear in what the walk ended at, without a term besides."""
    if walk.optimizing[position] or walk.marks.get(position) == "wu" or not has_slope(op):
        return False
    varying = [i for i in op.operands if walk.varying[i]]
    if not all(linear[i] for i in varying):
        return False
    match op.opcode:
        case "add" | "subtract":
            return len(varying) == len(op.operands)
        case "multiply":
            return len(varying) == 1
        case "divide":
            return len(varying) == 1 and varying[0] == op.operands[0]
        case opcode:
            return opcode in _LINEAR


def _is_pure(walk: GradientWalk, position: int, op: Instruction, pure: Mask, sloped: Mask) -> bool:
    """Whether state goes into a value through the forward pass and as a factor alone."""
    if walk.optimizing[position] or walk.marks.get(position) == "wu":
        return False
    if not isinstance(op.shape, ArrayShape) or not all(
        pure[i] for i in op.operands if walk.varying[i]
    ):
        return False
    if op.opcode in ("multiply", "divide"):
        return True
    if op.opcode not in _ELEMENTWISE and op.opcode not in _JOINING:
        return True
    return not any(sloped[i] and not walk.varying[i] for i in op.operands)


def gradients_of_numbers(walk: GradientWalk, results: Iterable[int]) -> frozenset[int]:
    """Return what may be the gradients of new numbers, given where these are made."""
    sources = walk.sources()

    def carriers(position: int) -> list[int]:
        op = walk.computation.instructions[position]
        is_source = sources[position] == frozenset((position,))
        read = () if is_source else _carriers(walk, op, sources)
        return [i for i in read if walk.varying[i]]

    within = reached([i for i in results if walk.varying[i]], carriers)
    return frozenset(i for i in within if sources[i] == frozenset((i,)))


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
