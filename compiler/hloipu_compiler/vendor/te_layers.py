"""Norms, softmaxes and activations of NVIDIA's Transformer Engine.

Operands, results and attributes: NVIDIA/TransformerEngine: transformer_engine/jax/csrc/extensions/
normalization.cpp, softmax.cpp and activation.cpp; numbers of activations:
transformer_engine/common/include/transformer_engine/activation.h. Results of 8 bits, with scales
of their own, are refused.
"""

import math
from collections.abc import Callable, Sequence

from hloipu_compiler.formulas import activations
from hloipu_compiler.formulas.call import Call, formula
from hloipu_compiler.formulas.text import Value

_MASKED = -10000.0
"""Score of a masked place; where a row's largest is that, nothing is seen and the softmax is 0."""
_LAYER, _ROOT_MEAN_SQUARE = 0, 1


def _zeros(call: Call, results: Sequence[tuple[str, Sequence[int]]]) -> list[Value]:
    return [call.text.full(kind, tuple(dims), 0) for kind, dims in results]


def _plain(call: Call) -> None:
    """Raise unless results are not scaled."""
    narrow = any(kind.startswith("f8") for kind, _ in call.results)
    if narrow or call.integer("scaling_mode", 0) != 0:
        raise call.unsupported("its results are of 8 bits, with scales", "print it without scaling")


# -- norms -----------------------------------------------------------------------------------------


def _rows(x: Value, size: int) -> Value:
    return x.wide().reshaped((math.prod(x.dims) // size, size))


def _gamma(call: Call, gamma: Value, x: Value) -> Value:
    size = math.prod(gamma.dims)
    call.need(size > 0 and math.prod(x.dims) % size == 0, f"its gamma is no {x.dims[-1:]}")
    factor = gamma.wide().reshaped((size,))
    return factor + 1.0 if call.flag("zero_centered_gamma", default=False) else factor


def _is_layer(call: Call) -> bool:
    kind = call.integer("norm_type")
    call.need(kind in (_LAYER, _ROOT_MEAN_SQUARE), f"its norm_type is {kind}, and is to be 0 or 1")
    return kind == _LAYER


@formula("te_norm_forward_ffi")
def _norm(call: Call) -> Sequence[Value]:
    """Return the norm, three arrays of scaling, the largest, mean, 1 / deviation, workspace."""
    x, _, *parameters = call.takes(4, 5)
    amax = parameters.pop(0) if len(call.operands) == 5 else None
    call.need(len(call.results) == 8, "it gives 8 arrays")
    _plain(call)
    gamma, beta = parameters
    factor = _gamma(call, gamma, x)
    rows = _rows(x, factor.dims[0])
    mean = (rows.reduced("add", [1]) / rows.dims[1]) if _is_layer(call) else None
    centred = rows if mean is None else rows - mean.broadcast(rows.dims, (0,))
    square = (centred * centred).reduced("add", [1]) / rows.dims[1]
    inverse = (square + call.number("epsilon")).unary("rsqrt")
    normalised = centred * inverse.broadcast(rows.dims, (0,)) * factor.broadcast(rows.dims, (1,))
    if mean is not None:
        call.need(math.prod(beta.dims) == rows.dims[1], "its beta is not as long as its gamma")
        normalised = normalised + beta.wide().reshaped((rows.dims[1],)).broadcast(rows.dims, (1,))
    out, *spare, largest, mu, sigma, workspace = call.results
    most = _largest(call, normalised, amax, largest)
    means = _zeros(call, [mu])[0] if mean is None else mean.converted(mu[0]).reshaped(mu[1])
    return [
        normalised.reshaped(out[1]).converted(out[0]), *_zeros(call, spare), most, means,
        inverse.converted(sigma[0]).reshaped(sigma[1]), *_zeros(call, [workspace]),
    ]  # fmt: skip


def _largest(
    call: Call, output: Value, before: Value | None, result: tuple[str, Sequence[int]]
) -> Value:
    """Return the largest absolute value where it is asked for, else what was there."""
    kind, dims = result
    if before is None:
        return _zeros(call, [result])[0]
    if not call.flag("output_amax_when_no_scaling", default=False):
        return before.converted(kind).reshaped(dims)
    most = output.unary("abs").reduced("maximum", range(output.rank), 0).converted(kind)
    call.need(math.prod(dims) == 1, "its largest value is one number")
    return most.reshaped(dims).binary("maximum", before.converted(kind).reshaped(dims))


@formula("te_norm_backward_ffi")
def _norm_backward(call: Call) -> Sequence[Value]:
    """Return gradients of x, gamma and beta, and a workspace."""
    dz, x, mu, sigma, gamma = call.takes(5)
    call.need(len(call.results) == 4 and math.prod(dz.dims) == math.prod(x.dims),
              "it gives 4 arrays, for a gradient as large as x")  # fmt: skip
    factor = _gamma(call, gamma, x)
    rows, dy = _rows(x, factor.dims[0]), _rows(dz, factor.dims[0])
    count = rows.dims[0]
    call.need(math.prod(sigma.dims) == count, f"its rsigma is no {count} numbers")
    inverse = sigma.wide().reshaped((count,)).broadcast(rows.dims, (0,))

    def mean_of(a: Value) -> Value:
        return (a.reduced("add", [1]) / rows.dims[1]).broadcast(rows.dims, (0,))

    is_layer = _is_layer(call)
    if is_layer:
        call.need(math.prod(mu.dims) == count, f"its mu is no {count} numbers")
        rows = rows - mu.wide().reshaped((count,)).broadcast(rows.dims, (0,))
    white = rows * inverse
    scaled = dy * factor.broadcast(rows.dims, (1,))
    centred = scaled - white * mean_of(scaled * white)
    dx = inverse * (centred - mean_of(scaled) if is_layer else centred)
    (_, wide), weight, bias, workspace = call.results
    results = [dx.reshaped(wide).converted(call.results[0][0])]
    results.append((dy * white).reduced("add", [0]).converted(weight[0]).reshaped(weight[1]))
    results.append(dy.reduced("add", [0]).converted(bias[0]).reshaped(bias[1]) if is_layer
                else _zeros(call, [bias])[0])  # fmt: skip
    return [*results, *_zeros(call, [workspace])]


# -- softmaxes -------------------------------------------------------------------------------------


@formula("te_scaled_softmax_forward_ffi", "te_scaled_upper_triang_masked_softmax_forward_ffi")
def _softmax(call: Call) -> Sequence[Value]:
    (x,) = call.takes(1)
    scores = x.wide() * call.number("scale_factor")
    if "upper_triang" in call.target:
        call.need(x.rank > 1, "its scores are queries by keys")
        row, column = (call.text.iota("s32", x.dims, x.rank - n) for n in (2, 1))
        visible = column.compared("LE", row)
        scores = visible.select(scores, float("-inf"), scores)
    return [activations.softmax(scores, x.rank - 1).converted(x.kind)]


@formula("te_scaled_masked_softmax_forward_ffi")
def _masked_softmax(call: Call) -> Sequence[Value]:
    """Return a softmax of what a mask of bytes does not hide by 1; 0 where it hides all."""
    x, mask = call.takes(2)
    call.need(x.rank >= 4 and mask.rank >= 4, "its scores are batch x heads x queries x keys")
    batch = math.prod(x.dims[:-3])
    dims = (batch, *x.dims[-3:])
    mask = mask.reshaped((math.prod(mask.dims[:-3]), *mask.dims[-3:]))
    fits = all(n in (1, most) for n, most in zip(mask.dims, dims, strict=True))
    call.need(fits, f"its mask {mask.dims} does not go with {dims}")
    along = [d for d, n in enumerate(mask.dims) if n > 1 or dims[d] == 1]
    hidden = mask.compared("EQ", 1).reshaped([mask.dims[d] for d in along]).broadcast(dims, along)
    scores = x.wide().reshaped(dims) * call.number("scale_factor")
    scores = hidden.select(_MASKED, scores, scores)
    most = scores.reduced("maximum", [3], -math.inf)
    softmax = activations.softmax(scores, 3)
    sees = most.compared("NE", _MASKED).broadcast(dims, (0, 1, 2))
    return [sees.select(softmax, 0.0, softmax).reshaped(x.dims).converted(x.kind)]


@formula(
    "te_scaled_softmax_backward_ffi", "te_scaled_masked_softmax_backward_ffi",
    "te_scaled_upper_triang_masked_softmax_backward_ffi",
)  # fmt: skip
def _softmax_backward(call: Call) -> Sequence[Value]:
    gradient, out = call.takes(2)
    call.alike(gradient, out)
    slope = activations.slope_of_softmax(gradient.wide(), out.wide(), out.rank - 1)
    return [(slope * call.number("scale_factor")).converted(gradient.kind)]


# -- activations -----------------------------------------------------------------------------------


def _squared(x: Value) -> Value:
    positive = activations.relu(x)
    return positive * positive


def _logistic_slope(x: Value) -> Value:
    gate = x.unary("logistic")
    return gate * (1.0 - gate)


_Pair = tuple[Callable[[Value], Value], Callable[[Value], Value]]
_GELU: _Pair = (activations.gelu_by_tanh, activations.slope_of_gelu_by_tanh)
_SILU: _Pair = (activations.swish, activations.slope_of_swish)
_RELU: _Pair = (activations.relu, activations.slope_of_relu)
_QUICK: _Pair = (activations.quick_gelu, activations.slope_of_quick_gelu)
_SQUARED: _Pair = (_squared, lambda x: 2.0 * activations.relu(x))
_GATE: _Pair = (lambda x: x.unary("logistic"), _logistic_slope)
_ACTIVATIONS: tuple[tuple[_Pair, bool], ...] = (
    (_GELU, False), (_GELU, True), (_GATE, True), (_SILU, False), (_SILU, True), (_RELU, False),
    (_RELU, True), (_QUICK, False), (_QUICK, True), (_SQUARED, False), (_SQUARED, True),
)  # fmt: skip
"""By act_enum: function and slope, and whether the other half of the input is multiplied by it."""


def _activation(call: Call, x: Value) -> tuple[_Pair, bool]:
    number = call.integer("act_enum")
    if not 0 <= number < len(_ACTIVATIONS):
        raise call.unsupported(f"its act_enum is {number}", "write the activation out in HLO")
    pair, is_gated = _ACTIVATIONS[number]
    fits = x.rank > 1 and x.dims[-2] == 1 + is_gated
    call.need(fits, f"its input {x.dims} has not {1 + is_gated} parts before its last dimension")
    return pair, is_gated


def _part(x: Value, number: int) -> Value:
    return x.sliced(x.rank - 2, number, number + 1).reshaped((*x.dims[:-2], x.dims[-1]))


@formula("te_act_lu_ffi")
def _act(call: Call) -> Sequence[Value]:
    """Return an activation, and arrays of scaling that say nothing; before them: it alone."""
    x, *scaling = call.takes(1, 3)
    _plain(call)
    wide = x.wide()
    (function, _), is_gated = _activation(call, x)
    activated = function(_part(wide, 0))
    activated = activated * _part(wide, 1) if is_gated else activated
    kind, dims = call.results[0]
    first = activated.reshaped(dims).converted(kind)
    if len(call.results) == 1:
        return [first]
    *spare, largest = call.results[1:]
    return [first, *_zeros(call, spare),
            _largest(call, activated, scaling[1] if scaling else None, largest)]  # fmt: skip


@formula("te_dact_lu_ffi")
def _dact(call: Call) -> Sequence[Value]:
    """Return the gradient of an activation's input."""
    gradient, x = call.takes(2)
    wide = x.wide()
    (function, slope), is_gated = _activation(call, x)
    first = _part(wide, 0)
    dz = gradient.wide()
    call.need(
        math.prod(dz.dims) == math.prod(first.dims), "its gradient is not as large as its result"
    )
    dz = dz.reshaped(first.dims)
    parts = (
        [dz * slope(first) * _part(wide, 1), dz * function(first)]
        if is_gated
        else [dz * slope(first)]
    )
    rows = [p.reshaped((*x.dims[:-2], 1, x.dims[-1])) for p in parts]
    input_gradient = rows[0].concatenated(rows[1:], x.rank - 2)
    kind, dims = call.results[0]
    return [input_gradient.reshaped(dims).converted(kind)]
