"""The slow referee of programs: runs them tile by tile on tokens instead of numbers.

Each element of each value that a run makes has a token of its own, and each tile has a dictionary
of the parts that it holds. What vertices, exchanges and streams read must be the tokens that the
logical form names, and what tiles do for each other must be apart by barriers (`tile_clocks`).
Nothing of the verifier, the planners or the engines is used.
"""

from math import prod
from random import Random

import numpy as np

from hloipu_runtime.program.collective import Collective, RemoteCopy
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import (
    Call,
    Carried,
    ComputeSet,
    Definition,
    Exchange,
    If,
    Operand,
    Parallel,
    Passed,
    Pipeline,
    Repeat,
    RepeatWhile,
    Sequence,
    Step,
    StreamIn,
    StreamOut,
    Switch,
    Sync,
    Transfer,
    VertexGroup,
)
from tests.support.counted_parts import (
    Ranges,
    cut,
    is_empty,
    is_inside,
    is_one_of,
    needed_parts,
    part_of,
    tiles_of,
)
from tests.support.program_steps import most_branches, reads, writes
from tests.support.tile_clocks import TileClocks
from tests.support.token_memory import NOTHING, TokenMemory, Tokens
from tests.support.token_pipelines import TokenPipeline, copy_whole

MOST_ITERATIONS = 3


def misread(program: Program, seed: int = 0, runs: int = 2) -> list[str]:
    """Return which results and decisions are not what the logical form says.

    Data from which none of them is computed may be wrong. Every branch is taken in one of the runs
    at least; in the last `runs` of them branches and turns of loops are drawn at random.
    """
    return _found(program, False, seed, runs)


def violations(program: Program, tiles_per_ipu: int, seed: int = 0, runs: int = 2) -> list[str]:
    """Return everything that is wrong, data that nobody reads included."""
    return _misplaced(program, tiles_per_ipu) + _found(program, True, seed, runs)


def _found(program: Program, strict: bool, seed: int, runs: int) -> list[str]:
    most = max(map(most_branches, (program.body, *program.functions.values())))
    every = [_Run(program, _Choices(fixed=n), strict) for n in range(most if most > 1 else 0)]
    drawn = [_Run(program, _Choices(draw=Random(seed + n)), strict) for n in range(runs)]
    return [said for run in (*every, *drawn) for said in run.found()]


class _Choices:
    """What data would decide: always the same way, or at random."""

    def __init__(self, draw: Random | None = None, fixed: int = 0) -> None:
        self.draw = draw
        self.fixed = fixed

    def turns(self) -> int:
        return self.draw.randint(0, MOST_ITERATIONS) if self.draw else 2

    def branch(self, count: int) -> int:
        return self.draw.randrange(count) if self.draw else self.fixed % count


def _misplaced(program: Program, tiles_per_ipu: int) -> list[str]:
    """Return the variables that lie on no tile, or twice on one."""
    found = []
    for x in program.variables:
        numbers = [tile for _, tile in tiles_of(x.mapping.tiles)]
        if len(set(numbers)) != len(numbers):
            found.append(f"{x.name} lies twice on one tile")
        if min(numbers) < 0 or max(numbers) >= tiles_per_ipu:
            found.append(f"{x.name} lies on tiles {min(numbers)} to {max(numbers)}")
    return found


class _Run(TokenMemory):
    """One run on tokens."""

    def __init__(self, program: Program, choices: _Choices, strict: bool) -> None:
        super().__init__(program, strict)
        self.choices = choices
        self.given: dict[str, int] = {}
        self.clocks = TileClocks(program, self.report)
        self.counted: dict[int, list[tuple[int, list[Ranges], str]]] = {}
        """By the `id` of a group of the program, which is always the same."""

    def found(self) -> list[str]:
        for variable, (value, _) in self.program.constants.items():
            self.load(variable, value)
        for port in self.program.state:
            self.fill(port.variable, port.initial)
        self.walk(self.program.body, "body")
        for port in self.program.state:
            self.expect(port.variable, port.final, f"end of {port.name}")
        if self.strict and not self.program.queues:
            for stream in (port.stream for port in self.program.results):
                if self.given.get(stream) != 1:
                    self.report(f"{stream} is given {self.given.get(stream, 0)} times")
        return self.reports

    def walk(self, step: Step, place: str) -> None:
        match step:
            case Sequence():
                for number, inner in enumerate(step.steps):
                    self.walk(inner, f"{place}/{number}")
            case ComputeSet():
                self.compute(step, place)
            case Exchange():
                self.exchange(step, place)
            case Sync():
                self.clocks.meet(step.ipus)
            case StreamIn():
                self.clocks.fills_tiles(step.variable, place)
                self.clocks.uses_everywhere(step.variable, writes=True)
                self.fill(step.variable, step.value)
            case StreamOut():
                self.clocks.leaves_tiles(step.variable, place)
                self.clocks.uses_everywhere(step.variable, writes=False)
                self.given[step.stream] = self.given.get(step.stream, 0) + 1
                self.expect(step.variable, step.value, place)
            case Collective():
                self.clocks.several_ipus((x.variable for x in (*step.inputs, *step.outputs)), place)
                for moved in step.inputs:
                    self.clocks.leaves_tiles(moved.variable, place)
                    self.expect(moved.variable, moved.value, place)
                for moved in step.outputs:
                    self.clocks.fills_tiles(moved.variable, place)
                    self.clocks.uses_everywhere(moved.variable, writes=True)
                    self.fill(moved.variable, moved.value)
            case RemoteCopy():
                if self.strict:
                    self.expect(step.source, step.value, place)
                # A request to remote memory waits until all tiles have asked: it races nobody.
                for variable in (step.source, step.destination):
                    self.clocks.uses_everywhere(variable, writes=variable == step.destination)
                copy_whole(self, step.source, step.destination, place)
            case Pipeline():
                TokenPipeline(self, self, step, place).go()
            case Parallel():
                before = self.clocks.ipus_here
                for number, branch in enumerate(step.branches):
                    touched = {*reads(self.program, branch), *writes(self.program, branch)}
                    here = {self.program.variables[v].ipu for v in touched}
                    self.clocks.ipus_here = max(1, len(here))
                    self.walk(branch, f"{place}|{number}")
                self.clocks.ipus_here = before
            case Repeat():
                self.repeat(step, place)
            case RepeatWhile():
                self.repeat_while(step, place)
            case If() | Switch():
                self.branch(step, place)
            case Call():
                self.call(step, place)
            case _:
                pass

    def compute(self, step: ComputeSet, place: str) -> None:
        misled: set[tuple[int, int]] = set()
        for number, group in enumerate(step.groups):
            where = f"{place} {group.name}"
            for tile, operands, wrong in self.vertices(group):
                wrong = wrong or self.misreads(group, tile, operands)
                for operand in group.inputs:
                    self.clocks.uses(operand.variable, tile, writes=False)
                for operand in group.outputs:
                    self.clocks.uses(operand.variable, tile, writes=True)
                if wrong:
                    misled.add((number, tile))
                if wrong and self.strict:
                    self.report(f"{where}: {wrong}")
        writers = [
            (operand, value, number)
            for number, group in enumerate(step.groups)
            for operand, value in zip(group.outputs, group.writes, strict=True)
        ]
        touched = [x.variable for x, _, _ in writers]
        read = {(x.variable, n) for n, group in enumerate(step.groups) for x in group.inputs}
        if len(set(touched)) != len(touched) or any(
            x.variable == v and number != n for x, _, number in writers for v, n in read
        ):
            self.report(f"{place}: a variable is used by one group while another writes it")
        for operand, value, number in writers:
            self.fresh(value)
            group = step.groups[number]
            for coordinate, tile in tiles_of(group.tiles):
                right = (number, tile) not in misled
                self.written(operand, value, coordinate, tile, right, f"{place} {group.name}")

    def vertices(self, group: VertexGroup) -> list[tuple[int, list[Ranges], str]]:
        """Return tiles, the parts that each reads, and how they are not those it needs."""
        if id(group) not in self.counted:
            self.counted[id(group)] = [
                (tile, *self.vertex(group, coordinate, tile))
                for coordinate, tile in tiles_of(group.tiles)
            ]
        return self.counted[id(group)]

    def vertex(
        self, group: VertexGroup, coordinate: tuple[int, ...], tile: int
    ) -> tuple[list[Ranges], str]:
        results = [self.box(x, coordinate) for x in group.outputs]
        if all(map(is_empty, results)):
            return [], ""
        boxes = [self.box(x, coordinate) for x in group.inputs]
        needed = needed_parts(self.program, group, results)
        for operand, box, need in zip(group.inputs, boxes, needed, strict=True):
            name = self.program.variables[operand.variable].name
            held = self.memory.get((operand.variable, tile))
            if not is_one_of(box, need):
                return boxes, f"tile {tile} reads {box} of {name}, needed are {need[0]}"
            if held is None or not is_inside(box, held[0]):
                return boxes, f"tile {tile} has no {box} of {name}"
        return boxes, ""

    def misreads(self, group: VertexGroup, tile: int, boxes: list[Ranges]) -> str:
        """Return which of the parts that a vertex reads is another value's; or nothing."""
        if not boxes:
            return ""
        for operand, value, box in zip(group.inputs, group.reads, boxes, strict=True):
            held, tokens = self.memory[operand.variable, tile]
            if not np.array_equal(tokens[cut(box, held)], self.tokens(value, box)):
                name = self.program.variables[operand.variable].name
                return f"{name} on tile {tile} is not value %{value}"
        return ""

    def box(self, operand: Operand, coordinate: tuple[int, ...]) -> Ranges:
        return part_of(operand.spans, coordinate, self.program.variables[operand.variable].shape)

    def written(
        self,
        operand: Operand,
        value: int,
        coordinate: tuple[int, ...],
        tile: int,
        right: bool,
        place: str,
    ) -> None:
        """Put the tokens of a result on its tile, if it was computed from the right parts."""
        name = self.program.variables[operand.variable].name
        box = self.box(operand, coordinate)
        held = self.memory.get((operand.variable, tile))
        if held is None or not is_inside(box, held[0]):
            self.report(f"{place}: tile {tile} writes {box} of {name}, which it does not have")
            return
        if self.strict and box != held[0]:
            self.report(f"{place}: tile {tile} leaves some of {name} unwritten")
        held[1][cut(box, held[0])] = self.tokens(value, box) if right else NOTHING

    def exchange(self, step: Exchange, place: str) -> None:
        where = f"{place} {step.name}"
        sources = {x.source for x in step.transfers}
        targets = {x.destination for x in step.transfers}
        if any(prod(self.program.variables[v].shape) for v in sources & targets):
            self.report(f"{where}: a variable is sent and received at once")
        made = [self.meant(definition) for definition in step.definitions]
        sent = {v: self.whole(v, where) for v in sources}
        self.clocks.transfers(step.transfers, where)
        for transfer in step.transfers:
            self.receive(transfer, sent[transfer.source], where)
        for definition, expected in zip(step.definitions, made, strict=True):
            self.arrived(definition, expected, where)

    def meant(self, definition: Definition) -> Tokens:
        """Return the tokens that a definition puts together."""
        shape = self.program.variables[definition.variable].shape
        if definition.base is None:
            found = np.full(shape, NOTHING, np.int64)
        else:
            found = self.tokens(definition.base).copy()
        for value, view, box, shift in definition.pieces:
            moved = tuple((low + k, high + k) for (low, high), k in zip(box, shift, strict=True))
            found[cut(box)] = self.tokens(value).reshape(view)[cut(moved)]
        return found

    def receive(self, transfer: Transfer, sent: Tokens, place: str) -> None:
        """Copy, tile by tile, what a transfer says."""
        x = self.program.variables[transfer.destination]
        source = sent.reshape(transfer.view)
        extents = tuple((0, n) for n in transfer.view)
        for coordinate, tile in tiles_of(transfer.tiles):
            if not is_inside(tuple((k, k + 1) for k in coordinate), transfer.receivers):
                continue
            part = part_of(transfer.spans, coordinate, x.shape)
            box = tuple(
                (max(a, low), min(b, high))
                for (a, b), (low, high) in zip(part, transfer.box, strict=True)
            )
            if is_empty(box):
                continue
            moved = tuple((a + k, b + k) for (a, b), k in zip(box, transfer.shift, strict=True))
            held = self.memory.get((transfer.destination, tile))
            if held is None or not is_inside(box, held[0]) or not is_inside(moved, extents):
                self.report(f"{place}: tile {tile} receives {box} of {x.name} from {moved}")
                continue
            held[1][cut(box, held[0])] = source[cut(moved)]

    def arrived(self, definition: Definition, expected: Tokens, place: str) -> None:
        """Check what an exchange left, and give it the tokens of the value that it makes."""
        if self.strict:
            self.everywhere(definition.variable, expected, place)
        if np.array_equal(expected, self.tokens(definition.value)) and np.all(expected >= 0):
            return
        self.fresh(definition.value)
        for box, array in self.parts(definition.variable):
            right = (array == expected[cut(box)]) & (array >= 0)
            array[...] = np.where(right, self.tokens(definition.value, box), NOTHING)

    def call(self, step: Call, place: str) -> None:
        """Run a function on what it is handed, and keep of it only what it hands back."""
        body = self.program.functions[step.function]
        changed = set(writes(self.program, body))
        self.carry(step.arguments, "outer", place)
        self.wipe(changed - {item.variable for item in step.arguments})
        self.rename(step.arguments, "outer", "inner")
        self.walk(body, f"{place}/{step.function}")
        self.carry(step.results, "inner", place)
        self.rename(step.results, "inner", "outer")
        self.wipe(changed - {item.variable for item in step.results})

    def start_turn(self, carried: tuple[Carried, ...], *bodies: Sequence) -> None:
        """Take away what the turn before left, apart from what is handed on."""
        changed = {v for body in bodies for v in writes(self.program, body)}
        self.wipe(changed - {item.variable for item in carried})

    def rename(self, carried: tuple[Carried | Passed, ...], old: str, new: str) -> None:
        """Let values be what others are now."""
        bases = [self.base.get(getattr(item, old)) for item in carried]
        for item, base in zip(carried, bases, strict=True):
            self.base.pop(getattr(item, new), None)
            if base is not None:
                self.base[getattr(item, new)] = base

    def carry(self, carried: tuple[Carried | Passed, ...], which: str, place: str) -> None:
        if self.strict:
            for item in carried:
                self.expect(item.variable, getattr(item, which), place)

    def repeat(self, step: Repeat, place: str) -> None:
        self.carry(step.carried, "initial", place)
        self.rename(step.carried, "initial", "turn")
        for _ in range(min(step.count, MOST_ITERATIONS)):
            self.start_turn(step.carried, step.body)
            self.walk(step.body, f"{place}/repeat")
            self.carry(step.carried, "following", place)
            self.rename(step.carried, "following", "turn")
        self.rename(step.carried, "turn", "final")

    def repeat_while(self, step: RepeatWhile, place: str) -> None:
        self.carry(step.carried, "initial", place)
        self.rename(step.carried, "initial", "turn")
        turns = self.choices.turns()
        for turn in range(turns + 1):
            self.start_turn(step.carried, step.condition, step.body)
            self.walk(step.condition, f"{place}/condition")
            self.expect(step.predicate, step.predicate_value, place)
            if turn == turns:
                break
            self.walk(step.body, f"{place}/while")
            self.carry(step.carried, "following", place)
            self.rename(step.carried, "following", "turn")
        self.rename(step.carried, "turn", "final")

    def branch(self, step: If | Switch, place: str) -> None:
        if isinstance(step, If):
            self.expect(step.predicate, step.predicate_value, place)
        else:
            self.expect(step.index, step.index_value, place)
        number = self.choices.branch(len(step.branches))
        self.walk(step.branches[number], f"{place}?{number}")
        for item in step.merged:
            value = item.branch_values[number]
            if self.strict:
                self.expect(item.variable, value, f"{place}?{number}")
            self.base.pop(item.value, None)
            if value in self.base:
                self.base[item.value] = self.base[value]
