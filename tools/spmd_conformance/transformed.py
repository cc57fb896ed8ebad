"""Programs through JAX's transformations and libraries: gradients, maps, keys, matrices, meshes."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from tools.spmd_conformance.program import Program, constrain
from tools.spmd_conformance.regions import mapped

Array = Any


# ---- derivatives ------------------------------------------------------------------------------


def _sine(x: Array) -> Array:
    return jnp.sin(x)


def _clipped_forward(x: Array) -> tuple[Array, Array]:
    return jnp.sin(x), x


def _clipped_backward(x: Array, g: Array) -> tuple[Array]:
    return (constrain(jnp.clip(g * jnp.cos(x), -0.1, 0.1), "a,-"),)


_clipped: Any = jax.custom_vjp(_sine)
_clipped.defvjp(_clipped_forward, _clipped_backward)


def own_gradient(x: Array, w: Array) -> Array:
    """Take a gradient through a function with its own."""
    return jax.grad(lambda w: (_clipped(x @ w) ** 2).sum())(w)


def kept_little(x: Array, w: Array, v: Array) -> Any:
    """Take gradients of layers that are computed anew."""
    layer = jax.checkpoint(lambda h, w: jnp.tanh(h @ w))
    return jax.grad(lambda w, v: (layer(layer(x, w), v) ** 2).mean(), argnums=(0, 1))(w, v)


def each_gradient(x: Array, w: Array) -> Array:
    """Take a gradient for each row of a batch."""
    return jax.vmap(jax.grad(lambda w, row: jnp.tanh(row @ w).sum()), (None, 0))(w, x)


def hessian(x: Array, w: Array) -> Array:
    """Take second derivatives."""
    return jax.hessian(lambda w: jnp.tanh(x @ w).sum())(w)


def pushed(x: Array, w: Array) -> Any:
    """Take a derivative forwards."""
    return jax.jvp(lambda w: jax.nn.softmax(x @ w), (w,), (jnp.ones_like(w),))


def pools_back(x: Array) -> Array:
    """Take the gradient of pooling over two dimensions."""
    pool = partial(lax.reduce_window, init_value=-jnp.inf, computation=lax.max,
                   window_dimensions=(1, 2, 2, 1), window_strides=(1, 2, 2, 1),
                   padding="VALID")  # fmt: skip
    return jax.grad(lambda x: (pool(x) ** 2).sum())(x)


# ---- loops and maps ---------------------------------------------------------------------------


def carried(x: Array, w: Array) -> Any:
    """Carry a divided state, which the body constrains."""

    def step(h: Array, row: Array) -> tuple[Array, Array]:
        h = constrain(jnp.tanh(h @ w + row), "a,b")
        return h, h.sum(-1)

    return lax.scan(step, x, jnp.arange(3.0))


def constrained_loop(x: Array) -> Array:
    """Loop to a condition; the body constrains."""
    return lax.while_loop(
        lambda s: (s**2).sum() > 1.0, lambda s: constrain(constrain(s, "-,a") * 0.5, "a,-"), x
    )


def both_ways(x: Array, w: Array) -> Array:
    """Run a recurrence forwards and backwards."""
    step = lambda h, row: (jnp.tanh(row + h @ w),) * 2  # noqa: E731
    begin = jnp.zeros(x.shape[1:])
    forward = lax.scan(step, begin, x)[1]
    return jnp.concatenate([forward, lax.scan(step, begin, x, reverse=True)[1]], -1)


def prefixes(x: Array) -> Array:
    """Combine all prefixes in a tree."""
    return lax.associative_scan(jnp.multiply, 1 + x * 0.01) + lax.associative_scan(
        jnp.add, x, axis=1, reverse=True
    )


def linear_recurrence(a: Array, b: Array) -> Array:
    """Solve h = a h + b by prefixes of pairs."""

    def both(p: tuple[Array, Array], q: tuple[Array, Array]) -> tuple[Array, Array]:
        return p[0] * q[0], p[1] * q[0] + q[1]

    return lax.associative_scan(both, (jnp.tanh(a), b))[1]


def mapped_rows(x: Array, w: Array) -> Array:
    """Apply a function to rows one after another, in batches."""
    return lax.map(lambda row: jnp.sort(row @ w), x, batch_size=4)


def batch_of_regions(x: Array, w: Array) -> Array:
    """Map a region over a batch."""
    inside = mapped(lambda x, w: lax.psum(x @ w, "a"), ("-,a", "a,-"), "-,-")
    return jax.vmap(inside, (0, None))(x, w)


def regions_in_a_loop(x: Array, w: Array) -> Array:
    """Loop over a region."""
    inside = mapped(lambda x, w: lax.psum_scatter(jnp.tanh(x @ w), "a", scatter_dimension=1,
                                                  tiled=True), ("-,a", "a,-"), "-,a")  # fmt: skip
    return lax.fori_loop(0, 3, lambda _, h: inside(h, w), x)


def region_of_a_loop(x: Array) -> Array:
    """Loop inside of a region until all devices are done."""

    def inside(x: Array) -> Array:
        small = lambda h: lax.pmax(jnp.abs(h).max(), "a") > 0.1  # noqa: E731
        return lax.while_loop(small, lambda h: h * 0.5, x)

    return mapped(inside, ("a,-",), "a,-")(x)


def region_step(x: Array, w: Array) -> Any:
    """Train in a region with means over devices."""

    def inside(x: Array, w: Array) -> tuple[Array, Array]:
        loss, g = jax.value_and_grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)
        return lax.pmean(loss, "a"), w - 0.1 * lax.pmean(g, "a")

    return jax.shard_map(inside, in_specs=(P("a"), P()), out_specs=(P(), P()), check_vma=False)(
        x, w
    )


def ring_attention(q: Array, k: Array, v: Array) -> Array:
    """Attend over blocks of keys that go around a ring."""

    def inside(q: Array, k: Array, v: Array) -> Array:
        n = lax.axis_size("a")
        turn = [(i, (i + 1) % n) for i in range(n)]

        def step(_: int, state: Any) -> Any:
            k, v, top, total, result = state
            scores = q @ k.T
            new = jnp.maximum(top, scores.max(-1, keepdims=True))
            weights, old = jnp.exp(scores - new), jnp.exp(top - new)
            total = total * old + weights.sum(-1, keepdims=True)
            result = result * old + weights @ v
            return lax.ppermute(k, "a", turn), lax.ppermute(v, "a", turn), new, total, result

        top = lax.pcast(jnp.full((q.shape[0], 1), -jnp.inf), "a", to="varying")
        none = lax.pcast(jnp.zeros((q.shape[0], 1)), "a", to="varying")
        result = lax.fori_loop(0, n, step, (k, v, top, none, jnp.zeros_like(q)))
        return result[4] / result[3]

    return mapped(inside, ("a,-", "a,-", "a,-"), "a,-")(q, k, v)


def swapped_heads(x: Array, w: Array) -> Array:
    """Exchange sequence for heads and back around attention, as Ulysses does."""

    def inside(x: Array) -> Array:
        heads = lax.all_to_all(x, "a", split_axis=1, concat_axis=0, tiled=True)
        scores = jax.nn.softmax(jnp.einsum("shd,thd->hst", heads, heads))
        mixed = jnp.einsum("hst,thd->shd", scores, heads)
        return lax.all_to_all(mixed, "a", split_axis=0, concat_axis=1, tiled=True)

    return mapped(inside, ("a,-,-",), "a,-,-")(x) @ w


def by_number(x: Array) -> Array:
    """Take one of several ways by the device's own number."""
    inside = lambda x: lax.switch(  # noqa: E731
        lax.axis_index("a"), [jnp.sin, jnp.cos, lambda h: h * 2, jnp.tanh], x
    )
    return mapped(inside, ("a,-",), "a,-")(x)


def nested_regions(x: Array) -> Array:
    """Work along one axis in a region along another one."""

    def outer(x: Array) -> Array:
        inner = jax.shard_map(
            lambda h: lax.psum(h, "b"), in_specs=P(None, "b"), out_specs=P(), axis_names={"b"}
        )
        return inner(jnp.sin(x))

    return jax.shard_map(outer, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})(x)


def routed(x: Array, w: Array) -> Array:
    """Send rows to experts by all-to-all in a region, and back."""

    def inside(x: Array, w: Array) -> Array:
        n = lax.axis_size("a")
        sent = lax.all_to_all(x.reshape(n, -1, x.shape[-1]), "a", 0, 0, tiled=True)
        done = jnp.tanh(sent.reshape(-1, x.shape[-1]) @ w[0])
        return lax.all_to_all(done.reshape(n, -1, w.shape[-1]), "a", 0, 0, tiled=True).reshape(
            x.shape[0], -1
        )

    return mapped(inside, ("a,-", "a,-,-"), "a,-")(x, w)


# ---- keys -------------------------------------------------------------------------------------


def key_for_each(bits: Array, x: Array) -> Array:
    """Draw with a key for each row."""
    keys = constrain_keys(jax.random.split(jax.random.wrap_key_data(bits), x.shape[0]))
    return x + jax.vmap(lambda k: jax.random.normal(k, x.shape[1:]))(keys)


def constrain_keys(keys: Array) -> Array:
    """Divide keys along the first axis."""
    return lax.with_sharding_constraint(keys, P("a"))


def folded(bits: Array, x: Array) -> Array:
    """Draw in a loop from a key that the turn is folded into."""
    key = jax.random.wrap_key_data(bits)
    turn = lambda i, h: h + jax.random.uniform(jax.random.fold_in(key, i), h.shape)  # noqa: E731
    return lax.fori_loop(0, 3, turn, x)


def sampled(bits: Array, x: Array) -> Any:
    """Sample a class of each row, and permute rows."""
    first, second = jax.random.split(jax.random.wrap_key_data(bits))
    return jax.random.categorical(first, x), jax.random.permutation(second, x)


def keys_in_a_region(bits: Array, x: Array) -> Array:
    """Draw other numbers on each device."""

    def inside(bits: Array, x: Array) -> Array:
        key = jax.random.fold_in(jax.random.wrap_key_data(bits), lax.axis_index("a"))
        return x + jax.random.normal(key, x.shape)

    return mapped(inside, ("-", "a,-"), "a,-")(bits, x)


# ---- matrices and spectra ---------------------------------------------------------------------


def decomposed(x: Array) -> Any:
    """Take decompositions of matrices without the signs that they leave open."""
    spd = x @ x.mT + 4 * jnp.eye(x.shape[-1])
    q, r = jnp.linalg.qr(spd)
    values = jnp.linalg.eigvalsh(spd)
    return jnp.abs(r), q @ r, values, jnp.linalg.svd(x, compute_uv=False)


def inverted(x: Array, y: Array) -> Any:
    """Invert, solve, take determinants."""
    spd = x @ x.mT + 4 * jnp.eye(x.shape[-1])
    return jnp.linalg.inv(spd), jnp.linalg.solve(spd, y), jnp.linalg.slogdet(spd)[1]


def solve_step(x: Array, y: Array) -> Array:
    """Take the gradient of a solution."""

    def loss(x: Array) -> Array:
        root = jnp.linalg.cholesky(x @ x.mT + 4 * jnp.eye(x.shape[-1]))
        return (jax.scipy.linalg.solve_triangular(root, y, lower=True) ** 2).sum()

    return jax.grad(loss)(x)


def spectra(x: Array) -> Any:
    """Transform two dimensions, and back."""
    whole = jnp.fft.fft2(x)
    return jnp.abs(whole), jnp.fft.ifft2(whole).real, jnp.abs(jnp.fft.rfftn(x, axes=(0, 2)))


def three_operands(x: Array, y: Array, z: Array) -> Array:
    """Contract three operands."""
    return jnp.einsum("bij,bjk,kl->bil", x, y, z)


def products(x: Array, y: Array) -> Any:
    """Take products of several kinds."""
    return jnp.kron(x, y), jnp.tensordot(x, y, 1), jnp.vander(x[:, 0], 4)


# ---- counting, ordering, indices --------------------------------------------------------------


def summed_segments(x: Array, at: Array) -> Any:
    """Sum rows by their segment, and count them."""
    return jax.ops.segment_sum(x, at, 6), jnp.bincount(at, length=6)


def ordered(x: Array) -> Any:
    """Take medians, quantiles, orders."""
    return (jnp.median(x, 0), jnp.quantile(x, 0.3, axis=1), jnp.argsort(x, 0, descending=True),
            jnp.lexsort((x[:, 0], x[:, 1])))  # fmt: skip


def searched(x: Array, y: Array) -> Any:
    """Search, count and interpolate in sorted numbers."""
    points = jnp.sort(x)
    return (jnp.searchsorted(points, y), jnp.interp(y, points, x),
            jnp.histogram(x, 5, (-2.0, 2.0))[0])  # fmt: skip


def indexed(x: Array, at: Array, y: Array) -> Any:
    """Update at indices by several rules, and read with a fill for what is outside."""
    return (x.at[at].min(y), x.at[at].multiply(y), x.at[at].max(y),
            x.at[at].get(mode="fill", fill_value=7.0))  # fmt: skip


def best(x: Array) -> Any:
    """Take a step of a beam search."""
    values, flat = lax.top_k(jax.nn.log_softmax(x).reshape(x.shape[0], -1), 4)
    beam, token = flat // x.shape[2], flat % x.shape[2]
    return values, token, jnp.take_along_axis(x, beam[..., None], 1)


def grouped_experts(x: Array, g: Array, w: Array) -> Array:
    """Sort rows by expert, multiply in groups, and put them back."""
    expert = jnp.argmax(x @ g, -1)
    order = jnp.argsort(expert)
    done = lax.ragged_dot(x[order], w, jnp.bincount(expert, length=w.shape[0]).astype(jnp.int32))
    return jnp.zeros_like(done).at[order].set(done)


# ---- pictures and signals ---------------------------------------------------------------------


def resized(x: Array) -> Array:
    """Resize pictures."""
    return jax.image.resize(x, (x.shape[0], 12, 6, x.shape[3]), "bilinear")


def patches(x: Array) -> Array:
    """Take patches of pictures."""
    return lax.conv_general_dilated_patches(x, (2, 2), (2, 2), "VALID")


def convolved(x: Array, y: Array) -> Array:
    """Convolve a signal."""
    return jnp.convolve(x, y, "same")


def group_norm(x: Array) -> Array:
    """Normalize groups of channels."""
    groups = x.reshape(*x.shape[:-1], 4, -1)
    centred = groups - groups.mean((1, 2, 4), keepdims=True)
    return (centred * lax.rsqrt(centred.var((1, 2, 4), keepdims=True) + 1e-5)).reshape(x.shape)


def turned(x: Array) -> Any:
    """Roll, flip and turn."""
    return jnp.roll(x, (3, 1), (0, 1)), jnp.rot90(x), jnp.flip(x)


def totals(x: Array) -> Any:
    """Take running totals of several kinds, some from the end."""
    return jnp.cumsum(x, 0), lax.cumsum(x, 0, reverse=True), jnp.cumprod(1 + x * 0.1, 1)


def attention(q: Array, k: Array, v: Array) -> Array:
    """Attend with JAX's own function."""
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


# ---- explicit meshes --------------------------------------------------------------------------


def typed_mlp(x: Array, w: Array, v: Array) -> Array:
    """Run layers whose types say how they are divided."""
    hidden = jax.nn.gelu(x @ w)
    return jnp.einsum("bh,ho->bo", hidden, v, out_sharding=P("a", None))


def typed_moves(x: Array) -> Any:
    """Move between shardings of types."""
    moved = jax.sharding.reshard(x, P("b", "a"))
    return moved * 2, jax.sharding.reshard(moved.T, P(None, ("a", "b")))


def typed_step(x: Array, w: Array) -> Any:
    """Train with typed shardings."""
    return jax.value_and_grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)


def typed_partial(x: Array, w: Array) -> Array:
    """Keep a sum partial until it is moved."""
    waiting = jnp.einsum("bi,io->bo", x, w, out_sharding=P(None, None, unreduced={"a"}))
    return jax.sharding.reshard(waiting, P("a", None))


def typed_reshapes(x: Array) -> Array:
    """Split a divided dimension."""
    parts = jnp.reshape(x, (4, 4, 32), out_sharding=P("a", None, "b"))
    return parts.sum(1)


def partly_typed(x: Array, w: Array) -> Array:
    """Let propagation choose in the middle of a typed program."""
    inside = jax.sharding.auto_axes(lambda x, w: jnp.sin(x @ w), out_sharding=P("a", None))
    return inside(x, w) * 2


def programs() -> Iterator[Program]:
    """Yield the rows of this part of the table."""
    mlp = ("16,32:a,-", "32,32:-,b")
    qkv = ("16,8:a,-",) * 3
    rows: dict[str, tuple[str, Any, tuple[str, ...]]] = {
        "own gradient": ("2x4", own_gradient, mlp),
        "kept little": ("2x4", kept_little, (*mlp, "32,16:b,-")),
        "gradients of rows": ("2x4", each_gradient, ("8,6:a,-", "6,4:-,b")),
        "second derivatives": ("4", hessian, ("8,6:a,-", "6,4")),
        "forwards": ("2x4", pushed, mlp),
        "pools back": ("2x4", pools_back, ("4,8,8,4:a,b,-,-",)),
        "carry": ("2x4", carried, ("8,16:a,-", "16,16:-,b")),
        "constraints in a loop": ("8", constrained_loop, ("16,8:a,-",)),
        "both ways": ("2x4", both_ways, ("6,8,16:-,a,b", "16,16:-,b")),
        "prefixes": ("2x4", prefixes, ("128,64:a,b",)),
        "linear recurrence": ("4", linear_recurrence, ("256,6:a,-", "256,6:a,-")),
        "rows in batches": ("4", mapped_rows, ("16,8:a,-", "8,8")),
        "regions of a batch": ("4", batch_of_regions, ("4,6,16", "16,8:a,-")),
        "regions in a loop": ("4", regions_in_a_loop, ("6,16:-,a", "16,16:a,-")),
        "a loop in a region": ("8", region_of_a_loop, ("16,4:a,-",)),
        "a step in a region": ("8", region_step, ("16,8:a,-", "8,4")),
        "ring attention": ("8", ring_attention, qkv),
        "heads for sequence": ("4", swapped_heads, ("16,4,8:a,-,-", "8,8")),
        "by number": ("4", by_number, ("8,6",)),
        "nested regions": ("2x4", nested_regions, ("8,16:a,b",)),
        "routed": ("4", routed, ("16,8:a,-", "4,8,6:a,-,-")),
        "keys of rows": ("8", key_for_each, ("uint32<99 2", "16,6:a,-")),
        "folded keys": ("2x4", folded, ("uint32<99 2", "16,8:a,b")),
        "samples": ("4", sampled, ("uint32<99 2", "16,8:a,-")),
        "keys in a region": ("4", keys_in_a_region, ("uint32<99 2", "16,6:a,-")),
        "decompositions": ("4", decomposed, ("8,5,5:a,-,-",)),
        "inverses": ("2x4", inverted, ("8,5,5:a,-,-", "8,5,3:a,-,-")),
        "gradient of a solution": ("4", solve_step, ("8,5,5:a,-,-", "8,5,3")),
        "spectra": ("2x4", spectra, ("4,8,8:a,b,-",)),
        "three operands": ("2x4", three_operands, ("8,6,8:a,-,b", "8,8,4:a,b,-", "4,6")),
        "products": ("2x4", products, ("8,4:a,-", "4,8:-,b")),
        "segments": ("4", summed_segments, ("16,6:a,-", "int32<6 16:a")),
        "orders": ("4", ordered, ("16,8:a,-",)),
        "searches": ("4", searched, ("16:a", "12")),
        "indices": ("4", indexed, ("16,6:a,-", "int32<20 8", "8,6")),
        "beams": ("2x4", best, ("4,3,16:a,-,b",)),
        "grouped experts": ("4", grouped_experts, ("16,8:a,-", "8,4", "4,8,6")),
        "resized": ("4", resized, ("4,8,4,3:-,a,-,-",)),
        "patches": ("4", patches, ("2,3,8,8:-,-,a,-",)),
        "signal": ("4", convolved, ("32:a", "5")),
        "group norm": ("2x4", group_norm, ("4,4,4,16:a,-,-,b",)),
        "turned": ("2x4", turned, ("16,8:a,b",)),
        "totals": ("4", totals, ("16,8:a,-",)),
        "attention of the library": ("2x4", attention, ("4,8,4,8:a,-,b,-",) * 3),
        "typed/mlp": ("2x4", typed_mlp, (*mlp, "32,16:b,-")),
        "typed/moves": ("2x4", typed_moves, ("16,8:a,b",)),
        "typed/step": ("2x4", typed_step, ("16,32:a,-", "32,16:-,b")),
        "typed/partial": ("4", typed_partial, ("8,16:-,a", "16,8:a,-")),
        "typed/reshapes": ("2x4", typed_reshapes, ("16,32:a,b",)),
        "typed/partly": ("2x4", partly_typed, ("16,32:a,-", "32,16:-,-")),
    }
    for name, (mesh, function, arguments) in rows.items():
        typed, partial_sums = name.startswith("typed/"), name == "typed/partial"
        yield Program(
            f"transformed/{name}", mesh, function, arguments, typed=typed, in_shardy=partial_sums
        )
