"""Published numeric budgets: allowed distance from XLA's result, by op and element type.

`docs/numerics.md` shows these tables to readers; conformance, fuzzing and `hloipu check` use them.
"""

from hloipu_compiler.interpret.agreement import Budget, Verdict, compare_values, disagreements
from hloipu_runtime.element_types import ELEMENT_TYPES

ULPS_F32: dict[str, float] = {
    "atan2": 4, "cbrt": 2, "cosine": 2, "erf": 4, "exponential": 2,
    "exponential-minus-one": 4, "log": 2, "log-plus-one": 4, "logistic": 4, "power": 4,
    "rsqrt": 2, "sine": 2, "tan": 4, "tanh": 4,
    "acos": 4, "acosh": 4, "asin": 4, "asinh": 4, "atanh": 4, "cosh": 4, "sinh": 4,
}  # fmt: skip
"""Steps of f32 allowed to ops that no rule of IEEE 754 rounds; other float ops are exact."""

ULPS_F64: dict[str, float] = dict.fromkeys(ULPS_F32, 4.0)
"""The same for f64."""

ULPS_NARROW = 1.0
"""The same for f16, bf16 and narrower: computed in f32 by both sides, then rounded once."""

ULPS_COMPLEX: dict[str, float] = {
    "multiply": 4, "divide": 8, "abs": 4, "sqrt": 8, "rsqrt": 8, "exponential": 8,
    "exponential-minus-one": 8, "log": 8, "log-plus-one": 8, "sine": 8, "cosine": 8, "tan": 16,
    "tanh": 16, "power": 64, "logistic": 16, "sign": 8, "cbrt": 16, "atan2": 16,
}  # fmt: skip
"""Distance in the plane allowed to complex ops, in eps times the modulus; others are exact."""

FACTORS: dict[str, float] = {
    "dot": 2, "ragged-dot": 2, "scaled-dot": 2, "convolution": 2, "reduce": 2,
    "reduce-window": 2, "select-and-scatter": 2, "scatter": 2, "scan": 2, "all-reduce": 2,
    "reduce-scatter": 2, "fft": 2, "cholesky": 8, "triangular-solve": 8,
    "batch-norm-training": 8, "batch-norm-inference": 4, "batch-norm-grad": 8,
}  # fmt: skip
"""The c of c * log2(n) * eps * sum|terms|, for ops that add up."""

REDUCING = frozenset(
    "reduce reduce-window select-and-scatter scatter scan all-reduce reduce-scatter".split()
)
"""Ops whose budget depends on their combiner: only sums and products depend on order."""

ORDER_DEPENDENT = frozenset({"add", "multiply"})


def budget_of(
    opcode: str,
    element_type: str,
    *,
    terms: int = 1,
    combiner: str | None = "add",
    operand_type: str | None = None,
    subnormals_flushed: bool = True,
) -> Budget:
    """Return the budget of an op whose result has an element type.

    `terms` is the length of the longest sum behind one element; `combiner` the opcode of the region
    of ops that take one (None: a region of its own, held to the budget of a sum); `operand_type`
    the type computed in, where it is not the result's (`abs` and `convert` of complex values).
    """
    element = ELEMENT_TYPES[element_type]
    if not (element.is_float or element.is_complex):
        return Budget(element_type)
    if opcode in FACTORS and (opcode not in REDUCING or combiner in (*ORDER_DEPENDENT, None)):
        return Budget(
            element_type,
            0.0 if element.bits >= 32 else ULPS_NARROW,
            FACTORS[opcode],
            terms,
            signed_zero=False,
            subnormals_flushed=subnormals_flushed,
        )
    ulps = ulps_of(opcode, operand_type or element_type)
    flushed = subnormals_flushed and element.exponent_bits in (8, 11) and opcode not in UNFLUSHED
    return Budget(element_type, ulps, subnormals_flushed=flushed)


UNFLUSHED = frozenset(
    "bitcast-convert bitcast copy reshape transpose broadcast reverse slice dynamic-slice "
    "dynamic-update-slice concatenate pad gather tuple get-tuple-element select negate abs "
    "opt-barrier parameter constant iota sort topk".split()
)
"""Ops that only move or re-sign bits, and so keep subnormal values on every machine."""


def ulps_of(opcode: str, element_type: str) -> float:
    """Return the steps allowed to an elementwise op computing in a type; 0 means exact."""
    if ELEMENT_TYPES[element_type].is_complex:
        return ULPS_COMPLEX.get(opcode, 0.0)
    if element_type == "f64":
        return ULPS_F64.get(opcode, 0.0)
    if element_type == "f32":
        return ULPS_F32.get(opcode, 0.0)
    return ULPS_NARROW if opcode in ULPS_F32 else 0.0


__all__ = ["Budget", "Verdict", "budget_of", "compare_values", "disagreements", "ulps_of"]
