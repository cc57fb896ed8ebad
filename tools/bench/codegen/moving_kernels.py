"""Kernels that move: lookups, orders, views, transposes, stencils, sums."""

import os
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax.numpy as jnp
from jax import lax

from tools.bench.codegen.kernel import F16, F32, S32, Kernel, array, kernel, view
from tools.bench.codegen.limits import Needs


def lookups() -> Iterator[Kernel]:
    """Yield reading and updating rows of a table."""
    rows, width, wanted = 32768, 128, 4096
    table, ids = array(F32, rows, width), array(S32, wanted)
    moved = 4 * wanted * width

    def look_up(table: Any, ids: Any) -> Any:
        return jnp.take(table, ids, axis=0, mode="clip")

    def update(table: Any, ids: Any, rows: Any) -> Any:
        return table.at[ids].add(rows)

    needs = Needs(
        loaded_bytes=moved, stored_bytes=moved, exchanged_bytes=moved, because="rows read, 4 B each"
    )
    yield kernel("lookup", "embedding f32 4096 of 32768x128", look_up, (table, ids), needs)
    needs = Needs(
        loaded_bytes=2 * moved, stored_bytes=moved, exchanged_bytes=moved, because="rows added"
    )
    yield kernel(
        "lookup",
        "embedding update f32 4096 of 32768x128",
        update,
        (table, ids, array(F32, wanted, width)),
        needs,
    )


def orders() -> Iterator[Kernel]:
    """Yield sorting and the best of many."""
    count = 1 << 20
    needs = Needs(
        loaded_bytes=4 * count,
        stored_bytes=4 * count,
        exchanged_bytes=4 * count,
        because="each key once to its place",
    )
    yield kernel("order", "sort f32 1M", jnp.sort, (array(F32, count),), needs)
    rows = Needs(
        loaded_bytes=4 * count, stored_bytes=4 * count, because="each key in and out, rows apart"
    )
    yield kernel("order", "sort f32 4096x256", jnp.sort, (array(F32, 4096, 256),), rows)
    needs = Needs(loaded_bytes=4 * count, because="each key in once")
    yield kernel(
        "order", "top 16 f32 of 1M", lambda x: lax.top_k(x, 16), (array(F32, count),), needs
    )


# --- moving ---------------------------------------------------------------------------------------


def _heads(x: Any, w: Any) -> Any:
    """Return attention scores of heads that are split off by a reshape and a transpose."""
    batch, length, width = x.shape
    heads = (x @ w).reshape(batch, length, 16, width // 16).transpose(0, 2, 1, 3)
    return heads @ heads.transpose(0, 1, 3, 2)


def _heads_named(x: Any, w: Any) -> Any:
    batch, length, width = x.shape
    heads = (x @ w).reshape(batch, length, 16, width // 16)
    return jnp.einsum("bqhd,bkhd->bhqk", heads, heads)


def views() -> Iterator[Kernel]:
    """Yield transposes and reshapes that users or layouts can take up."""
    x = array(F32, 1024, 1024)
    yield view("x^T y", lambda x, y: x.T @ y, lambda x, y: x @ y, (x, x))
    yield view("x y^T", lambda x, y: x @ y.T, lambda x, y: x @ y, (x, x))
    yield view("(x y)^T z", lambda x, y, z: (x @ y).T @ z, lambda x, y, z: (x @ y) @ z, (x, x, x))
    yield view("sum of transposed", lambda x: x.T.sum(1), lambda x: x.sum(0), (x,))
    yield view(
        "exp of transposed, summed",
        lambda x: jnp.exp(x.T).sum(0),
        lambda x: jnp.exp(x).sum(1),
        (x,),
    )
    yield view(
        "reshape between elementwise",
        lambda x: jnp.tanh(jnp.exp(x).reshape(128, 8, 1024)).reshape(1024, 1024),
        lambda x: jnp.tanh(jnp.exp(x)),
        (x,),
    )
    yield view(
        "heads of attention",
        _heads,
        _heads_named,
        (array(F16, 4, 256, 1024), array(F16, 1024, 1024)),
    )


def movements() -> Iterator[Kernel]:
    """Yield transposes that have to be done, running sums along both ways, and a stencil."""
    side = 4096
    needs = Needs(
        loaded_bytes=4 * side * side,
        stored_bytes=4 * side * side,
        because="each element in and out",
    )
    yield kernel(
        "movement", "transpose f32 4096^2", jnp.transpose, (array(F32, side, side),), needs
    )
    # Sums along rows, then along columns: one of the two finds its operand spread the other way.
    side = 2048

    def both_ways(x: Any) -> Any:
        return jnp.cumsum(jnp.cumsum(x, 1), 0)

    count = side * side
    needs = Needs(
        loaded_bytes=8 * count,
        stored_bytes=8 * count,
        exchanged_bytes=4 * count,
        because="each element once to the tile of its column",
    )
    yield kernel(
        "movement", "cumsum both ways f32 2048^2", both_ways, (array(F32, side, side),), needs
    )

    def blur(x: Any) -> Any:
        return 0.2 * (x[1:-1, 1:-1] + x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:])

    needs = Needs(loaded_bytes=4 * count, stored_bytes=4 * count, because="each point in and out")
    yield kernel("movement", "5-point stencil f32 2048^2", blur, (array(F32, side, side),), needs)


def sums() -> Iterator[Kernel]:
    """Yield reductions along rows, columns and both, and running sums."""
    rows, width = 4096, 4096
    count = rows * width
    x = array(F32, rows, width)
    needs = Needs(loaded_bytes=4 * count, wide_loads=True, because="each element in once")
    yield kernel("reduction", "sum of rows f32 4096^2", lambda x: x.sum(1), (x,), needs)
    yield kernel("reduction", "sum of columns f32 4096^2", lambda x: x.sum(0), (x,), needs)
    yield kernel("reduction", "sum of all f32 4096^2", jnp.sum, (x,), needs)
    yield kernel(
        "reduction",
        "max of 65536x64 f32",
        lambda x: x.max(1),
        (array(F32, 65536, 64),),
        Needs(loaded_bytes=4 << 22, wide_loads=True, because="each element in once"),
    )
    needs = Needs(loaded_bytes=4 << 22, stored_bytes=4 << 22, because="each element in and out")
    yield kernel(
        "reduction",
        "cumsum f32 4096x1024",
        lambda x: jnp.cumsum(x, 1),
        (array(F32, 4096, 1024),),
        needs,
    )
