"""Non-linearities and their gradients.

Formulas: graphcore/poplibs: include/popnn/NonLinearity.hpp, lib/popnn/codelets/NonLinearity*.cpp.
Computed in f32 where types are narrower.
"""

from collections.abc import Callable, Sequence

from hloipu_compiler.formulas import activations
from hloipu_compiler.formulas.call import Call, formula
from hloipu_compiler.formulas.text import Value

_HARD_SLOPE = 0.2
"""Of a hard sigmoid, which is 0.2 x + 0.5 between 0 and 1."""


def _hard_sigmoid(x: Value) -> Value:
    return (_HARD_SLOPE * x + 0.5).binary("maximum", 0.0).binary("minimum", 1.0)


def _hard_slope(out: Value) -> Value:
    inside = out.compared("GT", 0.0) & out.compared("LT", 1.0)
    return inside.select(_HARD_SLOPE, 0.0, out)


_FORWARD: dict[str, Callable[[Value], Value]] = {
    "Relu": lambda x: x.binary("maximum", 0.0),
    "Sigmoid": lambda x: x.unary("logistic"),
    "HardSigmoid": _hard_sigmoid,
    "Gelu": activations.gelu_by_tanh,
    "GeluErf": activations.gelu,
    "Swish": activations.swish,
    "Square": lambda x: x * x,
    "Inverse": lambda x: x.like(1.0) / x,
    "Erf": lambda x: x.unary("erf"),
}
_SLOPES: dict[str, Callable[[Value], Value]] = {
    "ReluGrad": lambda out: out.compared("GT", 0.0).select(1.0, 0.0, out),
    "TanhGrad": lambda out: 1.0 - out * out,
    "SigmoidGrad": lambda out: out * (1.0 - out),
    "HardSigmoidGrad": _hard_slope,
    "GeluGrad": activations.slope_of_gelu_by_tanh,
    "SwishGrad": activations.slope_of_swish,
}


@formula(*_FORWARD)
def _elementwise(call: Call) -> Sequence[Value]:
    (x,) = call.takes(1)
    if x.kind[0] not in "fb":
        call.need(call.target in ("Relu", "Square"), f"its operand is {x.kind}")
    return [_FORWARD[call.target](x.wide()).converted(x.kind)]


@formula(*_SLOPES)
def _gradient(call: Call) -> Sequence[Value]:
    known, gradient = call.takes(2)
    call.alike(known, gradient)
    operand_gradient = gradient.wide() * _SLOPES[call.target](known.wide())
    if call.target == "ReluGrad":  # a gradient that is infinite stays out where nothing passed
        operand_gradient = known.compared("GT", 0.0).select(gradient, 0.0, gradient)
    return [operand_gradient.converted(gradient.kind)]


@formula("Softmax", "StableSoftmax")
def _softmax(call: Call) -> Sequence[Value]:
    """Return it over the last dimension; the largest is taken off in either form."""
    (x,) = call.takes(1)
    call.need(x.rank > 0, "a softmax of one number")
    return [activations.softmax(x.wide(), x.rank - 1).converted(x.kind)]
