"""Programs of other kinds: three axes, sizes that do not divide, odd types, steps of algorithms."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tools.spmd_conformance.networks import mlp, step
from tools.spmd_conformance.program import Program, constrain
from tools.spmd_conformance.regions import mapped

Array = Any


def after(constraint: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a first argument that is divided by a constraint, however uneven."""
    return lambda x, *rest: function(constrain(x, constraint), *rest)


def routed(x: Array, weights: Array, first: Array, second: Array) -> Array:
    """Experts over one axis, their products over another, the batch over a third."""
    each = jnp.einsum("bse,bsh->ebsh", jax.nn.softmax(weights), x)
    hidden = jax.nn.gelu(jnp.einsum("ebsh,ehf->ebsf", each, first))
    return jnp.einsum("ebsf,efh->bsh", hidden, second)


def attended(x: Array, q: Array, k: Array, v: Array) -> Array:
    """Attention with the batch, the heads and the sequence divided."""
    heads = [jnp.einsum("bsh,hnd->bsnd", x, w) for w in (q, k, v)]
    scores = jax.nn.softmax(jnp.einsum("bsnd,btnd->bnst", heads[0], heads[1]), axis=-1)
    return jnp.einsum("bnst,btnd->bsnd", scores, heads[2])


def normed(x: Array, scale: Array) -> Array:
    """Norm layers, and take the gradient."""

    def loss(x: Array, scale: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        return jnp.sum(
            jnp.sin(centred * lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5) * scale)
        )

    return jax.grad(loss, (0, 1))(x, scale)


def convolved(
    strides: tuple[int, ...], padding: Any, groups: int = 1, **more: Any
) -> Callable[..., Any]:
    """Return a convolution with its gradients."""

    def forward(x: Array, w: Array) -> Array:
        dims = ("NHWC", "HWIO", "NHWC") if x.ndim == 4 else ("NHC", "HIO", "NHC")
        return lax.conv_general_dilated(
            x, w, strides, padding, dimension_numbers=dims, feature_group_count=groups, **more
        )

    return lambda x, w: (
        forward(x, w),
        jax.grad(lambda *a: jnp.sin(forward(*a)).sum(), (0, 1))(x, w),
    )


def pooled(x: Array) -> Any:
    """Maxima and sums of windows, and the gradient of the former."""

    def largest(x: Array) -> Array:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    sums = lax.reduce_window(x, 0.0, lax.add, (1, 2, 3, 1), (1, 1, 2, 1), "VALID")
    return largest(x), sums, jax.grad(lambda x: jnp.sin(largest(x)).sum())(x)


def recurrent(h: Array, xs: Array, w: Array) -> Any:
    """Run a recurrence over rows, with its gradients: the carry is divided."""

    def run(h: Array, xs: Array, w: Array) -> Any:
        def cell(h: Array, x: Array) -> Any:
            h = jnp.tanh(h @ w + x)
            return h, h.sum(-1)

        return lax.scan(cell, h, xs)

    def loss(*given: Array) -> Array:
        last, sums = run(*given)
        return (last**2).sum() + sums.sum()

    return run(h, xs, w), jax.grad(loss, (0, 1, 2))(h, xs, w)


def cached(cache: Array, rows: Array) -> Array:
    """Rows written one after the other into a cache, and read again."""

    def write(i: Array, state: Any) -> Any:
        cache, total = state
        cache = lax.dynamic_update_slice(cache, rows[:, None, i], (0, 2 * i, 0))
        return cache, total + lax.dynamic_slice_in_dim(cache, i, 3, 1).sum(1)

    return lax.fori_loop(0, 4, write, (cache, jnp.zeros_like(rows[:, 0])))


def _clipped(x: Array, w: Array) -> Array:
    """Multiply, with a gradient that is clipped."""
    return x @ w


clipped = jax.custom_vjp(_clipped)
clipped.defvjp(
    lambda x, w: (x @ w, (x, w)),
    lambda kept, g: (jnp.clip(g, -1, 1) @ kept[1].T, kept[0].T @ jnp.clip(g, -1, 1)),
)


def clipped_step(x: Array, w: Array) -> Any:
    """Take a step by clipped gradients, with recomputation."""
    loss = jax.checkpoint(lambda w: jnp.sin(clipped(jnp.tanh(x @ w), w.T)).sum())
    return w - 0.1 * jax.grad(loss)(w)


def chosen(at: Array, x: Array, w: Array) -> Array:
    """Branches that divide what they make differently."""
    return lax.switch(
        at,
        [
            lambda: constrain(x @ w, "a,-"),
            lambda: constrain(x @ w, "-,b") * 2,
            lambda: x[:, ::-1] @ w,
        ],
    )


def until_sorted(x: Array) -> Any:
    """Loop to a condition that reads the array: neighbours change places."""

    def out_of_order(state: Any) -> Array:
        return jnp.any(state[0][:-1] > state[0][1:]) & (state[1] < 40)

    def swapped(state: Any) -> Any:
        x, i = state
        x = jnp.where(i % 2 == 0, _swap(x, 0), _swap(x, 1))
        return x, i + 1

    return lax.while_loop(out_of_order, swapped, (x, jnp.int32(0)))


def _swap(x: Array, first: int) -> Array:
    n = (x.shape[0] - first) // 2 * 2
    pairs = jnp.sort(x[first : first + n].reshape(-1, 2), axis=1).reshape(-1)
    return x.at[first : first + n].set(pairs)


def totals(x: Array) -> Any:
    """Take running totals of five kinds, both ways."""
    return (
        jnp.cumsum(x, 0),
        lax.cumprod(x, 0, reverse=True),
        lax.cummax(x, 0),
        lax.cumlogsumexp(x, 0),
        lax.associative_scan(jnp.multiply, x, axis=0),
    )


def ordered(x: Array, y: Array) -> Any:
    """Sorts by two keys, of positions, the middle one."""
    return lax.sort((x, y), num_keys=2), jnp.argsort(x, 0, descending=True), jnp.median(x, 0)


def extremes(x: Array) -> Any:
    """Arguments of extremes and sums of exponentials."""
    return jnp.argmax(x, 0), jnp.argmin(x, 1), jax.nn.logsumexp(x, 0), lax.top_k(x.T, 3)


def counted(x: Array) -> Any:
    """Count whole numbers, and find the place of each in a sorted row."""
    rows = jnp.arange(0, 40, 5)
    return jnp.bincount(x, length=9), jnp.searchsorted(rows, x), jax.nn.one_hot(x, 5)


def bitwise(x: Array) -> Any:
    """Bits of whole numbers."""
    return (
        lax.population_count(x), lax.clz(x), (x << 3) ^ (x >> 1), ~x & 7, x // 3, x % 5,
        x.sum(0), x.max(1),
    )  # fmt: skip


def complexes(x: Array, y: Array) -> Any:
    """Products, parts and sums of complex numbers."""
    z = x @ y
    return z, jnp.abs(z), z.real.sum(0), jnp.conj(z).T, jnp.exp(1j * jnp.angle(x)).mean(1)


def spectra(x: Array) -> Any:
    """Transform forth and back."""
    return (
        jnp.fft.rfft(x, axis=1).real,
        jnp.abs(jnp.fft.fft(x)),
        jnp.fft.irfft(jnp.fft.rfft(x, axis=0), axis=0),
    )


def shaped(x: Array) -> Any:
    """Arrays turned, repeated, padded and joined."""
    joined = jnp.concatenate([x, x[:3] * 2, jnp.flip(x, 0)], 0)
    return (
        jnp.roll(joined, 2, 0),
        jnp.tile(x, (2, 1)),
        jnp.repeat(x, 2, 0),
        jnp.triu(x, 1),
        lax.pad(x, 1.0, ((1, 2, 1), (-1, 0, 0))),
        jnp.diagonal(x),
        x[::-2],
        jnp.rot90(x),
    )


def scattered(x: Array, at: Array, rows: Array) -> Any:
    """Rows added, multiplied and compared in place."""
    return x.at[at].add(rows), x.at[at].multiply(rows), x.at[at].max(rows), x.at[at, 1:3].set(0.0)


def taken(x: Array, at: Array) -> Any:
    """Elements taken along each dimension, and by rows of a batch."""
    along = jnp.take_along_axis(x, at % x.shape[1], 1)
    return (
        along,
        jax.vmap(lambda row, i: lax.dynamic_slice(row, (i[0],), (3,)))(x, at),
        x[at[:, 0] % x.shape[0]],
    )


def segments(x: Array, at: Array) -> Any:
    """Take sums and maxima of segments, with the gradient."""

    def sums(x: Array) -> Array:
        return jax.ops.segment_sum(x, at, 5)

    return sums(x), jax.ops.segment_max(x, at, 5), jax.grad(lambda x: (sums(x) ** 2).sum())(x)


def ragged(x: Array, w: Array, sizes: Array) -> Array:
    """Products of groups of rows."""
    return lax.ragged_dot(x, w, sizes)


def solved(a: Array, b: Array) -> Any:
    """Factors of matrices and solutions."""
    a = a @ jnp.swapaxes(a, -1, -2) + 4 * jnp.eye(a.shape[-1])
    lower = lax.linalg.cholesky(a)
    return lower, lax.linalg.triangular_solve(lower, b, left_side=True, lower=True)


def drawn(seed: Array, x: Array) -> Any:
    """Random numbers, with a gradient that waits for them: dropout."""
    key = jax.random.wrap_key_data(seed)
    one, two = jax.random.split(key)
    kept = constrain(jax.random.bernoulli(one, 0.7, x.shape), "a,-")
    return (
        jnp.where(kept, x / 0.7, 0),
        jax.random.normal(two, (9, 4)),
        jax.random.permutation(two, 12),
    )


def quantized(x: Array, w: Array) -> Any:
    """Products of small whole numbers in wide ones."""
    wide = lax.dot(x, w, preferred_element_type=jnp.int32)
    return wide, (wide >> 4).clip(-128, 127).astype(jnp.int8), x.astype(jnp.float32).mean(0)


def gated(x: Array, w: Array) -> Array:
    """Sum over three axes, in half precision."""
    return jnp.einsum("abc,cbd->ad", x, w, preferred_element_type=jnp.float32)


def exchanged(x: Array) -> Any:
    """Call collectives of three axes in a region."""
    near = lax.ppermute(x, "a", [(0, 1), (1, 0)])
    parts = lax.psum_scatter(near, "b", scatter_dimension=0, tiled=True)
    return lax.all_to_all(parts, "c", 1, 0, tiled=True) + lax.axis_index("c")


def half_manual(x: Array, w: Array) -> Array:
    """Run a region of one axis between products over the others."""
    inner = mapped(lambda h: lax.psum(h @ w, "a") / 2 + h @ w, ("a,-",), "a,-", "a")
    return inner(constrain(jnp.tanh(x), "ab,c")) @ w.T


def special(x: Array) -> Any:
    """Functions of elements that are long formulas, and types between."""
    return (
        lax.erf_inv(x / 10),
        lax.digamma(jnp.abs(x) + 1),
        jnp.nextafter(x, 0.0),
        lax.reduce_precision(x, 5, 7),
        x.astype(jnp.bfloat16).sum(0),
        jnp.sinc(x),
    )


def delayed(x: Array, w: Array, v: Array) -> Array:
    """Sum over an axis in a loop; only the end of the loop reads the sums."""
    return lax.fori_loop(0, 3, lambda i, total: total + (x * (i + 1)) @ w, jnp.zeros((16, 8))) @ v


def hoisted(x: Array, w: Array) -> Array:
    """Read a weight in blocks in a loop, whole and each time the same."""
    return lax.fori_loop(0, 5, lambda _, h: jnp.sin(h @ w / 8), x)


def programs() -> Iterator[Program]:
    """Yield the rows of this part of the table."""
    uneven = "-,-"
    rows: dict[str, tuple[str, Callable[..., Any], tuple[str, ...]]] = {
        "three axes/experts": (
            "2x2x2",
            routed,
            ("4,8,16:a,-,-", "4,8,4:a,-,-", "4,16,32:c,-,b", "4,32,16:c,b,-"),
        ),
        "three axes/attention": ("2x2x2", attended, ("4,8,16:a,c,-",) + ("16,4,8:-,b,-",) * 3),
        "three axes/step": ("2x2x2", step(mlp), ("16,32:a,c", "32,64:c,b", "64,32:b,c")),
        "three axes/step with batch over two": (
            "2x2x2",
            step(mlp),
            ("16,32:ab,-", "32,64:a,c", "64,32:c,b"),
        ),
        "three axes/sum": ("2x2x2", gated, ("bfloat16 8,4,16:a,b,c", "bfloat16 16,4,8:c,b,-")),
        "three axes/collectives": (
            "2x2x2",
            mapped(exchanged, ("a,b,c",), "abc,-,-"),
            ("8,8,8:a,b,c",),
        ),
        "three axes/half manual": ("2x2x2", half_manual, ("8,8:a,-", "8,8:-,c")),
        "three axes/sort": ("2x2x2", ordered, ("24,8:abc,-", "24,8:a,b")),
        "uneven/norm": ("3", after("a,-", normed), (f"10,7:{uneven}", "7")),
        "uneven/norm columns": ("3", after("-,a", normed), (f"10,7:{uneven}", "7")),
        "uneven/step": ("5", after("a,-", step(mlp)), (f"12,9:{uneven}", "9,13", "13,9")),
        "uneven/products": (
            "7",
            lambda x, w: constrain(constrain(x, "a,-").T @ w, "-,a") @ w.T,
            ("10,9:-,-", "10,12:-,-"),
        ),
        "uneven/extremes": ("4", after("a,-", extremes), (f"13,6:{uneven}",)),
        "uneven/totals": ("4", after("a,-", totals), (f"13,3:{uneven}",)),
        "uneven/shapes": ("3", after("a,-", shaped), (f"10,7:{uneven}",)),
        "uneven/shapes columns": ("2x4", after("a,b", shaped), (f"9,10:{uneven}",)),
        "uneven/sort": ("4", after("a,-", ordered), (f"11,3:{uneven}", f"11,3:{uneven}")),
        "uneven/spectra": ("3", after("a,-", spectra), (f"10,7:{uneven}",)),
        "uneven/scatter": ("4", after("a,-", scattered), (f"10,5:{uneven}", "int32<10 6", "6,5")),
        "uneven/taken": ("4", after("a,-", taken), (f"10,7:{uneven}", "int32<4 10,2")),
        "uneven/segments": ("4", after("a,-", segments), (f"11,3:{uneven}", "int32<5 11")),
        "uneven/recurrent": ("3", after("-,a", recurrent), ("2,7", "5,2,7", "7,7")),
        "uneven/loop to a condition": ("4", after("a", until_sorted), ("11",)),
        "windows/same, odd": (
            "4",
            after("-,a,-,-", convolved((1, 1), "SAME")),
            ("2,13,5,3", "3,3,3,4"),
        ),
        "windows/strides, odd": (
            "2x3",
            after("-,a,b,-", convolved((2, 2), "SAME")),
            ("2,15,11,3", "3,3,3,4"),
        ),
        "windows/dilated, odd": (
            "3",
            after("-,a,-", convolved((1,), "VALID", rhs_dilation=(2,))),
            ("2,17,3", "3,3,4"),
        ),
        "windows/transposed, odd": (
            "3",
            after("-,a,-", convolved((1,), [(1, 2)], lhs_dilation=(2,))),
            ("2,8,3", "3,3,4"),
        ),
        "windows/depthwise": ("2x4", convolved((1, 1), "SAME", 4), ("2,8,8,4:-,a,b,-", "3,3,1,4")),
        "windows/groups over": (
            "4",
            convolved((1, 1), "SAME", 4),
            ("2,8,8,8:-,-,-,a", "3,3,2,8:-,-,-,a"),
        ),
        "windows/pools, odd": ("4", after("-,a,-,-", pooled), ("2,13,7,3",)),
        "loops/recurrent": ("2x4", recurrent, ("8,16:a,b", "5,8,16:-,a,b", "16,16:-,b")),
        "loops/cache": ("4", cached, ("8,12,4:-,a,-", "8,6,4")),
        "loops/cache by batch": ("2x4", cached, ("8,12,4:a,b,-", "8,6,4:a,-,-")),
        "loops/sums that can wait": ("4", delayed, ("16,32:-,a", "32,8:a,-", "8,8")),
        "loops/gathers that can be taken out": ("4", hoisted, ("64,16:a,-", "16,16:a,-")),
        "branches/divided otherwise": ("2x4", chosen, ("int32<3 ", "8,16:a,-", "16,8:-,b")),
        "gradients/clipped": ("2x4", clipped_step, ("8,16:a,-", "16,16:-,b")),
        "ragged/rows": ("4", ragged, ("16,8:a,-", "3,8,12", "int32<6 3")),
        "ragged/columns": ("2x4", ragged, ("16,8:a,-", "3,8,12:-,-,b", "int32<6 3")),
        "types/bits": ("4", bitwise, ("int32<1000 12,8:a,-",)),
        "types/small whole": ("4", quantized, ("int8<9 8,16:-,a", "int8<9 16,8:a,-")),
        "types/unsigned": ("2x4", bitwise, ("uint8<200 8,8:a,b",)),
        "types/complex": ("2x4", complexes, ("complex64 8,16:a,b", "complex64 16,8:b,-")),
        "types/special": ("4", special, ("8,4:a,-",)),
        "counts": ("4", counted, ("int32<9 16:a",)),
        "solved": ("4", solved, ("8,5,5:a,-,-", "8,5,3:a,-,-")),
        "random": ("4", drawn, ("uint32<99 2", "16,8:a,-")),
    }
    for name, (mesh, function, arguments) in rows.items():
        alone = name in ("uneven/totals", "uneven/segments")  # maxima over paddings
        yield Program(f"varied/{name}", mesh, function, arguments, alone=alone)
