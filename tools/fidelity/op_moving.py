"""Op classes that move, look up, order and pool data."""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tools.bench.codegen.kernel import F16, F32, S32, array
from tools.fidelity import vertex_formulas as popops
from tools.fidelity.op_class import OpClass, gradient, like, op_class, tile
from tools.fidelity.vertex_formulas import PoplibsEstimate


def moves() -> Iterator[OpClass]:
    """Yield ops whose results are operands' elements elsewhere: each is received once."""
    n = 8 * 128 * 768
    x, heads = array(F16, 8 * 128, 768), array(F16, 8, 128, 12, 64)
    image, cache = array(F16, 16, 56, 56, 64), array(F16, 8, 12, 1024, 64)
    rows: tuple[tuple[str, Callable[..., Any], tuple[Any, ...], int], ...] = (
        ("concatenate", lambda a, b: jnp.concatenate([a, b], 1), (x, x), 4 * n),
        ("split", lambda a: jnp.split(a, 3, 1), (array(F16, 8 * 128, 2304),), 6 * n),
        ("slice", lambda a: a[:, 256:512], (x,), 2 * n // 3),
        ("pad", lambda a: jnp.pad(a, ((0, 0), (1, 1), (1, 1), (0, 0))), (image,),
         2 * prod(image.shape)),
        ("heads to the front", lambda a: a.transpose(0, 2, 1, 3), (heads,), 2 * n),
        ("broadcast", lambda a: jnp.broadcast_to(a, (1024, 768)), (array(F16, 768),), 2 * n),
        ("reverse", lambda a: a[:, ::-1], (x,), 2 * n),
    )  # fmt: skip
    for name, function, arguments, exchanged in rows:
        yield op_class(name, function, arguments, exchanged=exchanged)
    at, new = array(S32), array(F16, 8, 12, 1, 64)
    sliced = popops.dynamic_slice(tile(8 * 12 * 64), 1, 2)
    yield op_class("dynamic slice", lambda a, i: lax.dynamic_slice_in_dim(a, i, 1, 2), (cache, at),
                   exchanged=2 * prod(new.shape), poplibs=sliced)  # fmt: skip
    yield op_class(
        "dynamic update slice", lambda a, b, i: lax.dynamic_update_slice_in_dim(a, b, i, 2),
        (cache, new, at), exchanged=2 * prod(new.shape), poplibs=sliced,
    )  # fmt: skip


def lookups() -> Iterator[OpClass]:
    """Yield embeddings and their gradients, with what popops's plan takes for them."""
    ids = array(S32, 8 * 128)
    for rows in (30522, 512):
        table, x = array(F16, rows, 768), array(F16, 8 * 128, 768)
        yield op_class("embedding", lambda t, i: t[i], (table, ids),
                       poplibs=popops.lookup(rows, 1024, 768, update=False))  # fmt: skip
        yield op_class("embedding gradient", lambda t, i, g: t.at[i].add(g), (table, ids, x),
                       poplibs=popops.lookup(rows, 1024, 768, update=True))  # fmt: skip
    x, places = array(F32, 1024, 1000), array(S32, 1024, 1)
    yield op_class("gather of one a row", lambda a, i: jnp.take_along_axis(a, i, 1), (x, places),
                   poplibs=popops.lookup_in_rows(1, 1000))  # fmt: skip


def orders() -> Iterator[OpClass]:
    """Yield ops that compare places: argmax, top-k, sort, running sums, one-hot."""
    x, n = array(F32, 1024, 1000), 1024 * 1000
    arg = PoplibsEstimate(9 + 6 * (30 + 3 * 166), "popnn/popnnCycleEstimators.cpp:496")
    yield op_class("argmax", lambda a: jnp.argmax(a, 1), (x,), poplibs=arg)
    best = popops.bitonic(1024 * 1000, 16, values=True)
    yield op_class("top-k of 8", lambda a: lax.top_k(a, 8), (x,), poplibs=best)
    yield op_class("sort of rows", lambda a: jnp.sort(a, 1), (x,),
                   poplibs=popops.bitonic(1024 * 1000, 1024, values=False))  # fmt: skip
    yield op_class("cumsum", lambda a: jnp.cumsum(a, 1), (array(F32, 1024, 768),), slots=n / 2)
    encoded = PoplibsEstimate(
        popops.all_of([popops.fill(tile(1024 * 1000), 2)]).cycles + 11 + 74,
        "popops/PerformanceEstimation.cpp:441; popops/popopsCycleEstimators.cpp:2235",
    )
    yield op_class("one-hot", lambda i: jax.nn.one_hot(i, 1000, dtype=F16), (array(S32, 1024),),
                   poplibs=encoded)  # fmt: skip


def pools() -> Iterator[OpClass]:
    """Yield pooling of ResNet's stem and head."""
    x = array(F16, 16, 112, 112, 64)

    def largest(x: Any) -> Any:
        return lax.reduce_window(
            x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0))
        ).astype(F16)  # fmt: skip

    def mean(x: Any) -> Any:
        total = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return (total / 4).astype(F16)

    for name, function, taps in (("max pool 3x3", largest, 9), ("mean pool 2x2", mean, 4)):
        y = like(function, x)
        forward = popops.pool(tile(prod(y.shape)), taps, backward=False)
        yield op_class(name, function, (x,), slots=prod(y.shape) / 4 * taps, poplibs=forward)
        back = popops.pool(tile(prod(x.shape)), taps / 4, backward=taps == 9)
        yield op_class(f"{name}, gradient", gradient(function, 1), (x, y), poplibs=back)
    head = array(F16, 16, 7, 7, 2048)
    yield op_class("mean of positions", lambda a: a.mean((1, 2)), (head,),
                   slots=prod(head.shape) / 8,
                   poplibs=popops.reduce_columns(49, tile(16 * 2048), 2))  # fmt: skip
