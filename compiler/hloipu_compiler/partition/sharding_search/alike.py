"""Which of the entry's parameters share one decision: those that equal layers use alike.

Parameters are alike whose surroundings are: ops, shapes and places of operands up to some ops away.
"""

from collections.abc import Hashable

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import ArrayShape

_ROUNDS = 3
"""Ops away that are looked at: a product, what it multiplies, and what that is made from."""


def alike_parameters(module: Module) -> list[tuple[int, ...]]:
    """Return the numbers of parameters that are arrays of dimensions, those alike together.

    In the order of their first ones.
    """
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
