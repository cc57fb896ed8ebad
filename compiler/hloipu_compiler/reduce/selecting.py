"""What a pass is, and choosing the instructions that it edits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.reduce.rewriting import Key

Apply = Callable[[Module, Sequence[Key]], Module]


@dataclass(frozen=True, slots=True)
class Pass:
    """One kind of edit."""

    name: str
    items: Callable[[Module], list[Key]]
    apply: Apply
    chunked: bool = True
    """Whether many items are tried at once before one by one."""


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


def one_by_one(apply: Callable[[Module, Key], Module]) -> Apply:
    """Return the application of an edit to several items, each once the ones before are done."""

    def run(module: Module, keys: Sequence[Key]) -> Module:
        for key in keys:
            computation = module.computation.get(key.computation)
            if computation is not None and key.instruction in computation.position:
                module = apply(module, key)
        return module

    return run
