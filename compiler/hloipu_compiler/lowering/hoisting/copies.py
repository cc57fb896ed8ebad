"""Finds copies made before loops, and loaded copies, that loops could make for themselves.

Lowering brings what a loop does not change to where its ops read it before the loop, so that it is
exchanged once. Such a copy takes memory all the time that the loop runs.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import NamedTuple

from hloipu_compiler.lowering.core.exchanging import Exchanging
from hloipu_compiler.lowering.hoisting.blocks import OUTSIDE, Blocks, Place
from hloipu_compiler.planners.redistribution import redistribution
from hloipu_compiler.planners.tuning import DEFAULT_TUNING
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.descriptors import is_complete
from hloipu_runtime.program.mapping import whole_box
from hloipu_runtime.program.program import Program, Role, Variable
from hloipu_runtime.program.uses import touched_by, written, written_by


class Exchanged(NamedTuple):
    """One transfer of a whole value, with its logical form."""

    transfer: s.Transfer
    definition: s.Definition


@dataclass(frozen=True)
class Copy:
    """A copy whose readers are in loops, or that is loaded."""

    variable: s.VariableId
    value: s.ValueId
    block: int
    """That it is made in; OUTSIDE: it is loaded with the program."""
    exchanges: tuple[Exchanged, ...]
    """That make it, one after the other; none of what is loaded."""
    readers: tuple[Place, ...]
    """The first step of each op that reads it."""
    cycles: int
    """Of making it once."""
    code_bytes: int
    """On a tile, of all that makes it where it is read, beyond what makes it now."""


class _Uses:
    """Reads and writes of each variable, and how each copy is made."""

    def __init__(self, program: Program, blocks: Blocks) -> None:
        self.readers: dict[s.VariableId, dict[tuple[int, str], Place]] = defaultdict(dict)
        """The first reading step of each op in each block."""
        self.writes: dict[s.VariableId, list[Place]] = defaultdict(list)
        self.others: set[s.VariableId] = set()
        """Variables that other steps than compute sets and exchanges touch."""
        self.made: dict[s.VariableId, tuple[Place, Exchanged]] = {}
        """By plain copies of whole values on one IPU."""
        for each in program.functions.values():
            self.others.update(_touched(each))
        for number, block in enumerate(blocks.blocks):
            for position, step in enumerate(block.sequence.steps):
                self._step(step, Place(number, position), program)

    def _step(self, step: s.Step, here: Place, program: Program) -> None:
        changed = written(step, program) if isinstance(step, s.Call) else written_by(step)
        for variable in changed:
            self.writes[variable].append(here)
        match step:
            case s.ComputeSet():
                for group in step.groups:
                    for operand in group.inputs:
                        self._read(operand.variable, group.name, here)
            case s.Exchange():
                defined = {definition.variable: definition for definition in step.definitions}
                for transfer in step.transfers:
                    self._read(transfer.source, step.name, here)
                    exchanged = Exchanged(transfer, defined[transfer.destination])
                    if _is_plain(exchanged, program.variables):
                        self.made[transfer.destination] = here, exchanged
            case _:
                self.others |= touched_by(step)

    def _read(self, variable: s.VariableId, op: str, here: Place) -> None:
        self.readers[variable].setdefault((here.block, op), here)

    def readers_of(self, variable: s.VariableId) -> tuple[Place, ...]:
        """Return the first step of each op that reads a variable."""
        return tuple(sorted(set(self.readers[variable].values())))


def copies_of(program: Program, machine: Machine, blocks: Blocks) -> list[Copy]:
    """Return the copies that could be made in loops, and take more memory than code to do so.

    Left out are those between IPUs, and numbers.
    """
    uses = _Uses(program, blocks)
    before_loops = [
        _before_loops(variable, program, machine, uses, blocks) for variable in sorted(uses.made)
    ]
    copies = [*filter(None, before_loops), *_loaded(program, machine, uses)]
    copied = {copy.variable for copy in copies}
    return [
        copy
        for copy in copies
        if not any(each.transfer.source in copied for each in copy.exchanges)
    ]


def _before_loops(
    variable: s.VariableId, program: Program, machine: Machine, uses: _Uses, blocks: Blocks
) -> Copy | None:
    """Return a copy that is made before a loop in which it is read; None: it is not like that."""
    place, exchanged = uses.made[variable]
    readers = uses.readers_of(variable)
    steps = [blocks.place_in(place.block, reader) for reader in readers]
    last = max((place.position for place in steps if place is not None), default=-1)
    if (
        not readers
        or variable in uses.others
        or len(uses.writes[variable]) > 1
        or any(x is None or x.position <= place.position for x in steps)
        or not any(blocks.loops_between(place.block, reader) for reader in readers)
    ):
        return None
    exchanges = [exchanged]
    source, begin = exchanged.transfer.source, place.position
    if source in uses.made and _is_only_for(variable, source, uses):
        begin = uses.made[source][0].position
        exchanges.insert(0, uses.made[source][1])
        source = exchanges[0].transfer.source
    for write in uses.writes[source]:
        step = blocks.place_in(place.block, write)
        if step is not None and begin < step.position <= last:
            return None
    to, lying = program.variables[variable], program.variables[source]
    price = redistribution(machine, to.element_type, to.shape, lying.mapping, to.mapping)
    code_bytes = (len(readers) - 1) * price.code_bytes
    if to.bytes_per_tile <= code_bytes:
        return None
    value, in_order = exchanged.transfer.value, tuple(exchanges)
    return Copy(variable, value, place.block, in_order, readers, price.cycles, code_bytes)


def _is_only_for(variable: s.VariableId, source: s.VariableId, uses: _Uses) -> bool:
    """Whether a value was gathered in a variable to make one copy, right before that."""
    place, _ = uses.made[variable]
    return (
        uses.readers_of(source) == (place,)
        and source not in uses.others
        and len(uses.writes[source]) == 1
        and uses.made[source][0].block == place.block
    )


def _loaded(program: Program, machine: Machine, uses: _Uses) -> Iterator[Copy]:
    """Yield the copies of constants that are loaded where they are read."""
    default = Exchanging(machine, DEFAULT_TUNING).default_mapping
    for variable, (value, _) in program.constants.items():
        to = program.variables[variable]
        if variable in uses.others or prod(to.shape) < 2 or not is_complete(to.mapping, to.shape):
            continue
        home = default(to.element_type, to.shape)
        price = redistribution(machine, to.element_type, to.shape, home, to.mapping)
        readers = uses.readers_of(variable)
        spared_bytes = to.bytes_per_tile - replace(to, mapping=home).bytes_per_tile
        code_bytes = len(readers) * price.code_bytes
        if readers and spared_bytes > code_bytes:
            yield Copy(variable, value, OUTSIDE, (), readers, price.cycles, code_bytes)


def _is_plain(exchanged: Exchanged, variables: tuple[Variable, ...]) -> bool:
    """Whether a transfer brings a whole value to all tiles of a variable on the same IPU."""
    transfer, definition = exchanged
    source, to = variables[transfer.source], variables[transfer.destination]
    zeros = (0,) * len(to.shape)
    return (
        to.role is Role.TEMPORARY
        and source.ipu == to.ipu
        and (source.shape, transfer.view) == (to.shape, to.shape)
        and (definition.value, definition.base) == (transfer.value, None)
        and (transfer.box, transfer.shift) == (whole_box(to.shape), zeros)
        and (transfer.tiles, transfer.spans) == (to.mapping.tiles, to.mapping.spans)
        and transfer.receivers == whole_box(to.mapping.tiles.extents)
    )


def _touched(step: s.Step) -> set[s.VariableId]:
    return set(touched_by(step)).union(*map(_touched, s.inner_steps(step)))
