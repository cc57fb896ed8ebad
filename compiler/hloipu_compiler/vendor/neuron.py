"""Calls of PyTorch and Transformers on AWS Neuron.

Targets, operands and configurations (a dimension, or k, as bare text): torch_neuronx:
xla_impl/ops.py and xla_impl/custom_call_targets.py. Computed in f32 where types are narrower.
"""

from collections.abc import Callable, Mapping, Sequence

from hloipu_compiler.formulas import activations
from hloipu_compiler.formulas.call import Call, formula
from hloipu_compiler.formulas.text import Value
from hloipu_compiler.vendor.selecting import largest_index, largest_of

_ELEMENTWISE: Mapping[str, Callable[[Value], Value]] = {
    "AwsNeuronGelu": activations.gelu,
    "AwsNeuronGeluApprxTanh": activations.gelu_by_tanh,
    "AwsNeuronGeluBackward": activations.slope_of_gelu,
    "AwsNeuronSilu": activations.swish,
    "AwsNeuronErf": lambda x: x.unary("erf"),
}
"""A backward call gives the slope, which the program multiplies itself."""


@formula(*_ELEMENTWISE)
def _elementwise(call: Call) -> Sequence[Value]:
    (x,) = call.takes(1)
    call.need(x.kind[0] in "fb", f"its operand is {x.kind}")
    return [_ELEMENTWISE[call.target](x.wide()).converted(x.kind)]


def _dimension(call: Call, rank: int) -> int:
    text = call.configuration
    call.need(text.lstrip("-").isdigit(), f"its configuration {text[:20]!r} is not a dimension")
    dimension = int(text)
    call.need(-rank <= dimension < rank, f"its dimension {dimension} is none of {rank}")
    return dimension % rank


@formula("AwsNeuronSoftmax")
def _softmax(call: Call) -> Sequence[Value]:
    (x,) = call.takes(1)
    return [activations.softmax(x.wide(), _dimension(call, x.rank)).converted(x.kind)]


@formula("AwsNeuronSoftmaxBackward")
def _softmax_backward(call: Call) -> Sequence[Value]:
    gradient, out = call.takes(2)
    call.alike(gradient, out)
    slope = activations.slope_of_softmax(gradient.wide(), out.wide(), _dimension(call, out.rank))
    return [slope.converted(gradient.kind)]


@formula("AwsNeuronRmsNorm")
def _rms_norm(call: Call) -> Sequence[Value]:
    """Return x weight / sqrt(mean(x^2) + epsilon), the mean over one dimension."""
    x, weight, epsilon = call.takes(3)
    at = _dimension(call, x.rank)
    call.need(weight.dims == (x.dims[at],), f"its weight is no {x.dims[at]} numbers")
    call.need(epsilon.dims in ((), (1,)), "its epsilon is one number")
    wide = x.wide()
    other_dims = tuple(d for d in range(x.rank) if d != at)
    mean = (wide * wide).reduced("add", [at]) / x.dims[at]
    scale = (
        (mean + epsilon.reshaped(()).converted(wide.kind))
        .unary("rsqrt")
        .broadcast(x.dims, other_dims)
    )
    normalised = wide * scale * weight.converted(wide.kind).broadcast(x.dims, (at,))
    return [normalised.converted(x.kind)]


@formula("AwsNeuronArgMax", "AwsNeuronArgMin")
def _arg(call: Call) -> Sequence[Value]:
    """Return where the largest or smallest along a dimension is, the first of equal ones."""
    (x,) = call.takes(1)
    call.need(len(call.results) == 1, "it gives one array")
    index = largest_index(x, _dimension(call, x.rank), is_least=call.target.endswith("Min"))
    return [index.converted(call.results[0][0])]


@formula("AwsNeuronTopK")
def _top_k(call: Call) -> Sequence[Value]:
    """Return the k largest of the last dimension, and where they are."""
    (x,) = call.takes(1)
    text = call.configuration
    call.need(text.isdigit(), f"its configuration {text[:20]!r} is not a k")
    return largest_of(call, x, int(text))


@formula(
    "AwsNeuronModuleMarkerStart-Forward", "AwsNeuronModuleMarkerStart-Backward",
    "AwsNeuronModuleMarkerEnd-Forward", "AwsNeuronModuleMarkerEnd-Backward",
    "AwsNeuronLNCShardingConstraint",
)  # fmt: skip
def _mark(call: Call) -> Sequence[Value]:
    """Return the operands: marks of layers, and of where values lie."""
    return call.operands
