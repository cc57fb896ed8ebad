"""Random numbers, from a given seed or from a fresh one.

Distributions are those of graphcore/poplibs: include/poprand/RandomGen.hpp; a truncated normal has
no number beyond 2.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from hloipu_compiler.formulas.call import Call, formula
from hloipu_compiler.formulas.random_numbers import below, fraction, random_bits
from hloipu_compiler.formulas.text import Value
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape
from hloipu_runtime.element_types import OPAQUE, PRED

_TWO_SIDES = math.erf(2 / math.sqrt(2))
"""Share of a normal distribution between -2 and 2, where a truncated one ends."""


def _uniform(call: Call, dims: Sequence[int]) -> Value:
    """Return f32 from 0 up to, and without, 1: of the seed that is the first operand, or new."""
    count = math.prod(dims)
    text = call.text
    if not call.operands:
        low, high = text.number("f32", 0), text.number("f32", 1)
        operands = f"{low.name}, {high.name}"
        return text.add("rng", "f32", dims, operands, "distribution=rng_uniform")
    return fraction(random_bits(call, call.operands[0], count)).reshaped(dims)


@formula("StatelessRandomUniform")
def _stateless_uniform(call: Call) -> Sequence[Value]:
    call.takes(1)
    ((kind, dims),) = call.results
    low, high = call.number("min_val", 0), call.number("max_val", 1)
    return [(_uniform(call, dims) * (high - low) + low).converted(kind)]


@formula("StatelessRandomUniformInt")
def _stateless_integer(call: Call) -> Sequence[Value]:
    """Whole numbers from the second operand up to, and without, the third."""
    seed, low, high = call.takes(3)
    ((kind, dims),) = call.results
    count = math.prod(dims)
    bits = random_bits(call, seed, count).converted("u64")
    low, high = (v.reshaped(()).converted("s64") for v in (low, high))
    span = (high - low).converted("u64")
    # The high half of a product: every number as likely as the others, to 2^-32.
    product = bits * span.broadcast((count,), ())
    scaled = product.binary("shift-right-logical", call.text.full("u64", (count,), 32))
    return [(scaled.converted("s64") + low).converted(kind).reshaped(dims)]


@formula("StatelessRandomNormal", "StatelessTruncatedNormal", "TruncatedNormal")
def _normal(call: Call) -> Sequence[Value]:
    call.takes(0 if call.target == "TruncatedNormal" else 1)
    ((kind, dims),) = call.results
    share = 1.0 if call.target == "StatelessRandomNormal" else _TWO_SIDES
    inside = math.nextafter(share, 0) if share < 1 else 1 - 2.0**-24
    symmetric = (_uniform(call, dims) + 2.0**-25) * 2.0 - 1.0
    numbers = _inverse_erf(symmetric * inside) * math.sqrt(2)
    if share < 1:
        numbers = numbers.binary("maximum", -2.0).binary("minimum", 2.0)
    return [numbers.converted(kind)]


_CENTRAL = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
            -0.00125372503, -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
_TAIL = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
         -0.0076224613, 0.00943887047, 1.00167406, 2.83297682)  # fmt: skip


def _inverse_erf(x: Value) -> Value:
    """Return the inverse error function, to f32 (Giles, "Approximating the erfinv function")."""
    w = -((1.0 - x * x).unary("log"))
    is_central = w.compared("LT", 5.0)
    w = is_central.select(w - 2.5, w.unary("sqrt") - 3.0, w)
    polynomial = None
    for central, tail in zip(_CENTRAL, _TAIL, strict=True):
        number = is_central.select(central, tail, w)
        polynomial = number if polynomial is None else number + polynomial * w
    return x if polynomial is None else x * polynomial


@formula("Seed")
def _seed(call: Call) -> Sequence[Value]:
    """Return new numbers each time."""
    call.takes(0)
    ((kind, dims),) = call.results
    text = call.text
    low, high = (text.number("s32", n) for n in (-(2**31), 2**31 - 1))
    attributes = "distribution=rng_uniform"
    numbers = text.add("rng", "s32", dims, f"{low.name}, {high.name}", attributes)
    return [numbers.converted(kind)]


@formula("Dropout")
def _dropout(call: Call) -> Sequence[Value]:
    """Return the operand times `scale` where a number of the seed is below `rate`, else 0.

    `rate` is the share that stays. The seed comes with it, for the gradient to draw the same, and
    a reference that nothing depends on.
    """
    call.takes(2, 3)
    x, seed = call.operands[:2]
    dims = call.integers("noise_shape") if call.has("noise_shape") else list(x.dims)
    call.need(len(dims) == x.rank and all(a in (1, b) for a, b in zip(dims, x.dims, strict=True)),
              "its noise_shape does not go with its operand")  # fmt: skip
    stays = below(call, seed, dims, call.number("rate"))
    noise_dims = [d for d, size in enumerate(dims) if size == x.dims[d]]
    stays = stays.reshaped([dims[d] for d in noise_dims]).broadcast(x.dims, noise_dims)
    scaled = (x.wide() * call.number("scale", 1)).converted(x.kind)
    results = [stays.select(scaled, 0.0, x), seed]
    if len(call.results) > 2:
        results.append(call.text.add("constant", "pred", (), "false"))
    return results


_NUMBER = ArrayShape(PRED)


def without_opaque(module: Module) -> Module:
    """Return a module in which opaque values are truth values; the same, where it has none.

    A dropout gives out a reference to where its input lies, `opaque[]`, so that its gradient draws
    the same numbers. Drawn from the seed alone they are the same anyway: nobody reads it.
    """
    if not any(_has(op.shape) for c in module.computations for op in c.instructions):
        return module
    computations = tuple(
        replace(c, instructions=tuple(op._replace(shape=_plain(op.shape)) for op in c.instructions))
        for c in module.computations
    )
    return replace(module, computations=computations)


def _has(shape: Shape) -> bool:
    if isinstance(shape, TupleShape):
        return any(_has(part) for part in shape.elements)
    return isinstance(shape, ArrayShape) and shape.element_type is OPAQUE


def _plain(shape: Shape) -> Shape:
    if isinstance(shape, TupleShape):
        return TupleShape(tuple(_plain(part) for part in shape.elements))
    return _NUMBER if _has(shape) else shape
