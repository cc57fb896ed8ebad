"""Dimension rules: which dimensions of an op's operands and results belong together.

A rule names the factors of one instruction, and for every dimension of every array the factors
that it is made of, major to minor. For a product and for a reshape:

    dot      f32[4,8], f32[8,16] -> f32[4,16]   (i, k), (k, j) -> (i, j)    i=4 j=16 k=8 reduction
    reshape  f32[12] -> f32[3,4]                (i j) -> (i, j)             i=3 j=4

Source: openxla/shardy, `docs/propagation.md` (factors) and `dialect/sdy/ir/attrs.td` (kinds).
"""

from enum import Enum, auto
from math import prod
from typing import NamedTuple


class FactorKind(Enum):
    """How an op treats a factor."""

    PASS_THROUGH = auto()
    """A range of every result that has it follows from the same range of each operand that does."""
    REDUCTION = auto()
    """Results of ranges are combined: added after products, else by the op's own computation.
    Only operands have it; initial values and arrays that are updated count once."""
    PERMUTATION = auto()
    """A range needs other ranges' elements: windows, borders, slices, reversals. Where no result
    has it, as with a convolution's window, results of ranges are added, too."""
    INDEXED = auto()
    """Indices point into it: for a range they are made local, and what misses it is masked."""
    WHOLE = auto()
    """All of it is needed at once."""


class Factor(NamedTuple):
    """One factor of a rule."""

    size: int
    kind: FactorKind
    blocked: bool = False
    """Whether a split of one array along it is no reason to split the others that have it."""


Dimensions = tuple[tuple[int, ...], ...]
"""For each dimension of an array the numbers of its factors, major to minor, at least one.

Their sizes multiply to that of the dimension if all are passed through or reduced. A factor of size
1 stands alone.
"""


class DimensionRule(NamedTuple):
    """The factors of an instruction and the dimensions of its arrays, leaf by leaf of tuples."""

    factors: tuple[Factor, ...]
    operands: tuple[Dimensions, ...]
    results: tuple[Dimensions, ...]

    def kind(self, number: int) -> FactorKind:
        """Return the kind of a factor."""
        return self.factors[number].kind

    def dimensions(self, operand: int, *kinds: FactorKind) -> tuple[int, ...]:
        """Return the dimensions of an operand that have a factor of one of these kinds."""
        return tuple(
            d
            for d, factors in enumerate(self.operands[operand])
            if any(self.kind(f) in kinds for f in factors)
        )

    def ranges(self, axis: int) -> tuple[int, ...] | None:
        """Return for each operand the dimension that is cut as one of the result's is, else -1.

        A range of the first result is then the op on as large a share of those dimensions, and on
        all of the other operands. None where the op does not go by ranges of that dimension.
        """
        axis_factors = self.results[0][axis]
        factor = axis_factors[0]
        if self.kind(factor) is not FactorKind.PASS_THROUGH:
            return None
        dimension_by_operand = []
        alone = len(axis_factors) == 1
        for dimensions in self.operands:
            place = next((d for d, factors in enumerate(dimensions) if factor in factors), -1)
            if place >= 0:
                if dimensions[place][0] != factor:
                    return None  # strided
                alone = alone or len(dimensions[place]) == 1
            dimension_by_operand.append(place)
        return tuple(dimension_by_operand) if alone else None

    def summed(self) -> int:
        """Return how many elements of the first operand each element of a result is a sum of."""
        result_factors = {
            f for dimensions in self.results for factors in dimensions for f in factors
        }
        operand_factors = {f for factors in self.operands[0] for f in factors}
        return prod(self.factors[f].size for f in operand_factors - result_factors)

    def order(self) -> tuple[int, ...] | None:
        """Return the operand's dimensions in the result's order, where that is all that changes.

        None where the first operand's factors and the only result's are not the same.
        """
        if len(self.results) != 1 or not self.operands:
            return None
        place = {factors: d for d, factors in enumerate(self.operands[0])}
        order = tuple(place.get(factors, -1) for factors in self.results[0])
        through = all(factor.kind is FactorKind.PASS_THROUGH for factor in self.factors)
        return order if through and sorted(order) == list(range(len(place))) else None
