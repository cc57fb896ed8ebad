"""Factors of gradients and accumulators, as functions of the micro-batch number.

Graphcore's plugin writes reductions as arithmetic: a mean multiplies each gradient by 1/K, a
running mean multiplies the accumulator by n/(n+1) and the gradient by 1/(n+1), with n from an
execution counter (graphcore/tensorflow: tensorflow/python/ipu/gradient_accumulation.py). However
they are spelled, factors are computed for several n and compared with these.
"""

from collections.abc import Collection, Sequence

import numpy as np

from hloipu_compiler.interpret.evaluator import Evaluator
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import ELEMENTWISE
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.passes.framework.rewriting import with_operands
from hloipu_runtime.element_types import S32

ONE, SHARE, RUNNING_OLD, RUNNING_NEW = "1", "1/K", "n/(n+1)", "1/(n+1)"

_FEW = 17
"""Numbers of micro-batches looked at from the first on; the last one as well."""
_RELATIVE = 2.0**-9
"""Factors may be written in f16, which rounds to 2^-11, or divided in two steps."""
_SHAPING = frozenset({"broadcast", "reshape", "bitcast", "copy", "transpose", "iota", "constant"})
_SPREADING = frozenset({"broadcast", "reshape", "bitcast", "copy", "transpose"})
_MOST_OPS = 64
"""Of the expression of a factor."""


class Factors:
    """Recognises factors among the ops written so far."""

    def __init__(
        self,
        instructions: Sequence[Instruction],
        counters: Collection[int],
        micro_batches: int,
        *,
        goes_on: bool = False,
        written: int = 0,
    ) -> None:
        self.made = instructions
        self.counters = counters
        """Positions of parameters that count micro-batches."""
        self.micro_batches = micro_batches
        self._kinds: dict[int, str] = {}
        self.written = written or micro_batches
        """How many the text says that there are."""
        self.goes_on = goes_on
        """Whether counters go on after an update, not from 0 again."""

    def kind(self, position: int) -> str:
        """Return which of the known factors a value is in all its elements; empty: none."""
        while self.made[position].opcode in _SPREADING:
            position = self.made[position].operands[0]
        known = self._kinds.get(position)
        if known is None:
            known = self._kinds[position] = self._kind(position)
        return known

    def _kind(self, position: int) -> str:
        members = self._members(position)
        if members is None:
            return ""
        count = self.micro_batches
        numbers = sorted({*range(min(count, _FEW)), count - 1})
        if self.goes_on:
            numbers += [count, count + 1, 3 * count - 1]
        values = self._values(members, position, numbers)
        if values is None:
            return ""
        n = np.array(numbers, np.float64) % count
        known = (
            (ONE, np.ones_like(n)),
            (SHARE, np.full_like(n, 1 / count)),
            (SHARE, np.full_like(n, 1 / self.written)),
            (RUNNING_NEW, 1 / (n + 1)),
            (RUNNING_OLD, n / (n + 1)),
        )
        for name, wanted in known:
            if np.allclose(values, wanted, rtol=_RELATIVE, atol=0):
                return name
        return ""

    def split(self, position: int) -> tuple[int, int] | None:
        """Return what a product multiplies and the factor, or None where it is no such product."""
        instruction = self.made[position]
        if instruction.opcode != "multiply":
            return None
        for value, factor in (instruction.operands, instruction.operands[::-1]):
            if self._members(factor) is not None and self._members(value) is None:
                return value, factor
        return None

    def _members(self, position: int) -> list[int] | None:
        """Return the ops of a value that constants and counters alone decide."""
        members: set[int] = set()
        waiting = [position]
        while waiting:
            at = waiting.pop()
            if at in members:
                continue
            instruction = self.made[at]
            known = (
                at in self.counters
                or instruction.opcode in ELEMENTWISE
                or instruction.opcode in _SHAPING
            )
            if not known or len(members) >= _MOST_OPS:
                return None
            members.add(at)
            if at not in self.counters:
                waiting.extend(instruction.operands)
        return sorted(members)

    def _values(
        self, members: list[int], position: int, numbers: Sequence[int]
    ) -> list[float] | None:
        """Return the one element that a value consists of, for each number of a micro-batch."""
        entry = self._entry(members, position)
        evaluator = Evaluator(Module("factor", (entry,), 0))
        values = []
        for number in numbers:
            factor = np.asarray(evaluator(np.int32(number))[0], np.float64)
            if not factor.size or (factor != factor.flat[0]).any():
                return None
            values.append(float(factor.flat[0]))
        return values

    def _entry(self, members: list[int], position: int) -> Computation:
        counter = ArrayShape(S32)
        instructions = [Instruction("n", "parameter", counter, parameter_number=0)]
        place: dict[int, int] = {}
        for at in members:
            if at in self.counters:
                place[at] = 0
                continue
            instruction = self.made[at]
            place[at] = len(instructions)
            instructions.append(
                with_operands(instruction, tuple(place[i] for i in instruction.operands))
            )
        return Computation("factor", tuple(instructions), place[position])
