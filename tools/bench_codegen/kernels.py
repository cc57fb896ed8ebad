"""The kernels: functions of JAX with sizes of real jobs, and what each needs at least."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax import lax

from hloipu.jax import lower
from tools.bench_codegen.limits import Needs

F16, F32, S32 = jnp.float16, jnp.float32, jnp.int32
WIDTH = {F16: 2, F32: 4, S32: 4}
NAMES = {F16: "f16", F32: "f32"}


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel."""

    family: str
    name: str
    text: str
    needs: Needs
    target: float = 0.0
    """Least share of the limit; 0: none is asked."""
    plain: str = ""
    """The same without transposes and reshapes, which are to cost nothing on top of it."""
    options: tuple[tuple[str, object], ...] = ()
    """Of compiling."""


def _kernel(
    family: str,
    name: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    needs: Needs,
    *,
    target: float = 0.0,
    options: tuple[tuple[str, object], ...] = (),
) -> Kernel:
    return Kernel(family, name, lower(function, *arguments).text, needs, target, options=options)


def _view(
    name: str, function: Callable[..., Any], plain: Callable[..., Any], arguments: tuple[Any, ...]
) -> Kernel:
    """Return a kernel that sees arrays otherwise, beside the one that need not."""
    text, without = (lower(f, *arguments).text for f in (function, plain))
    return Kernel("view", name, text, Needs(), plain=without)


def array(kind: Any, *sizes: int) -> Any:
    """Return an abstract array."""
    return jax.ShapeDtypeStruct(sizes, kind)


def kernels() -> Iterator[Kernel]:
    """Yield every kernel."""
    for family in (
        products,
        convolutions,
        networks,
        lookups,
        orders,
        views,
        movements,
        sums,
    ):
        yield from family()


# --- products -------------------------------------------------------------------------------------


def _matmul(
    name: str,
    kind: Any,
    batch: int,
    m: int,
    k: int,
    n: int,
    *,
    target: float = 0,
    options: tuple[tuple[str, object], ...] = (),
) -> Kernel:
    operands = (array(kind, batch, m, k), array(kind, batch, k, n))
    if batch == 1:
        operands = (array(kind, m, k), array(kind, k, n))
    width = WIDTH[kind]
    needs = Needs(
        batch * m * k * n,
        NAMES[kind],
        batch * (m * k + k * n) * width,
        batch * m * n * width,
        because=f"{batch} x {m} x {k} x {n} products",
    )
    return _kernel("matmul", name, jnp.matmul, operands, needs, target=target, options=options)


def products() -> Iterator[Kernel]:
    """Yield matrix products: square, tall, skinny, of a batch, of vectors."""
    yield _matmul("square f16 4096", F16, 1, 4096, 4096, 4096)
    most = (("available_memory_proportion", 0.8),)
    yield _matmul(
        "square f16 4096, memory 0.8", F16, 1, 4096, 4096, 4096, target=0.60, options=most
    )
    yield _matmul("square f16 1024", F16, 1, 1024, 1024, 1024)
    yield _matmul("square f32 2048", F32, 1, 2048, 2048, 2048)
    yield _matmul("tall f16 65536x256x256", F16, 1, 65536, 256, 256)
    yield _matmul("skinny f16 16x4096x4096", F16, 1, 16, 4096, 4096)
    yield _matmul("deep f32 128x32768x128", F32, 1, 128, 32768, 128)
    yield _matmul("batched f16 96 x 384x64x384", F16, 96, 384, 64, 384)
    yield _matmul("vector f32 1x4096x4096", F32, 1, 1, 4096, 4096)


# --- convolutions ---------------------------------------------------------------------------------


def _convolution(name: str, batch: int, side: int, cin: int, cout: int, k: int, by: int) -> Kernel:
    made = -(-side // by)
    operands = (array(F16, batch, side, side, cin), array(F16, k, k, cin, cout))
    needs = Needs(
        batch * made * made * k * k * cin * cout,
        "f16",
        2 * sum(prod(x.shape) for x in operands),
        2 * batch * made * made * cout,
        because=f"{batch} x {made}^2 x {k}^2 x {cin} x {cout} products",
    )

    def convolve(image: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(
            image, kernel, (by, by), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    return _kernel("convolution", name, convolve, operands, needs)


def convolutions() -> Iterator[Kernel]:
    """Yield convolutions of ResNet-50, four images in f16."""
    yield _convolution("7x7/2 3->64 at 224", 4, 224, 3, 64, 7, 2)
    yield _convolution("1x1 256->64 at 56", 4, 56, 256, 64, 1, 1)
    yield _convolution("3x3 64 at 56", 4, 56, 64, 64, 3, 1)
    yield _convolution("3x3 256 at 14", 4, 14, 256, 256, 3, 1)
    yield _convolution("1x1 512->2048 at 7", 4, 7, 512, 2048, 1, 1)


# --- what networks are made of --------------------------------------------------------------------


def _layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    rest = x - mean
    return rest * lax.rsqrt((rest * rest).mean(-1, keepdims=True) + 1e-5) * scale + shift


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("hqd,hkd->hqk", q, k) * 0.125
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores), v)


def networks() -> Iterator[Kernel]:
    """Yield softmax, layer norm, attention and elementwise work."""
    rows, width = 8192, 1024
    count = rows * width
    x = array(F32, rows, width)
    once = Needs(
        loaded_bytes=4 * count, stored_bytes=4 * count, because="x once in and once out, 4 B each"
    )
    yield _kernel("network", "softmax f32 8192x1024", jax.nn.softmax, (x,), once)
    vector = array(F32, width)
    yield _kernel("network", "layer norm f32 8192x1024", _layer_norm, (x, vector, vector), once)
    heads, length, depth = 16, 512, 64
    query = array(F16, heads, length, depth)
    needs = Needs(
        2 * heads * length * length * depth,
        "f16",
        3 * 2 * heads * length * depth,
        2 * heads * length * depth,
        because="2 x 16 x 512^2 x 64 products",
    )
    yield _kernel("network", "attention f16 16x512x64", _attention, (query,) * 3, needs)
    many = 1 << 24
    vector = array(F32, many)
    needs = Needs(
        loaded_bytes=8 * many, stored_bytes=4 * many, because="2 operands in, 1 result out, 4 B"
    )
    yield _kernel("elementwise", "add f32 16M", jnp.add, (vector, vector), needs, target=0.65)
    halves = array(F16, many)
    needs = Needs(
        loaded_bytes=4 * many, stored_bytes=2 * many, because="2 operands in, 1 result out, 2 B"
    )
    yield _kernel("elementwise", "add f16 16M", jnp.add, (halves, halves), needs, target=0.65)
    needs = Needs(
        loaded_bytes=4 * 4096, stored_bytes=4 * 4096, because="4096 x 4 B in, as many out"
    )
    yield _kernel("elementwise", "erf f32 4096", jax.scipy.special.erf, (array(F32, 4096),), needs)


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
    yield _kernel("lookup", "embedding f32 4096 of 32768x128", look_up, (table, ids), needs)
    needs = Needs(
        loaded_bytes=2 * moved, stored_bytes=moved, exchanged_bytes=moved, because="rows added"
    )
    yield _kernel(
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
    yield _kernel("order", "sort f32 1M", jnp.sort, (array(F32, count),), needs)
    rows = Needs(
        loaded_bytes=4 * count, stored_bytes=4 * count, because="each key in and out, rows apart"
    )
    yield _kernel("order", "sort f32 4096x256", jnp.sort, (array(F32, 4096, 256),), rows)
    needs = Needs(loaded_bytes=4 * count, because="each key in once")
    yield _kernel(
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
    yield _view("x^T y", lambda x, y: x.T @ y, lambda x, y: x @ y, (x, x))
    yield _view("x y^T", lambda x, y: x @ y.T, lambda x, y: x @ y, (x, x))
    yield _view("(x y)^T z", lambda x, y, z: (x @ y).T @ z, lambda x, y, z: (x @ y) @ z, (x, x, x))
    yield _view("sum of transposed", lambda x: x.T.sum(1), lambda x: x.sum(0), (x,))
    yield _view(
        "exp of transposed, summed",
        lambda x: jnp.exp(x.T).sum(0),
        lambda x: jnp.exp(x).sum(1),
        (x,),
    )
    yield _view(
        "reshape between elementwise",
        lambda x: jnp.tanh(jnp.exp(x).reshape(128, 8, 1024)).reshape(1024, 1024),
        lambda x: jnp.tanh(jnp.exp(x)),
        (x,),
    )
    yield _view(
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
    yield _kernel(
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
    yield _kernel(
        "movement", "cumsum both ways f32 2048^2", both_ways, (array(F32, side, side),), needs
    )

    def blur(x: Any) -> Any:
        return 0.2 * (x[1:-1, 1:-1] + x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:])

    needs = Needs(loaded_bytes=4 * count, stored_bytes=4 * count, because="each point in and out")
    yield _kernel("movement", "5-point stencil f32 2048^2", blur, (array(F32, side, side),), needs)


def sums() -> Iterator[Kernel]:
    """Yield reductions along rows, columns and both, and running sums."""
    rows, width = 4096, 4096
    count = rows * width
    x = array(F32, rows, width)
    needs = Needs(loaded_bytes=4 * count, because="each element in once")
    yield _kernel("reduction", "sum of rows f32 4096^2", lambda x: x.sum(1), (x,), needs)
    yield _kernel("reduction", "sum of columns f32 4096^2", lambda x: x.sum(0), (x,), needs)
    yield _kernel("reduction", "sum of all f32 4096^2", jnp.sum, (x,), needs)
    yield _kernel(
        "reduction",
        "max of 65536x64 f32",
        lambda x: x.max(1),
        (array(F32, 65536, 64),),
        Needs(loaded_bytes=4 << 22, because="each element in once"),
    )
    needs = Needs(loaded_bytes=4 << 22, stored_bytes=4 << 22, because="each element in and out")
    yield _kernel(
        "reduction",
        "cumsum f32 4096x1024",
        lambda x: jnp.cumsum(x, 1),
        (array(F32, 4096, 1024),),
        needs,
    )
