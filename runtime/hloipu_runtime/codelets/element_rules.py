"""Element types that a codelet accepts: operands, results and parameters.

Kernels compute narrow floats in wider arrays, so that nothing but these rules tells a bf16 partial
sum from one of f32. A codelet without a rule may take any types.
"""

from collections.abc import Callable, Sequence
from typing import Any

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.element_types import ELEMENT_TYPES, Kind

Types = Sequence[str]
Rule = Callable[[Any, Types, Types], str]

ROUNDING = frozenset({"add", "multiply"})
"""Monoids whose partial results are rounded."""


def element_fault(codelet: Codelet, operands: Types, results: Types) -> str:
    """Return how the types of operands and results do not fit a codelet, or nothing."""
    rule = RULES.get(codelet.name)
    return "" if rule is None else rule(codelet, operands, results)


def _result_fault(results: Types, expected: Types) -> str:
    if list(results) == list(expected):
        return ""
    return f"makes {', '.join(expected)}, and writes {', '.join(results)}"


def _operand_fault(operands: Types, expected: Types) -> str:
    if list(operands) == list(expected):
        return ""
    return f"takes {', '.join(expected)}, and reads {', '.join(operands)}"


def _moved(codelet: Any, operands: Types, results: Types) -> str:
    """Check that all are of one type."""
    kinds = {*operands, *results}
    return "" if len(kinds) < 2 else f"moves {', '.join(sorted(kinds))} as if they were one type"


def _picked(data: int) -> Rule:
    """Return the rule of data of one type, in operands first, with indices after it."""

    def rule(codelet: Any, operands: Types, results: Types) -> str:
        return _moved(codelet, operands[:data], results) or _are_integers(operands[data:])

    return rule


def _are_integers(kinds: Types) -> str:
    wrong = [x for x in kinds if ELEMENT_TYPES[x].kind not in (Kind.SIGNED, Kind.UNSIGNED)]
    return f"takes {wrong[0]} for an index" if wrong else ""


def _of_parameter(codelet: Any, operands: Types, results: Types) -> str:
    kind = codelet.element_type
    return _result_fault(results, [kind] * len(results)) or _operand_fault(
        operands, [kind] * len(operands)
    )


def _result_of_parameter(codelet: Any, operands: Types, results: Types) -> str:
    return _result_fault(results, [codelet.element_type] * len(results))


def _contracted(codelet: Any, operands: Types, results: Types) -> str:
    """Say whether a product is of the type of its parameter; pieces of one are partial sums.

    Those of narrow floats are f32; or f16, which the machine can and users may ask for.
    """
    kind = codelet.element_type
    if getattr(codelet, "part", 0) and kind not in ("f16", partial_type(kind)):
        return f"has partial sums of {kind}"
    return _result_fault(results, [kind])


def _reduced(codelet: Any, operands: Types, results: Types) -> str:
    """Check arrays, then what each starts from."""
    count = len(codelet.element_types)
    return _summed(codelet, operands[:count], operands[count:], results)


def _fused(codelet: Any, operands: Types, results: Types) -> str:
    """Check operands of an expression, whose result is reduced, then what it starts from."""
    expression: Expression = codelet.expression
    count = len(expression.operand_types)
    return _operand_fault(operands[:count], expression.operand_types) or _summed(
        codelet, expression.result_types, operands[count:], results
    )


def _summed(codelet: Any, arrays: Types, starts: Types, results: Types) -> str:
    """Check that results are of the arrays' types, but for narrow floats, which f32 may add up.

    Partial sums of convolutions in f16 stay so where they are added in stages.
    """
    kinds = codelet.element_types
    starts = starts or kinds
    if not len(arrays) == len(kinds) == len(starts):
        return "takes other operands"
    for array, kind, start in zip(arrays, kinds, starts, strict=True):
        if codelet.parts:
            rounds = codelet.monoid in ROUNDING
            of_pieces = array == "f16" and getattr(codelet, "of_convolution", False)
            if kind != (partial_type(array) if rounds and not of_pieces else array):
                return f"has partial results of {kind} for {array}"
        elif array not in (kind, partial_type(kind)) and kind != partial_type(array):
            return f"makes {kind} of {array}"
        elif start not in (kind, array):
            return f"makes {kind}, and starts from {start}"
    return _result_fault(results, kinds)


def partial_type(kind: str) -> str:
    """Return the type of partial sums: f32 for every narrower float."""
    element = ELEMENT_TYPES[kind]
    return "f32" if element.is_float and element.bits < 32 else kind


def _windowed(codelet: Any, operands: Types, results: Types) -> str:
    kinds = codelet.element_types
    return _result_fault(results, kinds) or _operand_fault(operands, [*kinds, *kinds])


def _scattered(codelet: Any, operands: Types, results: Types) -> str:
    kinds = codelet.element_types
    count = len(kinds)
    said = _result_fault(results, kinds) or _operand_fault(operands[:count], kinds)
    said = said or _operand_fault(operands[count + 1 :], kinds)
    return said or _are_integers(operands[count : count + 1])


def _computed(codelet: Any, operands: Types, results: Types) -> str:
    expression: Expression = codelet.expression
    said = _operand_fault(operands, expression.operand_types)
    return said or _result_fault(results, expression.result_types) or expression_fault(expression)


def _rows(codelet: Any, operands: Types, results: Types) -> str:
    said = _operand_fault(operands, codelet.operand_types)
    kinds = list(codelet.operand_types)
    waiting = list(reversed(codelet.reductions))
    for step, (expression, sources) in enumerate(
        zip(codelet.expressions, codelet.sources, strict=True)
    ):
        said = said or _operand_fault([kinds[x] for x in sources], expression.operand_types)
        said = said or expression_fault(expression)
        kinds += expression.result_types
        while waiting and waiting[-1][0] == step:
            kinds.append(kinds[waiting.pop()[1]])
    return said or _result_fault(results, [kinds[x] for x in codelet.results])


def _scanned(codelet: Any, operands: Types, results: Types) -> str:
    body: Expression = codelet.body
    return _operand_fault(operands, body.operand_types) or _result_fault(results, body.result_types)


def _sorted(codelet: Any, operands: Types, results: Types) -> str:
    return _result_fault(results, operands[: len(results)])


def _best(codelet: Any, operands: Types, results: Types) -> str:
    said = _result_fault(results, [operands[0], "s32"][: len(results)])
    return said or _operand_fault(operands[1:], ["s32"] * (len(operands) - 1))


def _recast(codelet: Any, operands: Types, results: Types) -> str:
    return _operand_fault(operands, [codelet.source_type]) or _result_fault(
        results, [codelet.target_type]
    )


def _transformed(codelet: Any, operands: Types, results: Types) -> str:
    """Check that real numbers are as wide as each part of complex ones."""
    real = {"c64": "f32", "c128": "f64"}
    kind = operands[0] if codelet.kind != "RFFT" else results[0]
    if kind not in real:
        return f"takes {kind} for complex numbers"
    before = real[kind] if codelet.kind == "RFFT" else kind
    after = real[kind] if codelet.kind == "IRFFT" else kind
    return _operand_fault(operands, [before]) or _result_fault(results, [after])


def _drawn_bits(codelet: Any, operands: Types, results: Types) -> str:
    return _result_fault(results, [*operands, codelet.element_type])


def _of_routine(codelet: Any, operands: Types, results: Types) -> str:
    return _operand_fault(operands[:1], [codelet.element_type])


def _inner_dot(codelet: Any, operands: Types, results: Types) -> str:
    return _contracted(codelet.dot, operands[:2], results)


def expression_fault(expression: Expression) -> str:
    """Return which op of an expression takes other types than it makes, or nothing."""
    for node in expression.nodes:
        kinds = [expression.type_of(number) for number in node.arguments]
        if node.op in _OTHER_RESULTS:
            alike = kinds
        elif node.op in _BY_PREDICATE:
            alike = [*kinds[1:], node.element_type]
            if kinds[0] != "pred":
                return f"{node.op} by {kinds[0]}"
        elif node.op in _CHANGING:
            continue
        else:
            alike = [*kinds, node.element_type]
        if len({*alike}) > 1:
            return f"{node.op} of {', '.join(kinds)} makes {node.element_type}"
    return ""


_CHANGING = frozenset({"convert", "bitcast-convert", "stochastic-convert"})
_OTHER_RESULTS = frozenset({"compare", "is-finite", "complex", "real", "imag", "abs"})
"""Ops on one type that may make another."""
_BY_PREDICATE = frozenset({"select"})

RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("copy", "transpose", "reverse", "slice", "broadcast", "concatenate", "pad", "reshape",
         "or-bits", "fft_twiddle", "rng_state"),
        _moved,
    ),
    **dict.fromkeys(("dynamic-slice", "dynamic-slice-candidates", "gather", "gather-candidates"),
                    _picked(1)),
    "dynamic-update-slice": _picked(2),
    **dict.fromkeys(("select_and_scatter", "cholesky", "triangular_solve"), _of_parameter),
    **dict.fromkeys(("iota", "fill", "batch_norm_training", "batch_norm_grad", "rng_values"),
                    _result_of_parameter),
    **dict.fromkeys(("dot", "convolution"), _contracted),
    **dict.fromkeys(("added_dot", "ragged_dot", "scaled_dot"), _inner_dot),
    **dict.fromkeys(("topk", "topk_pieces", "topk_merge"), _best),
    "reduce": _reduced,
    "fused_reduce": _fused,
    "reduce_window": _windowed,
    "scatter": _scattered,
    "elementwise": _computed,
    "row_region": _rows,
    "scan": _scanned,
    "sort": _sorted,
    "bitcast-convert": _recast,
    "fft": _transformed,
    "lapack": _of_routine,
    "rng_bits": _drawn_bits,
}  # fmt: skip
