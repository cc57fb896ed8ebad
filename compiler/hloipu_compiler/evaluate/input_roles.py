"""What the entry's parameters are used for, where that limits which values make sense.

Each parameter leaf is followed through ops that keep its values (reshapes, converts, tuples, calls,
loops) to the ops that read it as an index, a positive-definite matrix, a variance and so on.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hloipu_compiler.evaluate.site import leaf_count
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape

FOLLOWED = frozenset(
    "copy reshape broadcast transpose slice convert bitcast concatenate opt-barrier reverse "
    "dynamic-slice pad select add maximum".split()
)
"""Ops whose result holds values of their array operands and (nearly) no others."""

MOST_PLACES = 4096
"""Places looked at for each parameter leaf; roles further away are not found."""


@dataclass(frozen=True, slots=True)
class InputRole:
    """Limits on the values of one parameter leaf."""

    below: int | None = None
    """Integers are indices: 0 <= value < below."""
    positive: bool = False
    """Read as a variance, by log, sqrt and the like, or, of integers, as a number of steps."""
    positive_definite: bool = False
    triangular: bool = False
    """Read as a triangle to solve with: the diagonal must be far from zero."""
    ascending: bool = False
    """Read as indices that the op says are sorted."""
    divisor: bool = False
    distinct: bool = False
    """Read as indices that the op says differ from each other."""


Place = tuple[str, int, int]
"""Computation name, position, leaf number within the value there."""


def input_roles(module: Module) -> list[list[InputRole]]:
    """Return, for each entry parameter, the role of each of its leaves."""
    return [
        [
            role_at(module, (module.entry.name, position, leaf))
            for leaf in range(leaf_count(module.entry.instructions[position].shape))
        ]
        for position in module.entry.parameters
    ]


def role_at(module: Module, start: Place) -> InputRole:
    """Return what the value at a place is used for, followed from there on."""
    role = InputRole()
    seen = {start}
    queue = deque([start])
    while queue and len(seen) < MOST_PLACES:
        name, position, leaf = queue.popleft()
        computation = module.computation[name]
        for user_position in computation.users[position]:
            user = computation.instructions[user_position]
            for number, operand in enumerate(user.operands):
                if operand != position:
                    continue
                role = _merged(role, _use(computation, user, number))
                for place in _next(module, computation, user_position, number, leaf):
                    if place not in seen:
                        seen.add(place)
                        queue.append(place)
    return role


def _merged(a: InputRole, b: InputRole | None) -> InputRole:
    if b is None:
        return a
    bounds = [x for x in (a.below, b.below) if x is not None]
    return InputRole(
        min(bounds, default=None),
        a.positive or b.positive,
        a.positive_definite or b.positive_definite,
        a.triangular or b.triangular,
        a.ascending or b.ascending,
        a.divisor or b.divisor,
        a.distinct or b.distinct,
    )


def _sizes(computation: Computation, position: int) -> tuple[int, ...]:
    shape = computation.instructions[position].shape
    return shape.dimensions if isinstance(shape, ArrayShape) else ()


_POSITIVE = frozenset({"log", "sqrt", "rsqrt", "cbrt"})


def _use(computation: Computation, user: Instruction, number: int) -> InputRole | None:
    """Return what reading a value as operand `number` of `user` asks of it."""
    read = user.attributes.integers
    sizes = _sizes(computation, user.operands[0])
    if user.opcode == "gather" and number == 1:
        windows = read("slice_sizes")
        rooms = [sizes[d] - windows[d] + 1 for d in read("start_index_map") if d < len(windows)]
        role = InputRole(below=min(rooms, default=1))
        return replace(role, ascending=user.attributes.flag("indices_are_sorted"))
    if user.opcode == "scatter" and number == len(user.operands) // 2:
        rooms = [sizes[d] for d in read("scatter_dims_to_operand_dims") if d < len(sizes)]
        flag = user.attributes.flag
        return InputRole(
            below=min(rooms, default=1),
            ascending=flag("indices_are_sorted"),
            distinct=flag("unique_indices"),
        )
    if user.opcode == "dynamic-slice" and number >= 1:
        return InputRole(below=sizes[number - 1] if number <= len(sizes) else 1)
    if user.opcode == "dynamic-update-slice" and number >= 2:
        return InputRole(below=sizes[number - 2] if number - 1 <= len(sizes) else 1)
    if user.opcode == "cholesky":
        return InputRole(positive_definite=True)
    if user.opcode == "triangular-solve" and number == 0:
        return InputRole(triangular=True)
    if user.opcode in _POSITIVE or _is_variance(user, number):
        return InputRole(positive=True)
    if user.opcode == "power" and number == 1:
        return InputRole(positive=True)
    if user.opcode in ("divide", "remainder") and number == 1:
        return InputRole(divisor=True)
    if user.opcode == "conditional" and number == 0:
        return InputRole(below=max(2, len(user.attributes.called)))
    return None


def _is_variance(user: Instruction, number: int) -> bool:
    return (user.opcode == "batch-norm-inference" and number == 4) or (
        user.opcode == "batch-norm-grad" and number == 3
    )


def _next(
    module: Module, computation: Computation, position: int, number: int, leaf: int
) -> Iterator[Place]:
    """Yield where the value of an operand's leaf goes on."""
    user = computation.instructions[position]
    name = computation.name
    if user.opcode in FOLLOWED:
        if user.opcode not in ("dynamic-slice", "pad") or number == 0:
            yield name, position, leaf
    elif user.opcode in ("multiply", "divide") and _scales(computation, user, number):
        yield name, position, leaf
    elif user.opcode == "tuple":
        before = sum(_leaves(computation, x) for x in user.operands[:number])
        yield name, position, before + leaf
    elif user.opcode == "get-tuple-element":
        first, count = _element(computation, user)
        if first <= leaf < first + count:
            yield name, position, leaf - first
    elif user.opcode in ("call", "fusion", "async-start"):
        callee = module.computation[user.attributes.called[0]]
        if number < len(callee.parameters):
            yield callee.name, callee.parameters[number], leaf
    elif user.opcode == "while":
        for called in user.attributes.called:
            callee = module.computation[called]
            yield callee.name, callee.parameters[0], leaf
        yield name, position, leaf
    elif user.opcode == "conditional" and number >= 1:
        callee = module.computation[user.attributes.called[number - 1]]
        if callee.parameters:
            yield callee.name, callee.parameters[0], leaf


def _scales(computation: Computation, user: Instruction, number: int) -> bool:
    """Whether an op only scales its operand, by a number that is the same for all elements."""
    if user.opcode == "divide" and number == 1:
        return False
    other = computation.instructions[user.operands[1 - number]]
    if other.opcode == "broadcast":
        return not _sizes(computation, other.operands[0])
    return other.opcode == "constant" or not _sizes(computation, user.operands[1 - number])


def _leaves(computation: Computation, position: int) -> int:
    return leaf_count(computation.instructions[position].shape)


def _element(computation: Computation, user: Instruction) -> tuple[int, int]:
    """Return (first leaf, number of leaves) that a get-tuple-element takes."""
    shape: Shape = computation.instructions[user.operands[0]].shape
    if not isinstance(shape, TupleShape):
        return 0, 1
    index = user.attributes.integer("index")
    first = sum(map(leaf_count, shape.elements[:index]))
    return first, leaf_count(shape.elements[index])
