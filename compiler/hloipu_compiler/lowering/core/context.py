"""The context of a lowering, and the table of lowerings by opcode."""

from collections.abc import Callable, Sequence

from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import ELEMENTWISE
from hloipu_compiler.ir.shapes import ArrayShape, array_shape, leaves_of
from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.expressions import expression_of
from hloipu_compiler.lowering.core.values import TileTensor, Value
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.late_table import LateTable
from hloipu_runtime.program.mapping import Sizes


@dataclass(frozen=True)
class LoweringContext:
    """One instruction with its surroundings."""

    builder: Builder
    module: Module
    plan: Plan
    computation: Computation
    instruction: Instruction
    operands: tuple[tuple[Value, ...], ...]
    """The leaves of each operand: one of an array, any number of a tuple."""
    last_uses: tuple[bool, ...]
    """For each operand that is an array: whether nobody reads it afterwards."""

    @property
    def attributes(self) -> Attributes:
        """The instruction's attributes."""
        return self.instruction.attributes

    def leaf(self, number: int) -> Value:
        """Return an operand that is an array."""
        return self.operands[number][0]

    def tile_tensor(self, number: int) -> TileTensor:
        """Return an operand that is an array, on tiles."""
        return self.builder.tile_tensor(self.leaf(number))

    def operand_shape(self, number: int) -> ArrayShape:
        """Return the HLO shape of an operand that is an array."""
        shape = self.computation.instructions[self.instruction.operands[number]].shape
        return array_shape(shape)

    @property
    def shape(self) -> ArrayShape:
        """HLO shape of the result, of instructions that make one array."""
        return array_shape(self.instruction.shape)

    @property
    def results(self) -> list[tuple[str, Sizes]]:
        """Element type and sizes of each array of the result."""
        return [
            (shape.element_type.name, shape.dimensions)
            for shape in leaves_of(self.instruction.shape)
        ]

    def expression(self, computation: str) -> Expression:
        """Return a scalar computation as an expression."""
        return expression_of(self.module, computation)


Lowering = Callable[[LoweringContext], Sequence[Value]]

LOWERINGS: LateTable[Lowering] = LateTable(
    "hloipu_compiler.lowering",
    {
        "ops.batch_norms": "batch-norm-training batch-norm-inference batch-norm-grad",
        "ops.collectives": "own-part own-number replica-id partition-id all-reduce reduce-scatter "
        "all-gather all-to-all ragged-all-to-all collective-broadcast collective-permute",
        "ops.contractions": "dot",
        "regions.control": "while conditional",
        "ops.convolutions": "convolution",
        "ops.custom_calls": "custom-call",
        "ops.elementwise": ELEMENTWISE
        | {"map", "bitcast-convert", "get-dimension-size", "set-dimension-size"},
        "regions.functions": "call",
        "regions.fusions": "fusion",
        "ops.host_queues": "infeed outfeed",
        "ops.linear_algebra": "cholesky triangular-solve",
        "ops.movement": "constant copy opt-barrier domain add-dependency iota broadcast reshape "
        "bitcast dynamic-reshape transpose reverse slice concatenate pad",
        "ops.randomness": "rng rng-bit-generator rng-get-and-update-state",
        "ops.reductions": "reduce",
        "ops.scans": "scan",
        "ops.sorting": "sort",
        "ops.special_dots": "ragged-dot scaled-dot",
        "ops.spectra": "fft",
        "ops.top_k": "topk",
        "ops.updating": "dynamic-slice gather dynamic-update-slice scatter",
        "ops.windows": "reduce-window select-and-scatter",
    },
)
"""Opcode -> how to write its steps."""
lowers = LOWERINGS.register
"""Register a lowering for opcodes."""
