"""Outlining: equal blocks, such as a network's layers, become calls of one computation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from hloipu_compiler.analysis.code_size import LEAST_OUTLINED_BYTES, code_bytes, summed_code_bytes
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import (
    Computation,
    Instruction,
    Module,
    control_predecessors,
    element_of,
)
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.ir.shapes import TupleShape
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.pass_base import Pass
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import with_operands
from hloipu_compiler.passes.fusion.fuse_elementwise import running
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.frozen import dataclass

if TYPE_CHECKING:
    from hloipu_compiler.analysis.equal_blocks import EqualBlocks

_STAYS = (
    Trait.SIDE_EFFECT | Trait.CALLER | Trait.ASYNC_START
    | Trait.ASYNC_UPDATE | Trait.ASYNC_DONE | Trait.LEGACY
)  # fmt: skip
"""Ops that are in no block: they own computations, are there in parts, or act on the world."""
_FUSED = 3
"""Elementwise ops that become one. Assumed: about what fusion makes of layers' text."""


class Least(NamedTuple):
    """Bytes of code from which on something is done."""

    code: int
    """Of computations that are looked at."""
    block: int
    """Of a block."""
    saved: int
    """That all occurrences of a block but one have."""
    parts_reductions: bool = True
    """Whether one reduction may be a block: without others that it would be fused with."""


def blocks_outlined(
    module: Module, plan: Plan, least: Least, ipus: Mapping[str, int] = MappingProxyType({})
) -> Module:
    """Return the module with equal blocks of its computations as calls of one computation.

    Looked at are computations that run on arrays, those of one IPU together if their code takes at
    least `least.code` bytes on a tile, by an estimate; blocks that have or save less than `least`
    says stay. `ipus`: where computations run, if not all on the same. The same module comes back
    where there are none.
    """
    placed = {computation for computation, _ in plan.ipus}
    names = Names(c.name for c in module.computations)
    together: dict[int, list[Computation]] = {}
    for name in running(module):
        if name not in placed:
            together.setdefault(ipus.get(name, -1), []).append(module.computation[name])
    parts_by_name: dict[str, list[Computation]] = {}
    for computations in together.values():
        if sum(summed_code_bytes(c.instructions) for c in computations) < least.code:
            continue
        from hloipu_compiler.analysis.equal_blocks import equal_blocks

        computations = [_with_own_broadcasts(c) for c in computations]
        weight = outlining_weight if least.parts_reductions else _joined_weight
        blocks = [
            _block(computations, each, names)
            for each in equal_blocks(computations, weight, least.block, least.saved)
            if _results(computations, each)
        ]
        for which, computation in enumerate(computations):
            inside = [x for x in blocks if which in {o.computation for o in x.blocks.occurrences}]
            if inside:
                parts_by_name[computation.name] = [_outlined(computation, which, inside)]
        for block in blocks:
            callers = {
                computations[occurrence.computation].name for occurrence in block.blocks.occurrences
            }
            first = next(c.name for c in module.computations if c.name in callers)
            parts_by_name[first].insert(0, block.computation)
    if not parts_by_name:
        return module
    whole = [each for c in module.computations for each in parts_by_name.get(c.name, [c])]
    entry = [c.name for c in whole].index(module.entry.name)
    return replace(module, computations=tuple(whole), entry_position=entry)


def _with_own_broadcasts(computation: Computation) -> Computation:
    """Return a computation in which each op reads broadcasts of its own, which stand before it.

    So blocks hand on what is spread, which takes memory once, and not what it is spread to.
    """
    old = computation.instructions
    names = Names(op.name for op in old)
    awaited = {name for op in old for name in control_predecessors(op)}
    is_own = [
        op.opcode == "broadcast"
        and at != computation.root
        and op.name not in awaited
        and "control-predecessors" not in op.attributes
        for at, op in enumerate(old)
    ]
    if not any(is_own):
        return computation
    instructions: list[Instruction] = []
    place: dict[int, int] = {}

    def read(at: int) -> int:
        """Return the place of an operand, written anew for its reader if it is a broadcast."""
        if not is_own[at]:
            return place[at]
        operands = tuple(map(read, old[at].operands))
        own = with_operands(old[at], operands)._replace(name=names.fresh(old[at].name))
        instructions.append(own)
        return len(instructions) - 1

    for at, op in enumerate(old):
        if not is_own[at]:
            again = {i: read(i) for i in dict.fromkeys(op.operands)}
            place[at] = len(instructions)
            instructions.append(with_operands(op, tuple(again[i] for i in op.operands)))
    return replace(computation, instructions=tuple(instructions), root=place[computation.root])


def outlining_weight(op: Instruction) -> int:
    """Return the code that one more of an op takes, or a negative number where it has to stay."""
    traits = OPS[op.opcode].traits
    if traits & _STAYS or op.opcode in ("rng", "rng-get-and-update-state", "custom-call"):
        return -1
    if "sharding" in op.attributes or "control-predecessors" in op.attributes:
        return -1
    if op.opcode in ("get-tuple-element", "tuple"):
        return 0
    return code_bytes(op) // (_FUSED if Trait.ELEMENTWISE in traits else 1)


def _joined_weight(op: Instruction) -> int:
    """Return the same, of a reduction half: those of a norm become one vertex and one exchange."""
    weight = outlining_weight(op)
    return weight // 2 if op.opcode == "reduce" else weight


def _outlined(computation: Computation, which: int, blocks: "Sequence[_Block]") -> Computation:
    """Return a computation, one of several by its number, with its blocks as calls."""
    calls = {
        occurrence.positions[0]: (block, number)
        for block in blocks
        for number, occurrence in enumerate(block.blocks.occurrences)
        if occurrence.computation == which
    }
    inside = {
        at for block, number in calls.values() for at in block.blocks.occurrences[number].positions
    }
    old = computation.instructions
    own = Names(op.name for op in old)
    instructions: list[Instruction] = []
    place: dict[int, int] = {}

    def kept(at: int) -> int:
        """Return the place of an instruction that stays, written now where it is not yet there."""
        if at not in place:
            operands = tuple(kept(i) for i in old[at].operands)
            place[at] = len(instructions)
            instructions.append(with_operands(old[at], operands))
        return place[at]

    for at in range(len(old)):
        if at not in inside:
            kept(at)
        elif at in calls:
            block, number = calls[at]
            operands = tuple(kept(each[number]) for each in block.given)
            call = len(instructions)
            instructions.append(
                block.call(old[at], operands, own.fresh(f"call.{block.computation.name}"))
            )
            positions = block.blocks.occurrences[number].positions
            if len(block.results) == 1:
                place[positions[block.results[0]]] = call
                continue
            for index, result in enumerate(block.results):
                op = old[positions[result]]
                place[positions[result]] = len(instructions)
                instructions.append(element_of(op.name, call, index, op.shape, op.metadata))
    return replace(computation, instructions=tuple(instructions), root=place[computation.root])


class _Block(NamedTuple):
    """Equal blocks, and the computation that the first of them becomes."""

    blocks: "EqualBlocks"
    given: tuple[tuple[int, ...], ...]
    """For each parameter, the position of its argument for each occurrence."""
    results: tuple[int, ...]
    """Numbers of the instructions that are read from outside."""
    computation: Computation

    def call(self, like: Instruction, operands: tuple[int, ...], name: str) -> Instruction:
        called = self.computation.name
        root = self.computation.instructions[self.computation.root]
        attributes = Attributes({"to_apply": called}, (called,))
        return Instruction(name, "call", root.shape, operands, attributes, like.metadata)


def _block(computations: Sequence[Computation], blocks: "EqualBlocks", names: Names) -> _Block:
    """Write the first occurrence as a computation of what differs between occurrences."""
    occurrences = blocks.occurrences
    within = [computations[occurrence.computation] for occurrence in occurrences]
    old, first = within[0].instructions, occurrences[0].positions
    number_of = {at: number for number, at in enumerate(first)}
    own = Names(old[at].name for at in first)
    given: dict[tuple[int, ...], int] = {}
    instructions: list[Instruction] = []
    place: dict[int, int] = {}

    def parameter(sources: tuple[int, ...]) -> int:
        if sources not in given:
            x = old[sources[0]]
            given[sources] = len(instructions)
            instructions.append(
                Instruction(
                    own.fresh(x.name), "parameter", x.shape, metadata=x.metadata,
                    parameter_number=len(given) - 1,
                )
            )  # fmt: skip
        return given[sources]

    def constant(at: int) -> int:
        """Return the place of a block's own copy of what is made of constants."""
        if at not in place:
            operands = tuple(constant(i) for i in old[at].operands)
            place[at] = len(instructions)
            instructions.append(
                with_operands(old[at], operands)._replace(name=own.fresh(old[at].name))
            )
        return place[at]

    for number, at in enumerate(first):
        operands = []
        for slot, i in enumerate(old[at].operands):
            if i in number_of:
                operands.append(place[i])
                continue
            sources = tuple(
                c.instructions[occurrence.positions[number]].operands[slot]
                for c, occurrence in zip(within, occurrences, strict=True)
            )
            same = _is_one_constant(within, sources)
            operands.append(constant(i) if same else parameter(sources))
        place[at] = len(instructions)
        instructions.append(with_operands(old[at], tuple(operands)))
    results = _results(computations, blocks)
    root = place[first[results[0]]]
    if len(results) > 1:
        elements = tuple(place[first[number]] for number in results)
        shape = TupleShape(tuple(instructions[at].shape for at in elements))
        root = len(instructions)
        instructions.append(Instruction(own.fresh("results"), "tuple", shape, elements))
    name = names.fresh(f"block.{old[first[-1]].name}")
    block = Computation(name, tuple(instructions), root, within[0].execution_thread)
    return _Block(blocks, tuple(given), results, block)


def _is_one_constant(within: Sequence[Computation], sources: Sequence[int]) -> bool:
    from hloipu_compiler.analysis.equal_blocks import constant_key

    keys = [constant_key(c, at) for c, at in zip(within, sources, strict=True)]
    return keys[0] is not None and all(key == keys[0] for key in keys)


def _results(computations: Sequence[Computation], blocks: "EqualBlocks") -> tuple[int, ...]:
    """Return the numbers of a block's instructions that something outside reads, in order."""
    read_outside: set[int] = set()
    for which, positions in blocks.occurrences:
        computation, inside = computations[which], set(positions)
        for number, at in enumerate(positions):
            if at == computation.root or not inside.issuperset(computation.users[at]):
                read_outside.add(number)
    return tuple(sorted(read_outside))


@register
@dataclass(frozen=True, slots=True)
class OutlineBlocks(Pass):
    """Makes equal blocks, such as layers, calls of one computation, whose code is there once."""

    name: ClassVar[str] = "outline-blocks"
    least_code: int = LEAST_OUTLINED_BYTES
    """Bytes of code on a tile, by an estimate, from which on a computation is looked at."""
    least_block: int = 2_400
    """Bytes of code of one block. Assumed: two ops that bring parts together, such as the gradients
    of a convolution; what is less is better fused with what is around it."""
    least_saved: int = 2_400
    """Bytes of code that a block has to save: those of one block, which comes once more."""
    parts_reductions: bool = True
    """Whether one reduction may be a block, without those of the same values beside it."""

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module with blocks as calls."""
        return self.on_ipus(module, plan, MappingProxyType({})), plan

    def on_ipus(self, module: Module, plan: Plan, ipus: Mapping[str, int]) -> Module:
        """Return the module with blocks as calls; `ipus`: where computations run."""
        least = Least(self.least_code, self.least_block, self.least_saved, self.parts_reductions)
        return blocks_outlined(module, plan, least, ipus)


FINE_BLOCKS = OutlineBlocks(least_block=1_200)
"""Where code is what lacks room, a single op that brings parts together may be a block, too."""
JOINED_REDUCTIONS = OutlineBlocks(least_block=1_200, parts_reductions=False)
"""The same, where norms take less code with their reductions in one vertex than in functions."""
