"""Dimension rules that a text states for custom calls, in Shardy's syntax.

    #sdy.op_sharding_rule<([i, j], [j, k])->([i, k]) {i=8, j=16, k=4}, reduction={j}, custom>

JAX writes them for `custom_partitioning` and for calls into LAPACK. A factor that operands and
results share passes through; any other that is not said to be a reduction is needed whole, and what
is said to need replication or the elements of neighbours.
Source: openxla/shardy `shardy/dialect/sdy/ir/attrs.td` (OpShardingRuleAttr).
"""

import re
from math import prod

from hloipu_runtime.frozen import dataclass

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
