"""Outlining: equal blocks, such as a network's layers, become calls of one computation."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from hloipu_compiler.analysis.code_size import (
    LEAST_OUTLINED_BYTES,
    code_bytes,
    summed_code_bytes,
)
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.pass_base import Pass
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import with_operands
from hloipu_compiler.passes.fusion.fuse_elementwise import running
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.frozen import dataclass

if TYPE_CHECKING:
    from hloipu_compiler.analysis.repeated_blocks import Repeat

_STAYS = (
    Trait.SIDE_EFFECT | Trait.COLLECTIVE | Trait.CALLER | Trait.ASYNC_START
    | Trait.ASYNC_UPDATE | Trait.ASYNC_DONE | Trait.LEGACY
)  # fmt: skip
"""Ops that are in no block: they own computations, meet others, or act on the world."""
_CHEAP = frozenset({"constant", "broadcast", "iota"})
"""What each block makes for itself where it is made of constants: that takes no memory."""
_FUSED = 3
"""Elementwise ops that become one. Assumed: about what fusion makes of layers' text."""


def blocks_outlined(module: Module, plan: Plan, least_code: int, least_saved: int) -> Module:
    """Return the module with equal blocks of its computations as calls of one computation.

    Looked at are computations that run on arrays and whose code takes at least `least_code` bytes
    on a tile, by an estimate; blocks that save less than `least_saved` stay. The same module comes
    back where there are none.
    """
    placed = {computation for computation, _ in plan.ipus}
    names = Names(c.name for c in module.computations)
    made: dict[str, list[Computation]] = {}
    for name in running(module):
        computation = module.computation[name]
        large = summed_code_bytes(computation.instructions) >= least_code
        if large and name not in placed:
            from hloipu_compiler.analysis.repeated_blocks import repeated_blocks

            repeats = [
                each
                for each in repeated_blocks(computation, outlining_weight, least_saved)
                if _results(computation, each)
            ]
            if repeats:
                made[name] = list(_outlined(computation, repeats, names))
    if not made:
        return module
    whole = [each for c in module.computations for each in made.get(c.name, [c])]
    entry = [c.name for c in whole].index(module.entry.name)
    return replace(module, computations=tuple(whole), entry_position=entry)


def outlining_weight(x: Instruction) -> int:
    """Return the code that one more of an op takes, or a negative number where it has to stay."""
    traits = OPS[x.opcode].traits
    if traits & _STAYS or x.opcode in ("rng", "rng-get-and-update-state", "custom-call"):
        return -1
    if "sharding" in x.attributes or "control-predecessors" in x.attributes:
        return -1
    return code_bytes(x) // (_FUSED if Trait.ELEMENTWISE in traits else 1)


def _outlined(
    computation: Computation, repeats: "list[Repeat]", names: Names
) -> Iterator[Computation]:
    """Yield the computations of blocks, and the one that calls them."""
    blocks = [_block(computation, repeat, names) for repeat in repeats]
    yield from (block.computation for block in blocks)
    calls = {
        occurrence[0]: (block, number)
        for block in blocks
        for number, occurrence in enumerate(block.repeat.occurrences)
    }
    inside = {at for block in blocks for each in block.repeat.occurrences for at in each}
    old = computation.instructions
    own = Names(x.name for x in old)
    made: list[Instruction] = []
    place: dict[int, int] = {}

    def kept(at: int) -> int:
        """Return the place of an instruction that stays, written now where it is not yet there."""
        if at not in place:
            operands = tuple(kept(i) for i in old[at].operands)
            place[at] = len(made)
            made.append(with_operands(old[at], operands))
        return place[at]

    for at in range(len(old)):
        if at not in inside:
            kept(at)
        elif at in calls:
            block, number = calls[at]
            operands = tuple(kept(each[number]) for each in block.given)
            call = len(made)
            made.append(block.call(old[at], operands, own.fresh(f"call.{block.computation.name}")))
            occurrence = block.repeat.occurrences[number]
            if len(block.results) == 1:
                place[occurrence[block.results[0]]] = call
                continue
            for index, result in enumerate(block.results):
                x = old[occurrence[result]]
                place[occurrence[result]] = len(made)
                element = Attributes({"index": index})
                made.append(
                    Instruction(x.name, "get-tuple-element", x.shape, (call,), element, x.metadata)
                )
    yield replace(computation, instructions=tuple(made), root=place[computation.root])


class _Block(NamedTuple):
    """A repeat, and the computation that its first occurrence becomes."""

    repeat: "Repeat"
    given: tuple[tuple[int, ...], ...]
    """For each parameter, the position of its argument for each occurrence."""
    results: tuple[int, ...]
    """Numbers of the instructions that are read from outside."""
    computation: Computation

    def call(self, like: Instruction, operands: tuple[int, ...], name: str) -> Instruction:
        """Return a call that stands for an occurrence, with the metadata of an instruction."""
        called = self.computation.name
        root = self.computation.instructions[self.computation.root]
        attributes = Attributes({"to_apply": called}, (called,))
        return Instruction(name, "call", root.shape, operands, attributes, like.metadata)


def _block(computation: Computation, repeat: "Repeat", names: Names) -> _Block:
    """Write the first occurrence as a computation of what differs between occurrences."""
    old = computation.instructions
    number_of = {at: number for number, at in enumerate(repeat.first)}
    own = Names(old[at].name for at in repeat.first)
    given: dict[tuple[int, ...], int] = {}
    made: list[Instruction] = []
    place: dict[int, int] = {}

    def parameter(sources: tuple[int, ...]) -> int:
        if sources not in given:
            x = old[sources[0]]
            given[sources] = len(made)
            made.append(
                Instruction(
                    own.fresh(x.name), "parameter", x.shape, metadata=x.metadata,
                    parameter_number=len(given) - 1,
                )
            )  # fmt: skip
        return given[sources]

    def cheap(at: int) -> int:
        """Return the place of a block's own copy of what is made of constants."""
        if at not in place:
            operands = tuple(cheap(i) for i in old[at].operands)
            place[at] = len(made)
            made.append(with_operands(old[at], operands)._replace(name=own.fresh(old[at].name)))
        return place[at]

    for number, at in enumerate(repeat.first):
        x = old[at]
        operands = []
        for slot, i in enumerate(x.operands):
            if i in number_of:
                operands.append(place[i])
                continue
            sources = tuple(old[each[number]].operands[slot] for each in repeat.occurrences)
            shared = len(set(sources)) == 1 and _is_cheap(computation, i)
            operands.append(cheap(i) if shared else parameter(sources))
        place[at] = len(made)
        made.append(with_operands(x, tuple(operands)))
    results = _results(computation, repeat)
    root = place[repeat.first[results[0]]]
    if len(results) > 1:
        elements = tuple(place[repeat.first[number]] for number in results)
        shape = TupleShape(tuple(made[at].shape for at in elements))
        root = len(made)
        made.append(Instruction(own.fresh("results"), "tuple", shape, elements))
    name = names.fresh(f"block.{old[repeat.first[-1]].name}")
    block = Computation(name, tuple(made), root, computation.execution_thread)
    return _Block(repeat, tuple(given), results, block)


def _is_cheap(computation: Computation, at: int) -> bool:
    x = computation.instructions[at]
    if x.opcode == "constant" and isinstance(x.shape, ArrayShape) and x.shape.rank:
        return False
    return x.opcode in _CHEAP and all(_is_cheap(computation, i) for i in x.operands)


def _results(computation: Computation, repeat: "Repeat") -> tuple[int, ...]:
    """Return the numbers of a block's instructions that something outside reads, in order."""
    found: set[int] = set()
    for occurrence in repeat.occurrences:
        inside = set(occurrence)
        for number, at in enumerate(occurrence):
            if at == computation.root or not inside.issuperset(computation.users[at]):
                found.add(number)
    return tuple(sorted(found))


@register
@dataclass(frozen=True, slots=True)
class OutlineBlocks(Pass):
    """Makes equal blocks, such as layers, calls of one computation, whose code is there once."""

    name: ClassVar[str] = "outline-blocks"
    least_code: int = LEAST_OUTLINED_BYTES
    """Bytes of code on a tile, by an estimate, from which on a computation is looked at."""
    least_saved: int = 12_000
    """Bytes of code that a block has to save."""

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module with blocks as calls."""
        return blocks_outlined(module, plan, self.least_code, self.least_saved), plan
