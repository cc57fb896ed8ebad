"""Op classes that work element by element: arithmetic, casts, nonlinearities, bits, optimizers."""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tools.bench.codegen.kernel import F16, F32, S32, WIDTH, array
from tools.fidelity import vertex_formulas as popops
from tools.fidelity.op_class import OpClass, gradient, op_class, tile
from tools.fidelity.vertex_formulas import PoplibsEstimate, all_of

_WIDE = (8, 128, 3072)
"""The hidden layer of BERT-base, a batch of 8 sequences of 128."""
_SHARE = tile(prod(_WIDE))
_POPRAND = "poprand/poprandCycleEstimators.cpp"


def arithmetic() -> Iterator[OpClass]:
    """Yield ops of one or two operands."""
    n = prod(_WIDE)
    unary: tuple[tuple[str, Callable[..., Any], dict[Any, int]], ...] = (
        ("exp", jnp.exp, {F16: 4, F32: 6}),
        ("tanh", jnp.tanh, {F16: 4, F32: 12}),
        ("rsqrt", lax.rsqrt, {F16: 19, F32: 8}),
    )
    for kind in (F16, F32):
        x, width = array(kind, *_WIDE), WIDTH[kind]
        add = popops.binary(_SHARE, width)
        yield op_class("add", lambda a, b: a + b, (x, x), poplibs=add)
        quotient = popops.binary(_SHARE, width, 21 if kind == F16 else 10)
        yield op_class("divide", lambda a, b: a / b, (x, x), poplibs=quotient)
        for name, function, slots in unary:
            one = popops.unary(_SHARE, width, slots[kind])
            yield op_class(name, function, (x,), poplibs=one)
    f16, f32 = array(F16, *_WIDE), array(F32, *_WIDE)
    yield op_class(
        "sine", jnp.sin, (array(F32, 1024, 64),), poplibs=popops.unary(tile(65536), 4, 2300 * 2)
    )
    for after, x in ((F16, f32), (F32, f16), (F16, array(jnp.uint8, 64, 224, 224, 3))):
        share = tile(prod(x.shape))
        priced = popops.cast(share, 9, 4) if x.dtype == jnp.uint8 else popops.cast(share, 1, 2)
        if after == F16 and x.dtype == F32:
            priced = popops.cast(share, 2, 4)
        name = "cast to f16" if after == F16 else "cast to f32"
        yield op_class(name, lambda a, t=after: a.astype(t), (x,), poplibs=priced)
    ints = array(S32, *_WIDE)
    integer = popops.binary(_SHARE, 4, 14)
    yield op_class("integer add", lambda a, b: a + b, (ints, ints), poplibs=integer)
    yield op_class("integer to f32", lambda a: a.astype(F32), (ints,),
                   poplibs=popops.cast(_SHARE, 2, 1))  # fmt: skip
    compared = popops.binary(_SHARE, 2, 9)
    yield op_class("compare", lambda a, b: a < b, (f16, f16), poplibs=compared)
    chosen = popops.select(_SHARE)
    masks = array(jnp.bool_, *_WIDE)
    yield op_class("select", lambda m, a, b: jnp.where(m, a, b), (masks, f16, f16), poplibs=chosen)
    both = all_of([popops.unary(_SHARE, 2, 9), chosen])
    yield op_class("masked", lambda a: jnp.where(a > 0.5, a, 0.25), (f16,), poplibs=both)
    yield op_class("add of a bias", lambda a, b: a + b, (f16, array(F16, 3072)), slots=n / 4,
                   poplibs=popops.by_channel(tile(n) // 128, 128, 2))  # fmt: skip


def nonlinearities() -> Iterator[OpClass]:
    """Yield nonlinearities, forward and backward."""
    n = prod(_WIDE)

    def exact(x: Any) -> Any:
        return jax.nn.gelu(x, approximate=False)

    # Name, function, popnn's slots of a vector forward and back, for f16 and f32; float ops that
    # its own loops have, where they are more.
    rows: tuple[tuple[str, Callable[..., Any], tuple[int, int], tuple[int, int], int, int], ...] = (
        ("relu", jax.nn.relu, (2, 2), (3, 3), 0, 0),
        ("sigmoid", jax.nn.sigmoid, (4, 10), (3, 3), 0, 0),
        ("silu", jax.nn.silu, (5, 11), (9, 15), 0, 0),
        ("gelu, tanh", jax.nn.gelu, (5, 10), (5, 10), 8, 15),
    )
    for name, function, ahead, back, own, own_back in rows:
        for at, kind in enumerate((F16, F32) if own else (F16,)):
            x, width = array(kind, *_WIDE), WIDTH[kind]
            vectors = n * width / 8
            # A tanh of two f32 takes eight slots more than one of four halves.
            more = 8 * (own > 0) * (kind == F32)
            given = popops.nonlinearity(_SHARE, width, ahead[at])
            gradients = popops.nonlinearity_gradient(_SHARE, width, back[at])
            if name == "sigmoid":
                gradients = all_of([given, gradients])  # popnn's begins at the result
            yield op_class(
                name, function, (x,), slots=vectors * (own + more), poplibs=given
            )  # fmt: skip
            yield op_class(
                f"{name}, gradient", gradient(function, 1), (x, x),
                slots=vectors * (own_back + more), poplibs=gradients,
            )  # fmt: skip
    # popops has gelu_erf, 16 and 22 slots an element; popnn's 15 slots of a vector backward are a
    # placeholder by its own words, so that its gradient is erf and the rest, op by op.
    for kind, whole, erf, exp in ((F16, 64, 52, 4), (F32, 44, 82, 6)):
        x, width = array(kind, *_WIDE), WIDTH[kind]
        forward = popops.unary(_SHARE, width, whole)
        yield op_class("gelu, erf", exact, (x,), poplibs=forward)
        parts = [popops.unary(_SHARE, width, s) for s in (erf, exp, 2)]
        product = popops.binary(_SHARE, width)
        yield op_class("gelu, erf, gradient", gradient(exact, 1), (x, x),
                       poplibs=all_of([*parts, *[product] * 3]))  # fmt: skip


def random_bits() -> Iterator[OpClass]:
    """Yield dropout and random numbers, by the chip's generator and by ThreeFry."""
    sizes = (8, 128, 768)
    n, share = prod(sizes), tile(prod(sizes))
    x = array(F16, *sizes)

    def keep(x: Any, bits: Any) -> Any:
        return jnp.where(bits < jnp.uint32(0xE6666666), x * F16(1 / 0.9), F16(0))

    def dropped(name: str) -> Callable[..., Any]:
        def drop(key: Any, x: Any) -> Any:
            made = jax.random.wrap_key_data(key, impl=name)
            return jnp.where(jax.random.bernoulli(made, 0.9, x.shape), x / 0.9, 0)

        return drop

    def normal(key: Any) -> Any:
        return jax.random.normal(jax.random.wrap_key_data(key, impl="rbg"), (1024, 768))

    drop = popops.dropout(share, 2)
    bits = array(jnp.uint32, *sizes)
    yield op_class("dropout, bits given", keep, (x, bits), slots=n / 4 * 2, poplibs=drop)
    for name, words in (("rbg", 4), ("threefry2x32", 2)):
        key = array(jnp.uint32, words)
        yield op_class(f"dropout, {name}", dropped(name), (key, x), poplibs=drop)
    normals = PoplibsEstimate(4 + 22 * 6 + 4 * share // 16, f"{_POPRAND}:81")
    yield op_class("normal, rbg", normal, (array(jnp.uint32, 4),), slots=n / 2 * 4, poplibs=normals)


def updates() -> Iterator[OpClass]:
    """Yield optimizers' updates of one weight."""
    w = array(F32, 1024, 4096)
    n, share = prod(w.shape), tile(prod(w.shape))

    def sgd(w: Any, g: Any) -> Any:
        return w - 1e-3 * g

    def momentum(w: Any, m: Any, g: Any) -> Any:
        m = 0.9 * m + g
        return w - 1e-3 * m, m

    def moments(m: Any, v: Any, g: Any) -> Any:
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        return m, v, m / (jnp.sqrt(v) + 1e-6)

    def adam(w: Any, m: Any, v: Any, g: Any) -> Any:
        m, v, u = moments(m, v, g)
        return w - 1e-3 * u, m, v

    def adamw(w: Any, m: Any, v: Any, g: Any) -> Any:
        m, v, u = moments(m, v, g)
        return w - 1e-3 * (u + 0.01 * w), m, v

    def lamb(w: Any, m: Any, v: Any, g: Any) -> Any:
        m, v, u = moments(m, v, g)
        u = u + 0.01 * w
        ratio = jnp.sqrt((w * w).sum()) / jnp.sqrt((u * u).sum())
        return w - 1e-3 * ratio * u, m, v

    scaled = popops.scaled_add(share, 4)
    both = all_of([scaled, popops.unary(share, 4, 2), scaled])  # m; g * g; v
    step = all_of([both, popops.unary(share, 4, 10), popops.by_scalar(share, 4),
                   popops.binary(share, 4, 10)])  # fmt: skip
    squares = popops.reduce_rows(1, share, 4)
    yield op_class("SGD update", sgd, (w, w), slots=n, poplibs=scaled)
    yield op_class("momentum update", momentum, (w, w, w), slots=2 * n,
                   poplibs=all_of([scaled, scaled]))  # fmt: skip
    # Ten products and sums of a vector at most; a root takes ten slots, a quotient six.
    for name, function, slots, parts in (
        ("Adam update", adam, 24, [step, scaled]),
        ("AdamW update", adamw, 26, [step, scaled, scaled]),
        ("LAMB update", lamb, 27, [step, scaled, squares, squares, scaled]),
    ):
        yield op_class(name, function, (w, w, w, w), slots=n / 2 * slots, poplibs=all_of(parts))
