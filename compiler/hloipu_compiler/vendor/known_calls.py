"""Table of the vendors' formulas by call target, and reasons why other targets have none.

Names and attributes of Graphcore's: graphcore/tensorflow:
tensorflow/compiler/plugin/poplar/kernels/ops.proto and driver/tools/custom_ops/; of others: where
their formulas are. A target that somebody registered an implementation for is left alone.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from hloipu_compiler.formulas.call import FORMULAS, Call, arrays_of, attributes_of
from hloipu_compiler.formulas.text import Text, Value
from hloipu_compiler.graphcore.custom_calls import (  # noqa: F401  (they register their formulas)
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
from hloipu_compiler.graphcore.custom_calls.randomness import without_opaque
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
    solvers,
    te_attention,
    te_layers,
    xla_own,
)
from hloipu_compiler.vendor.inlining import OperandArrays, inlined
from hloipu_runtime.element_types import shape_text

_DEFINE = "say what it computes: --define TARGET=FILE.hlo, in Python define={target: …}"
_HOST = (
    "the host takes part in it, and hloipu has no host that does",
    "cut the model there, or feed its results through a queue",
)
_CODELET = ("what it computes is in a library or a codelet that the text does not have", _DEFINE)
_F8 = (
    "numbers of 8 bits with a scale of their own are not there",
    "print the module with f16, or say what it computes: --define TARGET=FILE.hlo",
)
_LOSS = ("hloipu has no formula for it", _DEFINE)

_GRAPHCORES: Mapping[str, tuple[str, str]] = {
    "SendToHost": _HOST, "RecvFromHost": _HOST, "SendRecvBarrier": _HOST,
    "HostEmbeddingLookup": _HOST, "HostEmbeddingUpdate": _HOST,
    "UserOp": _CODELET, "CodeletExpressionOp": _CODELET,
    "ConvertToF8": _F8, "ConvertFromF8": _F8, "F8MatMul": _F8, "F8Conv2D": _F8, "F8Conv3D": _F8,
    "CalcGfloatParams": _F8, "CastNativeToGfloat": _F8, "CastGfloatToNative": _F8,
    "CTCLossWithLogProbs": _LOSS, "CTCLossWithLogits": _LOSS, "CTCBeamSearchWithLogProbs": _LOSS,
    "CTCBeamSearchWithLogits": _LOSS, "CandidateSampler": _LOSS,
    "GRULayerBwd": _LOSS, "DynamicGRULayerBwd": _LOSS, "AUGRULayerBwd": _LOSS,
    "DynamicLstmLayerBwd": _LOSS, "MultiConv": _LOSS, "ReduceMany": _LOSS,
}  # fmt: skip

_KERNEL = ("what it computes is in a kernel that the text does not have", _DEFINE)
_OPERANDS = ("what its operands mean is not published", _DEFINE)
_SCALES = ("its blocks of 8 bits or fewer have scales of their own", _DEFINE)
_ORDER = (
    "it puts a filter into an order of the library's own", "print the module before that",
)  # fmt: skip
_RANDOM = ("which random numbers it draws is not published", _DEFINE)

_OTHERS: Mapping[str, tuple[str, str]] = {
    "AwsNeuronCustomOp": _KERNEL, "AwsNeuronCustomNativeKernel": _KERNEL,
    "AwsNeuronMLPNKI": _KERNEL,
    "AwsNeuronCollectiveMatmul": _OPERANDS, "AwsNeuronIntMatmult": _OPERANDS,
    "AwsNeuronRmsNormBackward": _OPERANDS, "AwsNeuronSiluBackward": _OPERANDS,
    "AwsNeuronDropout": _RANDOM, "AwsNeuronDropoutMaskV1": _RANDOM,
    "__cublas$lt$matmul$mx": _SCALES, "__cublas$lt$groupedMatmul": _OPERANDS,
    "__cudnn$convReorderFilter": _ORDER, "__cudnn$convReorderFilterAndBias": _ORDER,
    "__cudnn$fmhaSoftmaxF8": _SCALES, "__cudnn$fmhaSoftmaxBackwardF8": _SCALES,
    "triton_kernel_call": _KERNEL, "__gpu$xla.gpu.triton": _KERNEL,
    "te_fused_attn_score_mod_forward_ffi": _KERNEL, "te_fused_attn_score_mod_backward_ffi": _KERNEL,
    "te_dact_dbias_quantize_ffi": _SCALES, "te_dbias_quantize_ffi": _SCALES,
}  # fmt: skip

_COMPARING = frozenset({"TopK", "__gpu$TopK", "PartialReduce"})
"""Targets whose formulas read the computation that a call names; others must name none."""

WHY = {**_GRAPHCORES, **_OTHERS}
"""Why a target has no formula, and what to do."""


def without_known_calls(module: Module) -> Module:
    """Return a verified module without custom calls that have a formula.

    The same module, where it has none. Raises FormulaError: E0530 for those that have no meaning
    here, E0531 for those whose operands, results or attributes do not fit.
    """
    if "opaque[" in module.source.text:
        module = without_opaque(module)
    return inlined(module, target_of, partial(_formula, module))


def target_of(instruction: Instruction) -> str:
    """Return which target with a formula an instruction calls; empty: none."""
    if instruction.opcode != "custom-call":
        return ""
    target = instruction.attributes.text("custom_call_target")
    if target in REGISTRY or target in LOWERED:
        return ""
    return target if target in FORMULAS or target in WHY else ""


def _formula(
    module: Module, instruction: Instruction, target: str, operand_arrays: OperandArrays
) -> Source:
    text = Text()
    arrays_given = [array for one in operand_arrays for array in one]
    values = tuple(text.parameter(n, *array) for n, array in enumerate(arrays_given))
    call = Call(
        module,
        instruction,
        target,
        text,
        values,
        arrays_of(instruction.shape),
        attributes_of(instruction),
    )
    if target in WHY:
        raise call.unsupported(*WHY[target])
    if instruction.attributes.called and target not in _COMPARING:
        name = instruction.attributes.called[0]
        raise call.unsupported(f"hloipu does not know what it does with {name!r}", _DEFINE)
    results = list(FORMULAS[target](call))
    _check_results(call, results)
    return Source(text.written(results), "<formula>")


def _check_results(call: Call, results: Sequence[Value]) -> None:
    written = tuple((value.kind, value.dims) for value in results)
    if written != call.results:
        has = ", ".join(shape_text(*array) for array in call.results) or "nothing"
        gives = ", ".join(shape_text(*array) for array in written)
        raise call.wrong(f"it is declared as {has}, and gives {gives}", "correct its shape")
