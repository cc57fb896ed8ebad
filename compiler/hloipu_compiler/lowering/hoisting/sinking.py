"""Writes a program anew with some of its copies made in loops, right before they are read."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from hloipu_compiler.lowering.core.exchanging import Exchanging
from hloipu_compiler.lowering.core.values import TileTensor
from hloipu_compiler.lowering.hoisting.blocks import OUTSIDE, Blocks, Place
from hloipu_compiler.lowering.hoisting.copies import Copy, Exchanged
from hloipu_compiler.planners.tuning import DEFAULT_TUNING
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.program import steps as s
from hloipu_runtime.program.program import Program, Role
from hloipu_runtime.program.rebuilding import with_blocks
from hloipu_runtime.program.steps import ValueId, VariableId

Kept = Collection[tuple[VariableId, int]]
"""Copies and the loops that they are live throughout; OUTSIDE: the whole program."""


class Sunk(NamedTuple):
    """A program with copies made in loops."""

    program: Program
    copies: Mapping[VariableId, VariableId] = MappingProxyType({})
    """Variables that are written in loops, of copies and of what these are gathered in first; and
    the copy in the program before."""


def sunk(
    program: Program, machine: Machine, blocks: Blocks, copies: Sequence[Copy], kept: Kept
) -> Sunk:
    """Return a program that makes copies before the outermost loops that they are kept for.

    Ops that read a copy in one block, and are not in a loop that it is kept for, each have it made
    for them. A copy that is kept for all loops stays as it is.
    """
    builder = Exchanging(machine, DEFAULT_TUNING)
    builder.variables = list(program.variables)
    builder.constants = dict(program.constants)
    homes = _Homes(builder)
    writer = _Writer(builder, blocks)
    for copy in copies:
        places = places_of(copy, blocks, kept)
        if places:
            writer.gone.update(each.transfer.destination for each in copy.exchanges)
            writer.make(copy.variable, copy.exchanges or homes.exchanges(copy), places)
    if not writer.made:
        return Sunk(program)
    body = writer.sequence(program.body)
    return Sunk(
        replace(
            program, variables=tuple(builder.variables), constants=builder.constants, body=body
        ),
        writer.copies,
    )


def places_of(copy: Copy, blocks: Blocks, kept: Kept) -> list[Place]:
    """Return the steps before which a copy is made; none where it stays as it is."""
    places: set[Place] = set()
    is_moved = False
    for place in copy.readers:
        loops = blocks.loops_between(copy.block, place)
        if copy.block == OUTSIDE:
            loops.append(OUTSIDE)
        for loop in loops:
            if (copy.variable, loop) not in kept:
                is_moved = True
                break
            if loop != OUTSIDE:
                place = blocks.at(loop)
        places.add(place)
    return sorted(places) if is_moved else []


class _Homes:
    """Where constants lie that are copied from there, instead of being loaded."""

    def __init__(self, builder: Exchanging) -> None:
        self.builder = builder
        self.homes: dict[tuple[ValueId, int], VariableId] = {}

    def exchanges(self, copy: Copy) -> list[Exchanged]:
        """Load a constant evenly spread; return the exchanges from there to a copy of it."""
        builder, to = self.builder, self.builder.variables[copy.variable]
        constant = builder.constants.pop(copy.variable)
        builder.variables[copy.variable] = replace(to, role=Role.TEMPORARY)
        builder.origin, builder.ipu = to.origin, to.ipu
        kind, shape = to.element_type, to.shape
        key = (copy.value, to.ipu)
        if key not in self.homes:
            mapping = builder.default_mapping(kind, shape)
            self.homes[key] = builder.variable(kind, shape, mapping, Role.CONSTANT)
            builder.constants[self.homes[key]] = constant
        home = TileTensor(copy.value, self.homes[key], kind, shape)
        near = builder.gathered(home, to.mapping, -1)
        steps = [builder.plain_copy(near, copy.variable)]
        if near is not home:
            steps.insert(0, builder.plain_copy(home, near.variable))
        return [Exchanged(*each) for each in steps]


class _Writer:
    """Writes sequences anew."""

    def __init__(self, builder: Exchanging, blocks: Blocks) -> None:
        self.builder = builder
        self.blocks = blocks
        self.made: dict[Place, list[Sequence[Exchanged]]] = defaultdict(list)
        """Copies to make before a step."""
        self.copies: dict[VariableId, VariableId] = {}
        """By variable that is written before a step: the copy that it is for."""
        self.gone: set[VariableId] = set()
        """Variables of copies that are not made where they were."""
        self.names: dict[int, dict[VariableId, VariableId]] = defaultdict(dict)
        """By position of a pipeline: variables of its own, in place of those of another one."""

    def make(
        self, copy: VariableId, exchanges: Sequence[Exchanged], places: Sequence[Place]
    ) -> None:
        """Make a copy before some steps; each position of a pipeline has variables of its own."""
        stages: dict[int, Sequence[Exchanged]] = {}
        for place in places:
            stage = self.blocks.blocks[place.block].stage
            if stage not in stages:
                stages[stage] = self._own(exchanges, stage) if stages else exchanges
            self.made[place].append(stages[stage])
        for each in stages.values():
            self.copies.update((exchanged.transfer.destination, copy) for exchanged in each)

    def _own(self, exchanges: Sequence[Exchanged], stage: int) -> list[Exchanged]:
        """Return exchanges with the same results in variables of a position of a pipeline."""
        variables, names = self.builder.variables, self.names[stage]
        own = []
        for transfer, definition in exchanges:
            names[transfer.destination] = len(variables)
            variables.append(
                replace(variables[transfer.destination], name=f"copy.v{len(variables)}")
            )
            source = names.get(transfer.source, transfer.source)
            to = names[transfer.destination]
            own.append(
                Exchanged(
                    replace(transfer, source=source, destination=to),
                    replace(definition, variable=to),
                )
            )
        return own

    def sequence(self, sequence: s.Sequence) -> s.Sequence:
        """Return a sequence without the copies that are gone, and with those made in it."""
        number = self.blocks.number_of[id(sequence)]
        names = self.names.get(self.blocks.blocks[number].stage, {})
        steps: list[s.Step] = []
        waiting: list[s.Step] = []
        for position, step in enumerate(sequence.steps):
            if isinstance(step, s.Sync):
                waiting.append(step)
                continue
            for exchanges in self._together(self.made.get(Place(number, position), ())):
                steps += exchanges
            after = self._without(step) if isinstance(step, s.Exchange) else step
            if after is not None:
                steps += [*waiting, with_blocks(_renamed(after, names), self.sequence)]
            waiting.clear()
        steps += waiting
        if len(steps) == len(sequence.steps) and all(map(_is, steps, sequence.steps)):
            return sequence
        return s.Sequence(tuple(steps))

    def _without(self, step: s.Exchange) -> s.Exchange | None:
        """Return an exchange without the copies that are gone; None: nothing is left of it."""
        transfers = tuple(
            transfer for transfer in step.transfers if transfer.destination not in self.gone
        )
        if len(transfers) == len(step.transfers):
            return step
        definitions = tuple(
            definition for definition in step.definitions if definition.variable not in self.gone
        )
        return replace(step, transfers=transfers, definitions=definitions) if transfers else None

    def _together(self, copies: Sequence[Sequence[Exchanged]]) -> list[list[s.Step]]:
        """Return steps that make copies: those that are gathered first in one exchange before."""
        steps = []
        for last in (2, 1):
            ready = [copy[-last] for copy in copies if len(copy) >= last]
            if ready:
                self.builder.origin = self.builder.variables[ready[0].transfer.destination].origin
                steps.append(
                    self.builder.exchange_steps(
                        [exchanged.transfer for exchanged in ready],
                        [exchanged.definition for exchanged in ready],
                        self.builder.scope,
                    )
                )
        return steps


def _renamed(step: s.Step, names: Mapping[VariableId, VariableId]) -> s.Step:
    """Return a step that reads other variables; the same one where it reads none of these."""
    match step:
        case s.ComputeSet() if any(
            operand.variable in names for g in step.groups for operand in g.inputs
        ):
            return s.ComputeSet(
                tuple(
                    replace(
                        group,
                        inputs=tuple(
                            operand._replace(variable=names.get(operand.variable, operand.variable))
                            for operand in group.inputs
                        ),
                    )
                    for group in step.groups
                )
            )
        case s.Exchange() if any(transfer.source in names for transfer in step.transfers):
            return replace(
                step,
                transfers=tuple(
                    replace(transfer, source=names.get(transfer.source, transfer.source))
                    for transfer in step.transfers
                ),
            )
        case _:
            return step


def _is(a: object, b: object) -> bool:
    return a is b
