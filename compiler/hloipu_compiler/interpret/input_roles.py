"""Roles of entry parameters that limit which values make sense.

Each parameter leaf is followed through ops that keep its values (reshapes, converts, tuples, calls,
loops) to the ops that read it as an index, a positive-definite matrix, a variance and so on.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import field, replace

import numpy as np

from hloipu_compiler.interpret.planning.constants import constant_leaves
from hloipu_compiler.interpret.planning.site import leaf_count
from hloipu_compiler.ir.annotations import is_identity
from hloipu_compiler.ir.dimension_rules import rule_in
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import PRODUCTS
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape, sizes_of
from hloipu_runtime.frozen import dataclass

FOLLOWED = frozenset(
    "copy reshape broadcast transpose slice convert bitcast concatenate opt-barrier reverse "
    "dynamic-slice pad select add maximum".split()
)
"""Ops whose result holds values of their array operands and (nearly) no others."""

MOST_PLACES = 4096
"""Places looked at for each parameter leaf; roles further away are not found."""


LARGEST_LABEL = 1 << 24
"""Arrays of integers that are compared with constants up to this are labels. Beyond it f32 does not
hold every integer: such constants are limits of a type."""


@dataclass(frozen=True, slots=True)
class InputRole:
    """Limits on the values of one parameter leaf."""

    below: int | None = None
    """Integers are indices or labels: 0 <= value < below."""
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
    terms: int = 0
    """Weights of sums of so many products; 1 where the first product reads them as its data."""


Place = tuple[str, int, int]
"""Computation name, position, leaf number within the value there."""


def input_roles(module: Module) -> list[list[InputRole]]:
    """Return, for each entry parameter, the role of each of its leaves."""
    search = _Search(module)
    return [
        [
            search.role((module.entry.name, position, leaf))
            for leaf in range(leaf_count(module.entry.instructions[position].shape))
        ]
        for position in module.entry.parameters
    ]


def role_at(module: Module, start: Place) -> InputRole:
    """Return what the value at a place is used for, followed from there on."""
    return _Search(module).role(start)


@dataclass(frozen=True, slots=True)
class _Search:
    """Follows values through a module."""

    module: Module
    given_back: dict[Place, tuple[int, ...]] = field(default_factory=dict)
    """Leaves of a computation's result in which a value at a place of it is found."""

    def role(self, start: Place) -> InputRole:
        role = InputRole()
        for (name, position, _), user, number in self.uses(start):
            role = _merged(role, _use(self.module.computation[name], position, user, number))
        return role

    def uses(self, start: Place) -> Iterator[tuple[Place, Instruction, int]]:
        """Yield where a value is found, with the instructions that read it there and as what."""
        for place in self.places(start):
            computation = self.module.computation[place[0]]
            for user in computation.users[place[1]]:
                instruction = computation.instructions[user]
                yield from (
                    (place, instruction, n)
                    for n, at in enumerate(instruction.operands)
                    if at == place[1]
                )

    def places(self, start: Place) -> Iterator[Place]:
        """Yield where a value is found, nearest first, in what its computation calls as well."""
        visited = {start}
        queue = deque([start])
        while queue and len(visited) < MOST_PLACES:
            name, position, leaf = queue.popleft()
            yield name, position, leaf
            computation = self.module.computation[name]
            for user in computation.users[position]:
                for number, operand in enumerate(computation.instructions[user].operands):
                    if operand != position:
                        continue
                    for place in self.next(computation, user, number, leaf):
                        if place not in visited:
                            visited.add(place)
                            queue.append(place)

    def next(
        self, computation: Computation, position: int, number: int, leaf: int
    ) -> Iterator[Place]:
        """Yield where the value of an operand's leaf goes on."""
        user = computation.instructions[position]
        begun = _in_callees(self.module, user, number, leaf)
        yield from begun
        if user.opcode == "while":
            yield computation.name, position, leaf
        elif begun:
            for place in begun:
                for returned_leaf in self.leaves_given_back(place):
                    yield computation.name, position, returned_leaf
        else:
            yield from _in_computation(computation, position, number, leaf)

    def leaves_given_back(self, place: Place) -> tuple[int, ...]:
        """Return the leaves of the result of a place's computation that hold its value."""
        if place not in self.given_back:
            root = self.module.computation[place[0]].root
            self.given_back[place] = tuple(
                leaf for name, at, leaf in self.places(place) if (name, at) == (place[0], root)
            )
        return self.given_back[place]


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
        a.terms or b.terms,
    )


def _sizes(computation: Computation, position: int) -> tuple[int, ...]:
    return sizes_of(computation.instructions[position].shape)


_POSITIVE = frozenset({"log", "sqrt", "rsqrt", "cbrt"})


def _use(
    computation: Computation, position: int, user: Instruction, number: int
) -> InputRole | None:
    """Return what reading a value as operand `number` of `user` asks of it."""
    integers = user.attributes.integers
    sizes = _sizes(computation, user.operands[0])
    if user.opcode == "gather" and number == 1:
        windows = integers("slice_sizes")
        rooms = [sizes[d] - windows[d] + 1 for d in integers("start_index_map") if d < len(windows)]
        role = InputRole(below=min(rooms, default=1))
        return replace(role, ascending=user.attributes.flag("indices_are_sorted"))
    if user.opcode == "scatter" and number == len(user.operands) // 2:
        rooms = [sizes[d] for d in integers("scatter_dims_to_operand_dims") if d < len(sizes)]
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
    if user.opcode == "power" and (number == 1 or not _is_whole(computation, user.operands[1])):
        return InputRole(positive=True)
    if user.opcode in PRODUCTS:
        return InputRole(terms=rule_in(computation, user).summed() if number == 1 else 1)
    if user.opcode == "compare" and _sizes(computation, position):
        return InputRole(below=_compared_with(computation, user, number))
    if user.opcode in ("divide", "remainder") and number == 1:
        return InputRole(divisor=True)
    if user.opcode == "conditional" and number == 0:
        return InputRole(below=max(2, len(user.attributes.called)))
    return None


def _is_variance(user: Instruction, number: int) -> bool:
    return (user.opcode == "batch-norm-inference" and number == 4) or (
        user.opcode == "batch-norm-grad" and number == 3
    )


def _is_whole(computation: Computation, position: int) -> bool:
    """Whether a value is known to be a whole number, or is of integers."""
    shape = computation.instructions[position].shape
    if isinstance(shape, ArrayShape) and shape.element_type.is_integer:
        return True
    value = _constant(computation, position)
    return value is not None and value.is_integer()


def _constant(computation: Computation, position: int) -> float | None:
    """Return the real number that all elements of a value are, if one is known."""
    instruction = computation.instructions[position]
    while instruction.opcode in ("broadcast", "reshape", "convert", "copy"):
        instruction = computation.instructions[instruction.operands[0]]
    if (
        instruction.opcode != "constant"
        or instruction.literal is None
        or instruction.literal.is_elided
        or _count(instruction.shape) != 1
    ):
        return None
    value = np.asarray(constant_leaves(instruction)[0])
    return None if value.dtype.kind == "c" else float(value.reshape(())[()])


def _count(shape: Shape) -> int:
    return shape.element_count if isinstance(shape, ArrayShape) else 0


def _compared_with(computation: Computation, user: Instruction, number: int) -> int | None:
    """Return the least integer above all labels, where a comparison tells.

    Labels are found in an iota, or tested to be below a constant.
    """
    direction = user.attributes.text("direction")
    operand = computation.instructions[user.operands[1 - number]]
    if direction in ("EQ", "NE"):
        while operand.opcode in ("broadcast", "reshape", "convert", "copy"):
            operand = computation.instructions[operand.operands[0]]
        if operand.opcode != "iota" or not isinstance(operand.shape, ArrayShape):
            return None
        return operand.shape.dimensions[operand.attributes.integer("iota_dimension")]
    value = _constant(computation, user.operands[1 - number])
    if value is None or not 0 < value <= LARGEST_LABEL:
        return None
    # x < 10 and x >= 10 tell the same; so do x <= 9 and x > 9, and 10 > x.
    excludes = direction in (("LT", "GE") if number == 0 else ("GT", "LE"))
    return int(value) + (not excludes)


def _in_callees(module: Module, user: Instruction, number: int, leaf: int) -> list[Place]:
    """Return where the value of an operand's leaf begins in the computations that are called."""
    called = user.attributes.called
    if user.opcode in ("call", "fusion", "async-start"):
        names, parameter = called[:1], number
    elif user.opcode == "while":
        names, parameter = called, 0
    elif user.opcode == "conditional" and number >= 1:
        names, parameter = called[number - 1 : number], 0
    else:
        return []
    callees = [module.computation[name] for name in names]
    return [
        (c.name, c.parameters[parameter], leaf) for c in callees if parameter < len(c.parameters)
    ]


def _in_computation(
    computation: Computation, position: int, number: int, leaf: int
) -> Iterator[Place]:
    """Yield where the value of an operand's leaf goes on in the results of an op."""
    user = computation.instructions[position]
    name = computation.name
    if user.opcode in FOLLOWED or is_identity(user):
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


def _scales(computation: Computation, user: Instruction, number: int) -> bool:
    """Whether an op only scales its operand: by one number, or by what is never negative."""
    if user.opcode == "divide" and number == 1:
        return False
    operand = computation.instructions[user.operands[1 - number]]
    if operand.opcode in ("abs", "exponential", "logistic"):
        return True
    if operand.opcode == "multiply" and operand.operands[0] == operand.operands[1]:
        return True
    if operand.opcode == "broadcast":
        return not _sizes(computation, operand.operands[0])
    return operand.opcode == "constant" or not _sizes(computation, user.operands[1 - number])


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
