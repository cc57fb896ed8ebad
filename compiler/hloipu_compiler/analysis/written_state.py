"""Find how new state derives from old: written in parts as a cache is, or computed from it.

Values are followed backwards from a result through calls, fusions, branches and loops. Ops that
move elements lead from a cache's new value to its old one and to what is written there. Ops that
compute element by element lead from a new weight to the old one: an update adds to what was there,
or takes its average with something. So do calls and collectives, whose meaning is not known here: a
cache is what is certain to be one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import field

from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import Trait, with_trait
from hloipu_runtime.frozen import dataclass

_OF_ALL = frozenset(
    {"tuple", "reshape", "bitcast", "copy", "transpose", "convert", "bitcast-convert", "reverse",
     "slice", "concatenate", "broadcast", "opt-barrier", "add-dependency", "copy-start",
     "copy-done"}
)  # fmt: skip
_OF_FIRST = frozenset({"dynamic-slice", "gather"})
_OF_TWO = frozenset({"dynamic-update-slice", "pad"})
_COMPUTING = with_trait(Trait.ELEMENTWISE)
_HANDING_ON = frozenset(
    {"custom-call", "all-reduce", "all-gather", "all-to-all", "reduce-scatter",
     "collective-permute", "collective-broadcast", "all-reduce-start", "all-reduce-done",
     "all-gather-start", "all-gather-done"}
)  # fmt: skip
"""What may hand on what it is given, wherever it came from: a new weight, too."""
_CALLS = frozenset({"call", "fusion", "async-start"})
_MOST_VALUES = 20_000
"""Values that are looked at; beyond them nothing is said to be written."""
Path = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Frame:
    """A computation where something calls it."""

    computation: Computation
    caller: "_Frame | None" = None
    site: int = -1
    """Position of the op that calls it, in the caller's computation."""
    branch: int = 0


@dataclass(frozen=True, slots=True)
class _Value:
    """Value of an op, or its element at a path of indices."""

    frame: _Frame
    position: int
    path: Path = ()

    @property
    def op(self) -> Instruction:
        return self.frame.computation.instructions[self.position]


def is_written(module: Module, parameter: Sequence[int], result: Sequence[int]) -> bool:
    """Return whether new state is the old with parts of it written, or has nothing of it.

    `parameter` and `result`: indices of the array, that of the parameter and those of elements, and
    those of elements of the entry's result. Not so where what is written is computed from the old
    state element by element, as new rows of an embedding are.
    """
    walk = _Walk(module)
    old_value = walk.parameter(parameter)
    reached = walk.origins([walk.result(result)], computing=False)
    if reached is None:
        return False
    other_origins = [value for value in reached if value != old_value]
    return not walk.reaches(other_origins, old_value)


def keeps_parts(module: Module, parameter: Sequence[int], result: Sequence[int]) -> bool:
    """Return whether a result has elements of a parameter as they are, as a cache's new value."""
    walk = _Walk(module)
    reached = walk.origins([walk.result(result)], computing=False)
    return reached is not None and walk.parameter(parameter) in reached


def parts_kept(module: Module, result: Sequence[int]) -> list[Path]:
    """Return the parameters, or elements of them, whose elements a result has as they are."""
    walk = _Walk(module)
    reached = walk.origins([walk.result(result)], computing=False) or ()
    parameters = [value for value in reached if value.frame is walk.root]
    return sorted(
        (value.op.parameter_number, *value.path)
        for value in parameters
        if value.op.parameter_number >= 0
    )


def is_computed(module: Module, parameter: Sequence[int], result: Sequence[int]) -> bool:
    """Return whether a result is made of a parameter by moving elements and element by element."""
    walk = _Walk(module)
    return walk.reaches([walk.result(result)], walk.parameter(parameter))


def computed_from(module: Module, result: Sequence[int]) -> frozenset[Path] | None:
    """Return the parameters, or elements of them, that a result is made of by moving and computing.

    None where that is too much to follow.
    """
    walk = _Walk(module)
    reached = walk.origins([walk.result(result)], computing=True)
    if reached is None:
        return None
    return frozenset(
        (value.op.parameter_number, *value.path)
        for value in reached
        if value.frame is walk.root and value.op.parameter_number >= 0
    )


@dataclass
class _Walk:
    """Values on the way from a result to what it is made of."""

    module: Module
    root: _Frame = field(init=False)
    frames: dict[tuple[_Frame, int, int], _Frame] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root = _Frame(self.module.entry)

    def parameter(self, indices: Sequence[int]) -> _Value:
        number, *path = indices
        return _Value(self.root, self.module.entry.parameters[number], tuple(path))

    def result(self, indices: Sequence[int]) -> _Value:
        return _Value(self.root, self.module.entry.root, tuple(indices))

    def reaches(self, values: Sequence[_Value], goal: _Value) -> bool:
        """Whether values are made of another by moving and computing; true where too many are."""
        origins = self.origins(values, computing=True)
        return origins is None or goal in origins

    def origins(self, values: Sequence[_Value], *, computing: bool) -> set[_Value] | None:
        """Return what values are made of: where walking ends; None where there is too much."""
        ends, visited, waiting = set[_Value](), set(values), list(values)
        while waiting:
            value = waiting.pop()
            following = self._following(value, computing=computing)
            if following is None:
                ends.add(value)
                continue
            for source in following:
                if source not in visited:
                    visited.add(source)
                    waiting.append(source)
            if len(visited) > _MOST_VALUES:
                return None
        return ends

    def _following(self, value: _Value, *, computing: bool) -> list[_Value] | None:
        """Return the values that one is made of; None where walking ends."""
        instruction, frame = value.op, value.frame
        if instruction.parameter_number >= 0:
            return None if frame is self.root else list(self._arguments(value))
        match instruction.opcode:
            case "get-tuple-element":
                index = instruction.attributes.integer("index")
                return [_Value(frame, instruction.operands[0], (index, *value.path))]
            case "tuple" if value.path:
                return [_Value(frame, instruction.operands[value.path[0]], value.path[1:])]
            case "while":
                body = self._called(value, instruction.attributes.text("body"))
                return [
                    self._root_of(body, value.path),
                    _Value(frame, instruction.operands[0], value.path),
                ]
            case "conditional":
                names = instruction.attributes.called
                branches = [self._called(value, name, n) for n, name in enumerate(names)]
                return [self._root_of(branch, value.path) for branch in branches]
            case opcode if opcode in _CALLS and len(instruction.attributes.called) == 1:
                return [
                    self._root_of(self._called(value, instruction.attributes.called[0]), value.path)
                ]
        operands = self._operands(instruction, computing=computing)
        path = () if instruction.opcode in _HANDING_ON else value.path
        return None if operands is None else [_Value(frame, i, path) for i in operands]

    def _operands(self, instruction: Instruction, *, computing: bool) -> Sequence[int] | None:
        if instruction.opcode in _OF_ALL:
            return instruction.operands
        if instruction.opcode in _OF_FIRST:
            return instruction.operands[:1]
        if instruction.opcode in _OF_TWO:
            return instruction.operands[:2]
        if instruction.opcode == "select":
            return instruction.operands[1:]
        if instruction.opcode == "scatter" and (computing or self._assigns(instruction)):
            third = len(instruction.operands) // 3
            return (*instruction.operands[:third], *instruction.operands[-third:])
        return (
            instruction.operands
            if computing and instruction.opcode in _COMPUTING | _HANDING_ON
            else None
        )

    def _assigns(self, instruction: Instruction) -> bool:
        """Whether a scatter puts what is new in place of what was there."""
        (name,) = instruction.attributes.called
        computation = self.module.computation[name]
        root = computation.instructions[computation.root]
        return root.parameter_number == len(computation.parameters) - 1

    def _called(self, value: _Value, name: str, branch: int = 0) -> _Frame:
        key = value.frame, value.position, branch
        if key not in self.frames:
            computation = self.module.computation[name]
            self.frames[key] = _Frame(computation, value.frame, value.position, branch)
        return self.frames[key]

    def _root_of(self, frame: _Frame, path: Path) -> _Value:
        return _Value(frame, frame.computation.root, path)

    def _arguments(self, value: _Value) -> Iterator[_Value]:
        """Yield what a parameter of a called computation stands for."""
        frame = value.frame
        caller = frame.caller
        if caller is None:
            return
        instruction = caller.computation.instructions[frame.site]
        match instruction.opcode:
            case "while":
                yield self._root_of(frame, value.path)
                yield _Value(caller, instruction.operands[0], value.path)
            case "conditional":
                yield _Value(caller, instruction.operands[frame.branch + 1], value.path)
            case _:
                yield _Value(caller, instruction.operands[value.op.parameter_number], value.path)
