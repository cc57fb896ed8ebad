"""Choosing the instructions that an edit changes."""

from collections.abc import Callable, Sequence

from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.reduce.rewriting import Key


def instructions_of(
    module: Module, wanted: Callable[[Computation, int, Instruction], bool]
) -> list[Key]:
    """Return keys of instructions, callers' last ones first: what depends on most comes first."""
    computations = sorted(module.computations, key=lambda c: c.name != module.entry.name)
    return [
        Key(c.name, c.instructions[i].name)
        for c in computations
        for i in range(len(c.instructions) - 1, -1, -1)
        if wanted(c, i, c.instructions[i])
    ]


def by_computation(keys: Sequence[Key]) -> dict[str, dict[str, Key]]:
    """Return keys by computation and instruction."""
    found: dict[str, dict[str, Key]] = {}
    for key in keys:
        found.setdefault(key.computation, {})[key.instruction] = key
    return found
