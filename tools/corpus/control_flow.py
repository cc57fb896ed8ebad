"""Loops, branches, calls, transformations of functions, random numbers, callbacks."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tools.corpus.case import Case, array, f32, s32


def cases() -> Iterator[Case]:
    """Yield every case of control flow, random numbers and host effects."""
    yield from _loops()
    yield from _branches()
    yield from _transformations()
    yield from _random()
    yield from _effects()


def _loops() -> Iterator[Case]:
    def collatz(n: Any) -> Any:
        def step(state: Any) -> Any:
            return jnp.where(state[0] % 2 == 0, state[0] // 2, 3 * state[0] + 1), state[1] + 1

        return lax.while_loop(lambda s: s[0] != 1, step, (n, 0))

    def newton(x: Any) -> Any:
        return lax.while_loop(lambda s: jnp.abs(s * s - x) > 1e-4, lambda s: (s + x / s) / 2, x)

    def rnn(w: Any, xs: Any) -> Any:
        return lax.scan(lambda h, x: (jnp.tanh(h @ w + x),) * 2, jnp.zeros(4), xs)

    def nested(x: Any) -> Any:
        def inner(i: Any, y: Any) -> Any:
            return lax.fori_loop(0, i, lambda j, z: z + jnp.sin(z) * j, y)

        return lax.fori_loop(0, 5, inner, x)

    table: dict[str, tuple[Callable[..., Any], list[Any]]] = {
        "while_collatz": (collatz, [s32()]),
        "while_newton": (newton, [f32()]),
        "while_batched": (jax.vmap(newton), [f32(5)]),
        "while_tuple": (
            lambda x: lax.while_loop(
                lambda s: s[2] < 3, lambda s: (s[1], s[0], s[2] + 1), (x, x * 2, 0)
            ),
            [f32(3)],
        ),
        "scan_rnn": (rnn, [f32(4, 4), f32(9, 4)]),
        "scan_rnn_grad": (jax.grad(lambda w, xs: rnn(w, xs)[1].sum()), [f32(4, 4), f32(9, 4)]),
        "scan_reverse": (
            lambda xs: lax.scan(lambda c, x: (c + x, c * x), 0.0, xs, reverse=True),
            [f32(6)],
        ),
        "scan_unrolled": (
            lambda xs: lax.scan(lambda c, x: (c + x, c), 0.0, xs, unroll=3),
            [f32(7)],
        ),
        "scan_remat": (
            jax.grad(
                lambda w, xs: lax.scan(
                    jax.checkpoint(lambda c, x: (jnp.tanh(c * w + x), c)), 0.0, xs
                )[0]
            ),
            [f32(), f32(5)],
        ),
        "fori_static": (lambda x: lax.fori_loop(0, 10, lambda i, y: y + i, x), [s32()]),
        "fori_dynamic": (
            lambda x, n: lax.fori_loop(2, n, lambda i, y: y * 1.5, x),
            [f32(3), s32()],
        ),
        "fori_nested": (nested, [f32(2)]),
        "fori_update": (lambda x: lax.fori_loop(0, 8, lambda i, y: y.at[i].add(i), x), [f32(8)]),
        "map": (lambda xs: lax.map(lambda x: jnp.sort(x), xs), [f32(4, 6)]),
        "map_batched": (lambda xs: lax.map(jnp.sum, xs, batch_size=2), [f32(5, 6)]),
        "while_u64": (
            lambda n: lax.fori_loop(0, n, lambda i, y: y ^ (y << 1), n),
            [array("uint64")],
        ),
        "scan_of_while": (lambda xs: lax.scan(lambda c, x: (newton(x) + c, c), 1.0, xs), [f32(4)]),
        "while_vector_state": (
            lambda m: lax.while_loop(
                lambda s: jnp.all(s[0] < 10), lambda s: (s[0] @ m, s[1] + 1), (m, 0)
            ),
            [f32(3, 3)],
        ),
    }
    for name, (function, arguments) in table.items():
        yield Case(name, function, arguments, optimise=True)
    for dtype, length in itertools.product(
        ("float32", "bfloat16", "int32", "float64"), (1, 4, 100)
    ):
        step = lambda c, x: (c + x, c * x)  # noqa: E731
        yield Case(
            f"scan_{dtype}_{length}",
            lambda c, xs, f=step: lax.scan(f, c, xs),
            [array(dtype, 3), array(dtype, length, 3)],
        )


def _branches() -> Iterator[Case]:
    def switch(i: Any, x: Any) -> Any:
        return lax.switch(i, [jnp.sin, lambda x: x * 2, jnp.cumsum, lambda x: -x], x)

    def cond(p: Any, x: Any) -> Any:
        return lax.cond(p, lambda x: (x @ x, 1), lambda x: (x.T, 0), x)

    table: dict[str, tuple[Callable[..., Any], list[Any]]] = {
        "cond": (cond, [array("bool"), f32(3, 3)]),
        "cond_nested": (
            lambda p, x: lax.cond(p, lambda x: cond(x[0, 0] > 0, x)[0], lambda x: x, x),
            [array("bool"), f32(3, 3)],
        ),
        "cond_grad": (
            jax.grad(lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x).sum()),
            [f32(4)],
        ),
        "cond_vmap": (
            jax.vmap(lambda p, x: lax.cond(p, jnp.sin, jnp.cos, x)),
            [array("bool", 5), f32(5)],
        ),
        "switch": (switch, [s32(), f32(5)]),
        "switch_vmap": (jax.vmap(switch), [s32(3), f32(3, 5)]),
        "switch_single": (lambda i, x: lax.switch(i, [jnp.sin], x), [s32(), f32(2)]),
        "cond_in_while": (
            lambda x: lax.while_loop(
                lambda s: s.sum() < 9, lambda s: lax.cond(s[0] > 1, jnp.exp, lambda y: y + 1, s), x
            ),
            [f32(3)],
        ),
        "cond_no_operands": (lambda p: lax.cond(p, lambda: 1.0, lambda: 2.0), [array("bool")]),
        "piecewise": (
            lambda x: jnp.piecewise(x, [x < 0, x > 1], [0.0, 1.0, lambda v: v]),
            [f32(6)],
        ),
        "select_platform": (
            lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos),
            [f32(3)],
        ),
    }
    for name, (function, arguments) in table.items():
        yield Case(name, function, arguments, optimise=True)


def _doubled_sine(x: Any) -> Any:
    return jnp.sin(x) * 2


_custom = jax.custom_jvp(_doubled_sine)
_custom.defjvp(lambda primals, tangents: (_custom(primals[0]), 3 * tangents[0]))

_clipped = jax.custom_vjp(lambda x: x * x)
_clipped.defvjp(lambda x: (x * x, x), lambda x, g: (jnp.clip(g * x, -1, 1),))


def _transformations() -> Iterator[Case]:
    x = f32(4, 4)
    inner = jax.jit(lambda a, b: a @ b + 1)
    table: dict[str, Callable[..., Any]] = {
        "custom_jvp": jax.grad(lambda x: _custom(x).sum()),
        "custom_vjp": jax.grad(lambda x: _clipped(x).sum()),
        "call_twice": lambda x: inner(inner(x, x), x),
        "call_inlined": jax.jit(lambda x: inner(x, x), inline=True),
        "checkpoint": jax.grad(
            lambda x: jax.checkpoint(lambda y: jnp.sin(jnp.sin(y @ y)))(x).sum()
        ),
        "jacfwd": jax.jacfwd(lambda x: jnp.tanh(x @ x)),
        "jacrev": jax.jacrev(lambda x: jnp.tanh(x @ x)),
        "hessian": jax.hessian(lambda x: (x @ x).sum()),
        "vmap_two_axes": lambda x: jax.vmap(jnp.outer, (0, 1))(x, x),
        "linearize": lambda x: jax.linearize(jnp.sin, x)[1](x),
        "stop_gradient": jax.grad(lambda x: (x * lax.stop_gradient(x)).sum()),
        "value_and_grad": jax.value_and_grad(lambda x: jnp.linalg.norm(x @ x)),
        "donate": lambda x: x * 2,
        "named_scope": jax.named_scope("outer")(lambda x: jnp.sin(x)),
        "static_loop": lambda x: sum(x @ x for _ in range(5)),
        "name_with_quote": lambda x: {"it's": x, 'a"b': -x, "ümlaut": x + 1},
    }
    for name, function in table.items():
        options: dict[str, Any] = {"donate_argnums": 0} if name == "donate" else {}
        yield Case(name, function, [x], options, optimise=True)
    yield Case("keep_unused", lambda x, y: x, [x, s32()], {"keep_unused": True})
    yield Case("drop_unused", lambda x, y: x, [x, s32()])


def _random() -> Iterator[Case]:
    key = array("uint32", 2)
    wrap = jax.random.wrap_key_data
    names: dict[str, Callable[..., Any]] = {
        "uniform": jax.random.uniform,
        "normal": jax.random.normal,
        "bernoulli": partial(jax.random.bernoulli, p=0.3),
        "gumbel": jax.random.gumbel,
        "gamma": partial(jax.random.gamma, a=2.0),
        "exponential": jax.random.exponential,
        "truncated": partial(jax.random.truncated_normal, lower=-1.0, upper=2.0),
        "laplace": jax.random.laplace,
        "poisson": partial(jax.random.poisson, lam=3.0),
        "beta": partial(jax.random.beta, a=1.0, b=2.0),
        "cauchy": jax.random.cauchy,
        "rademacher": jax.random.rademacher,
        "t": partial(jax.random.t, df=3.0),
    }
    for name, function in names.items():
        yield Case(
            f"random_{name}", lambda k, f=function: f(wrap(k), shape=(3, 5)), [key], optimise=True
        )
    yield Case(
        "random_split",
        lambda k: jax.random.key_data(jax.random.split(wrap(k), 3)),
        [key],
        optimise=True,
    )
    yield Case(
        "random_fold",
        lambda k, i: jax.random.key_data(jax.random.fold_in(wrap(k), i)),
        [key, s32()],
    )
    yield Case(
        "random_permutation",
        lambda k, x: jax.random.permutation(wrap(k), x),
        [key, f32(9)],
        optimise=True,
    )
    yield Case(
        "random_categorical", lambda k, x: jax.random.categorical(wrap(k), x), [key, f32(4, 9)]
    )
    yield Case(
        "random_choice",
        lambda k, x: jax.random.choice(wrap(k), x, (3,), replace=False),
        [key, f32(9)],
    )
    yield Case("random_randint", lambda k: jax.random.randint(wrap(k), (4,), 0, 10, "uint8"), [key])
    yield Case(
        "random_bits_vmap",
        jax.vmap(lambda k: jax.random.bits(wrap(k), (2,))),
        [array("uint32", 3, 2)],
    )
    for kind, words in (("rbg", 4), ("unsafe_rbg", 4)):
        yield Case(
            f"random_{kind}",
            lambda k, i=kind: jax.random.normal(wrap(k, impl=i), (4, 3)),
            [array("uint32", words)],
            optimise=True,
        )
    for algorithm in ("RNG_DEFAULT", "RNG_THREE_FRY", "RNG_PHILOX"):
        chosen = getattr(lax.RandomAlgorithm, algorithm, lax.RandomAlgorithm.RNG_DEFAULT)
        for dtype in ("uint32", "uint8", "uint64"):
            yield Case(
                f"rng_bits_{algorithm}_{dtype}",
                lambda k, a=chosen, d=dtype: lax.rng_bit_generator(k, (5,), d, a),
                [array("uint32", 4)],
            )
    yield Case("rng_uniform", lambda a, b: lax.rng_uniform(a, b, (3,)), [f32(), f32()])


def _effects() -> Iterator[Case]:
    x = f32(3)
    shape = jax.ShapeDtypeStruct((3,), jnp.float32)
    table: dict[str, Callable[..., Any]] = {
        "debug_print": lambda x: (jax.debug.print("x={x}", x=x), x)[1],
        "debug_ordered": lambda x: (
            jax.debug.print("a{x}", x=x, ordered=True),
            jax.debug.print("b", ordered=True),
            x,
        )[2],
        "pure_callback": lambda x: jax.pure_callback(lambda a: a, shape, x),
        "io_callback": lambda x: jax.experimental.io_callback(lambda a: a, shape, x, ordered=True),
        "callback_in_loop": lambda x: lax.fori_loop(
            0, 3, lambda i, y: jax.pure_callback(lambda a: a, shape, y), x
        ),
        "callback_in_cond": lambda x: lax.cond(
            x[0] > 0, lambda y: jax.pure_callback(lambda a: a, shape, y), lambda y: y, x
        ),
        "ffi_call": lambda x: jax.ffi.ffi_call("my_target", shape)(x, number=1, word='a"b'),
        "ffi_effect": lambda x: jax.ffi.ffi_call("other", (shape, shape), has_side_effect=True)(x),
        "ffi_aliases": lambda x: jax.ffi.ffi_call("third", shape, input_output_aliases={0: 0})(x),
    }
    for name, function in table.items():
        yield Case(name, function, [x], optimise=not name.startswith("ffi"))
