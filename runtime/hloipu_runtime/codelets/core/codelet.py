"""The codelet interface: how indices split, what is computed, what it costs."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

import numpy as np

from hloipu_runtime.codelets.core.code_sizes import CodeSize, counted_code
from hloipu_runtime.codelets.core.straight import Straight
from hloipu_runtime.codelets.core.tensors import (
    Array,
    Block,
    Blocks,
    Bound,
    OnArrays,
    Sizes,
    Tensors,
)
from hloipu_runtime.errors import UsageError
from hloipu_runtime.frozen import dataclass, fields_of
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine


class Index(NamedTuple):
    """How one dimension of an operand or a result follows an index of the iteration space.

    Where a tile works on indices [i, i + n), it touches [i * stride + offset, + (n - 1) * stride +
    window) of the dimension, cut off at the dimension's ends.
    """

    label: int
    """Number of the index; -1: every tile needs the whole dimension."""
    stride: int = 1
    offset: int = 0
    window: int = 1


ALL = Index(-1)


class Indexing(NamedTuple):
    """The iteration space of a codelet and how its operands and results follow it.

    A label may be split over tiles as one likes: each tile computes its part of the results from
    the parts of the operands alone. An index that appears in no result has no label.
    """

    sizes: Sizes
    """Of each label."""
    operands: tuple[tuple[Index, ...], ...]
    results: tuple[tuple[Index, ...], ...]


@dataclass(frozen=True)
class Codelet:
    """Base of all codelets; subclasses' fields are parameters: numbers, texts, tuples, records."""

    name: ClassVar[str] = ""
    code_bytes: ClassVar[int] = 512
    """Instruction memory on each tile that runs it, where nobody has counted it: assumed."""
    whole_parts: ClassVar[bool] = False
    """Whether vertices may also compute on the unused ends of short last parts, harmlessly."""

    is_compiled: ClassVar[bool] = False
    """Whether functional runs may compile it with others, where it is small: see `loop_writer`."""
    rearranges: ClassVar[bool] = False
    """Whether `run` without a place sees its operand in another form, the same for any values."""
    repeats: ClassVar[Sizes | None] = None
    """Where the result is its operand, repeated: for each dimension of that, the result's."""
    prepares_large: ClassVar[bool] = False
    """Whether `straight_on_grid` serves large parts as well."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the parameters, without what was worked out from them to run."""
        return fields_of(self)

    def ignores(self, unused: Sequence[Sequence[bool]]) -> bool:
        """Whether vertices may also compute on these unused ends of parts, harmlessly.

        `unused` says, of each dimension of the operands and then of the results, whether some part
        has such an end.
        """
        return self.whole_parts

    def zero_ends(self, operand: int) -> Sizes:
        """Return the dimensions of an operand beyond whose ends zeros are as good as nothing.

        Of dimensions that are summed over together, all operands are to have them. It is not zero
        but `end_value`, if that is something else.
        """
        return ()

    def end_value(self, dtype: np.dtype[Any]) -> Any:
        """Return what is to be beyond the ends of operands that have `zero_ends`, as stored."""
        return dtype.type(0)

    @property
    def code_kind(self) -> str:
        """What the code is called in the table of counted sizes."""
        return self.name

    def runs_code_of(self, types: tuple[str, ...]) -> "tuple[Codelet, tuple[str, ...]]":
        """Return the codelet whose code it runs, and the types for that: its own, but for a few."""
        return self, types

    def code_size(self, types: Sequence[str]) -> CodeSize:
        """Return the bytes of its code for the element types of operands and results, in order."""
        counted = counted_code(self.code_kind, types[0], types[-1]) if types else None
        return counted or CodeSize(self.code_bytes)

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return how the work splits; the shapes are those of the whole tensors."""
        raise NotImplementedError

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Compute all vertices of a class at once, or the whole tensors on an empty grid.

        Returns one array of shape `grid + part` for each result. It may be the array of the
        result's block, written, or a fresh one, or a view of an operand.
        """
        raise NotImplementedError

    def bound(self, operands: Blocks, results: Blocks) -> Bound:
        """Return `run` on blocks like these with other arrays, to be called again and again.

        Arrays in the given blocks only say how those lie in memory that will be given; what sizes
        and layouts decide is decided once. Where there is a place for a result, what is returned
        may be smaller and repeat in it.
        """
        before = [block[1:] for block in operands]
        after = [block[1:] for block in results]

        make, block = tuple.__new__, Block  # past the constructor, which costs more than the rest

        def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> list[Array]:
            return self.run(
                [make(block, (x, *place)) for x, place in zip(arrays, before, strict=True)],
                [make(block, (x, *place)) for x, place in zip(outs, after, strict=True)],
            )

        return run

    def straight(self, operands: Blocks, results: Blocks) -> Straight | None:
        """Return what `bound` does on whole tensors as calls, or None where it is not like that."""
        return None

    def straight_on_grid(self, operands: Blocks, results: Blocks) -> Straight | None:
        """Return what `bound` does on a class of tiles as calls; arrays are those of the blocks.

        Only of few elements, where starting calls takes longer than what they do, but for what
        `prepares_large`.
        """
        return None

    def on_arrays(self, operands: Blocks, results: Blocks) -> "OnArrays | None":
        """Return what computes a class of tiles from and to these very arrays.

        None where that takes no less than what `bound` returns.
        """
        return None

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the cycles of one tile; the tensors are its parts."""
        raise NotImplementedError

    overwrites_a_part: ClassVar[bool] = False
    """Whether writing into an operand leaves most of it untouched, so that it always pays."""

    def combined_with(
        self, combine: "Codelet", others: Sequence[Array | None]
    ) -> "tuple[Codelet, int] | None":
        """Return the codelet that computes partial results and combines them in one go.

        `others` are the operands of `combine` after the partials: arrays of constants, None of what
        is not known. The codelet takes this one's operands and as many of the others as the number
        says. None where `combine` does not combine what this one makes.
        """
        return None

    def transposed(
        self, permutation: Sequence[int], ranks: Sequence[int]
    ) -> "tuple[Codelet, tuple[int, ...]] | None":
        """Return the codelet that computes the first result transposed, and its operands' order.

        `ranks` are the operands' numbers of dimensions. None where there is no such codelet.
        """
        return None

    def may_overwrite(self, operand: int) -> bool:
        """Whether the first result may be written into an operand of equal parts."""
        return False

    def state_bytes(self, machine: Machine, operands: int, results: int) -> int:
        """Return the bytes of one vertex's state: its fixed part, a pointer an edge, a length.

        Workers share one vertex, whose edges are as long as each other, but for what repeats or is
        reduced: graphcore/poplibs: lib/popops/codelets/asm/binaryOps1D.S, and `ContinuousReduce`,
        which has two shorter counts instead.
        """
        memory = machine.memory
        pointers = (operands + results) * memory.edge_pointer_bytes
        return memory.vertex_fixed_bytes + pointers + memory.edge_length_bytes

    def table_bytes(self, machine: Machine, operands: Tensors, results: Tensors) -> int:
        """Return the bytes of tables that belong to a vertex; the tensors are its parts."""
        return 0

    def room_bytes(self, machine: Machine, operands: Tensors, results: Tensors) -> int:
        """Return the bytes that workers leave for each other while a vertex runs; as above."""
        return 0


CODELETS: dict[str, type[Codelet]] = {}

C = TypeVar("C", bound=type[Codelet])


@dataclass_transform(frozen_default=True)
def codelet(kind: C) -> C:
    """Make a class a frozen record, and register it under its name."""
    if kind.name in CODELETS:
        raise UsageError("E3090", f"a codelet named {kind.name!r} exists already")
    CODELETS[kind.name] = dataclass(frozen=True)(kind)
    return kind
