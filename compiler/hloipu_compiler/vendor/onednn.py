"""Products, softmaxes, norms and convolutions of oneDNN, as XLA:CPU calls them.

Configuration: openxla/xla: xla/service/cpu/onednn_config.proto; what it is made of:
onednn_contraction_rewriter.cc and onednn_ops_rewriter.cc. Numbers of a convolution are counted
from 0 in some versions, and from 1 in others, as its dimensions show.
"""

import struct
from collections.abc import Callable, Mapping, Sequence

from hloipu_compiler.formulas import activations
from hloipu_compiler.formulas.call import Call, formula
from hloipu_compiler.formulas.text import Value
from hloipu_compiler.vendor.convolution_forms import Forward, Labels, Window, convolved

_FUNCTIONS: Mapping[str, Callable[[Value], Value]] = {
    "RELU": activations.relu,
    "RELU6": lambda x: activations.relu(x).binary("minimum", 6.0),
    "TANH": lambda x: x.unary("tanh"),
    "SIGMOID": lambda x: x.unary("logistic"),
    "ELU": activations.elu,
    "GELU_ERF": activations.gelu,
    "GELU_TANH": activations.gelu_by_tanh,
}
_WIDE = {"f16": "f32", "bf16": "f32"}


def _float_of_bits(number: int) -> float:
    """Return the f32 that a whole number of 32 bits stands for."""
    return float(struct.unpack("<f", struct.pack("<I", number % 2**32))[0])


def _steps(settings: Call) -> tuple[list[str], Call]:
    """Return what is done with a result, and where the numbers for it are."""
    fusions = settings.section("fusions") if settings.has("fusions") else settings
    names = fusions.attributes.get("ops", fusions.attributes.get("fused_ops", []))
    settings.need(isinstance(names, list), "what it does with its result is not a list")
    return [str(name) for name in names], fusions


def _fused(call: Call, settings: Call, x: Value, operands: Sequence[Value], feature: int) -> Value:
    """Return a result with all that is done with it."""
    steps, numbers = _steps(settings)
    remaining = list(operands)
    for step in steps:
        if step in ("BIAS", "BINARY_ADD", "SUM"):
            call.need(bool(remaining), f"it adds {step} and takes nothing more")
            x = x + _spread(call, remaining.pop(0), x, feature)
        elif step == "LINEAR":
            key = "alpha_typecast"
            factor = (
                _float_of_bits(numbers.integer(key))
                if numbers.has(key)
                else numbers.number("alpha")
            )
            x = x * factor
        elif step in _FUNCTIONS:
            x = _FUNCTIONS[step](x)
        else:
            raise call.unsupported(f"it does {step[:40]!r}", "print the module before it is fused")
    call.need(not remaining, "it takes more operands than it uses")
    return x


def _spread(call: Call, x: Value, like: Value, feature: int) -> Value:
    """Return what is added, as large as a result: a number of each feature, or as numpy has it."""
    wide = x.converted(like.kind)
    if x.rank == 1 and like.rank > 1:
        call.need(x.dims[0] == like.dims[feature], f"it adds {x.dims} to {like.dims}")
        return wide.broadcast(like.dims, (feature,))
    first = like.rank - x.rank
    fits = first >= 0 and all(n in (1, like.dims[first + d]) for d, n in enumerate(x.dims))
    call.need(fits, f"it adds {x.dims} to {like.dims}")
    along = [d for d, n in enumerate(x.dims) if n > 1 or like.dims[first + d] == 1]
    return wide.reshaped([x.dims[d] for d in along]).broadcast(
        like.dims, [first + d for d in along]
    )


def _settings(call: Call, key: str) -> Call:
    settings = call.section(key)
    if settings.section("optimization_config").flag("weights_prepacked", default=False):
        raise call.unsupported("its weights are packed", "print the module before that")
    return settings


@formula("__onednn$matmul")
def _matmul(call: Call) -> Sequence[Value]:
    """Return products of the last two dimensions, for each index of those before."""
    call.need(len(call.operands) > 1 and bool(call.results), "it takes two matrices")
    settings = _settings(call, "onednn_matmul_config")
    a, b, *fused_operands = call.operands
    call.need(a.rank > 1 and b.rank > 1, "it takes two matrices")
    turned = [settings.flag(f"transpose_{side}", default=False) for side in "ab"]
    batch = tuple(range(a.rank - 2))
    if b.rank == 2 and a.rank > 2:
        batch = ()
    call.need(b.rank == a.rank or not batch, f"it takes {a.dims} and {b.dims}")
    over = (a.rank - 2 if turned[0] else a.rank - 1, b.rank - 1 if turned[1] else b.rank - 2)
    call.need(a.dims[over[0]] == b.dims[over[1]] and a.dims[: len(batch)] == b.dims[: len(batch)],
              f"its operands {a.dims} and {b.dims} differ where they meet")  # fmt: skip
    kind, _ = call.results[0]
    wide = _WIDE.get(kind, kind) if _steps(settings)[0] else kind
    product = a.dot(b, ((over[0],), (over[1],)), (batch, batch), wide)
    product = _fused(call, settings, product, fused_operands, product.rank - 1)
    return [product.converted(kind), *call.workspaces(1)]


@formula("__onednn$softmax")
def _softmax(call: Call) -> Sequence[Value]:
    (x,) = call.takes(1)
    settings = call.section("onednn_softmax_config")
    axis = settings.axis("softmax_axis", x.rank) if settings.has("softmax_axis") else x.rank - 1
    return [activations.softmax(x.wide(), axis).converted(call.results[0][0])]


@formula("__onednn$layernorm")
def _layer_norm(call: Call) -> Sequence[Value]:
    """Return a norm over the last dimension, times a scale and with a shift added."""
    key = "onednn_layer_norm_config"
    settings = call.section(key)
    kinds = ("UNDEFINED", "SCALE", "SHIFT", "SCALE_AND_SHIFT")
    rescale = settings.word("rescale", *kinds, default="UNDEFINED")
    x, *optional = call.takes(1 + ("SCALE" in rescale) + ("SHIFT" in rescale))
    call.need(x.rank > 0, "it takes an array")
    wide, last = x.wide(), x.rank - 1
    other_dims = tuple(range(last))

    def mean(a: Value) -> Value:
        return (a.reduced("add", [last]) / x.dims[last]).broadcast(x.dims, other_dims)

    centred = wide - mean(wide)
    epsilon = _float_of_bits(settings.integer("epsilon_typecast"))
    normalised = centred * (mean(centred * centred) + epsilon).unary("rsqrt")
    if "SCALE" in rescale:
        normalised = normalised * _spread(call, optional.pop(0), normalised, last)
    if "SHIFT" in rescale:
        normalised = normalised + _spread(call, optional.pop(0), normalised, last)
    return [normalised.converted(call.results[0][0])]


@formula("__onednn$convolution")
def _convolution(call: Call) -> Sequence[Value]:
    call.need(len(call.operands) > 1 and bool(call.results), "it takes an array and a filter")
    settings = _settings(call, "onednn_conv_config")
    x, kernel, *fused_operands = call.operands
    labels, shift = _labels(settings, x.rank)
    size = tuple(kernel.dims[labels.filter.index(c)] for c in labels.spatial)
    window = settings.section("window")
    numbers = [
        tuple(n - shift for n in window.integers(key))
        for key in ("strides", "pad_left", "pad_right", "window_dilations")
    ]
    call.need(all(len(n) == len(size) for n in numbers), "its window has other dimensions")
    stride, low, high, dilation = numbers
    groups = max(1, settings.integer("feature_groups", 1))
    kind, dims = call.results[0]
    wide = _WIDE.get(kind, kind) if _steps(settings)[0] else kind
    forward = Forward(call, labels, Window(size, stride, low, high, dilation), groups)
    convolution = convolved(forward, x, kernel, wide, dims)
    convolution = _fused(call, settings, convolution, fused_operands, labels.output.index("f"))
    return [convolution.converted(kind), *call.workspaces(1)]


def _labels(settings: Call, rank: int) -> tuple[Labels, int]:
    """Return which dimension is which, and from what numbers of places are counted."""
    sides = (
        ("input", "data", (("batch_dim", "b"), ("feature_dim", "f"))),
        ("kernel", "filter", (("input_feature_dim", "i"), ("output_feature_dim", "o"))),
        ("output", "data", (("batch_dim", "b"), ("feature_dim", "f"))),
    )
    for shift in (0, 1):
        labels = []
        for side, form, keys in sides:
            part = settings.section(side).section(form)
            places = {part.integer(key, 0): letter for key, letter in keys}
            spatial = part.integers("spatial_dims")
            places |= {n - shift: str(at) for at, n in enumerate(spatial)}
            is_complete = len(spatial) == rank - 2 and set(places) == set(range(rank))
            labels.append("".join(places[n] for n in range(rank)) if is_complete else "")
        if all(labels):
            return Labels(*labels), shift
    raise settings.wrong("its dimensions do not fit its operands")
