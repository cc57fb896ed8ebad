"""Activation functions of libraries, and their derivatives.

Gelu and its form by tanh: Hendrycks and Gimpel, arXiv 1606.08415.
"""

import math

from hloipu_compiler.formulas.text import Value

_TANH_SLOPE = math.sqrt(2 / math.pi)
_TANH_CUBIC = 0.044715
_LOGISTIC_SLOPE = 1.702


def relu(x: Value) -> Value:
    """Return the larger of a value and 0."""
    return x.binary("maximum", 0.0)


def slope_of_relu(x: Value) -> Value:
    """Return 1 where a value is positive, else 0."""
    return x.compared("GT", 0.0).select(1.0, 0.0, x)


def gelu(x: Value) -> Value:
    """Return x times the share of a normal distribution below x."""
    return 0.5 * x * ((x * math.sqrt(0.5)).unary("erf") + 1.0)


def slope_of_gelu(x: Value) -> Value:
    """Return the slope of gelu: a normal distribution's share below x, and x times its density."""
    share = 0.5 * ((x * math.sqrt(0.5)).unary("erf") + 1.0)
    return share + x * (-0.5 * (x * x)).unary("exponential") * (1 / math.sqrt(2 * math.pi))


def gelu_by_tanh(x: Value) -> Value:
    """Return gelu's approximation by tanh."""
    return 0.5 * x * (_tanh_of_gelu(x) + 1.0)


def slope_of_gelu_by_tanh(x: Value) -> Value:
    """Return the slope of gelu's approximation by tanh."""
    tanh = _tanh_of_gelu(x)
    inner = _TANH_SLOPE * (3 * _TANH_CUBIC * (x * x) + 1.0)
    return 0.5 * (tanh + 1.0) + 0.5 * x * (1.0 - tanh * tanh) * inner


def _tanh_of_gelu(x: Value) -> Value:
    return (_TANH_SLOPE * (x + _TANH_CUBIC * (x * x * x))).unary("tanh")


def swish(x: Value) -> Value:
    """Return x times its logistic function."""
    return x * x.unary("logistic")


def slope_of_swish(x: Value) -> Value:
    """Return the slope of swish."""
    gate = x.unary("logistic")
    return gate + x * gate * (1.0 - gate)


def quick_gelu(x: Value) -> Value:
    """Return gelu's approximation by the logistic function (arXiv 1606.08415)."""
    return x * (_LOGISTIC_SLOPE * x).unary("logistic")


def slope_of_quick_gelu(x: Value) -> Value:
    """Return the slope of gelu's approximation by the logistic function."""
    gate = (_LOGISTIC_SLOPE * x).unary("logistic")
    return gate + _LOGISTIC_SLOPE * x * gate * (1.0 - gate)


def elu(x: Value) -> Value:
    """Return a positive value, or exp(x) - 1."""
    return x.compared("GT", 0.0).select(x, x.unary("exponential-minus-one"), x)


def softmax(x: Value, dimension: int) -> Value:
    """Return the softmax over a dimension."""
    other_dims = tuple(d for d in range(x.rank) if d != dimension)
    most = x.reduced("maximum", [dimension], -math.inf).broadcast(x.dims, other_dims)
    powers = (x - most).unary("exponential")
    return powers / powers.reduced("add", [dimension]).broadcast(x.dims, other_dims)


def slope_of_softmax(gradient: Value, out: Value, dimension: int) -> Value:
    """Return the gradient of a softmax's input, of its result's and that."""
    other_dims = tuple(d for d in range(out.rank) if d != dimension)
    mean = (gradient * out).reduced("add", [dimension])
    return out * (gradient - mean.broadcast(out.dims, other_dims))
