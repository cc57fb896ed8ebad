"""The table of all vendors' formulas by call target.

Names and attributes of Graphcore's: graphcore/tensorflow:
tensorflow/compiler/plugin/poplar/kernels/ops.proto and driver/tools/custom_ops/; of others: where
their formulas are. A target that somebody registered an implementation for is left alone.
"""

from collections.abc import Sequence
from functools import partial

from hloipu_compiler.formulas.call import FORMULAS, Call, arrays_of, attributes_of
from hloipu_compiler.formulas.text import Text, Value, shape_text
from hloipu_compiler.graphcore.library_calls import (  # noqa: F401  (they register their formulas)
    arrays,
    collectives,
    gru,
    images,
    lstm,
    nonlinearities,
    norms,
    pools,
    randomness,
    slices,
)
from hloipu_compiler.graphcore.library_calls.opaque import without_opaque
from hloipu_compiler.graphcore.library_calls.unknown import WHY as GRAPHCORES
from hloipu_compiler.interpret.ops.custom_calls import LOWERED, REGISTRY
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.source import Source
from hloipu_compiler.vendor import (  # noqa: F401  (they register their formulas)
    cublas,
    cudnn,
    cudnn_attention,
    neuron,
    onednn,
    selecting,
    te_attention,
    te_layers,
)
from hloipu_compiler.vendor.inlining import Given, inlined
from hloipu_compiler.vendor.unknown import WHY as OTHERS

WHY = {**GRAPHCORES, **OTHERS}
"""Why a target has no formula, and what to do."""


def without_known_calls(module: Module) -> Module:
    """Return a verified module without custom calls that have a formula.

    The same module, where it has none. Raises FormulaError: E0530 for those that have no meaning
    here, E0531 for those whose operands, results or attributes do not fit.
    """
    if "opaque[" in module.source.text:
        module = without_opaque(module)
    return inlined(module, target_of, partial(_formula, module))


def target_of(x: Instruction) -> str:
    """Return which target with a formula an instruction calls; empty: none."""
    if x.opcode != "custom-call":
        return ""
    target = x.attributes.text("custom_call_target")
    if target in REGISTRY or target in LOWERED:
        return ""
    return target if target in FORMULAS or target in WHY else ""


def _formula(module: Module, x: Instruction, target: str, given: Given) -> Source:
    """Return the formula of a custom call as a module's text."""
    text = Text()
    arrays_given = [array for one in given for array in one]
    values = tuple(text.parameter(n, *array) for n, array in enumerate(arrays_given))
    call = Call(module, x, target, text, values, arrays_of(x.shape), attributes_of(x))
    if target in WHY:
        raise call.unsupported(*WHY[target])
    results = list(FORMULAS[target](call))
    _check_results(call, results)
    return Source(text.written(results), "<formula>")


def _check_results(call: Call, results: Sequence[Value]) -> None:
    made = tuple((value.kind, value.dims) for value in results)
    if made != call.results:
        has = ", ".join(shape_text(*array) for array in call.results) or "nothing"
        gives = ", ".join(shape_text(*array) for array in made)
        raise call.wrong(f"it is declared as {has}, and gives {gives}", "correct its shape")
