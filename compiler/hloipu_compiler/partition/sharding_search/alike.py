"""Which of the entry's arrays share one decision: parameters that equal layers use alike.

Parameters are alike whose surroundings are: ops, shapes and places of operands up to some ops away.
"""

from collections.abc import Collection, Hashable

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import ArrayShape, leaves_of

_ROUNDS = 3
"""Ops away that are looked at: a product, what it multiplies, and what that is made from."""


def alike_parameters(module: Module) -> list[tuple[int, ...]]:
    """Return the numbers of parameters that are arrays with dimensions, those alike together."""
    entry = module.entry
    looks: list[Hashable] = [
        hash((x.opcode, str(x.shape), tuple(sorted(map(str, x.attributes)))))
        for x in entry.instructions
    ]
    users: list[list[tuple[int, int]]] = [[] for _ in entry.instructions]
    for position, x in enumerate(entry.instructions):
        for slot, i in enumerate(x.operands):
            users[i].append((position, slot))
    for _ in range(_ROUNDS):
        looks = [
            hash((
                looks[position],
                tuple([looks[i] for i in x.operands]),
                tuple(sorted([(slot, looks[user]) for user, slot in users[position]])),  # type: ignore[type-var]
            ))
            for position, x in enumerate(entry.instructions)
        ]  # fmt: skip
    found: dict[Hashable, list[int]] = {}
    for number, position in enumerate(entry.parameters):
        shape = entry.instructions[position].shape
        if isinstance(shape, ArrayShape) and shape.dimensions:
            found.setdefault(looks[position], []).append(number)
    return [tuple(numbers) for numbers in found.values()]


def large_results(
    module: Module, state: Collection[int], least_bytes: int
) -> list[tuple[int, ...]]:
    """Return the numbers of large results that are no state, those of one type and shape together.

    `least_bytes`: of one that is large. A result that is not made from parameters that are divided,
    as a cache that begins with zeros, is divided where somebody says so.
    """
    entry = module.entry
    shapes = leaves_of(entry.instructions[entry.root].shape)
    found: dict[Hashable, list[int]] = {}
    for number, shape in enumerate(shapes):
        if number not in state and shape.dimensions and shape.byte_count >= least_bytes:
            found.setdefault((shape.element_type.name, shape.dimensions), []).append(number)
    return [tuple(numbers) for numbers in found.values()]
