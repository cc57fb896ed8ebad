"""Placement cells: ops, parameters and loop state that must lie on one IPU.

Tuples and what is taken out of them are no cells: a cell is found behind them. The state of a loop
has a cell for each array, read by what the body takes it for and made by what it starts from and
by the body; so has each result of a branch. A parameter of the entry that is state is made by its
next value. Constants lie everywhere. Calls, into which a step is cut, are walked through.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import Shape, TupleShape, byte_count, leaves
from hloipu_compiler.partition.placement.handing_down import Ipu, leaf_count, said

OpKey = tuple[str, str]
"""Names of a computation and of an op in it."""
PlaceKey = tuple[str, str, int]
"""Of the entry, a parameter and a leaf of it; or of a loop or branch and a leaf of its result."""
_NOTHING = -1
"""In place of a cell: a constant or a token."""


@dataclass(slots=True)
class Cell:
    """One op, or one array that is held."""

    key: OpKey | PlaceKey
    said: Ipu
    bytes: int
    operands: list[int] = field(default_factory=list)
    users: list[int] = field(default_factory=list)


@dataclass
class Cells:
    """All cells of a module, in the order of its text."""

    cells: list[Cell]
    constants: list[tuple[OpKey, list[int]]]
    """With their users."""
    results: list[tuple[PlaceKey, int]]
    """Arrays that calls give, with the cells that make them."""


def cells_of(
    module: Module,
    known: Mapping[OpKey, int],
    settled: Mapping[PlaceKey, int],
    state: Sequence[tuple[int, int]] = (),
    partitions: int = 1,
) -> Cells:
    """Return the cells of a module.

    `known` has the IPUs of ops that say nothing themselves, `settled` those of places that were
    settled before, which hold for what has as many leaves as it had then. `state`: numbers of
    parameters and results, tuples flattened, that are one array from run to run.
    """
    making = _Making(module, known, settled, partitions)
    given, results = making.entry()
    for parameter, result in state:
        if result < len(results) and parameter < len(given):
            making.reads(given[parameter], [results[result]])
    results_in_cells = [(key, cell) for key, cell in making.results if cell >= 0]
    return Cells(making.cells, list(making.constants.values()), results_in_cells)


@dataclass(frozen=True, slots=True)
class _Op:
    """One op where it is walked over."""

    computation: Computation
    instruction: Instruction
    stated: tuple[Ipu, ...]
    """What it says of each leaf of its result; nothing: it does not say."""
    known: Sequence[Sequence[int]] = ()
    """The cells of each op before it."""
    default: Ipu = None
    """Where ops are that say nothing."""

    @property
    def key(self) -> OpKey:
        return (self.computation.name, self.instruction.name)

    @property
    def inside(self) -> Ipu:
        """Where the ops are that a loop or branch runs, unless they say more."""
        return self.stated[0] if len(set(self.stated)) == 1 else self.default

    def given(self, number: int) -> Sequence[int]:
        return self.known[self.instruction.operands[number]]


class _Making:
    def __init__(
        self,
        module: Module,
        known: Mapping[OpKey, int],
        settled: Mapping[PlaceKey, int],
        partitions: int,
    ) -> None:
        self.module = module
        self.known = known
        self.settled = settled
        self.settled_leaves = Counter((computation, name) for computation, name, _ in settled)
        self.partitions = partitions
        self.cells: list[Cell] = []
        self.constants: dict[int, tuple[OpKey, list[int]]] = {}
        """By what stands for it in place of a cell, below `_NOTHING`."""
        self.results: list[tuple[PlaceKey, int]] = []
        """Of calls, with the cell of each."""

    def entry(self) -> tuple[list[int], list[int]]:
        """Return the cells of the entry's parameters and results, arrays counted."""
        entry = self.module.entry
        arguments = []
        for position in entry.parameters:
            op = entry.instructions[position]
            arguments.append(self._held(_Op(entry, op, self._stated(entry, op))))
        results = self._walk(entry, arguments, None)
        tokens = [
            at
            for position, cells in zip(entry.parameters, arguments, strict=True)
            for at, kind in zip(cells, _leaves(entry.instructions[position].shape), strict=True)
            if not _is_token(kind)
        ]
        return tokens, results

    def reads(self, cell: int, operands: Sequence[int]) -> None:
        for operand in dict.fromkeys(operands):
            if operand >= 0:
                self.cells[cell].operands.append(operand)
                self.cells[operand].users.append(cell)
            elif operand < _NOTHING:
                self.constants[operand][1].append(cell)

    def _stated(self, computation: Computation, op: Instruction) -> tuple[Ipu, ...]:
        stated = said(op, self.partitions)
        key = (computation.name, op.name)
        if not stated and key in self.known:
            stated = (self.known[key],) * leaf_count(op)
        return stated

    def _add(self, key: OpKey | PlaceKey, ipu: Ipu, size: int, operands: Sequence[int]) -> int:
        self.cells.append(Cell(key, ipu, size))
        self.reads(len(self.cells) - 1, operands)
        return len(self.cells) - 1

    def _held(self, op: _Op) -> list[int]:
        shapes = _leaves(op.instruction.shape)
        arrays = sum(not _is_token(shape) for shape in shapes)
        is_settled = self.settled_leaves[op.key] == arrays
        cells = []
        for number, shape in enumerate(shapes):
            if _is_token(shape):
                cells.append(_NOTHING)
                continue
            key = (*op.key, number)
            ipu = op.stated[number] if op.stated else None
            if ipu is None and is_settled:
                ipu = self.settled.get(key)
            ipu = op.inside if ipu is None else ipu
            cells.append(self._add(key, ipu, byte_count(shape), []))
        return cells

    def _walk(
        self, computation: Computation, arguments: Sequence[Sequence[int]], default: Ipu
    ) -> list[int]:
        """Return the cells of a computation's result; `default`: where ops are that say nothing."""
        known: list[Sequence[int]] = []
        for instruction in computation.instructions:
            if instruction.parameter_number >= 0:
                known.append(arguments[instruction.parameter_number])
            else:
                op = _Op(
                    computation, instruction, self._stated(computation, instruction), known, default
                )
                known.append(self._cells(op))
        return list(known[computation.root])

    def _cells(self, op: _Op) -> Sequence[int]:
        instruction = op.instruction
        if instruction.opcode == "tuple":
            return self._operands(op)
        if instruction.opcode == "get-tuple-element":
            return self._element(op)
        if instruction.opcode == "after-all":
            return [_NOTHING]
        if instruction.opcode == "constant":
            mark = _NOTHING - 1 - len(self.constants)
            self.constants[mark] = (op.key, [])
            return [mark]
        if instruction.opcode == "while":
            return self._loop(op)
        if instruction.opcode == "conditional":
            return self._branches(op)
        if instruction.opcode == "call":
            return self._call(op)
        ipu = next((ipu for ipu in op.stated if ipu is not None), op.default)
        cell = self._add(op.key, ipu, byte_count(instruction.shape), self._operands(op))
        return [cell] * leaf_count(instruction)

    def _operands(self, op: _Op) -> list[int]:
        return [cell for i in op.instruction.operands for cell in op.known[i]]

    def _element(self, op: _Op) -> Sequence[int]:
        whole = op.computation.instructions[op.instruction.operands[0]].shape
        cells = op.given(0)
        if isinstance(whole, TupleShape):
            index = op.instruction.attributes.integer("index")
            before = sum(len(_leaves(shape)) for shape in whole.elements[:index])
            cells = cells[before : before + len(_leaves(whole.elements[index]))]
        for cell, ipu in zip(cells, op.stated, strict=False):
            if cell >= 0 and self.cells[cell].said is None:
                self.cells[cell].said = ipu
        return cells

    def _loop(self, op: _Op) -> list[int]:
        state = self._held(op)
        for cell, first in zip(state, op.given(0), strict=True):
            if cell >= 0:
                self.reads(cell, [first])
        for name in op.instruction.attributes.called:
            next_state = self._walk(self.module.computation[name], [state], op.inside)
            if len(next_state) == len(state) and name == op.instruction.attributes.text("body"):
                for cell, following in zip(state, next_state, strict=True):
                    if cell >= 0 and following != cell:
                        self.reads(cell, [following])
        return state

    def _call(self, op: _Op) -> list[int]:
        (name,) = op.instruction.attributes.called
        arguments = [op.given(number) for number in range(len(op.instruction.operands))]
        cells = self._walk(self.module.computation[name], arguments, op.inside)
        self.results += [((*op.key, number), cell) for number, cell in enumerate(cells)]
        return cells

    def _branches(self, op: _Op) -> list[int]:
        results = [
            self._walk(self.module.computation[name], [op.given(number + 1)], op.inside)
            for number, name in enumerate(op.instruction.attributes.called)
        ]
        cells = self._held(op)
        for number, cell in enumerate(cells):
            if cell >= 0:
                self.reads(cell, [branch[number] for branch in results])
        return cells


def _leaves(shape: Shape) -> list[Shape]:
    return [leaf for _, leaf in leaves(shape)]


def _is_token(shape: Shape) -> bool:
    return str(shape).startswith("token")
