"""Accumulators: their inputs, and the reduction that their arithmetic amounts to.

`AddWithScale(a, g, s)` is a s + g, g converted to a's type. Where all accumulators of a module
follow one known reduction, its factors are left out, and the reduction asked for in their place:
it holds for any number of micro-batches then. Otherwise gradients are added up as they stand, with
a factor 1/K for those whose running mean is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hloipu_compiler.graphcore.encoding.core import errors
from hloipu_compiler.graphcore.encoding.core.scales import (
    ONE,
    RUNNING_NEW,
    RUNNING_OLD,
    SHARE,
    Factors,
)
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.shapes import ArrayShape, Shape
from hloipu_compiler.plan.pipelining import MEAN, RUNNING_MEAN, SUM


class Ops(Protocol):
    """Access to the ops written so far."""

    made: list[Instruction]

    def add(self, name: str, opcode: str, shape: Shape, operands: Sequence[int] = ...) -> int:
        """Append an op; return its position."""


@dataclass(frozen=True, slots=True)
class Addend:
    """One thing that each micro-batch adds."""

    name: str
    """Of the instruction that adds it."""
    value: int
    bare: int
    """The value without a factor that the reduction stands for."""
    factor: str
    """The factor left out in `bare`, as one of those that `scales` knows."""
    old: str
    """What the accumulator is multiplied by before."""


@dataclass(slots=True)
class Accumulator:
    """One buffer, in the order of its additions."""

    name: str
    shape: ArrayShape
    addends: list[Addend] = field(default_factory=list)
    is_sunk: bool = False
    creator: Instruction | None = None
    """The instruction that creates it, where one does."""

    def reduction(self, micro_batches: int) -> str:
        """Return which reduction it follows; of one micro-batch, a sum.

        Raises PoplarError E0547 where what is kept of the sum before is none that is known.
        """
        if micro_batches == 1 and len(self.addends) == 1:
            return SUM  # whatever is made of the nothing before
        for number, addend in enumerate(self.addends):
            is_first = not number
            if addend.old == ONE or (is_first and addend.old == RUNNING_OLD):
                continue
            raise errors.SCALE(
                f"{addend.name!r} multiplies the accumulator {self.name!r} by something else than "
                "1, or n/(n+1) for the micro-batch n",
                hint="gradients are combined by sum, mean or running mean; put other factors "
                "into the update",
                op=self.creator,
            )
        factors = {addend.factor for addend in self.addends}
        if self.addends and self.addends[0].old == RUNNING_OLD:
            if factors == {RUNNING_NEW}:
                return RUNNING_MEAN
            raise errors.SCALE(
                f"{self.name!r} is multiplied by n/(n+1) with micro-batch n, and what "
                f"{self.addends[0].name!r} adds is not multiplied by 1/(n+1)",
                hint="gradients are combined by sum, mean or running mean",
                op=self.creator,
            )
        return MEAN if factors == {SHARE} else SUM


def addend_of(
    ops: Ops, factors: Factors, instruction: Instruction, value: int, scale: int
) -> Addend:
    """Return what an AddWithScale adds, split into value and factor."""
    bare, factor = _split(ops, factors, value)
    return Addend(
        instruction.name, bare if factor == ONE else value, bare, factor, factors.kind(scale)
    )


def _split(ops: Ops, factors: Factors, value: int) -> tuple[int, str]:
    """Return a value without its factor, through sums and conversions; the factor 1 if it has none.

    Each gradient of a sum is multiplied on its own.
    """
    bare_and_factor: dict[int, tuple[int, str]] = {}
    waiting = [value]
    while waiting:
        at = waiting[-1]
        instruction = ops.made[at]
        if at in bare_and_factor:
            waiting.pop()
            continue
        split = factors.split(at)
        kind = factors.kind(split[1]) if split is not None else ""
        inner = list(instruction.operands) if instruction.opcode == "add" and split is None else []
        inner = [instruction.operands[0]] if instruction.opcode in ("convert", "copy") else inner
        missing = [i for i in inner if i not in bare_and_factor]
        if missing:
            waiting.extend(missing)
            continue
        waiting.pop()
        factors_of_inputs = {bare_and_factor[i][1] for i in inner}
        if split is not None and kind:
            bare_and_factor[at] = (split[0], kind)
        elif inner and len(factors_of_inputs) == 1 and factors_of_inputs != {ONE}:
            parts = [bare_and_factor[i][0] for i in inner]
            bare_and_factor[at] = (
                ops.add(f"{instruction.name}.bare", instruction.opcode, instruction.shape, parts),
                factors_of_inputs.pop(),
            )
        else:
            bare_and_factor[at] = (at, ONE)
    return bare_and_factor[value]


def common_reduction(accumulators: Sequence[Accumulator], micro_batches: int) -> str:
    """Return the reduction of all; a sum where they differ."""
    reductions = {
        accumulator.reduction(micro_batches) for accumulator in accumulators if accumulator.addends
    }
    return reductions.pop() if len(reductions) == 1 else SUM
