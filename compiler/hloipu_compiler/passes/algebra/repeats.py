"""Computes once what ops on many elements repeat: inverses of divisors, and factors of sums.

A number that repeats is inverted once, and multiplied with, which takes a slot for a vector, where
a division takes three for each element:

    s = f32[8] reduce(e, zero), dimensions={1}       v = f32[8] divide(one, s)
    b = f32[8,99] broadcast(s), dimensions={0}       b = f32[8,99] broadcast(v), dimensions={0}
    d = f32[8,99] divide(e, b)                       d = f32[8,99] multiply(e, b)

So does popnn's softmax (graphcore/poplibs: lib/popnn/NonLinearity.cpp, softmaxImpl). In f32
quotients round twice: they are off by up to 1.5 units in the last place, and where the divisor is
subnormal or its inverse, by more. f16 is multiplied as f32 and rounded once, so that its inverses
neither overflow nor vanish. 1 / (1 + exp(-x)) is the logistic function, an instruction of the chip,
which rounds once.

Factors of f32 that repeat along a sum are taken out of it, and signs of any type:

    b = f32[8,99] broadcast(c), dimensions={0}        s = f32[8] reduce(x, zero), dimensions={1}
    p = f32[8,99] multiply(x, b)                      t = f32[8] multiply(s, c)
    t = f32[8] reduce(p, zero), dimensions={1}

Gradients of norms sum one product with several such factors, and its negative: what is left is
often one sum of them all. Products of f16 stay where they are: each is rounded by far more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

import numpy as np

from hloipu_compiler.ir.attributes import Attributes
from hloipu_compiler.ir.graph import Instruction, Module, combiner
from hloipu_compiler.ir.literals import Literal
from hloipu_compiler.ir.ops import OPS, Trait
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.passes.algebra.arithmetic import (
    commutative_region,
    filled,
    is_value,
    wide_addition,
)
from hloipu_compiler.passes.algebra.movement import (
    became,
    repeating,
    same_value_shape,
    spread,
    static,
)
from hloipu_compiler.passes.framework.constant_values import scalar_constant
from hloipu_compiler.passes.framework.names import Names
from hloipu_compiler.passes.framework.pass_base import NO_DEAD_CODE, Facts, Pass
from hloipu_compiler.passes.framework.registry import register
from hloipu_compiler.passes.framework.rewriting import Draft, Rule, rewritten_in_place
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.element_types import F32
from hloipu_runtime.frozen import dataclass

_FEWEST_TIMES = 4
"""That a divisor repeats: elements of a vector of f16."""

_DEEPEST = 100
"""Products within each other that factors are looked for in. Assumed: gradients have ten or so."""

_TYPES = frozenset({"f32", "f16"})
"""Others are not computed in hardware: what they cost is bringing them to f32."""


def _divide(draft: Draft, x: Instruction) -> Instruction | None:
    argument = logistic_argument(draft, x)
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


def logistic_argument(draft: Draft, x: Instruction) -> int | None:
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
        with np.errstate(divide="ignore", over="ignore"):
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


_ZERO = Literal("0")


class _Factor(NamedTuple):
    """What a sum's terms are multiplied by: a value, and the dimensions that it follows."""

    at: int
    dimensions: tuple[int, ...]


class _Terms(NamedTuple):
    """What is summed: a value's elements, times factors that repeat along the sum."""

    at: int
    factors: tuple[_Factor, ...] = ()
    is_negated: bool = False

    @property
    def is_plain(self) -> bool:
        return not self.factors and not self.is_negated


class _Sum:
    """The rule for `reduce`, with the f32 addition that it uses."""

    def __init__(self, module: Module, ipus: Mapping[tuple[str, str], int]) -> None:
        self.ipus = ipus
        self.region = wide_addition(module)
        self.is_new = not self.region
        self.sums: dict[tuple[str, int, int, tuple[int, ...]], int] = {}
        """Computation, IPU, terms and dimensions of the sums that were written: where they are."""
        self.products: dict[tuple[str, int, int], int] = {}
        self.known: dict[tuple[str, int, frozenset[int]], _Terms] = {}
        """Of the computation's values, for sums that keep these dimensions."""
        if self.is_new:
            self.region = Names(c.name for c in module.computations).fresh("sum")

    def rule(self, draft: Draft, x: Instruction) -> int | Instruction | None:
        """Return the sum's product with its factors, or None where it has none."""
        shape, source = static(x.shape), static(draft.shape(x.operands[0]))
        if shape is None or source is None or len(x.operands) != 2:
            return None
        if source.element_type.name not in ("f32", "f16") or not is_value(draft, x.operands[1], 0):
            return None
        if commutative_region(draft.module.computation[x.attributes.called[0]]) != "add":
            return None
        reduced = x.attributes.integers("dimensions")
        kept = [d for d in range(source.rank) if d not in reduced]
        terms = self.terms(draft, x.operands[0], frozenset(kept))
        ipu = self.ipus.get((draft.old.name, x.name), -1)
        key = draft.old.name, ipu, terms.at, tuple(reduced)
        if terms.is_plain and key not in self.sums:
            return None
        if not _pays(draft, x.operands[0], terms.at):
            return None
        few = ArrayShape(F32, shape.dimensions)
        if key not in self.sums:
            at = _wide(draft, x, terms.at, ArrayShape(F32, source.dimensions))
            zero = draft.add(x, "constant", ArrayShape(F32), literal=_ZERO)
            how = Attributes({"dimensions": reduced, "to_apply": self.region}, (self.region,))
            self.sums[key] = draft.add(x, "reduce", few, (at, zero), how)
        total = self.sums[key]
        for factor in terms.factors:
            total = draft.add(x, "multiply", few, (total, _few(draft, x, factor, kept, few)))
        if terms.is_negated:
            total = draft.add(x, "negate", few, (total,))
        if same_value_shape(draft, x, total):
            return total
        return became(x, "convert", (total,))

    def terms(self, draft: Draft, at: int, kept: frozenset[int], depth: int = 0) -> _Terms:
        """Return what a sum of a value comes to, without signs and factors of f32."""
        if depth == _DEEPEST:
            return _Terms(at)
        key = draft.old.name, at, kept
        if key not in self.known:
            self.known[key] = self._terms(draft, at, kept, depth + 1)
        return self.known[key]

    def _terms(self, draft: Draft, at: int, kept: frozenset[int], depth: int) -> _Terms:
        x = draft.made[at]
        if x.opcode == "negate":
            inner = self.terms(draft, x.operands[0], kept, depth)
            return inner._replace(is_negated=not inner.is_negated)
        if x.opcode == "convert":
            before = static(draft.shape(x.operands[0]))
            if before is not None and before.element_type.name == "f16":
                inner = self.terms(draft, x.operands[0], kept, depth)
                return _Terms(at) if inner.is_plain else inner
        shape = static(x.shape)
        if x.opcode != "multiply" or shape is None or shape.element_type is not F32:
            return _Terms(at)
        for one, other in (x.operands, x.operands[::-1]):
            repeated = repeating(draft, one)
            dimensions = repeated.attributes.integers("dimensions") if repeated else ()
            if repeated is not None and kept.issuperset(dimensions):
                inner = self.terms(draft, other, kept, depth)
                factor = _Factor(repeated.operands[0], dimensions)
                return inner._replace(factors=(*inner.factors, factor))
        left, right = (self.terms(draft, operand, kept, depth) for operand in x.operands)
        if left.is_plain and right.is_plain:
            return _Terms(at)
        one, other = sorted((left.at, right.at))
        key = draft.old.name, one, other
        if key not in self.products:
            operands = [_wide(draft, x, at, shape) for at in (one, other)]
            self.products[key] = draft.add(x, "multiply", shape, operands)
        negated = left.is_negated is not right.is_negated
        return _Terms(self.products[key], (*left.factors, *right.factors), negated)

    def doubled(self, draft: Draft, x: Instruction) -> Instruction | None:
        """Double what repeats in place of each product with it: of f32, as in f16 it may overflow.

        So comes the gradient of a square that is written as a product.
        """
        product, shape = draft.made[x.operands[0]], static(x.shape)
        if x.operands[0] != x.operands[1] or product.opcode != "multiply" or shape is None:
            return None
        for one, other in (product.operands, product.operands[::-1]):
            repeated = repeating(draft, one)
            few = static(draft.shape(repeated.operands[0])) if repeated is not None else None
            if repeated is not None and few is not None and few.element_type is F32:
                twice = draft.add(x, "add", few, repeated.operands * 2)
                again = draft.add(x, repeated.opcode, shape, (twice,), repeated.attributes)
                return became(x, "multiply", (other, again))
        return None

    def region_added(self, module: Module) -> Module:
        """Return the module with the addition, where it had none."""
        if not self.is_new:
            return module
        computations = (combiner(self.region, "add", ArrayShape(F32)), *module.computations)
        return replace(module, computations=computations, entry_position=module.entry_position + 1)


def _wide(draft: Draft, like: Instruction, at: int, shape: ArrayShape) -> int:
    known = static(draft.shape(at))
    if known is not None and known.element_type is F32:
        return at
    return draft.add(like, "convert", shape, (at,))


def _few(
    draft: Draft, like: Instruction, factor: _Factor, kept: Sequence[int], shape: ArrayShape
) -> int:
    """Return a factor in f32, with an element for each sum."""
    source = static(draft.shape(factor.at))
    dimensions = source.dimensions if source is not None else ()
    at = _wide(draft, like, factor.at, ArrayShape(F32, dimensions))
    return spread(draft, like, at, shape, tuple(kept.index(d) for d in factor.dimensions))


def _pays(draft: Draft, product: int, terms: int) -> bool:
    """Whether nothing is stored in addition: terms of one reader would get a second one.

    That is where the product has other readers, so that it is computed all the same.
    """
    old = draft.old
    readers = [len(old.users[old.position[name]]) if (name := draft.made[at].name) in old.position
               else 1 for at in (product, terms)]  # fmt: skip
    is_elementwise = Trait.ELEMENTWISE in OPS[draft.made[terms].opcode].traits
    return readers[0] < 2 or readers[1] > 1 or not is_elementwise


@register
@dataclass(frozen=True, slots=True)
class FactorSums(Pass):
    """Multiplies a sum, in place of its terms, by what repeats along it."""

    name: ClassVar[str] = "factor-sums"
    breaks: ClassVar[Facts] = frozenset({NO_DEAD_CODE})

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module with such sums rewritten, new ops on the IPUs of these."""
        sums = _Sum(module, plan.ipus)
        rules: dict[str, Rule] = {"reduce": sums.rule, "add": sums.doubled}
        after, plan = rewritten_in_place(module, plan, lambda _: rules)
        return (module if after is module else sums.region_added(after)), plan
