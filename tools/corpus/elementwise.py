"""Elementwise primitives over element types and ranks."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tools.corpus.case import (
    COMPLEXES,
    FLOATS,
    INTEGERS,
    SHAPES,
    SMALL_FLOATS,
    Case,
    array,
)

FLOAT_UNARY = (
    "abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil cos cosh digamma erf "
    "erf_inv erfc exp exp2 expm1 floor is_finite lgamma log log1p logistic neg round rsqrt sign "
    "sin sinh sqrt square tan tanh"
).split()
INTEGER_UNARY = "abs bitwise_not clz neg population_count sign square".split()
COMPLEX_UNARY = (
    "abs conj cos cosh exp expm1 imag log log1p neg real rsqrt sign sin sqrt tan tanh acos asinh"
).split()
FLOAT_BINARY = "add sub mul div rem pow max min atan2 nextafter".split()
INTEGER_BINARY = (
    "add sub mul div rem max min bitwise_and bitwise_or bitwise_xor shift_left "
    "shift_right_arithmetic shift_right_logical"
).split()
COMPLEX_BINARY = "add sub mul div pow".split()
COMPARISONS = "eq ne lt le gt ge".split()
SPECIAL = "betainc igamma igammac polygamma zeta random_gamma_grad".split()


def cases() -> Iterator[Case]:
    """Yield every elementwise case."""
    shapes = itertools.cycle(SHAPES)
    yield from _table(FLOAT_UNARY, FLOATS, 1, shapes)
    yield from _table(INTEGER_UNARY, INTEGERS, 1, shapes)
    yield from _table(COMPLEX_UNARY, COMPLEXES, 1, shapes)
    yield from _table(FLOAT_BINARY, FLOATS, 2, shapes)
    yield from _table(INTEGER_BINARY, INTEGERS, 2, shapes)
    yield from _table(COMPLEX_BINARY, COMPLEXES, 2, shapes)
    yield from _table(COMPARISONS, ("float32", "bfloat16", "int32", "uint8", "bool"), 2, shapes)
    yield from _table(
        ("bitwise_and", "bitwise_or", "bitwise_xor", "max", "min"), ("bool",), 2, shapes
    )
    yield from _conversions(shapes)
    yield from _others()


def _table(
    names: Any, dtypes: tuple[str, ...], operands: int, shapes: Iterator[tuple[int, ...]]
) -> Iterator[Case]:
    for number, (name, dtype) in enumerate(itertools.product(names, dtypes)):
        sizes = next(shapes)
        arguments = [array(dtype, *sizes)] * operands
        yield Case(f"{name}_{dtype}", getattr(lax, name), arguments, optimise=number % 9 == 0)


def _conversions(shapes: Iterator[tuple[int, ...]]) -> Iterator[Case]:
    kinds = ("bool", *INTEGERS, *FLOATS, "complex64", "int4", "uint4", *SMALL_FLOATS)
    for number, (source, target) in enumerate(itertools.permutations(kinds, 2)):
        if number % 3 and not {source, target} & {"float32", "int4"}:
            continue
        yield Case(
            f"convert_{source}_to_{target}",
            partial(lax.convert_element_type, new_dtype=jnp.dtype(target)),
            [array(source, *next(shapes))],
        )
    for source, target in (
        ("float32", "int32"),
        ("int32", "uint8"),
        ("uint8", "int32"),
        ("bfloat16", "uint16"),
        ("float64", "uint32"),
        ("int16", "float32"),
    ):
        widening = jnp.dtype(target).itemsize // jnp.dtype(source).itemsize
        sizes = (3, widening) if widening > 1 else (3, 2)
        yield Case(
            f"bitcast_{source}_to_{target}",
            partial(lax.bitcast_convert_type, new_dtype=jnp.dtype(target)),
            [array(source, *sizes)],
            optimise=True,
        )


def _others() -> Iterator[Case]:
    f, p = array("float32", 3, 4), array("bool", 3, 4)
    extra: dict[str, tuple[Callable[..., Any], list[Any]]] = {
        "select": (lax.select, [p, f, f]),
        "select_scalar": (lax.select, [array("bool"), f, f]),
        "select_n_integer": (lax.select_n, [array("int32", 3, 4), f, f, f]),
        "clamp": (lax.clamp, [f, f, f]),
        "clamp_scalar": (lax.clamp, [array("float32"), f, array("float32")]),
        "complex": (lax.complex, [f, f]),
        "reduce_precision": (lambda x: lax.reduce_precision(x, 5, 10), [f]),
        "integer_pow": (lambda x: lax.integer_pow(x, -3), [f]),
        "nan_to_num": (jnp.nan_to_num, [f]),
        "where_broadcast": (lambda c, x: jnp.where(c, x, 0.0), [array("bool", 4), f]),
        "optimization_barrier": (lambda x, y: lax.optimization_barrier((x, y)), [f, p]),
        "gelu": (jax.nn.gelu, [f]),
        "softplus_grad": (jax.grad(lambda x: jax.nn.softplus(x).sum()), [f]),
        "total_order": (lambda x, y: lax.sort([x, y], num_keys=2), [f, f]),
        "divmod": (jnp.divmod, [array("int32", 5), array("int32", 5)]),
        "hypot": (jnp.hypot, [f, f]),
        "accuracy": (lambda x: lax.exp(x, accuracy=lax.AccuracyMode.HIGHEST), [f]),
        "tolerance": (lambda x: lax.tan(x, accuracy=lax.Tolerance(1e-5, 1e-4, 2)), [f]),
    }
    for name, (function, arguments) in extra.items():
        yield Case(name, function, arguments, optimise=name != "accuracy" and name != "tolerance")
    for name in SPECIAL:
        count = 3 if name == "betainc" else 2
        for dtype in ("float32", "float64"):
            yield Case(f"{name}_{dtype}", getattr(lax, name), [array(dtype, 4)] * count)
    for name in ("sin", "tanh", "erf", "log1p", "sqrt", "lgamma", "cbrt", "asinh"):
        function = getattr(lax, name)
        yield Case(f"grad_{name}", jax.vmap(jax.grad(function)), [array("float32", 6)])
        yield Case(
            f"hessian_{name}", jax.hessian(lambda x, f=function: f(x).sum()), [array("float32", 3)]
        )
        yield Case(f"jvp_{name}", lambda x, t, f=function: jax.jvp(f, (x,), (t,)), [f, f])
