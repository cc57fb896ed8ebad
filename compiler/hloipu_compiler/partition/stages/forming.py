"""Rewrites the entry as calls of its stages and its update.

    step   = call(...), to_apply=step, frontend_attributes={ipu_phase="step"}
    update = call(...), to_apply=update, frontend_attributes={ipu_phase="wu"}

With stages the calls are `stage.0.forward`, …, `stage.0.backward`, with `ipu_phase` fwd or bwd and
`ipu_stage`. A stage whose branches run at once has a call for each, `stage.0.forward.branch.1` with
`ipu_branch`, and for what comes before and after them. What is the same for all micro-batches and
takes work is computed by a call with `ipu_phase="pre"`; constants, broadcasts of them and the like
are written out wherever they are read. As it stands, the entry computes one micro-batch and one
update: the step itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from hloipu_compiler.hlo.attributes.frontend_attributes import frontend_attributes_text
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module, element_of, with_computation
from hloipu_compiler.ir.shapes import TupleShape
from hloipu_compiler.partition.stages.assignment import Stages
from hloipu_compiler.partition.stages.branch_places import Spot, Spots
from hloipu_compiler.partition.stages.handing import Handing, closure, written_out
from hloipu_compiler.partition.stages.independent_parts import JOIN
from hloipu_compiler.partition.training.reach import result_positions
from hloipu_compiler.partition.training.step_phases import BACKWARD, FORWARD, FREE, UPDATE, Phases
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.rewriting import with_operands
from hloipu_compiler.plan.wrapping import Wrapping

STEP, PRE = "step", "pre"
ALONE = Spot(-1, JOIN)
"""Of ops of stages that have no branches."""


class Place(NamedTuple):
    """One call of the formed entry; they sort in the order of the calls."""

    rank: int
    phase: str
    stage: int
    spot: Spot = ALONE

    @property
    def computation(self) -> str:
        """Name of what is called."""
        branch = "" if self.spot.branch == JOIN else f".branch.{self.spot.branch}"
        match self.phase:
            case "fwd":
                return f"stage.{self.stage}.forward{branch}"
            case "bwd":
                return f"stage.{self.stage}.backward{branch}"
            case "wu":
                return "update"
            case phase:
                return f"{phase}{branch}"

    def attributes(self) -> str:
        """Return the text that says what the call is."""
        said = {"ipu_phase": self.phase}
        if self.phase in (FORWARD, BACKWARD):
            said["ipu_stage"] = str(self.stage)
        if self.spot.branch != JOIN:
            said["ipu_branch"] = str(self.spot.branch)
        return frontend_attributes_text(said)


@dataclass(frozen=True, slots=True)
class Formed:
    """A module whose entry calls its stages, and where values of the old entry are found."""

    module: Module
    calls: tuple[tuple[Place, str], ...]
    """In order, with the name of the call."""
    elements: dict[int, tuple[str, int]]
    """Old position -> name of the call and which of its results, for what one call hands to
    another or to the result."""


def formed(
    module: Module,
    phases: Phases,
    stages: Stages,
    count: int,
    again: Mapping[int, frozenset[int]] = MappingProxyType({}),
    spots: Spots = MappingProxyType({}),
    ipus: Sequence[tuple[int, ...]] = (),
) -> Formed:
    """Return the module with an entry of calls; `stages` of every position, `count` of them.

    `again`: what the backward part of a stage makes again of its forward part; `spots`: of ops of
    stages on several IPUs; `ipus`: of each stage, empty: each on its own.
    """
    return _Forming(module, phases, stages, count, again, spots, ipus).formed()


@dataclass
class _Forming:
    """The entry being cut up."""

    module: Module
    phases: Phases
    stages: Stages
    count: int
    again: Mapping[int, frozenset[int]]
    spots: Spots
    ipus: Sequence[tuple[int, ...]]

    def __post_init__(self) -> None:
        self.ipus = self.ipus or tuple((n,) for n in range(self.count))
        self.entry = self.module.entry
        self.names = Names(c.name for c in self.module.computations)
        self.cheap = written_out(self.entry, self.phases)
        self.place = self._places()

    def formed(self) -> Formed:
        members: dict[Place, list[int]] = {}
        for position in self._handed_out():
            self.place[position] = self.place[position] or self._last()
        for position, place in enumerate(self.place):
            if place is not None:
                members.setdefault(place, []).append(position)
        order = sorted(members)
        handing = self._handing(order, members)
        live = handing.live(handing.remade(), self._handed_out())
        reads = [closure(self.entry, self.cheap, body)[1] for body, _ in live]
        relays = handing.relays(reads)
        passed_by: dict[int, list[int]] = {}
        for i, number in sorted({(i, number) for (_, i), number in relays.items()}):
            passed_by.setdefault(number, []).append(i)
        instructions: list[Instruction] = []
        at: dict[int, int] = {}
        for position in self.entry.parameters:
            at[position] = len(instructions)
            instructions.append(self.entry.instructions[position])
        entry_names = Names(op.name for op in instructions)
        computations, calls, element_by_position = [], [], {}
        passed: dict[tuple[int, int], int] = {}
        for number, place in enumerate(order):
            whole, results = live[number]
            if not whole:
                continue
            on = passed_by.get(number, ())
            body = self._body(place, whole, reads[number], results, on)
            computations.append(body)
            shape = body.instructions[body.root].shape
            name = entry_names.fresh(f"call.{body.name}")
            operands = tuple(
                passed[relays[number, i], i]
                if (number, i) in relays
                else self._placed(i, at, instructions, entry_names)
                for i in reads[number]
            )
            attributes = Attributes(
                {"to_apply": body.name, "frontend_attributes": place.attributes()}, (body.name,)
            )
            call = len(instructions)
            instructions.append(Instruction(name, "call", shape, operands, attributes))
            calls.append((place, name))
            for element, position in enumerate((*results, *on)):
                x = self.entry.instructions[position]
                if element < len(results):
                    at[position] = len(instructions)
                    element_by_position[position] = (name, element)
                else:
                    passed[number, position] = len(instructions)
                own = entry_names.fresh(x.name)
                instructions.append(element_of(own, call, element, x.shape))
        root = self._placed(self.entry.root, at, instructions, entry_names)
        entry = replace(self.entry, instructions=tuple(instructions), root=root)
        others = [c for c in self.module.computations if c.name != self.entry.name]
        every = (*others, *computations, entry)
        new = replace(self.module, computations=every, entry_position=len(every) - 1)
        return Formed(new, tuple(calls), element_by_position)

    def _places(self) -> list[Place | None]:
        """Return the call that makes each value; None: a parameter, dead, or written out."""
        place_by_position: list[Place | None] = [None] * len(self.entry.instructions)
        for position in range(len(self.entry.instructions) - 1, -1, -1):
            phase = self.phases.phase[position]
            if self.cheap[position]:
                continue
            if phase == UPDATE:
                place_by_position[position] = self._last()
            elif phase in (FORWARD, BACKWARD):
                spot = self.spots.get(position, ALONE)
                place_by_position[position] = self._working(phase, self.stages[position], spot)
            elif phase == FREE:
                place_by_position[position] = self._free(position, place_by_position)
        for position, op in enumerate(self.entry.instructions):
            if op.opcode == "get-tuple-element" and place_by_position[position] is not None:
                place_by_position[position] = (
                    place_by_position[op.operands[0]] or place_by_position[position]
                )
        return place_by_position

    def _working(self, phase: str, stage: int, spot: Spot) -> Place:
        if self.count == 1:
            return Place(1, STEP, 0, spot)
        rank = stage if phase == FORWARD else 2 * self.count - 1 - stage
        return Place(1 + rank, phase, stage, spot)

    def _free(self, position: int, place_by_position: Sequence[Place | None]) -> Place:
        """Return where a value that does not vary is made: by the update if only it reads it."""
        waiting, seen = [position], {position}
        while waiting:
            for user in self.entry.users[waiting.pop()]:
                place = place_by_position[user]
                if self.cheap[user]:
                    if user not in seen:
                        seen.add(user)
                        waiting.append(user)
                elif place is not None and place.phase != UPDATE:
                    return Place(0, PRE, -1)
        return self._last()

    def _handing(self, order: Sequence[Place], members: Mapping[Place, list[int]]) -> Handing:
        number = {place: n for n, place in enumerate(order)}
        place = [-1 if place is None else number[place] for place in self.place]
        bodies = [self._with_again(place, members[place]) for place in order]
        runs = (FORWARD, BACKWARD)
        ipus = [
            self.ipus[place.stage][max(place.spot.branch, 0)] if place.phase in runs else -1
            for place in order
        ]
        stages = [(place.phase, place.stage) for place in order]
        return Handing(self.entry, self.phases, self.cheap, place, bodies, ipus, stages)

    def _with_again(self, place: Place, members: Sequence[int]) -> list[int]:
        """Return the ops that a call computes: its own members, and those that it recomputes.

        Of a stage with branches that is what the call needs of its own branch.
        """
        again = self.again.get(place.stage, ()) if place.phase == BACKWARD else ()
        if not again or place.spot == ALONE:
            return sorted({*members, *(i for i in again if not self.cheap[i])})
        computed, waiting = set(members), list(members)
        while waiting:
            for i in self.entry.instructions[waiting.pop()].operands:
                mine = i in again and self.spots[i].branch == place.spot.branch
                if i not in computed and (mine or self.cheap[i]):
                    computed.add(i)
                    waiting.append(i)
        return sorted(i for i in computed if not self.cheap[i])

    def _last(self) -> Place:
        """Return the call that makes results which take no work and do not vary."""
        return Place(2 * self.count + 2, UPDATE, -1)

    def _handed_out(self) -> list[int]:
        """Return the values that the result consists of, but for parameters."""
        handed_out: list[int] = []
        waiting = [self.entry.root]
        while waiting:
            position = waiting.pop()
            op = self.entry.instructions[position]
            if op.opcode == "tuple":
                waiting.extend(op.operands)
            elif op.parameter_number < 0:
                handed_out.append(position)
        return sorted(set(handed_out))

    def _body(
        self,
        place: Place,
        whole: Sequence[int],
        reads: Sequence[int],
        results: Sequence[int],
        relayed: Sequence[int],
    ) -> Computation:
        """Return a call's computation, with the operands that it passes on among its results."""
        copied, _ = closure(self.entry, self.cheap, whole)
        names = Names(self.entry.instructions[i].name for i in (*whole, *copied))
        instructions: list[Instruction] = []
        at: dict[int, int] = {}
        for number, position in enumerate(reads):
            at[position] = number
            old = self.entry.instructions[position]
            name = names.fresh(f"{old.name}.in")
            instructions.append(Instruction(name, "parameter", old.shape, parameter_number=number))
        for position in sorted((*copied, *whole)):
            self._write(position, at, instructions)
        handed = [at[position] for position in results]
        for position in relayed:
            old = self.entry.instructions[position]
            handed.append(len(instructions))
            name = names.fresh(f"{old.name}.passed")
            instructions.append(Instruction(name, "copy", old.shape, (at[position],)))
        shape = TupleShape(tuple(instructions[i].shape for i in handed))
        instructions.append(Instruction(names.fresh("results"), "tuple", shape, tuple(handed)))
        return Computation(
            self.names.fresh(place.computation), tuple(instructions), len(instructions) - 1
        )

    def _write(self, position: int, at: dict[int, int], instructions: list[Instruction]) -> int:
        op = self.entry.instructions[position]
        at[position] = len(instructions)
        instructions.append(with_operands(op, tuple(at[i] for i in op.operands)))
        return at[position]

    def _placed(
        self, position: int, at: dict[int, int], instructions: list[Instruction], names: Names
    ) -> int:
        """Return where a value stands in the new entry, its tuples written anew there."""
        waiting = [position]
        while waiting:
            i = waiting[-1]
            if i in at:
                waiting.pop()
                continue
            op = self.entry.instructions[i]
            missing = [operand for operand in op.operands if operand not in at]
            if missing:
                waiting.extend(missing)
                continue
            at[i] = len(instructions)
            moved = with_operands(op, tuple(at[operand] for operand in op.operands))
            instructions.append(moved._replace(name=names.fresh(op.name)))
            waiting.pop()
        return at[position]


def with_passed_copies(module: Module, wrapping: Wrapping) -> Module:
    """Return a flat module with a forward copy of each fed array that is a result.

    A call of a pipeline hands out what it makes, and each micro-batch has elements of its own.
    Results that are new state stay: they are the last element's.
    """
    entry = module.entry
    fed = {number for feed in wrapping.feeds for number in feed.places}
    state = {pair.result for pair in wrapping.state}
    results = result_positions(entry)
    passed = {
        number: position
        for number, position in enumerate(results)
        if position is not None
        and number not in state
        and entry.instructions[position].parameter_number in fed
    }
    if not passed:
        return module
    names = Names(op.name for op in entry.instructions)
    root = entry.instructions[entry.root]
    is_tuple = root.opcode == "tuple"
    at_end = entry.root == len(entry.instructions) - 1
    if is_tuple and not (at_end and len(root.operands) == len(results)):
        return module
    instructions = list(entry.instructions[:-1] if is_tuple else entry.instructions)
    copies: dict[int, int] = {}
    for position in dict.fromkeys(passed.values()):
        op = entry.instructions[position]
        copies[position] = len(instructions)
        instructions.append(
            Instruction(names.fresh(f"{op.name}.passed"), "copy", op.shape, (position,))
        )
    last = copies.get(entry.root, len(instructions))
    if is_tuple:
        handed = tuple(copies[at] if n in passed else at for n, at in enumerate(root.operands))
        instructions.append(with_operands(root, handed))
    new = replace(entry, instructions=tuple(instructions), root=last)
    return with_computation(module, new)
