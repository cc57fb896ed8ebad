"""Who decided a sharding, and the module with every op's sharding in XLA's syntax."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from hloipu_compiler.hlo.attributes.sharding_value import Sharding, ShardingKind
from hloipu_compiler.ir.attributes import Raw
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.shapes import TupleShape
from hloipu_compiler.partition.spmd.axes import AxisSharding, to_tiles
from hloipu_compiler.partition.spmd.links import StatePairs
from hloipu_compiler.partition.spmd.propagating import Propagated, propagated
from hloipu_compiler.partition.spmd.reading import Key, require_whole, stated_shardings
from hloipu_runtime.frozen import dataclass

_LONGEST_CHAIN = 64
"""Steps back to what the text states that are shown."""


def shardings_of(module: Module, state: StatePairs = ()) -> Propagated:
    """Return the shardings of all arrays of a verified module.

    `state`: parameters and results of the entry that are to be divided alike.

    Raises UsageError E0477 for a module that is partitioned already, UnsupportedError E0476 where
    its shardings have no mesh in common.
    """
    require_whole(module)
    return propagated(module, stated_shardings(module), state)


def with_shardings(module: Module, known: Propagated) -> Module:
    """Return the module with `sharding=` on every op that runs, in XLA's tile assignments."""
    texts: dict[AxisSharding, Sharding] = {}

    def tiles(sharding: AxisSharding) -> Sharding:
        if sharding not in texts:
            texts[sharding] = to_tiles(sharding, known.axes)
        return texts[sharding]

    def changed(key: Key, op: Instruction) -> Instruction:
        if key not in known.links.results:
            return op
        each = tuple(map(tiles, known.result(key)))
        if isinstance(op.shape, TupleShape):
            stated = Sharding(
                ShardingKind.TUPLE, elements=each or (Sharding(ShardingKind.REPLICATED),)
            )
        else:
            stated = each[0]
        return op._replace(attributes=op.attributes.replaced(sharding=Raw(str(stated))))

    computations = tuple(
        replace(
            c, instructions=tuple(changed((c.name, i), op) for i, op in enumerate(c.instructions))
        )
        for c in module.computations
    )
    return replace(module, computations=computations)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of how an array got parts of its sharding."""

    value: str
    """Name of the op, with the leaf of its result where it has several."""
    dimension: int
    axes: str
    op: str
    """The op along which they came; empty where the text states them."""
    opcode: str
    source: str
    """The array that had them before."""


@dataclass(frozen=True, slots=True)
class Explained:
    """How one array is divided, and who decided."""

    value: str
    shape: str
    sharding: str
    steps: tuple[Step, ...]
    """From the array back to what the text states."""

    def record(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {**asdict(self), "steps": [*map(asdict, self.steps)]}

    def text(self) -> str:
        """Return it as lines."""
        lines = [f"{self.value} = {self.shape} sharding={self.sharding}"]
        for step in self.steps:
            what = f"{step.value}: dimension {step.dimension} in {step.axes}"
            why = f"through {step.opcode} {step.op}, from {step.source}"
            lines.append(f"  {what}: {why if step.op else 'stated by an annotation'}")
        if not self.steps:
            lines.append("  nobody divides it: every device holds it whole")
        return "\n".join(lines) + "\n"


def explained(module: Module, known: Propagated, op: str) -> list[Explained]:
    """Return how the leaves of the results of all ops of one name are divided.

    Empty where no op that runs has the name.
    """
    name = op.removeprefix("%")
    explanations = []
    for computation in module.computations:
        position = computation.position.get(name)
        for number in known.links.results.get((computation.name, position or 0), ()):
            if position is None:
                break
            shape = str(known.links.shapes[number])
            sharding = str(to_tiles(known.shardings[number], known.axes))
            steps = tuple(_steps(module, known, number))
            explanations.append(Explained(_name(module, known, number), shape, sharding, steps))
    return explanations


def _name(module: Module, known: Propagated, number: int) -> str:
    (computation, position), leaf = known.links.owners[number]
    op = module.computation[computation].instructions[position]
    several = isinstance(op.shape, TupleShape)
    return f"{op.name}{{{leaf}}}" if several else op.name


def _steps(module: Module, known: Propagated, number: int) -> Iterator[Step]:
    """Yield the decisions about an array, then those about what they followed."""
    todo, seen = [number], {number}
    for array in todo:
        for decision in known.decisions[array]:
            link = decision.link
            op = ""
            if link is not None:
                op = module.computation[link.key[0]].instructions[link.key[1]].name
                if decision.source not in seen and len(seen) < _LONGEST_CHAIN:
                    seen.add(decision.source)
                    todo.append(decision.source)
            yield Step(
                _name(module, known, array),
                decision.dimension,
                known.axes.text(decision.parts),
                op,
                link.opcode if link else "",
                _name(module, known, decision.source) if decision.source >= 0 else "",
            )
