"""Dimension rules: which dimensions of an op's operands and results belong together.

A rule names the factors of one instruction, and for every dimension of every array the factors
that it is made of, major to minor. For a product and for a reshape:

    dot      f32[4,8], f32[8,16] -> f32[4,16]   (i, k), (k, j) -> (i, j)    i=4 j=16 k=8 reduction
    reshape  f32[12] -> f32[3,4]                (i j) -> (i, j)             i=3 j=4

Source: openxla/shardy, `docs/propagation.md` (factors) and `dialect/sdy/ir/attrs.td` (kinds).

A text states the rule of a custom call in Shardy's syntax:

    #sdy.op_sharding_rule<([i, j], [j, k])->([i, k]) {i=8, j=16, k=4}, reduction={j}, custom>

JAX writes them for `custom_partitioning` and for calls into LAPACK. A factor that operands and
results share passes through; any other that is not said to be a reduction is needed whole, and what
is said to need replication or the elements of neighbours.
Source: openxla/shardy `shardy/dialect/sdy/ir/attrs.td` (OpShardingRuleAttr).
"""

import re
from enum import Enum, auto
from math import prod
from typing import NamedTuple

from hloipu_runtime.frozen import dataclass


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


_RULE = re.compile(
    r"#sdy\.op_sharding_rule<\((?P<operands>[^()]*)\)->\((?P<results>[^()]*)\)"
    r" \{(?P<sizes>[^{}]*)\}(?P<rest>[^>]*)>"
)
_ARRAY = re.compile(r"\[([^\[\]]*)\]")
_FACTOR = re.compile(r"[a-z](?:_\d+)?")
_SIZE = re.compile(r"([a-z](?:_\d+)?)\s*=\s*(\d+)")
_BATCH = re.compile(r"\bnum_batch_dims=\"?([0-9]{1,3})\b")
_KIND = re.compile(r"\b(reduction|need_replication|permutation|blocked_propagation)=\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class StatedRule:
    """Factors by name."""

    arrays: tuple[tuple[tuple[str, ...], ...], ...]
    """Of operands, then of results: for each dimension its factors, major to minor."""
    operand_count: int
    sizes: dict[str, int]
    reductions: frozenset[str]
    replicated: frozenset[str]
    """Factors of which the call needs, or may need, all elements."""
    blocked: frozenset[str]
    """Factors along which shardings do not spread."""

    @property
    def passed_through(self) -> frozenset[str]:
        """Factors of which a range of the results follows from that of the operands."""
        sides = self.arrays[: self.operand_count], self.arrays[self.operand_count :]
        operand_factors, result_factors = (
            {f for array in side for d in array for f in d} for side in sides
        )
        return frozenset(operand_factors & result_factors) - self.replicated

    def fits(self, sizes: tuple[tuple[int, ...], ...]) -> bool:
        """Whether it is a rule for arrays of these sizes, operands before results."""
        stated_sizes = tuple(
            tuple(prod(self.sizes.get(f, 0) for f in factors) for factors in array)
            for array in self.arrays
        )
        return stated_sizes == sizes


def batch_dimensions(text: str, sizes: tuple[tuple[int, ...], ...]) -> int:
    """Return how many leading dimensions of all arrays an op's frontend attributes call a batch.

    0 where arrays have them in unlike sizes. JAX says so of calls into LAPACK for GSPMD.
    Source: jax-ml/jax `jax/_src/lax/linalg.py` (_linalg_ffi_lowering).
    """
    match = _BATCH.search(text)
    if match is None:
        return 0
    count = int(match[1])
    alike = len({array[:count] for array in sizes}) == 1 and len(sizes[0]) >= count
    return count if alike else 0


def stated_rule(text: str) -> StatedRule | None:
    """Return the rule in an op's frontend attributes, None where there is none."""
    match = _RULE.search(text)
    if match is None:
        return None
    sides = []
    for side in ("operands", "results"):
        arrays = []
        for dimensions in _ARRAY.findall(match[side]):
            factor_lists = dimensions.split(",") if dimensions.strip() else ()
            arrays.append(tuple(tuple(_FACTOR.findall(d)) for d in factor_lists))
        sides.append(tuple(arrays))
    sizes = {name: int(n) for name, n in _SIZE.findall(match["sizes"])}
    kinds = {
        kind: frozenset(_FACTOR.findall(names)) for kind, names in _KIND.findall(match["rest"])
    }
    none = frozenset[str]()
    return StatedRule(
        (*sides[0], *sides[1]), len(sides[0]), sizes, kinds.get("reduction", none),
        kinds.get("need_replication", none) | kinds.get("permutation", none),
        kinds.get("blocked_propagation", none),
    )  # fmt: skip
