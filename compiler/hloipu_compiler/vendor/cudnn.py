"""Convolutions and layer norms of cuDNN, as XLA:GPU calls them.

Operands and configuration: openxla/xla: xla/service/gpu/cublas_cudnn.h, backend_configs.proto
(CudnnConvBackendConfig, CudnnNormBackendConfig) and thunk_emitter.cc (EmitNormThunk). Windows and
labels are those of the forward convolution, also where a call gives one of its gradients.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from hloipu_compiler.formulas import activations
from hloipu_compiler.formulas.call import Call, formula
from hloipu_compiler.formulas.text import Value
from hloipu_compiler.vendor.convolution_forms import (
    Forward,
    convolved,
    forward_of,
    gradient_of_filter,
    gradient_of_input,
)

_NUMBERED = ("kNone", "kSigmoid", "kRelu", "kRelu6", "kReluX", "kTanh", "kBandPass", "kElu",
             "kLeakyRelu", "kGeluExact")  # fmt: skip
_ACTIVATIONS: Mapping[str, Callable[[Value], Value]] = {
    "kNone": lambda x: x,
    "kSigmoid": lambda x: x.unary("logistic"),
    "kRelu": activations.relu,
    "kRelu6": lambda x: activations.relu(x).binary("minimum", 6.0),
    "kTanh": lambda x: x.unary("tanh"),
    "kElu": activations.elu,
    "kGeluExact": activations.gelu,
}
_INTEGERS = ("s8", "u8", "s32")


def _settings(call: Call) -> Call:
    key = "cudnn_conv_backend_config"
    settings = call.section(key) if call.has(key) else call
    if settings.flag("reordered_int8_nchw_vect", default=False):
        raise call.unsupported("its filter is reordered", "print the module before that")
    return settings


def _scaled(x: Value, factor: float, kind: str) -> Value:
    return (x if factor == 1 else x.wide() * factor).converted(kind)


def _result(call: Call) -> tuple[str, tuple[int, ...]]:
    call.need(bool(call.results), "it gives nothing")
    return call.results[0]


def _sums(call: Call, x: Value, kind: str) -> str:
    if x.kind not in _INTEGERS:
        return kind
    if kind not in ("s32", "f32"):
        raise call.unsupported(f"it rounds whole numbers to {kind}", "write that out in HLO")
    return "s32"


@formula("__cudnn$convForward")
def _forward(call: Call) -> Sequence[Value]:
    return _plain(
        call, lambda forward, x, w, kind, dims: convolved(forward, x, w, _sums(call, x, kind), dims)
    )


@formula("__cudnn$convForwardGraph")
def _graph(call: Call) -> Sequence[Value]:
    text = str(_settings(call).attributes.get("serialized_graph", ""))
    if text.count(":") > 1 or "conv()" not in text:
        raise call.unsupported(
            "its graph has more than a convolution",
            "print the module before convolutions are fused",
        )
    return _forward(call)


@formula("__cudnn$convBackwardInput")
def _backward_input(call: Call) -> Sequence[Value]:
    return _plain(call, gradient_of_input)


@formula("__cudnn$convBackwardFilter")
def _backward_filter(call: Call) -> Sequence[Value]:
    return _plain(call, gradient_of_filter)


def _plain(
    call: Call, write: Callable[[Forward, Value, Value, str, Sequence[int]], Value]
) -> Sequence[Value]:
    lhs, rhs = call.takes(2)
    kind, dims = _result(call)
    result = write(forward_of(call), lhs, rhs, kind, dims)
    factor = _settings(call).number("conv_result_scale", 1)
    return [_scaled(result, factor, kind), *call.workspaces(1)]


@formula("__cudnn$convBiasActivationForward")
def _fused(call: Call) -> Sequence[Value]:
    """Return activation(scale conv + scale of the side input * that + bias), and a workspace."""
    x, kernel, bias, *side_inputs = call.takes(3, 4)
    settings = _settings(call)
    side = settings.number("side_input_scale", 0)
    kind, dims = _result(call)
    if kind in _INTEGERS:
        raise call.unsupported(f"it rounds to {kind}", "write the convolution out in HLO")
    forward = forward_of(call)
    wide = {"f16": "f32", "bf16": "f32"}.get(kind, kind)
    total = convolved(forward, x, kernel, "s32" if x.kind in _INTEGERS else wide, dims)
    total = _scaled(total.converted(wide), settings.number("conv_result_scale", 1), wide)
    call.need(bool(side_inputs) or side == 0, "it scales a side input that is not there")
    if side_inputs:
        call.need(side_inputs[0].dims == dims, f"its side input is no {dims}")
        total = total + _scaled(side_inputs[0].converted(wide), side, wide)
    at = forward.labels.output.index("f")
    call.need(math.prod(bias.dims) == dims[at], f"its bias is no {dims[at]} numbers")
    total = total + bias.converted(wide).reshaped((dims[at],)).broadcast(dims, (at,))
    return [_activated(call, settings, total).converted(kind), *call.workspaces(1)]


def _activated(call: Call, settings: Call, x: Value) -> Value:
    mode = settings.attributes.get("activation_mode", "kNone")
    text = str(mode)
    if text.isdigit() and int(text) < len(_NUMBERED):
        text = _NUMBERED[int(text)]
    if text == "kLeakyRelu":
        return x.compared("GT", 0.0).select(x, x * settings.number("leakyrelu_alpha", 0), x)
    if text not in _ACTIVATIONS:
        raise call.unsupported(
            f"its activation_mode is {str(mode)[:40]!r}", "write the activation out in HLO"
        )
    return _ACTIVATIONS[text](x)


@formula("__cudnn$norm")
def _norm(call: Call) -> Sequence[Value]:
    """Return a layer norm over all dimensions but the first, its statistics, or its gradients."""
    key = "cudnn_norm_backend_config"
    settings = call.section(key) if call.has(key) else call
    kinds = ("LAYER_FWD_INFER", "LAYER_FWD_TRAIN", "LAYER_BWD")
    kind = settings.word("kind", *kinds, default=kinds[0])
    x, scale, *optional = call.takes(5 if kind == kinds[2] else 3)
    call.need(x.rank > 1 and scale.dims == (1, *x.dims[1:]),
              f"its scale {scale.dims} does not go with {x.dims}")  # fmt: skip
    over = tuple(range(1, x.rank))
    wide, count = x.wide(), math.prod(x.dims[1:])
    factor = scale.converted(wide.kind).reshaped(x.dims[1:]).broadcast(x.dims, over)

    def mean(a: Value) -> Value:
        return (a.reduced("add", over) / count).broadcast(x.dims, (0,))

    if kind == kinds[2]:
        gradient, expectation, inverse = optional
        call.alike(x, gradient)
        spread = [
            a.converted(wide.kind).reshaped((x.dims[0],)).broadcast(x.dims, (0,))
            for a in (expectation, inverse)
        ]
        dy = gradient.converted(wide.kind)
        white = (wide - spread[0]) * spread[1]
        scaled = dy * factor
        dx = spread[1] * (scaled - mean(scaled) - white * mean(scaled * white))
        sums = [(dy * white).reduced("add", [0]), dy.reduced("add", [0])]
        results = [dx.converted(x.kind)]
        results += [a.reshaped(scale.dims).converted(scale.kind) for a in sums]
        return [*results, *call.workspaces(3)]
    average = mean(wide)
    centred = wide - average
    inverse = (mean(centred * centred) + settings.number("epsilon")).unary("rsqrt")
    bias = optional[0].converted(wide.kind)
    call.need(bias.dims == scale.dims, f"its bias is no {scale.dims}")
    shift = bias.reshaped(x.dims[1:]).broadcast(x.dims, over)
    results = [(centred * inverse * factor + shift).converted(_result(call)[0])]
    if kind == kinds[1]:
        call.need(len(call.results) > 2, "it gives no statistics")
        for a, (to, dims) in zip((average, inverse), call.results[1:3], strict=True):
            column = a
            for d in over:
                column = column.sliced(d, 0, 1)
            results.append(column.reshaped(dims).converted(to))
    return [*results, *call.workspaces(len(results))]
