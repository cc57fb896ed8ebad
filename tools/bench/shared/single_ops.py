"""Programs of one heavy op, of the sizes of real jobs, printed by JAX."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

OP_PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "segment sum, sorted rows": (
        lambda x: jax.ops.segment_sum(x, jnp.arange(65536) // 16, 4096, indices_are_sorted=True),
        ("f32 65536 64",),
    ),
    "segment sum, few segments": (
        lambda x: jax.ops.segment_sum(x, jnp.arange(65536) % 8, 8), ("f32 65536 64",),
    ),
    "segment sum of numbers": (
        lambda x, s: jax.ops.segment_sum(x, s, 1000), ("f32 1048576", "s32 1048576"),
    ),
    "segment maximum": (
        lambda x, s: jax.ops.segment_max(x, s, 4096), ("f32 65536 16", "s32 65536"),
    ),
    "scatter-add rows": (
        lambda t, i, u: t.at[i].add(u), ("f32 16384 128", "s32 32768", "f32 32768 128"),
    ),
    "scatter-set rows": (
        lambda t, i, u: t.at[i].set(u), ("f32 16384 128", "s32 16384", "f32 16384 128"),
    ),
    "histogram": (lambda i: jnp.zeros(256, jnp.int32).at[i].add(1), ("s32 1048576",)),
    "gather rows": (lambda t, i: t[i], ("f32 50000 128", "s32 32768")),
    "gather elements of rows": (
        lambda x, i: jnp.take_along_axis(x, i, axis=1), ("f32 2048 1024", "s32 2048 256"),
    ),
    "kv cache": (
        lambda cache, new, at, q: jnp.einsum(
            "bhd,bhtd->bht", q,
            lax.dynamic_update_slice(cache, new, (0, 0, at, 0)),
        ),
        ("f32 8 12 1024 64", "f32 8 12 1 64", "s32", "f32 8 12 64"),
    ),
    "dynamic-update-slice": (
        lambda x, y, i: lax.dynamic_update_slice(x, y, (i, 0)),
        ("f32 2048 1024", "f32 64 1024", "s32"),
    ),
    "divide": (lambda x, y: lax.div(x, y), ("s32 4194304", "s32 4194304")),
    "remainder": (lambda x, y: lax.rem(x, y), ("s32 4194304", "s32 4194304")),
    "divide by a constant": (lambda x: x // 7, ("s32 4194304",)),
    "remainder by a power of two": (lambda x: x % 64, ("s32 4194304",)),
    "divide u32": (lambda x, y: lax.div(x, y), ("u32 4194304", "u32 4194304")),
    "cholesky": (
        lambda a: lax.linalg.cholesky(a + 8 * jnp.eye(a.shape[-1])), ("f32 512 512",),
    ),
    "cholesky of many": (
        lambda a: lax.linalg.cholesky(a + 8 * jnp.eye(a.shape[-1])), ("f32 512 32 32",),
    ),
    "triangular-solve": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
        ("f32 512 512", "f32 512 512"),
    ),
    "triangular-solve of many": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
        ("f32 512 32 32", "f32 512 32 32"),
    ),
    "rfft": (lambda x: jnp.abs(jnp.fft.rfft(x)), ("f32 4096 1024",)),
    "rfft alone": (lambda x: jnp.fft.rfft(x), ("f32 4096 1024",)),
    "fft 2-D": (lambda x: jnp.fft.fft2(x).real, ("f32 16 256 256",)),
    "axpy": (lambda a, x, y: a * x + y, ("f32", "f32 4194304", "f32 4194304")),
    "add": (lambda x, y: x + y, ("f32 4194304", "f32 4194304")),
    "add s32": (lambda x, y: x + y, ("s32 4194304", "s32 4194304")),
    "rectify, scale and shift": (
        lambda x, s, b: jnp.maximum(x * s + b, 0), ("f32 4096 1024", "f32 1024", "f32 1024"),
    ),
    "select by compare": (
        lambda x, y: jnp.where(x > y, x - y, x * y), ("f32 4194304", "f32 4194304"),
    ),
    "Adam's update": (
        lambda w, m, v, g: (
            w - 0.01 * (0.9 * m + 0.1 * g) / (jnp.sqrt(0.99 * v * v + 0.01 * g * g) + 1e-8),
            0.9 * m + 0.1 * g, 0.99 * v * v + 0.01 * g * g,
        ),
        ("f32 2097152",) * 4,
    ),
    "bits": (
        lambda x, y: ((x << 3) ^ (y >> 5)) & (x | y), ("s32 4194304", "s32 4194304"),
    ),
    "convert to bf16 and back": (
        lambda x: x.astype(jnp.bfloat16).astype(jnp.float32) + 1, ("f32 4194304",),
    ),
    "convert to s8": (
        lambda x: jnp.clip(jnp.round(x * 127), -128, 127).astype(jnp.int8), ("f32 4194304",),
    ),
    "gelu": (lambda x: jax.nn.gelu(x), ("f32 1048576",)),
    "reverse": (lambda x: x[:, ::-1], ("f32 4096 1024",)),
    "pad": (lambda x: jnp.pad(x, ((1, 1), (1, 1))), ("f32 2048 2048",)),
    "pad between": (
        lambda x: lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 1), (0, 0, 1))), ("f32 1024 1024",),
    ),
    "roll": (lambda x: jnp.roll(x, 3, axis=1), ("f32 2048 2048",)),
    "concatenate": (
        lambda x, y: jnp.concatenate((x, y), axis=1), ("f32 2048 1024", "f32 2048 1024"),
    ),
    "strided slice": (lambda x: x[::2, ::2], ("f32 4096 2048",)),
    "transpose heads": (lambda x: x.transpose(0, 2, 1, 3), ("f32 8 512 16 64",)),
    "transpose": (lambda x: x.T, ("f32 2048 2048",)),
    "cumulative sum of rows": (lambda x: jnp.cumsum(x, axis=1), ("f32 2048 1024",)),
    "cumulative sum of columns": (lambda x: jnp.cumsum(x, axis=0), ("f32 2048 1024",)),
    "cumulative maximum": (lambda x: lax.cummax(x, axis=1), ("f32 2048 1024",)),
    "argsort": (lambda x: jnp.argsort(x), ("f32 262144",)),
    "argsort s32": (lambda x: jnp.argsort(x), ("s32 262144",)),
    "sort pairs of rows": (
        lambda x, y: lax.sort((x, y), num_keys=1), ("f32 512 1024", "s32 512 1024"),
    ),
    "sort descending": (lambda x: -jnp.sort(-x, axis=-1), ("f32 1024 1024",)),
    "top 8": (lambda x: lax.top_k(x, 8), ("f32 1024 1024",)),
    "argmax of rows": (lambda x: jnp.argmax(x, axis=1), ("f32 2048 1024",)),
    "sum of rows": (lambda x: jnp.sum(x, axis=1), ("f32 4096 1024",)),
    "sum of columns": (lambda x: jnp.sum(x, axis=0), ("f32 4096 1024",)),
    "maximum of columns": (lambda x: jnp.max(x, axis=0), ("f32 4096 1024",)),
    "sum of s32": (lambda x: jnp.sum(x, axis=1), ("s32 4096 1024",)),
    "variance": (lambda x: jnp.var(x, axis=0), ("f32 4096 1024",)),
    "log of summed exponentials": (
        lambda x: jax.nn.logsumexp(x, axis=-1), ("f32 2048 1024",),
    ),
    "convolution, stride 2": (
        lambda x, w: _convolved(x, w, 2), ("f32 8 56 56 64", "f32 3 3 64 128"),
    ),
    "convolution of groups": (
        lambda x, w: _convolved(x, w, 1, 8), ("f32 8 28 28 64", "f32 3 3 8 64"),
    ),
    "depthwise convolution": (
        lambda x, w: _convolved(x, w, 1, 64), ("f32 8 56 56 64", "f32 3 3 1 64"),
    ),
    "convolution in 1-D": (
        lambda x, w: lax.conv_general_dilated(
            x, w, (1,), "SAME", rhs_dilation=(2,), dimension_numbers=("NWC", "WIO", "NWC")
        ),
        ("f32 8 2048 64", "f32 3 64 64"),
    ),
    "average pool": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME") / 9,
        ("f32 16 56 56 64",),
    ),
    "maximum pool": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
        ("f32 16 56 56 64",),
    ),
    "maximum pool's gradient": (
        jax.grad(
            lambda x: jnp.sum(
                lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
            )
        ),
        ("f32 16 56 56 64",),
    ),
    "small dots": (lambda a, b: a @ b, ("f32 16384 8 8", "f32 16384 8 8")),
    "dots of heads": (
        lambda q, k: jnp.einsum("bthd,bshd->bhts", q, k), ("f32 4 256 12 64", "f32 4 256 12 64"),
    ),
    "dot of a vector": (lambda a, b: a @ b, ("f32 4096 4096", "f32 4096")),
    "gemm": (lambda a, b: a @ b, ("f32 512 512", "f32 512 512")),
    "gemm s8": (
        lambda a, b: lax.dot(a, b, preferred_element_type=jnp.int32), ("s8 512 512", "s8 512 512"),
    ),
    "outer product": (lambda a, b: a[:, None] * b[None, :], ("f32 2048", "f32 2048")),
    "one hot": (
        lambda i, w: jax.nn.one_hot(i, 1000, dtype=w.dtype) * w, ("s32 4096", "f32 1000"),
    ),
    "normal numbers": (
        lambda key: jax.random.normal(jax.random.wrap_key_data(key), (1024, 1024)), ("u32 2",),
    ),
}  # fmt: skip
"""Name -> the function, and its arguments' types and sizes."""

WIDE_ONLY = {
    name for name in OP_PROGRAMS if name.startswith(("cholesky", "triangular", "rfft", "fft"))
}
"""Those that JAX has no narrow floats for."""


def _convolved(x: Any, kernel: Any, stride: int, groups: int = 1) -> Any:
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )  # fmt: skip


def abstract(text: str) -> Any:
    """Return an abstract array: its element type, then its sizes."""
    element_type, *sizes = text.split()
    dtype = {"f32": jnp.float32, "s32": jnp.int32, "u32": jnp.uint32, "s8": jnp.int8}[element_type]
    return jax.ShapeDtypeStruct(tuple(map(int, sizes)), dtype)
