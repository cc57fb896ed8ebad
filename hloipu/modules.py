"""Parse, verify and evaluate HLO text from Python."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hloipu.text import HloInput, read_source
from hloipu_compiler.hlo.parse import parse as parse_source
from hloipu_compiler.hlo.syntax.limits import DEFAULT_LIMITS, Limits
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.verify.verifier import verify as verify_module
from hloipu_runtime.arguments import Number, checked
from hloipu_runtime.errors import UsageError


@checked
def parse(given: HloInput, *, limits: Limits = DEFAULT_LIMITS) -> Module:
    """Read HLO text into a module, as XLA's parser does.

    Raises ParseError where the text is wrong, LimitError where it is larger or deeper than
    `limits`, UsageError where it cannot be read.
    """
    return parse_source(read_source(given, limits), limits=limits)


@checked
def verify(given: HloInput, *, limits: Limits = DEFAULT_LIMITS) -> Module:
    """Read HLO text and check it, as XLA's parser and verifier do.

    Raises what `parse` raises, and VerifyError with every fault found.
    """
    module = parse(given, limits=limits)
    verify_module(module)
    return module


@checked
def evaluate(
    given: HloInput,
    *arguments: Any,
    define: Mapping[str, Any] | None = None,
    limits: Mapping[str, Number] | None = None,
    max_iterations: Number | None = None,
    fast: bool | None = None,
) -> list[Any]:
    """Compute a module's values on arrays in entry-parameter order, op by op.

    Arrays are numpy's, with ml_dtypes for bf16, f8 and the like; a tuple parameter takes a list. A
    module that is written for several replicas or partitions is evaluated on all of them, each on
    the same arguments; the results are the first one's. Pipelines and repeat loops in Graphcore's
    encoding run as their micro-batches and updates. `define`: what custom calls compute, by target:
    HLO text, a file of it, or a JAX function. `limits`: `live_bytes`, `value_elements` and
    `executed_instructions`, where they are to be others than 8 GiB, 2^31 and 500,000.
    `max_iterations`: iterations that a loop may take each time it is entered, any number by
    default. `fast`: whether kernels may be compiled to machine code, where hloipu[fast] is
    installed, which is so by default; values are the same. Returns the leaves of the result, in
    order. Raises what `verify` raises, UsageError where an argument does not fit, UnsupportedError
    and LimitError where the module cannot be computed.
    """
    # imports numpy and every kernel
    from hloipu.encoded import with_plain_loops
    from hloipu_compiler.interpret.evaluator import EvaluationLimits
    from hloipu_compiler.interpret.participants import evaluate_everywhere
    from hloipu_runtime.kernels.native.settings import kernels_allowed

    names = {field.name for field in fields(EvaluationLimits)} - {"max_iterations"}
    unknown = sorted((limits or {}).keys() - names)
    if unknown:
        raise UsageError("E3117", f"there is no limit {unknown[0]!r}")
    module = with_plain_loops(verify(given), {"define": define})
    bounds = EvaluationLimits(**(limits or {}), max_iterations=max_iterations)
    with kernels_allowed(fast):
        return evaluate_everywhere(module, *arguments, limits=bounds)
