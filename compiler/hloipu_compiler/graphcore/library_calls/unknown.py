"""Ops of Graphcore's that hloipu does not run: why, and what to do."""

from collections.abc import Mapping

_HOST = (
    "the host takes part in it, and hloipu has no host that does",
    "cut the model there, or feed its results through a queue",
)
_OWN = (
    "what it computes is in a library or a codelet that the text does not have",
    "say what it computes: --define TARGET=FILE.hlo, in Python define={target: …}",
)
_F8 = (
    "numbers of 8 bits with a scale of their own are not there",
    "print the module with f16, or say what it computes: --define TARGET=FILE.hlo",
)
_LOSS = (
    "hloipu has no formula for it",
    "say what it computes: --define TARGET=FILE.hlo, in Python define={target: …}",
)

WHY: Mapping[str, tuple[str, str]] = {
    "SendToHost": _HOST, "RecvFromHost": _HOST, "SendRecvBarrier": _HOST,
    "HostEmbeddingLookup": _HOST, "HostEmbeddingUpdate": _HOST,
    "UserOp": _OWN, "CodeletExpressionOp": _OWN,
    "ConvertToF8": _F8, "ConvertFromF8": _F8, "F8MatMul": _F8, "F8Conv2D": _F8, "F8Conv3D": _F8,
    "CalcGfloatParams": _F8, "CastNativeToGfloat": _F8, "CastGfloatToNative": _F8,
    "CTCLossWithLogProbs": _LOSS, "CTCLossWithLogits": _LOSS, "CTCBeamSearchWithLogProbs": _LOSS,
    "CTCBeamSearchWithLogits": _LOSS, "CandidateSampler": _LOSS,
    "GRULayerBwd": _LOSS, "DynamicGRULayerBwd": _LOSS, "AUGRULayerBwd": _LOSS,
    "DynamicLstmLayerBwd": _LOSS, "MultiConv": _LOSS, "ReduceMany": _LOSS,
}  # fmt: skip
