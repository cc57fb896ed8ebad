"""Calls of vendors' libraries that hloipu does not run: why, and what to do."""

from collections.abc import Mapping

_DEFINE = "say what it computes: --define TARGET=FILE.hlo, in Python define={target: …}"
_OWN = ("what it computes is in a kernel that the text does not have", _DEFINE)
_OPERANDS = ("what its operands mean is not published", _DEFINE)
_SCALES = ("its blocks of 8 bits or fewer have scales of their own", _DEFINE)
_ORDER = (
    "it puts a filter into an order of the library's own", "print the module before that",
)  # fmt: skip
_RANDOM = ("which random numbers it draws is not published", _DEFINE)

WHY: Mapping[str, tuple[str, str]] = {
    "AwsNeuronCustomOp": _OWN, "AwsNeuronCustomNativeKernel": _OWN, "AwsNeuronMLPNKI": _OWN,
    "AwsNeuronCollectiveMatmul": _OPERANDS, "AwsNeuronIntMatmult": _OPERANDS,
    "AwsNeuronRmsNormBackward": _OPERANDS, "AwsNeuronSiluBackward": _OPERANDS,
    "AwsNeuronDropout": _RANDOM, "AwsNeuronDropoutMaskV1": _RANDOM,
    "__cublas$lt$matmul$mx": _SCALES, "__cublas$lt$groupedMatmul": _OPERANDS,
    "__cudnn$convReorderFilter": _ORDER, "__cudnn$convReorderFilterAndBias": _ORDER,
    "__cudnn$fmhaSoftmaxF8": _SCALES, "__cudnn$fmhaSoftmaxBackwardF8": _SCALES,
    "triton_kernel_call": _OWN, "__gpu$xla.gpu.triton": _OWN,
    "te_fused_attn_score_mod_forward_ffi": _OWN, "te_fused_attn_score_mod_backward_ffi": _OWN,
    "te_dact_dbias_quantize_ffi": _SCALES, "te_dbias_quantize_ffi": _SCALES,
}  # fmt: skip
"""Target -> why, and what to do."""
