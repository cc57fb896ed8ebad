"""Results of instructions during lowering (on tiles, constant, broadcast), and their last uses."""

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

from hloipu_compiler.ir.graph import Computation
from hloipu_compiler.ir.shapes import TupleShape, leaf_range
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.program.mapping import Sizes
from hloipu_runtime.program.steps import Sequence, ValueId, VariableId


@dataclass(frozen=True, slots=True)
class TileTensor:
    """A value that lies in a variable."""

    value: ValueId
    variable: VariableId
    element_type: str
    shape: Sizes

    @property
    def tensor(self) -> Tensor:
        """Its type and sizes, as codelets have them."""
        return Tensor(self.element_type, self.shape)


@dataclass(frozen=True, slots=True)
class Scalar:
    """A constant number, given by an exact text; it takes no memory until somebody needs it."""

    element_type: str
    text: str
    shape: Sizes = ()


@dataclass(frozen=True, slots=True)
class Spread:
    """A broadcast that has not been written out: the source's dimensions within a larger shape."""

    source: TileTensor | Scalar
    dimensions: tuple[int, ...]
    """For each dimension of the source, the one of the result that it becomes."""
    shape: Sizes

    @property
    def element_type(self) -> str:
        """Element type of source and result."""
        return self.source.element_type


@dataclass(frozen=True, slots=True)
class Token:
    """Nothing, but something to hand on."""

    element_type: str = "token"
    shape: Sizes = ()


Value = TileTensor | Scalar | Spread | Token


class Function(NamedTuple):
    """A computation that was lowered to be called, by its leaves."""

    arguments: tuple[TileTensor | None, ...]
    """Where it finds each, as a value of its own; None: what all calls pass takes no memory."""
    in_place: frozenset[VariableId]
    """Variables of the caller in which all calls pass the same."""
    results: tuple[Value, ...]
    body: Sequence


class LastUses:
    """Last uses in one computation: only then may a result be written in a value's place.

    Kept by value: several instructions may hand on one value.
    """

    def __init__(self, computation: Computation, foreign: Iterable[Value]) -> None:
        """`foreign`: leaves that live on after the computation, whatever it does."""
        self._computation = computation
        never = len(computation.instructions)
        self._last_use = [-1] * never
        for position, instruction in enumerate(computation.instructions):
            for operand in instruction.operands:
                self._last_use[operand] = position
        self._last_use[computation.root] = never
        self._ends: dict[ValueId, int] = {}
        for leaf in foreign:
            self._extend(leaf, never)

    def hold(self, position: int, leaves: SequenceOf[Value]) -> None:
        """Note that an instruction's result consists of these leaves."""
        for leaf, end in zip(leaves, self._last_use_by_leaf(position, len(leaves)), strict=True):
            self._extend(leaf, end)

    def _last_use_by_leaf(self, position: int, count: int) -> SequenceOf[int]:
        """Return where each leaf of a result is read last; an element of a tuple reads its own."""
        shape = self._computation.instructions[position].shape
        if not isinstance(shape, TupleShape) or position == self._computation.root:
            return [self._last_use[position]] * count
        ends = [-1] * count
        for user in self._computation.users[position]:
            reader = self._computation.instructions[user]
            read = range(count)
            if reader.opcode == "get-tuple-element":
                read = read[leaf_range(shape, reader.attributes.integer("index"))]
            for leaf in read:
                ends[leaf] = max(ends[leaf], user)
        return ends

    def _extend(self, leaf: Value, end: int) -> None:
        value = value_on_tiles(leaf)
        if value is not None:
            self._ends[value] = max(self._ends.get(value, -1), end)

    def is_read_after(self, position: int, leaf: Value) -> bool:
        """Whether a leaf is read by the instruction at a position, or later."""
        value = value_on_tiles(leaf)
        return value is None or self._ends.get(value, position) >= position

    def is_last_use(self, position: int, leaves: SequenceOf[Value]) -> bool:
        """Whether an operand of one leaf is read by the instruction at a position and never again.

        What later instructions hand on of it they read themselves, so that its end is known.
        """
        if len(leaves) != 1:
            return False
        value = value_on_tiles(leaves[0])
        return value is not None and self._ends[value] == position


def value_on_tiles(leaf: Value) -> ValueId | None:
    """Return the value that a leaf takes from tiles; None: it takes none."""
    match leaf:
        case TileTensor():
            return leaf.value
        case Spread(source=TileTensor() as source):
            return source.value
        case _:
            return None
