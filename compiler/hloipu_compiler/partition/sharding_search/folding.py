"""A module with few of its equal layers, to be priced in place of the whole.

Of equal blocks of the entry the first and the last stay; what reads a value of those between reads
that of the first. Ops that stay say for how many blocks they stand, and everything that is written
for an op says what it does. Results of blocks that go, and parameters that nothing reads any more,
go with them. The code of equal blocks is there once, as where they become functions.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

from hloipu_compiler.analysis.call_graph import callees_first, with_reached
from hloipu_compiler.analysis.equal_blocks import equal_blocks
from hloipu_compiler.analysis.live_bytes import Buffers
from hloipu_compiler.hlo.attributes.frontend_attributes import (
    frontend_attributes_text,
    read_frontend_attributes,
)
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape
from hloipu_compiler.partition.spmd.links import StatePairs
from hloipu_compiler.passes.framework.attribute_edits import CONTROL, renamed
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.reached import reached

_KEY = "hloipu.stands_for"
_FEWEST = 4
"""Equal blocks of which some go."""
_LEAST_BLOCK = 4
"""Ops of a block."""
_WORTH = 3
"""A module is folded where one op in so many goes. Assumed."""


class Stands(NamedTuple):
    """What an op stands for."""

    group: str = ""
    """Its equal blocks; empty: it is of none."""
    times: int = 1
    """Blocks that it stands for."""
    has_code: bool = True
    """Whether its code is not that of another block."""


_ALONE = Stands()


@dataclass(frozen=True, slots=True)
class Folded:
    """A module with few of its equal layers."""

    whole: Module
    """As it was given, its equal blocks marked."""
    module: Module
    arrays: tuple[int, ...]
    """Of its parameters and then of its results: their numbers among those of the whole module."""
    state: StatePairs
    alike: tuple[tuple[int, int], ...]
    """Parameters of the whole that equal blocks read at one place, two and two."""


def folded(module: Module, state: StatePairs) -> Folded | None:
    """Return a verified module with few of its equal layers; None where few ops would go.

    None as well for what takes or returns tuples in tuples, or says in which order its ops run.
    """
    entry = _calling_alike(module)
    root = entry.instructions[entry.root]
    outputs = root.operands if root.opcode == "tuple" else (entry.root,)
    arrays = [*entry.parameters, *outputs]
    if not all(_is_array(entry.instructions[i]) for i in arrays) or entry.users[entry.root]:
        return None
    if any(CONTROL in x.attributes for x in entry.instructions):
        return None
    place, marks, alike = _standing(entry)
    gone = {i for i, other in enumerate(place) if other != i}
    if _WORTH * len(gone) < len(entry.instructions):
        return None
    results = [n for n, i in enumerate(outputs) if i not in gone] or [0]
    if root.opcode == "tuple":
        operands = tuple(root.operands[n] for n in results)
        shape = TupleShape(tuple(entry.instructions[i].shape for i in operands))
        root = root._replace(operands=operands, shape=shape)
    kept = _read(entry, root, place, gone)
    numbers = [n for n, i in enumerate(entry.parameters) if i in kept]
    new = {old: position for position, old in enumerate(sorted(kept))}
    instructions = []
    for old in sorted(kept):
        x = root if old == entry.root else entry.instructions[old]
        number = numbers.index(x.parameter_number) if x.parameter_number >= 0 else -1
        operands = tuple(new[place[i]] for i in x.operands)
        x = x._replace(operands=operands, parameter_number=number)
        instructions.append(_marked(x, marks.get(old)))
    short = replace(entry, instructions=tuple(instructions), root=new[entry.root])
    all_marked = [
        _marked(x, marks[i]._replace(times=1) if i in marks else None)
        for i, x in enumerate(module.entry.instructions)
    ]
    whole = replace(module.entry, instructions=tuple(all_marked))
    pairs = [
        (numbers.index(p), results.index(r)) for p, r in state if p in numbers and r in results
    ]
    count = len(entry.parameters)
    arrays_kept = (*numbers, *(count + n for n in results))
    modules = _with_entry(module, whole), _with_entry(module, short)
    return Folded(*modules, arrays_kept, pairs, tuple(sorted(alike)))


def stands_for(x: Instruction) -> Stands:
    """Return what an op of a module that was folded stands for."""
    text = x.attributes.text("frontend_attributes")
    if _KEY not in text:
        return _ALONE
    group, times, code = read_frontend_attributes(text)[_KEY].split()
    return Stands(group, int(times), code == "1")


def unfolded(computation: Computation, buffers: Buffers) -> Buffers:
    """Return buffers as large as those of all blocks for which their makers stand.

    What is read by blocks of its own kind alone is there once; what others wait for, as backward
    layers do for what forward ones made, is there once for each block, and so is a parameter that
    only blocks read.
    """
    marks = [stands_for(x) for x in computation.instructions]
    if all(mark.times == 1 for mark in marks):
        return buffers
    readers: dict[int, set[Stands]] = {b: {_ALONE} for b in buffers.kept}
    for mark, reads in zip(marks, buffers.reads, strict=True):
        for b in reads:
            readers.setdefault(b, set()).add(mark)
    sizes = list(buffers.sizes)
    for mark, makes in zip(marks, buffers.makes, strict=True):
        for b in makes:
            if any(reader.group != mark.group for reader in readers.get(b, ())):
                sizes[b] *= mark.times
    for b in buffers.given:
        sizes[b] *= min((reader.times for reader in readers.get(b, ())), default=1)
    return buffers._replace(sizes=tuple(sizes))


def _is_array(x: Instruction) -> bool:
    return isinstance(x.shape, ArrayShape) and x.shape.element_type.name != "token"


def _calling_alike(module: Module) -> Computation:
    """Return the entry, in which ops that call equal computations call the same one."""
    first: dict[Hashable, str] = {}
    names: dict[str, str] = {}
    for c in callees_first(module, only_reachable=True):
        key = (c.root, *[(x.opcode, x.shape, x.operands, renamed(x.attributes, names), x.literal,
                          x.parameter_number) for x in c.instructions])  # fmt: skip
        names[c.name] = first.setdefault(key, c.name)
    instructions = [
        x._replace(attributes=renamed(x.attributes, names)) if x.attributes.called else x
        for x in module.entry.instructions
    ]
    return replace(module.entry, instructions=tuple(instructions))


def _standing(entry: Computation) -> tuple[list[int], dict[int, Stands], set[tuple[int, int]]]:
    """Return what stands for each op, what those of equal blocks stand for, and `Folded.alike`."""
    instructions = entry.instructions
    place = {i: i for i in range(len(instructions))}
    marks: dict[int, Stands] = {}
    alike: set[tuple[int, int]] = set()
    blocks = equal_blocks((entry,), lambda _: 1, _LEAST_BLOCK, _LEAST_BLOCK)
    for number, equal in enumerate(blocks):
        first, *others = sorted(occurrence.positions for occurrence in equal.occurrences)
        if len(others) + 1 < _FEWEST:
            continue
        half = (len(others) + 1) // 2
        marks |= dict.fromkeys(first, Stands(str(number), len(others) + 1 - half))
        for positions in others:
            marks |= dict.fromkeys(positions, Stands(str(number), half, has_code=False))
            for position, same in zip(positions, first, strict=True):
                read = instructions[position].operands, instructions[same].operands
                for mine, theirs in zip(*read, strict=True):
                    pair = (
                        instructions[mine].parameter_number,
                        instructions[theirs].parameter_number,
                    )
                    if min(pair) >= 0 and pair[0] != pair[1]:
                        alike.add(pair)
        for positions in others[:-1]:
            place |= dict(zip(positions, first, strict=True))
    return list(place.values()), marks, alike


def _read(entry: Computation, root: Instruction, place: Sequence[int], gone: set[int]) -> set[int]:
    """Return the positions of what the root reads, and of what is there for its effect."""
    unread = [i for i, users in enumerate(entry.users) if not users and i not in gone]
    quiet = ("parameter", "constant")
    effects = [i for i in unread if entry.instructions[i].opcode not in quiet]

    def read(at: int) -> list[int]:
        x = root if at == entry.root else entry.instructions[at]
        return [place[i] for i in x.operands]

    return set(reached([*effects, entry.root], read))


def _marked(x: Instruction, mark: Stands | None) -> Instruction:
    if mark is None:
        return x
    said = read_frontend_attributes(x.attributes.text("frontend_attributes"))
    said[_KEY] = f"{mark.group} {mark.times} {mark.has_code:d}"
    text = frontend_attributes_text(said)
    return x._replace(attributes=x.attributes.replaced(frontend_attributes=text))


def _with_entry(module: Module, entry: Computation) -> Module:
    others = [c for c in module.computations if c is not module.entry]
    return with_reached(module, (*others, entry), entry.name)
