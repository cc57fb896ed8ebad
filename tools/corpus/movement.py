"""Data movement: slices, gathers, scatters, pads, sorts, and their gradients."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from tools.corpus.case import Case, array, f32, s32


def cases() -> Iterator[Case]:
    """Yield every data movement case."""
    yield from _static()
    yield from _dynamic()
    yield from _indexing()
    yield from _sorting()


def _static() -> Iterator[Case]:
    for dtype in ("float32", "bfloat16", "int8", "bool", "complex64", "int4", "float8_e4m3fn"):
        x = array(dtype, 4, 6)
        table = {
            "transpose": lambda x: x.T,
            "reshape": lambda x: x.reshape(3, 8),
            "slice": lambda x: lax.slice(x, (1, 0), (3, 6), (1, 2)),
            "reverse": lambda x: lax.rev(x, (1,)),
            "broadcast": lambda x: jnp.broadcast_to(x, (2, 4, 6)),
            "concatenate": lambda x: jnp.concatenate([x, x, x[:1]], 0),
            "pad": lambda x: lax.pad(x, x[0, 0], ((1, 2, 1), (-1, 0, 0))),
            "tile": lambda x: jnp.tile(x, (2, 3)),
            "roll": lambda x: jnp.roll(x, 2, 1),
            "stack": lambda x: jnp.stack([x, x], 1),
            "squeeze": lambda x: x[None, :, None].squeeze(),
            "split": lambda x: lax.split(x, (2, 4), axis=1),
            "dynamic_index": lambda x: lax.dynamic_index_in_dim(x, 2),
        }
        for name, function in table.items():
            yield Case(f"{name}_{dtype}", function, [x], optimise=dtype == "float32")
    for dtype in ("int32", "uint8", "float32", "bfloat16", "int64", "complex64"):
        yield Case(f"iota_{dtype}", partial(lax.broadcasted_iota, dtype, (3, 4), 1), [])
    for rank in range(1, 6):
        sizes = tuple(range(2, 2 + rank))
        yield Case(f"transpose_rank{rank}", jnp.transpose, [f32(*sizes)])
        yield Case(f"flip_rank{rank}", jnp.flip, [f32(*sizes)])
        yield Case(f"pad_rank{rank}", lambda x, r=rank: jnp.pad(x, [(1, 2)] * r), [f32(*sizes)])
    for mode in ("edge", "reflect", "symmetric", "wrap", "linear_ramp", "mean"):
        yield Case(
            f"pad_{mode}", lambda x, m=mode: jnp.pad(x, ((2, 1), (1, 3)), mode=m), [f32(4, 5)]
        )
    constant = jnp.arange(24.0).reshape(2, 3, 4)
    yield Case("constant_rank3", lambda x: x + constant, [f32(2, 3, 4)])
    yield Case(
        "constant_bf16", lambda x: x * constant.astype("bfloat16"), [array("bfloat16", 2, 3, 4)]
    )
    yield Case("constant_small", lambda: jnp.array([1.5, float("inf"), float("nan"), -0.0]), [])
    yield Case("constant_complex", lambda: jnp.array([1 + 2j, -1j]), [])
    yield Case("constant_bool", lambda x: x & jnp.array([True, False]), [array("bool", 2)])
    yield Case("many_outputs", lambda x: tuple(x + i for i in range(40)), [f32(2)])
    yield Case("many_inputs", lambda *xs: sum(xs), [f32(2)] * 33)
    yield Case(
        "nested_pytree",
        lambda t: {"b": t["a"][0], "c": (t["a"][1], [t["d"]])},
        [{"a": (f32(2), s32()), "d": f32(1, 1)}],
    )
    yield Case("empty_tuple", lambda: (), [])


def _dynamic() -> Iterator[Case]:
    for dtype in ("float32", "bfloat16", "int32"):
        x, i = array(dtype, 5, 7), s32()
        yield Case(
            f"dynamic_slice_{dtype}",
            lambda x, i: lax.dynamic_slice(x, (i, i), (2, 3)),
            [x, i],
            optimise=True,
        )
        yield Case(
            f"dynamic_update_{dtype}",
            lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0)),
            [x, array(dtype, 2, 7), i],
            optimise=True,
        )
    yield Case(
        "dynamic_slice_u8_index",
        lambda x, i: lax.dynamic_slice(x, (i,), (2,)),
        [f32(9), array("uint8")],
    )
    yield Case(
        "cache_update",
        lambda c, u, i: c.at[:, i].set(u),
        [f32(4, 8, 3), f32(4, 3), s32()],
        {"donate_argnums": 0},
        optimise=True,
    )


def _indexing() -> Iterator[Case]:
    x, i = f32(8, 5), s32(6)
    for mode in ("clip", "fill", "promise_in_bounds", "wrap"):
        mode_of = "clip" if mode == "wrap" else mode
        yield Case(
            f"take_{mode}",
            lambda x, i, m=mode: jnp.take(x, i, 0, mode=None if m == "promise_in_bounds" else m),
            [x, i],
        )
        yield Case(f"at_get_{mode_of}_{mode}", lambda x, i, m=mode_of: x.at[i].get(mode=m), [x, i])
    table = {
        "gather_rows": lambda x, i: x[i],
        "gather_columns": lambda x, i: x[:, i % 5],
        "gather_pairs": lambda x, i: x[i, i % 5],
        "gather_mixed": lambda x, i: x[i, None, 1:3],
        "take_along": lambda x, i: jnp.take_along_axis(x, i[:, None][:5].T % 8, 0),
        "scatter_set": lambda x, i: x.at[i].set(1.0),
        "scatter_add": lambda x, i: x.at[i].add(x[:6]),
        "scatter_mul": lambda x, i: x.at[i, 0].multiply(2.0),
        "scatter_min": lambda x, i: x.at[i].min(0.0),
        "scatter_max": lambda x, i: x.at[:, i % 5].max(0.0),
        "scatter_apply": lambda x, i: x.at[i].apply(jnp.sin),
        "segment_sum": lambda x, i: jax.ops.segment_sum(x[:6], i, num_segments=4),
        "segment_max": lambda x, i: jax.ops.segment_max(x[:6], i, num_segments=4),
        "embedding_grad": lambda x, i: jax.grad(lambda w: w[i].sum())(x),
        "vmap_gather": lambda x, i: jax.vmap(lambda row: row[i % 5])(x),
        "vmap_scatter": lambda x, i: jax.vmap(lambda row: row.at[i % 5].add(1.0))(x),
        "vmap_dynamic_slice": lambda x, i: jax.vmap(lambda s: lax.dynamic_slice(x, (s, 0), (2, 5)))(
            i
        ),
        "one_hot": lambda x, i: jax.nn.one_hot(i, 5) @ x[:5],
        "bincount": lambda x, i: jnp.bincount(i, length=9),
        "unique_sized": lambda x, i: jnp.unique(i, size=4, fill_value=0),
        "searchsorted": lambda x, i: jnp.searchsorted(x[0], x[1]),
        "nonzero_sized": lambda x, i: jnp.nonzero(x, size=5),
        "histogram": lambda x, i: jnp.histogram(x, 7),
    }
    for name, function in table.items():
        yield Case(name, function, [x, i], optimise=True)


def _sorting() -> Iterator[Case]:
    for dtype in (
        "float32",
        "bfloat16",
        "int32",
        "uint8",
        "bool",
        "float64",
        "complex64",
        "float16",
    ):
        x = array(dtype, 6, 9)
        yield Case(
            f"sort_{dtype}", lambda x: lax.sort(x, dimension=0), [x], optimise=dtype == "float32"
        )
        yield Case(f"argsort_{dtype}", jnp.argsort, [x], optimise=dtype == "bfloat16")
        yield Case(f"argmax_{dtype}", lambda x: jnp.argmax(x, 1), [x], optimise=dtype == "int32")
        if dtype not in ("bool", "complex64"):
            yield Case(
                f"top_k_{dtype}", lambda x: lax.top_k(x, 3), [x], optimise=dtype == "float32"
            )
    yield Case("sort_unstable", lambda x: lax.sort(x, is_stable=False), [f32(40)], optimise=True)
    yield Case(
        "sort_three", lambda x, y, z: lax.sort((x, y, z), num_keys=2), [f32(9), s32(9), f32(9)]
    )
    yield Case("lexsort", lambda x, y: jnp.lexsort((x, y)), [f32(9), s32(9)])
    yield Case("median", jnp.median, [f32(3, 8)], optimise=True)
    yield Case("quantile", lambda x: jnp.quantile(x, 0.3, axis=0), [f32(8, 3)], optimise=True)
    yield Case("approx_max_k", lambda x: lax.approx_max_k(x, 2), [f32(4, 64)])
    yield Case("grad_sort", jax.grad(lambda x: (jnp.sort(x) * jnp.arange(9.0)).sum()), [f32(9)])
