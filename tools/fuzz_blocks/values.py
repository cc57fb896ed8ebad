"""One small case run on tiles, with memories spoiled before use, against the evaluator.

Both are measured against the same module computed in f64 throughout: results on tiles may be off by
a few times as much as the evaluator's, which rounds after the same ops but adds in another order.
"""

import math

import numpy as np

from hloipu.api import compile_verified
from hloipu.inputs import flat
from hloipu.options.resolve import resolve
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import evaluate
from hloipu_compiler.interpret.planning.site import array_leaves
from hloipu_compiler.interpret.random_inputs import random_arguments
from hloipu_compiler.interpret.widen import widened, widened_arguments
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.kernels.core.blocks import Array
from tools.fuzz_blocks.cases import Case

FACTOR = 8.0
"""As many times the evaluator's error: both are samples of one distribution."""
ROUNDINGS = 16.0
"""Roundings of the whole result that are allowed in any case."""
KEPT = frozenset(("over_memory", "available_memory_proportion", "passes"))
"""Options under which a plain step is run; others cut it, or round more."""


def value_faults(case: Case, target: str) -> list[str]:
    """Return what is wrong with the values of a case; raises what compiling and running raise."""
    module = parse(case.text)
    verify(module)
    options = {k: v for k, v in case.options.items() if k in KEPT} | {"target": target}
    program = compile_verified(module, resolve("compile", options).options)
    arguments = random_arguments(module, case.seed)
    result = program.run(*arguments, mode="exact", poison=True)
    theirs = flat(evaluate(module, *arguments))
    wide = widened(module)
    truth = flat(evaluate(wide, *widened_arguments(arguments)))
    leaves = array_leaves(module.entry.program_shape.result)
    return [
        f"result {number}: {said}"
        for number, shape in enumerate(leaves)
        if (said := fault(shape, result.outputs[number], theirs[number], truth[number]))
    ]


def fault(shape: ArrayShape, ours: Array, theirs: Array, truth: Array) -> str:
    """Say how a result differs, or nothing."""
    forms = {(x.dtype, x.shape) for x in (np.asarray(ours), np.asarray(theirs))}
    if len(forms) > 1 or np.shape(truth) != np.shape(theirs):
        return f"{shape}: results are of other types or shapes"
    if not shape.element_type.is_float:
        return "" if np.array_equal(ours, theirs) else f"{shape} differs"
    a, b, c = (np.asarray(x).astype(np.float64) for x in (ours, theirs, truth))
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return f"{shape}: not finite in other places"
    judged = np.isfinite(b) & np.isfinite(c)
    mine, other = _norm(a[judged] - c[judged]), _norm(b[judged] - c[judged])
    epsilon = 2.0**-shape.element_type.mantissa_bits
    allowed = FACTOR * other + ROUNDINGS * epsilon * _norm(c[judged])
    return "" if mine <= allowed else f"{shape}: off by {mine:.3g}, allowed {allowed:.3g}"


def _norm(values: Array) -> float:
    return math.sqrt(float(np.sum(values * values)))
