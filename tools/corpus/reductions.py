"""Reductions, windows, cumulative and linear algebra primitives."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy as jsp
from jax import lax

from tools.corpus.case import Case, array, f32, s32


def cases() -> Iterator[Case]:
    """Yield every reducing case."""
    yield from _reductions()
    yield from _windows()
    yield from _products()
    yield from _convolutions()
    yield from _linear_algebra()


def _reductions() -> Iterator[Case]:
    names = ("sum", "prod", "max", "min", "any", "all", "mean", "var")
    dtypes = ("float32", "bfloat16", "float64", "int32", "uint8", "bool")
    axes: tuple[int | tuple[int, ...] | None, ...] = (None, 0, (0, 2))
    for number, (name, dtype, axis) in enumerate(itertools.product(names, dtypes, axes)):
        function = partial(getattr(jnp, name), axis=axis)
        yield Case(
            f"{name}_{dtype}_{number}", function, [array(dtype, 2, 3, 4)], optimise=number % 7 == 0
        )
    for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"):
        for reverse in (False, True):
            function = partial(getattr(lax, name), axis=1, reverse=reverse)
            yield Case(f"{name}_{reverse}", function, [f32(3, 17)], optimise=True)
    other: dict[str, Callable[..., Any]] = {
        "logsumexp": lambda x: jax.nn.logsumexp(x, 1),
        "softmax": jax.nn.softmax,
        "log_softmax_grad": jax.grad(lambda x: jax.nn.log_softmax(x)[0].sum()),
        "reduce_custom": lambda x: lax.reduce(x, 1.0, lambda a, b: a * b + a, (0,)),
        "reduce_variadic": lambda x: lax.reduce(
            (x, x), (0.0, 1.0), lambda a, b: (a[0] + b[0], a[1] * b[1]), (1,)
        ),
        "reduce_xor": lambda x: lax.reduce_xor(x.astype("int32"), axes=(0,)),
        "std": lambda x: jnp.std(x, 0, ddof=1),
        "norm": jnp.linalg.norm,
        "argmin_both": lambda x: (jnp.argmin(x), jnp.argmax(x, 0)),
        "associative_scan": lambda x: lax.associative_scan(jnp.add, x, axis=0),
        "ptp": jnp.ptp,
        "nanmean": jnp.nanmean,
    }
    for name, other_function in other.items():
        yield Case(name, other_function, [f32(5, 6)], optimise=True)


def _windows() -> Iterator[Case]:
    image = f32(2, 8, 8, 3)
    settings = itertools.product(
        ("SAME", "VALID"), ((1, 2, 2, 1), (1, 3, 3, 1)), ((1, 1, 1, 1), (1, 2, 2, 1))
    )
    for number, (padding, window, stride) in enumerate(settings):
        for name, start, monoid in (("max", -jnp.inf, lax.max), ("sum", 0.0, lax.add)):
            pool = partial(
                lax.reduce_window,
                init_value=start,
                computation=monoid,
                window_dimensions=window,
                window_strides=stride,
                padding=padding,
            )
            yield Case(f"pool_{name}_{number}", pool, [image], optimise=number % 2 == 0)
            yield Case(
                f"pool_grad_{name}_{number}", jax.grad(lambda x, p=pool: p(x).sum()), [image]
            )
    dilated = partial(
        lax.reduce_window,
        init_value=1.0,
        computation=lax.mul,
        window_dimensions=(2, 3),
        window_strides=(1, 2),
        padding=((1, 0), (2, 1)),
        base_dilation=(2, 1),
        window_dilation=(1, 2),
    )
    yield Case("window_dilated", dilated, [f32(7, 9)], optimise=True)

    def largest_and_sum(x: Any, i: Any) -> Any:
        def join(a: Any, b: Any) -> Any:
            return jnp.maximum(a[0], b[0]), a[1] + b[1]

        return lax.reduce_window((x, i), (-jnp.inf, 0), join, (2, 2), (2, 2), "VALID")

    yield Case("window_variadic", largest_and_sum, [f32(4, 4), s32(4, 4)], optimise=True)
    yield Case(
        "patches",
        lambda x: lax.conv_general_dilated_patches(x, (3, 3), (2, 2), "SAME"),
        [f32(1, 3, 8, 8)],
    )


def _products() -> Iterator[Case]:
    numbers = (
        (((1,), (0,)), ((), ())),
        (((0,), (0,)), ((), ())),
        (((), ()), ((), ())),
        (((1, 0), (0, 1)), ((), ())),
    )
    dtypes = ("float32", "bfloat16", "float16", "float64", "int8", "int32", "complex64", "bool")
    for number, (dims, dtype) in enumerate(itertools.product(numbers, dtypes)):
        dot = partial(lax.dot_general, dimension_numbers=dims)
        sizes = (4, 4)
        yield Case(
            f"dot_{dtype}_{number}", dot, [array(dtype, *sizes)] * 2, optimise=number % 5 == 0
        )
    for precision in (
        "default",
        "high",
        "highest",
        "BF16_BF16_F32",
        "TF32_TF32_F32_X3",
        "F32_F32_F32",
    ):
        yield Case(
            f"dot_precision_{precision}",
            partial(jnp.matmul, precision=precision),
            [f32(4, 6), f32(6, 5)],
        )
    for wide in ("float32", "bfloat16"):
        prefer = partial(
            lax.dot_general, dimension_numbers=(((1,), (0,)), ((), ())), preferred_element_type=wide
        )
        yield Case(
            f"dot_bf16_to_{wide}", prefer, [array("bfloat16", 4, 8), array("bfloat16", 8, 3)]
        )
        yield Case(
            f"dot_f8_to_{wide}", prefer, [array("float8_e4m3fn", 4, 8), array("float8_e5m2", 8, 3)]
        )
    yield Case(
        "dot_s8_to_s32",
        partial(lax.dot, preferred_element_type=jnp.int32),
        [array("int8", 4, 8), array("int8", 8, 3)],
    )
    products: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...] = (
        ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))),
        ("bhqd,bhkd->bhqk", ((2, 2, 3, 4), (2, 2, 5, 4))),
        ("ij,kl->ijkl", ((2, 3), (4, 5))),
        ("abc,cd,de->abe", ((2, 3, 4), (4, 5), (5, 6))),
        ("ii->i", ((4, 4),)),
        ("ijk->kji", ((2, 3, 4),)),
        ("ij,ij->", ((3, 4), (3, 4))),
    )
    for equation, operands in products:
        yield Case(
            f"einsum_{equation}",
            lambda *xs, e=equation: jnp.einsum(e, *xs),
            [f32(*sizes) for sizes in operands],
            optimise=True,
        )
    yield Case("ragged_dot", lax.ragged_dot, [f32(8, 4), f32(3, 4, 5), s32(3)])
    yield Case(
        "matvec_batch", jax.vmap(jnp.matmul, (None, 0)), [f32(3, 4), f32(7, 4)], optimise=True
    )


def _convolutions() -> Iterator[Case]:
    settings: Iterator[tuple[Any, ...]] = itertools.product(
        ((1, 1), (2, 1)),
        ("SAME", "VALID", ((2, 1), (0, 3))),
        (1, 2),
        (1, 2),
        (("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")),
    )
    for number, (stride, padding, base, kernel, labels) in enumerate(settings):
        if isinstance(padding, str) and base == 2:
            continue
        conv = partial(
            lax.conv_general_dilated,
            window_strides=stride,
            padding=padding,
            lhs_dilation=(base, 1),
            rhs_dilation=(kernel, kernel),
            dimension_numbers=labels,
        )
        image, weights = (
            (f32(2, 9, 9, 3), f32(3, 3, 3, 4))
            if labels[0] == "NHWC"
            else (f32(2, 3, 9, 9), f32(4, 3, 3, 3))
        )
        yield Case(f"conv_{number}", conv, [image, weights], optimise=number % 4 == 0)
        yield Case(
            f"conv_grad_{number}",
            jax.grad(lambda x, w, c=conv: c(x, w).sum(), (0, 1)),
            [image, weights],
        )
    grouped = partial(
        lax.conv_general_dilated,
        window_strides=(1, 1),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    yield Case(
        "conv_depthwise",
        partial(grouped, feature_group_count=6),
        [f32(2, 8, 8, 6), f32(3, 3, 1, 6)],
        optimise=True,
    )
    yield Case(
        "conv_grouped",
        partial(grouped, feature_group_count=2),
        [f32(2, 8, 8, 6), f32(3, 3, 3, 4)],
        optimise=True,
    )
    yield Case(
        "conv_batch_grouped",
        partial(grouped, batch_group_count=2),
        [f32(4, 8, 8, 6), f32(3, 3, 6, 4)],
    )
    for rank in (1, 3):
        sizes = (5,) * rank
        conv = partial(lax.conv, window_strides=(1,) * rank, padding="SAME")
        yield Case(
            f"conv_{rank}d", conv, [f32(1, 2, *sizes), f32(3, 2, *(3,) * rank)], optimise=True
        )
    yield Case(
        "conv_transpose",
        lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"),
        [f32(1, 4, 4, 3), f32(3, 3, 3, 2)],
        optimise=True,
    )
    yield Case(
        "conv_bf16",
        partial(
            lax.conv, window_strides=(1, 1), padding="SAME", preferred_element_type=jnp.float32
        ),
        [array("bfloat16", 1, 2, 5, 5), array("bfloat16", 3, 2, 3, 3)],
    )
    yield Case("jnp_convolve", jnp.convolve, [f32(10), f32(4)])


def _linear_algebra() -> Iterator[Case]:
    table: dict[str, Callable[..., Any]] = {
        "cholesky": jnp.linalg.cholesky,
        "qr": jnp.linalg.qr,
        "svd": jnp.linalg.svd,
        "eigh": jnp.linalg.eigh,
        "eig": jnp.linalg.eig,
        "inv": jnp.linalg.inv,
        "det": jnp.linalg.det,
        "slogdet": jnp.linalg.slogdet,
        "solve": lambda a: jnp.linalg.solve(a, a),
        "lu": jsp.linalg.lu,
        "expm": jsp.linalg.expm,
        "triangular": lambda a: jsp.linalg.solve_triangular(a, a, lower=True, trans=1),
        "triangular_unit": lambda a: lax.linalg.triangular_solve(
            a, a, left_side=False, unit_diagonal=True
        ),
        "pinv": jnp.linalg.pinv,
        "schur": lambda a: lax.linalg.schur(a),
        "matrix_power": lambda a: jnp.linalg.matrix_power(a, 5),
        "hessenberg": lax.linalg.hessenberg,
        "cond": jnp.linalg.cond,
        "householder": lambda a: lax.linalg.householder_product(a, a[:, 0]),
    }
    for name, function in table.items():
        for dtype in ("float32", "float64", "complex64"):
            if (name, dtype) in (("cond", "complex64"),):
                continue
            yield Case(
                f"{name}_{dtype}", function, [array(dtype, 4, 4)], optimise=dtype == "float32"
            )
    for name in ("cholesky", "inv", "det"):
        yield Case(f"batched_{name}", jax.vmap(table[name]), [f32(3, 4, 4)])
        yield Case(f"grad_{name}", jax.grad(lambda a, f=table[name]: f(a).sum()), [f32(4, 4)])
    for name in ("fft", "ifft", "fft2", "rfft", "irfft", "rfft2", "irfftn", "fftn"):
        sizes = (3, 4, 6)
        dtype = "float32" if name.startswith("r") else "complex64"
        yield Case(name, getattr(jnp.fft, name), [array(dtype, *sizes)], optimise=True)
    yield Case("fft_grad", jax.grad(lambda x: jnp.abs(jnp.fft.rfft(x)).sum()), [f32(8)])
