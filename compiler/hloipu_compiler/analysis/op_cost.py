"""What one execution of an instruction computes and moves: FLOPs, transcendentals, bytes.

The counts follow openxla/xla `HloCostAnalysis`: an elementwise op is one FLOP an element, a
transcendental one counts apart, a dot or convolution is two FLOPs a multiply-add, convolutions do
not count taps that fall into padding or holes, and bytes are what is read and written once.
"""

from dataclasses import dataclass

from hloipu_compiler.analysis.op_flops import element_count, flops_rule
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import ELEMENTWISE
from hloipu_compiler.ir.shapes import byte_count

TRANSCENDENTAL = frozenset(
    "acos acosh asin asinh atan2 atanh cbrt cosine cosh erf exponential exponential-minus-one log "
    "log-plus-one logistic power rsqrt sine sinh sqrt tan tanh".split()
)
FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all opt-barrier add-dependency "
    "partition-id replica-id domain".split()
)
"""Ops that neither compute nor move anything."""


@dataclass(frozen=True, slots=True)
class OpCost:
    """Work of one execution; bytes count each operand and result once."""

    flops: int = 0
    transcendentals: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def __add__(self, other: "OpCost") -> "OpCost":
        return OpCost(
            self.flops + other.flops,
            self.transcendentals + other.transcendentals,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
        )

    def times(self, count: int) -> "OpCost":
        """Return the work of `count` executions."""
        return OpCost(
            self.flops * count,
            self.transcendentals * count,
            self.bytes_read * count,
            self.bytes_written * count,
        )


def op_cost(module: Module, computation: Computation, instruction: Instruction) -> OpCost:
    """Return the work of one instruction by itself, without loops, branches and calls it runs.

    Computations applied to elements (reducers, comparators, mapped functions) are.
    """
    opcode = instruction.opcode
    if opcode in FREE or opcode in ("while", "conditional", "call"):
        return OpCost()
    operands = [computation.instructions[x].shape for x in instruction.operands]
    read = sum(map(byte_count, operands))
    written = byte_count(instruction.shape)
    if opcode in ELEMENTWISE:
        count = element_count(instruction.shape)
        flops, hard = (0, count) if opcode in TRANSCENDENTAL else (count, 0)
        return OpCost(flops, hard, read, written)
    if opcode in ("slice", "dynamic-slice", "gather"):
        indices = sum(map(byte_count, operands[1:]))
        return OpCost(0, 0, written + indices, written)
    if opcode == "dynamic-update-slice" and len(operands) > 1:
        update = byte_count(operands[1])
        return OpCost(0, 0, update + sum(map(byte_count, operands[2:])), update)
    return OpCost(flops_rule(module, instruction, operands), 0, read, written)
