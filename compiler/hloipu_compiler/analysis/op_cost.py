"""Cost of one execution of an instruction: FLOPs, transcendentals, bytes.

The counts follow openxla/xla `HloCostAnalysis`: an elementwise op is one FLOP an element, a
transcendental one counts apart, a dot or convolution is two FLOPs a multiply-add, convolutions do
not count taps that fall into padding or holes, and bytes are what is read and written once.
"""

from collections.abc import Callable
from typing import NamedTuple

from hloipu_compiler.analysis.op_flops import FlopRules, element_count
from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import ELEMENTWISE, Trait, with_trait
from hloipu_compiler.ir.shapes import Shape, byte_count

TRANSCENDENTAL = frozenset(
    "acos acosh asin asinh atan2 atanh cbrt cosine cosh erf exponential exponential-minus-one log "
    "log-plus-one logistic power rsqrt sine sinh sqrt tan tanh".split()
)
FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all opt-barrier add-dependency "
    "partition-id replica-id domain".split()
)
"""Ops that neither compute nor move anything."""
CALLS = frozenset("while conditional call async-start".split())
"""Ops whose work is that of the computations they run."""
_ENDS = with_trait(Trait.ASYNC_UPDATE) | with_trait(Trait.ASYNC_DONE)
"""Ends of what has begun elsewhere and was counted there."""
_APPLIERS = with_trait(Trait.APPLIER)
_PARTLY_READ = frozenset("slice dynamic-slice gather".split())
_MARKS = frozenset(
    "Sharding SPMDFullToShardShape SPMDShardToFullShape LayoutConstraint MoveToHost MoveToDevice "
    "annotate_device_placement X64Combine X64SplitLow X64SplitHigh".split()
)
"""Custom calls of XLA's own that compute nothing; those of `xla.sdy.` are such, too."""
MOST_COUNTED = 10**30
"""Where counts stop: nested loops of a hostile text multiply to numbers of any length."""


class OpCost(NamedTuple):
    """Work of one execution; bytes count each operand and result once."""

    flops: int = 0
    transcendentals: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def plus(self, other: "OpCost") -> "OpCost":
        """Return the work of both."""
        return OpCost(*(min(a + b, MOST_COUNTED) for a, b in zip(self, other, strict=True)))

    def times(self, count: int) -> "OpCost":
        """Return the work of `count` executions."""
        return OpCost(*(min(a * count, MOST_COUNTED) for a in self))


NO_COST = OpCost()


class CostSum:
    """Adds up the work of many executions; plain numbers, because every instruction adds to it."""

    __slots__ = ("exact", "instructions", "parts")

    def __init__(self) -> None:
        self.instructions = 0
        self.parts = [0, 0, 0, 0]
        self.exact = True

    def add(self, cost: OpCost, times: int, *, exact: bool) -> None:
        """Add one instruction that runs so many times; `exact`: its whole work is known."""
        self.instructions += 1
        self.exact &= exact
        if cost is not NO_COST:
            parts = self.parts
            parts[0] += cost[0] * times
            parts[1] += cost[1] * times
            parts[2] += cost[2] * times
            parts[3] += cost[3] * times

    @property
    def total(self) -> OpCost:
        """The work so far."""
        return OpCost(*self.parts).times(1)


def is_opaque(instruction: Instruction) -> bool:
    """Whether an instruction runs foreign code, so that nobody knows its FLOPs."""
    if instruction.opcode != "custom-call":
        return False
    target = instruction.attributes.text("custom_call_target")
    return target not in _MARKS and not target.startswith("xla.sdy.")


_Key = tuple[str, Attributes, Shape, tuple[Shape, ...]]


class OpCosts:
    """The work of the instructions of one module, each by itself; equal ones are counted once.

    Computations applied to elements (reducers, comparators, mapped functions) are part of it,
    loops, branches and calls are not.
    """

    def __init__(self, module: Module) -> None:
        self._rules = FlopRules(module, ELEMENTWISE - TRANSCENDENTAL)
        self._hard_rules = FlopRules(module, TRANSCENDENTAL)
        self._known: dict[_Key, OpCost] = {}
        self._bytes: dict[Shape, int] = {}

    def of(self, computation: Computation, instruction: Instruction) -> OpCost:
        """Return the work of one instruction of `computation`."""
        opcode = instruction.opcode
        if opcode in FREE or opcode in CALLS or opcode in _ENDS:
            return NO_COST
        operands = tuple(
            [computation.instructions[operand].shape for operand in instruction.operands]
        )
        key = (opcode, instruction.attributes, instruction.shape, operands)
        cost = self._known.get(key)
        if cost is None:
            cost = self._known[key] = self._count(instruction, operands)
        return cost

    def bytes_of(self, shape: Shape) -> int:
        """Return the bytes of all leaves of a shape."""
        count = self._bytes.get(shape)
        if count is None:
            count = self._bytes[shape] = byte_count(shape)
        return count

    def _count(self, instruction: Instruction, operands: tuple[Shape, ...]) -> OpCost:
        opcode = instruction.opcode
        size: Callable[[Shape], int] = self.bytes_of
        written_bytes = size(instruction.shape)
        if opcode in _PARTLY_READ:
            return OpCost(0, 0, written_bytes + sum(map(size, operands[1:])), written_bytes)
        if opcode == "dynamic-update-slice" and len(operands) > 1:
            return OpCost(0, 0, sum(map(size, operands[1:])), size(operands[1]))
        read_bytes = sum(map(size, operands))
        if opcode in ELEMENTWISE:
            count = element_count(instruction.shape)
            flops, hard = (0, count) if opcode in TRANSCENDENTAL else (count, 0)
            return OpCost(flops, hard, read_bytes, written_bytes)
        hard = self._hard_rules.of(instruction, operands) if opcode in _APPLIERS else 0
        return OpCost(self._rules.of(instruction, operands), hard, read_bytes, written_bytes)
