"""The slow referee of programs: runs them tile by tile on tokens instead of numbers.

Each element of each value that a run makes has a token of its own, and each tile has a dictionary
of the parts that it holds. What vertices, exchanges and streams read must be the tokens that the
logical form names. Nothing of the verifier, the planners or the engines is used.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import prod
from random import Random
from typing import Any

import numpy as np

from hloipu_runtime.codelets.codelet import Index, Tensor
from hloipu_runtime.program.program import Program, Variable
from hloipu_runtime.program.steps import (
    Call,
    Carried,
    ComputeSet,
    Definition,
    Exchange,
    If,
    Operand,
    Parallel,
    Repeat,
    RepeatWhile,
    Sequence,
    Step,
    StreamIn,
    StreamOut,
    Switch,
    Transfer,
    VertexGroup,
)

Tokens = np.ndarray[Any, Any]
Ranges = tuple[tuple[int, int], ...]

NOTHING = -1
"""Token of memory that was not written."""

MOST_TURNS = 3
MOST_REPORTS = 50


def misread(program: Program, seed: int = 0, runs: int = 2) -> list[str]:
    """Return which results and decisions are not what the logical form says.

    Data from which none of them is computed may be wrong. Branches and turns of loops are drawn at
    random.
    """
    return [said for n in range(runs) for said in _Run(program, Random(seed + n), False).found()]


def violations(program: Program, tiles_per_ipu: int, seed: int = 0, runs: int = 2) -> list[str]:
    """Return everything that is wrong, data that nobody reads included."""
    return _misplaced(program, tiles_per_ipu) + [
        said for n in range(runs) for said in _Run(program, Random(seed + n), True).found()
    ]


def _misplaced(program: Program, tiles_per_ipu: int) -> list[str]:
    """Return the variables that lie on no tile, or twice on one."""
    found = []
    for x in program.variables:
        numbers = [tile for _, tile in _tiles(x.mapping.tiles)]
        if len(set(numbers)) != len(numbers):
            found.append(f"{x.name} lies twice on one tile")
        if min(numbers) < 0 or max(numbers) >= tiles_per_ipu:
            found.append(f"{x.name} lies on tiles {min(numbers)} to {max(numbers)}")
    return found


def _tiles(tiles: Any) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield the coordinates of a grid, and the tile at each."""
    for coordinate in product(*map(range, tiles.extents)):
        yield (
            coordinate,
            tiles.first
            + sum(k * stride for k, stride in zip(coordinate, tiles.strides, strict=True)),
        )


def _part(spans: Any, coordinate: tuple[int, ...], shape: tuple[int, ...]) -> Ranges:
    """Return the elements that spans give to the tile at a coordinate."""
    found = []
    for (axis, step, offset, length), size in zip(spans, shape, strict=True):
        start = offset + (coordinate[axis] * step if axis >= 0 else 0)
        low = min(max(start, 0), size)
        found.append((low, max(low, min(start + length, size))))
    return tuple(found)


def _cut(box: Ranges, within: Ranges | None = None) -> tuple[slice, ...]:
    """Return an index for a box, in an array that begins where `within` does."""
    starts = [low for low, _ in within] if within else [0] * len(box)
    return tuple(slice(low - s, high - s) for (low, high), s in zip(box, starts, strict=True))


def _inside(box: Ranges, other: Ranges) -> bool:
    return all(a <= low and high <= b for (low, high), (a, b) in zip(box, other, strict=True))


def _is_empty(box: Ranges) -> bool:
    return any(low >= high for low, high in box)


def _writes(program: Program, step: Step) -> Iterator[int]:
    """Yield the variables that a step may change."""
    match step:
        case ComputeSet():
            yield from (x.variable for group in step.groups for x in group.outputs)
        case Exchange():
            yield from (x.destination for x in step.transfers)
            yield from (x.variable for x in step.definitions)
        case StreamIn():
            yield step.variable
        case Sequence():
            yield from (v for inner in step.steps for v in _writes(program, inner))
        case If() | Switch() | Parallel():
            yield from (v for inner in step.branches for v in _writes(program, inner))
        case Repeat():
            yield from _writes(program, step.body)
        case RepeatWhile():
            yield from _writes(program, step.condition)
            yield from _writes(program, step.body)
        case Call():
            yield from _writes(program, program.functions[step.function])
        case _:
            pass


@lru_cache(1 << 16)
def _indices_for(index: Index, count: int, low: int, high: int, size: int) -> tuple[int, int]:
    """Return the iteration indices whose part of a result's dimension lies in [low, high)."""
    starts = np.arange(count) * index.stride + index.offset
    first, last = np.clip(starts, 0, size), np.clip(starts + index.window, 0, size)
    chosen = np.flatnonzero((first >= low) & (last <= high) & (first < last))
    return (int(chosen[0]), int(chosen[-1]) + 1) if len(chosen) else (0, 0)


def _touched(index: Index, first: int, last: int, size: int) -> tuple[int, int]:
    """Return the elements of a dimension behind indices [first, last); all where last is -1."""
    if last < 0:
        return (0, size)
    low = min(max(index.stride * first + index.offset, 0), size)
    high = index.stride * (last - 1) + index.offset + index.window
    return (low, max(low, min(high, size)) if last > first else low)


def _is_one_of(box: Ranges, allowed: list[Ranges]) -> bool:
    """Whether a part is what is needed, or all where that is allowed, or nothing where nothing is.

    The last of several parts may have more at its end: it is cut where the dimension is, and not
    where the indices are.
    """
    if _is_empty(box):
        return any(map(_is_empty, allowed))
    return all(
        have == whole or (have[0] == need[0] and have[1] >= need[1])
        for have, need, whole in zip(box, *allowed, strict=True)
    )


class _Run:
    """One run on tokens."""

    def __init__(self, program: Program, draw: Random, strict: bool) -> None:
        self.program = program
        self.draw = draw
        self.strict = strict
        self.reports: list[str] = []
        self.next = 0
        self.base: dict[int, int] = {}
        """First token of what a value is now."""
        self.memory: dict[tuple[int, int], tuple[Ranges, Tokens]] = {}
        """(variable, tile) -> the part that lies there, and its tokens."""
        self.given: dict[str, int] = {}

    def found(self) -> list[str]:
        for number, x in enumerate(self.program.variables):
            for coordinate, tile in _tiles(x.mapping.tiles):
                box = _part(x.mapping.spans, coordinate, x.shape)
                shape = [high - low for low, high in box]
                self.memory[number, tile] = (box, np.full(shape, NOTHING, np.int64))
        for variable, (value, _) in self.program.constants.items():
            self.fill(variable, value)
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

    def report(self, said: str) -> None:
        if len(self.reports) < MOST_REPORTS:
            self.reports.append(said)

    def fresh(self, value: int) -> None:
        """Give a value new tokens."""
        self.base[value] = self.next
        self.next += max(1, prod(self.program.values[value].shape))

    def tokens(self, value: int, box: Ranges | None = None) -> Tokens:
        """Return the tokens of a value's elements in a box, or of all."""
        shape = self.program.values[value].shape
        ranges = box if box is not None else tuple((0, n) for n in shape)
        base = self.base.get(value)
        if base is None:
            return np.full([high - low for low, high in ranges], NOTHING, np.int64)
        found = np.full((), base, np.int64)
        stride = prod(shape)
        for size, (low, high) in zip(shape, ranges, strict=True):
            stride //= max(size, 1)
            found = found[..., None] + np.arange(low, high, dtype=np.int64) * stride
        return found

    def parts(self, variable: int) -> Iterator[tuple[Ranges, Tokens]]:
        """Yield what every tile holds; of tiles that hold the same the one that is read comes last.

        That is the tile with the lowest numbers along axes that replicate, and of parts that
        overlap the last.
        """
        x: Variable = self.program.variables[variable]
        split = {span.axis for span in x.mapping.spans}
        places = sorted(
            _tiles(x.mapping.tiles),
            key=lambda place: [k if a in split else -k for a, k in enumerate(place[0])],
        )
        for _, tile in places:
            yield self.memory[variable, tile]

    def fill(self, variable: int, value: int) -> None:
        """Put a new value on all tiles of a variable."""
        self.fresh(value)
        for box, array in self.parts(variable):
            array[...] = self.tokens(value, box)

    def wipe(self, variables: set[int]) -> None:
        for variable in variables:
            for _, array in self.parts(variable):
                array[...] = NOTHING

    def whole(self, variable: int, place: str) -> Tokens:
        """Return all elements of a variable, wherever they lie."""
        x = self.program.variables[variable]
        found = np.full(x.shape, -2, np.int64)
        for box, array in self.parts(variable):
            found[_cut(box)] = array
        if np.any(found == -2):
            self.report(f"{place}: elements of {x.name} lie on no tile")
        return found

    def expect(self, variable: int, value: int, place: str) -> None:
        """Check a variable that is read as a whole."""
        if not np.array_equal(self.whole(variable, place), self.tokens(value)):
            name = self.program.variables[variable].name
            self.report(f"{place}: {name} does not hold value %{value}")
        elif self.strict:
            self.everywhere(variable, self.tokens(value), place)

    def everywhere(self, variable: int, expected: Tokens, place: str) -> None:
        """Check what all tiles hold, copies that nobody reads included."""
        for box, array in self.parts(variable):
            if not np.array_equal(array, expected[_cut(box)]):
                name = self.program.variables[variable].name
                self.report(f"{place}: a tile's part of {name} is not what it should be")
                return

    def walk(self, step: Step, place: str) -> None:
        match step:
            case Sequence():
                for number, inner in enumerate(step.steps):
                    self.walk(inner, f"{place}/{number}")
            case ComputeSet():
                self.compute(step, place)
            case Exchange():
                self.exchange(step, place)
            case StreamIn():
                self.fill(step.variable, step.value)
            case StreamOut():
                self.given[step.stream] = self.given.get(step.stream, 0) + 1
                self.expect(step.variable, step.value, place)
            case Parallel():
                for number, branch in enumerate(step.branches):
                    self.walk(branch, f"{place}|{number}")
            case Repeat():
                self.repeat(step, place)
            case RepeatWhile():
                self.repeat_while(step, place)
            case If() | Switch():
                self.branch(step, place)
            case Call():
                self.walk(self.program.functions[step.function], f"{place}/{step.function}")
            case _:
                pass

    def compute(self, step: ComputeSet, place: str) -> None:
        misled: set[tuple[int, int]] = set()
        for number, group in enumerate(step.groups):
            where = f"{place} {group.name}"
            for coordinate, tile in _tiles(group.tiles):
                wrong = self.vertex(group, coordinate, tile)
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
            for coordinate, tile in _tiles(group.tiles):
                right = (number, tile) not in misled
                self.written(operand, value, coordinate, tile, right, f"{place} {group.name}")

    def vertex(self, group: VertexGroup, coordinate: tuple[int, ...], tile: int) -> str:
        """Return what a vertex reads that is not what it needs, on its own tile; or nothing."""
        results = [self.box(x, coordinate) for x in group.outputs]
        if all(map(_is_empty, results)):
            return ""
        needed = self.needed(group, results)
        for operand, value, need in zip(group.inputs, group.reads, needed, strict=True):
            name = self.program.variables[operand.variable].name
            box = self.box(operand, coordinate)
            held = self.memory.get((operand.variable, tile))
            if not _is_one_of(box, need):
                return f"tile {tile} reads {box} of {name}, needed are {need[0]}"
            if held is None or not _inside(box, held[0]):
                return f"tile {tile} has no {box} of {name}"
            if not np.array_equal(held[1][_cut(box, held[0])], self.tokens(value, box)):
                return f"{name} on tile {tile} is not value %{value}"
        return ""

    def box(self, operand: Operand, coordinate: tuple[int, ...]) -> Ranges:
        return _part(operand.spans, coordinate, self.program.variables[operand.variable].shape)

    def needed(self, group: VertexGroup, results: list[Ranges]) -> list[list[Ranges]]:
        """Return the elements of each operand that parts of the results are computed from.

        Two boxes of each: what windows touch, and for indices of which a tile has all the whole
        dimension, which a codelet may then take instead.
        """
        x = self.program.variables
        tensors = [
            [Tensor(x[o.variable].element_type, x[o.variable].shape) for o in side]
            for side in (group.inputs, group.outputs)
        ]
        indexing = group.codelet.indexing(*tensors)
        labels: dict[int, tuple[int, int]] = {}
        for indices, box, tensor in zip(indexing.results, results, tensors[1], strict=True):
            for index, (low, high), size in zip(indices, box, tensor.shape, strict=True):
                if index.label >= 0:
                    count = indexing.sizes[index.label]
                    labels[index.label] = _indices_for(index, count, low, high, size)
        found = []
        for indices, tensor in zip(indexing.operands, tensors[0], strict=True):
            touched, whole = [], []
            for index, size in zip(indices, tensor.shape, strict=True):
                first, last = labels.get(index.label, (0, -1))
                touched.append(_touched(index, first, last, size))
                is_all = last < 0 or (first, last) == (0, indexing.sizes[index.label])
                whole.append((0, size) if is_all else touched[-1])
            found.append([tuple(touched), tuple(whole)])
        return found

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
        if held is None or not _inside(box, held[0]):
            self.report(f"{place}: tile {tile} writes {box} of {name}, which it does not have")
            return
        if self.strict and box != held[0]:
            self.report(f"{place}: tile {tile} leaves some of {name} unwritten")
        held[1][_cut(box, held[0])] = self.tokens(value, box) if right else NOTHING

    def exchange(self, step: Exchange, place: str) -> None:
        where = f"{place} {step.name}"
        sources = {x.source for x in step.transfers}
        targets = {x.destination for x in step.transfers}
        if any(prod(self.program.variables[v].shape) for v in sources & targets):
            self.report(f"{where}: a variable is sent and received at once")
        made = [self.meant(definition) for definition in step.definitions]
        sent = {v: self.whole(v, where) for v in sources}
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
            found[_cut(box)] = self.tokens(value).reshape(view)[_cut(moved)]
        return found

    def receive(self, transfer: Transfer, sent: Tokens, place: str) -> None:
        """Copy, tile by tile, what a transfer says."""
        x = self.program.variables[transfer.destination]
        source = sent.reshape(transfer.view)
        extents = tuple((0, n) for n in transfer.view)
        for coordinate, tile in _tiles(transfer.tiles):
            if not _inside(tuple((k, k + 1) for k in coordinate), transfer.receivers):
                continue
            part = _part(transfer.spans, coordinate, x.shape)
            box = tuple(
                (max(a, low), min(b, high))
                for (a, b), (low, high) in zip(part, transfer.box, strict=True)
            )
            if _is_empty(box):
                continue
            moved = tuple((a + k, b + k) for (a, b), k in zip(box, transfer.shift, strict=True))
            held = self.memory.get((transfer.destination, tile))
            if held is None or not _inside(box, held[0]) or not _inside(moved, extents):
                self.report(f"{place}: tile {tile} receives {box} of {x.name} from {moved}")
                continue
            held[1][_cut(box, held[0])] = source[_cut(moved)]

    def arrived(self, definition: Definition, expected: Tokens, place: str) -> None:
        """Check what an exchange left, and give it the tokens of the value that it makes."""
        if self.strict:
            self.everywhere(definition.variable, expected, place)
        if np.array_equal(expected, self.tokens(definition.value)) and np.all(expected >= 0):
            return
        self.fresh(definition.value)
        for box, array in self.parts(definition.variable):
            right = (array == expected[_cut(box)]) & (array >= 0)
            array[...] = np.where(right, self.tokens(definition.value, box), NOTHING)

    def start_turn(self, carried: tuple[Carried, ...], *bodies: Sequence) -> None:
        """Take away what the turn before left, apart from what is handed on."""
        changed = {v for body in bodies for v in _writes(self.program, body)}
        self.wipe(changed - {item.variable for item in carried})

    def rename(self, carried: tuple[Carried, ...], old: str, new: str) -> None:
        """Let values be what others are now."""
        bases = [self.base.get(getattr(item, old)) for item in carried]
        for item, base in zip(carried, bases, strict=True):
            self.base.pop(getattr(item, new), None)
            if base is not None:
                self.base[getattr(item, new)] = base

    def carry(self, carried: tuple[Carried, ...], which: str, place: str) -> None:
        if self.strict:
            for item in carried:
                self.expect(item.variable, getattr(item, which), place)

    def repeat(self, step: Repeat, place: str) -> None:
        self.carry(step.carried, "initial", place)
        self.rename(step.carried, "initial", "turn")
        for _ in range(min(step.count, MOST_TURNS)):
            self.start_turn(step.carried, step.body)
            self.walk(step.body, f"{place}/repeat")
            self.carry(step.carried, "following", place)
            self.rename(step.carried, "following", "turn")
        self.rename(step.carried, "turn", "final")

    def repeat_while(self, step: RepeatWhile, place: str) -> None:
        self.carry(step.carried, "initial", place)
        self.rename(step.carried, "initial", "turn")
        turns = self.draw.randint(0, MOST_TURNS)
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
        number = self.draw.randrange(len(step.branches))
        self.walk(step.branches[number], f"{place}?{number}")
        for item in step.merged:
            value = item.branch_values[number]
            if self.strict:
                self.expect(item.variable, value, f"{place}?{number}")
            self.base.pop(item.value, None)
            if value in self.base:
                self.base[item.value] = self.base[value]
