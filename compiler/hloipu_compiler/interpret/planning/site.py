"""Context of evaluating one instruction, and the table of evaluation functions."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from math import prod
from typing import Protocol

from hloipu_compiler.interpret.planning.plan import Action, Array, Plan, Watcher
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import ELEMENTWISE
from hloipu_compiler.ir.shapes import ArrayShape, BufferShape, Shape, TupleShape
from hloipu_runtime.errors import LimitError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.iteration_limit import limited_iterations, too_many_iterations
from hloipu_runtime.late_table import LateTable

Region = Callable[..., Sequence[Array]]
"""A computation on scalars, evaluated on whole arrays at once."""


@dataclass(frozen=True)
class Effects:
    """Environment of an evaluation: seeds, queues, and the participant's number."""

    seed: int = 0
    infeed: Callable[[str], Sequence[object]] | None = None
    outfeed: Callable[[str, Sequence[Array]], None] | None = None
    replica: int = 0
    partition: int = 0
    replicas: int = 1
    partitions: int = 1
    meeting: "MeetingPlace | None" = None
    """Where the participants of collectives come together; None when there is only one."""
    watch: Watcher | None = None
    """Sees the values inside of calls and fusions, too."""
    max_iterations: int | None = None
    """Turns that a loop may take each time it is entered; None: any number."""
    state: dict[str, object] = field(default_factory=dict)
    """Generators of stateful ops, made on first use, one evaluation's own."""

    @property
    def participant(self) -> int:
        """The participant's own number among all."""
        return self.replica * self.partitions + self.partition


class MeetingPlace(Protocol):
    """Interface by which collectives meet; `meeting.Meeting` is one."""

    def attend(
        self,
        name: str,
        group: tuple[int, ...],
        me: int,
        operands: list[Array],
        compute: Callable[[list[list[Array]]], list[list[Array]]],
    ) -> list[Array]:
        """Wait for the group's members and return this member's results."""


@dataclass(frozen=True)
class Site:
    """One instruction with its surroundings, for a lowering to look at while planning."""

    module: Module
    computation: Computation
    instruction: Instruction
    operand_shapes: tuple[Shape, ...]
    plan_of: Callable[[str], Plan]
    """The plan of a computation by name, made once."""
    region_of: Callable[[str], Region]
    """A scalar computation by name as a function on whole arrays."""
    region_at: Callable[[Computation], Region]
    """The same for a computation that a lowering cut out of another."""
    effects: Effects

    @property
    def attributes(self) -> Attributes:
        """The instruction's attributes."""
        return self.instruction.attributes

    def array_shape(self, operand: int | None = None) -> ArrayShape:
        """Return the shape of an operand, or of the (first leaf of the) result."""
        return first_array(
            self.instruction.shape if operand is None else self.operand_shapes[operand]
        )

    def element_type(self, operand: int | None = None) -> str:
        """Return the element type's name of an operand, or of the (first leaf of the) result."""
        return self.array_shape(operand).element_type.name

    def sizes(self, operand: int | None = None) -> tuple[int, ...]:
        """Return the sizes of an operand, or of the (first leaf of the) result."""
        return self.array_shape(operand).dimensions

    def iterations(self) -> Iterable[object]:
        """Return what a loop goes through when it is entered; it raises LimitError E5031."""
        return limited_iterations(self.effects.max_iterations, self._too_many_iterations)

    def _too_many_iterations(self, most: int) -> LimitError:
        error = too_many_iterations(self.instruction.name, most)
        error.span = self.module.span(self.instruction)
        return error

    def leaf_types(self) -> list[str]:
        """Return the element types' names of the result's leaves."""
        return [leaf.element_type.name for leaf in array_leaves(self.instruction.shape)]


Lowering = Callable[[Site], Action]
LOWERINGS: LateTable[Lowering] = LateTable(
    "hloipu_compiler.interpret.ops",
    {
        "collectives": "all-reduce all-reduce-start all-reduce-done reduce-scatter all-gather "
        "all-gather-start all-gather-done all-to-all ragged-all-to-all collective-broadcast "
        "collective-permute collective-permute-start collective-permute-done",
        "contractions": "dot ragged-dot scaled-dot convolution fft cholesky triangular-solve "
        "batch-norm-training batch-norm-inference batch-norm-grad",
        "control": "call fusion while conditional async-start async-update async-done "
        "copy-start copy-done",
        "custom_calls": "custom-call",
        "elementwise": ELEMENTWISE | {"bitcast-convert"},
        "host": "partition-id replica-id infeed outfeed send send-done recv recv-done "
        "set-dimension-size",
        "movement": "iota broadcast reshape dynamic-reshape bitcast transpose reverse slice "
        "concatenate pad dynamic-slice dynamic-update-slice gather get-dimension-size",
        "random": "rng rng-bit-generator rng-get-and-update-state",
        "reductions": "reduce reduce-window select-and-scatter scatter map",
        "sorting": "sort topk scan",
    },
)
"""Opcode -> how to make its action."""
lowers = LOWERINGS.register
"""Register a lowering under opcodes."""


def first_array(shape: Shape) -> ArrayShape:
    """Return a shape's first array leaf."""
    while isinstance(shape, TupleShape):
        shape = shape.elements[0]
    return shape.contents if isinstance(shape, BufferShape) else shape


def array_leaves(shape: Shape) -> list[ArrayShape]:
    """Return the array leaves of a shape, in order."""
    if isinstance(shape, TupleShape):
        return [leaf for element in shape.elements for leaf in array_leaves(element)]
    return [shape.contents if isinstance(shape, BufferShape) else shape]


def leaf_count(shape: Shape) -> int:
    """Return the number of leaves of a shape."""
    return shape.leaf_count if isinstance(shape, TupleShape) else 1


def storage_bytes(shape: ArrayShape) -> int:
    """Return the bytes that a leaf takes in storage form, where narrow floats take four."""
    storage = shape.element_type.storage
    width = _STORAGE_WIDTHS.get(storage, 1)
    return prod(shape.dimensions) * width


_STORAGE_WIDTHS = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4,
    "float32": 4, "int64": 8, "uint64": 8, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip
