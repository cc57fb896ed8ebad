"""Rewrites divisions as cheaper ops: a division takes three slots an element.

A number that repeats is inverted once, and multiplied with, which takes a slot for a vector:

    s = f32[8] reduce(e, zero), dimensions={1}       v = f32[8] divide(one, s)
    b = f32[8,99] broadcast(s), dimensions={0}       b = f32[8,99] broadcast(v), dimensions={0}
    d = f32[8,99] divide(e, b)                       d = f32[8,99] multiply(e, b)

So does popnn's softmax (graphcore/poplibs: lib/popnn/NonLinearity.cpp, softmaxImpl). In f32
quotients round twice: they are off by up to 1.5 units in the last place, and where the divisor is
subnormal or its inverse, by more. f16 is multiplied as f32 and rounded once, so that its inverses
neither overflow nor vanish. 1 / (1 + exp(-x)) is the logistic function, an instruction of the chip,
which rounds once.
"""

from typing import ClassVar

import numpy as np

from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.passes.algebra.arithmetic import filled, is_value
from hloipu_compiler.passes.algebra.movement import became, repeating, static
from hloipu_compiler.passes.framework.constant_values import scalar_constant
from hloipu_compiler.passes.framework.pass_base import NO_DEAD_CODE, Facts, Pass
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import Draft, rewritten_in_place
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.element_types import F32
from hloipu_runtime.frozen import dataclass

_FEWEST_TIMES = 4
"""That a divisor repeats: elements of a vector of f16."""


_TYPES = frozenset({"f32", "f16"})
"""Others are not computed in hardware: what they cost is bringing them to f32."""


def _divide(draft: Draft, x: Instruction) -> Instruction | None:
    argument = _logistic_argument(draft, x)
    if argument is not None:
        return became(x, "logistic", (argument,))
    shape = static(x.shape)
    spread = repeating(draft, x.operands[1])
    if shape is None or spread is None or shape.element_type.name not in _TYPES:
        return None
    divisor = static(draft.shape(spread.operands[0]))
    if divisor is None or divisor.element_count * _FEWEST_TIMES > shape.element_count:
        return None
    exact = _exact_inverse(draft, x, spread, shape)
    if exact is not None:
        return became(x, "multiply", (x.operands[0], exact))
    inverse = _inverse(draft, x, spread, divisor)
    if inverse is None:
        return None
    wide = ArrayShape(F32, shape.dimensions)
    repeated = draft.add(x, spread.opcode, wide, (inverse,), spread.attributes)
    if shape.element_type is F32:
        return became(x, "multiply", (x.operands[0], repeated))
    operand = draft.add(x, "convert", wide, x.operands[:1])
    product = draft.add(x, "multiply", wide, (operand, repeated))
    return became(x, "convert", (product,))


def _exact_inverse(
    draft: Draft, x: Instruction, spread: Instruction, shape: ArrayShape
) -> int | None:
    """Return the inverse of a constant power of two, with which products are what quotients are."""
    known = scalar_constant(draft.made[spread.operands[0]])
    if known is None:
        return None
    (share,), (exponent,) = np.frexp(known.reshape(1).astype(np.float64))
    least = -(2 ** (shape.element_type.exponent_bits - 1)) + 2
    if abs(share) != 0.5 or not least < 2 - exponent < 2 - least:
        return None
    value = np.asarray(1 / known.astype(np.float64), known.dtype).reshape(())
    few = ArrayShape(shape.element_type)
    number = draft.add(x, "constant", few, literal=Literal(array=value))
    return draft.add(x, spread.opcode, shape, (number,), spread.attributes)


def _logistic_argument(draft: Draft, x: Instruction) -> int | None:
    """Return x of 1 / (1 + exp(-x))."""
    if not is_value(draft, x.operands[0], 1):
        return None
    total = draft.made[x.operands[1]]
    if total.opcode != "add":
        return None
    for one, other in (total.operands, total.operands[::-1]):
        power = draft.made[other]
        if is_value(draft, one, 1) and power.opcode == "exponential":
            negative = draft.made[power.operands[0]]
            return negative.operands[0] if negative.opcode == "negate" else None
    return None


def _inverse(draft: Draft, x: Instruction, spread: Instruction, shape: ArrayShape) -> int | None:
    """Return the inverse in f32 of what is spread; None for one number, unless it is a constant."""
    (divisor,) = spread.operands
    few = ArrayShape(F32, shape.dimensions)
    known = scalar_constant(draft.made[divisor])
    if known is not None:
        with np.errstate(divide="ignore"):
            value = np.divide(np.float32(1), known.astype(np.float32))
        array = np.asarray(value, np.float32).reshape(few.dimensions)
        return draft.add(x, "constant", few, literal=Literal(array=array))
    if not shape.rank:
        return None
    if shape.element_type is not F32:
        divisor = draft.add(x, "convert", few, (divisor,))
    return draft.add(x, "divide", few, (filled(draft, x, few, 1), divisor))


@register
@dataclass(frozen=True, slots=True)
class CheapenDivisions(Pass):
    """Multiplies by the inverse of a divisor of many elements; names the logistic function."""

    name: ClassVar[str] = "cheapen-divisions"
    breaks: ClassVar[Facts] = frozenset({NO_DEAD_CODE})

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module with such divisions replaced, new ops on the IPUs of these."""
        return rewritten_in_place(module, plan, lambda _: {"divide": _divide})
