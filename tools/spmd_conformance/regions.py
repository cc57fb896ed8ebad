"""Loops, branches, constraints and regions that are written for each device."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.shard_alike import shard_alike

from tools.spmd_conformance.program import Program, constrain, spec

Array = Any


def mapped(function: Any, given: tuple[str, ...], result: str, axes: str = "") -> Any:
    """Return a function for each device's blocks, as one of whole arrays."""
    names = {"axis_names": set(axes)} if axes else {}
    specs = tuple(map(spec, given))
    return jax.shard_map(function, in_specs=specs, out_specs=spec(result), **names)


def until_small(x: Array) -> Array:
    """Halve until the sum is small."""
    return lax.while_loop(lambda h: jnp.abs(h).sum() > 1, lambda h: h / 2, x)


def counted(x: Array) -> Array:
    """Take sums in a loop."""
    return lax.fori_loop(0, 5, lambda i, h: h - h.mean(0) + i, x)


def counted_products(x: Array, w: Array) -> Array:
    """Multiply in a loop."""
    return lax.fori_loop(0, 4, lambda _, h: jnp.tanh(h @ w), x)


def chosen(x: Array, w: Array) -> Array:
    """One of two ways, by a sum."""
    return lax.cond(x.sum() > 0, lambda h: h @ w, lambda h: h * 2, x)


def switched(at: Array, x: Array) -> Array:
    """One of three ways, by number."""
    return lax.switch(at, [jnp.sin, lambda h: h.sum(0, keepdims=True) + h, jnp.cos], x)


def middle(x: Array, y: Array) -> Array:
    """Constraints between ops."""
    return constrain(x + y, "a,-").T @ constrain(x * y, "a,b")


def free(x: Array, w: Array) -> Array:
    """Leave one dimension open."""
    return constrain(x @ w, "?,b") * 2


def alike(x: Array) -> Array:
    """Two values divided alike."""
    y, other = shard_alike(x * 2, jnp.zeros(x.shape, x.dtype) + x.sum())
    return y + other


def uneven(x: Array) -> Array:
    """Divide with a rest."""
    return (constrain(x[:13] * 2, "a,-") + 1).sum(0)


def uneven_product(x: Array, w: Array) -> Array:
    """Products over a dimension that leaves a rest."""
    return constrain(x, "-,a") @ w


def psum(x: Array, w: Array) -> Array:
    """Add up a product whose terms are divided."""
    return lax.psum(x @ w, "a")


def gathered(x: Array, w: Array) -> Array:
    """Weights gathered before use."""
    return x @ lax.all_gather(w, "a", axis=0, tiled=True)


def scattered(x: Array, w: Array) -> Array:
    """Each keeps a part of a sum."""
    return lax.psum_scatter(x @ w, "a", scatter_dimension=0, tiled=True)


def exchanged(x: Array) -> Array:
    """Blocks change dimension."""
    return lax.all_to_all(x, "a", split_axis=1, concat_axis=0, tiled=True)


def ring(x: Array) -> Array:
    """Each hands its block on."""
    size = lax.axis_size("a")
    return x + lax.ppermute(x, "a", [(i, (i + 1) % size) for i in range(size)])


def numbered(x: Array) -> Array:
    """Each adds its number."""
    return x + lax.axis_index("a")


def around(inner: Any) -> Any:
    """Return a function with work before and after a region."""
    return lambda x, *rest: jnp.sin(inner(x * 2, *rest)) + 1


def pipeline(x: Array, w: Array) -> Array:
    """Layers one after another around a ring."""

    def inside(x: Array, w: Array) -> Array:
        size = lax.axis_size("a")
        around_ring = [(i, (i + 1) % size) for i in range(size)]
        turn = lambda _, h: lax.ppermute(jnp.tanh(h @ w[0]), "a", around_ring)  # noqa: E731
        return lax.fori_loop(0, size, turn, x)

    return mapped(inside, ("a,-", "a,-,-"), "a,-")(x, w)


def region_step(x: Array, w: Array) -> Any:
    """Return the gradient through a region."""
    inner = mapped(psum, ("-,a", "a,-"), "-,-")
    return jax.grad(lambda w: (inner(x, w) ** 2).mean())(w)


def programs() -> Iterator[Program]:
    """Yield the rows of this part of the table."""
    for mesh in ("2", "8"):
        yield Program(f"loop/until small/{mesh}", mesh, until_small, ("16,32:a,-",))
    yield Program("loop/counted", "2x4", counted, ("16,32:a,b",))
    yield Program("loop/products", "2x4", counted_products, ("16,32:a,-", "32,32:-,b"))
    yield Program("loop/products both", "4", counted_products, ("16,32:-,a", "32,32:a,-"))
    yield Program("branch/sum", "2x4", chosen, ("16,32:a,-", "32,32:-,b"))
    yield Program("branch/three", "2x4", switched, ("int32<3 ", "16,32:a,b"))
    yield Program("constraint/middle", "2x4", middle, ("16,32", "16,32"))
    yield Program("constraint/free", "2x4", free, ("16,32:a,-", "32,64"))
    yield Program("constraint/replicated", "2x4", lambda x: constrain(x, "-,-") + 1, ("16,32:a,b",))
    yield Program("constraint/alike", "2x4", alike, ("16,32:a,b",))
    yield Program("constraint/uneven", "4", uneven, ("16,32",))
    yield Program("constraint/uneven product", "4", uneven_product, ("16,30", "30,8"))
    yield Program(
        "region/psum", "4", around(mapped(psum, ("-,a", "a,-"), "-,-")), ("16,32", "32,8")
    )
    yield Program("region/gather", "4", around(mapped(gathered, ("a,-", "a,-"), "a,-")),
                  ("16,32:a,-", "32,8:a,-"))  # fmt: skip
    yield Program("region/scatter", "4", around(mapped(scattered, ("-,a", "a,-"), "a,-")),
                  ("16,32:-,a", "32,8:a,-"))  # fmt: skip
    yield Program(
        "region/exchange", "4", around(mapped(exchanged, ("a,-",), "a,-")), ("16,32:a,-",)
    )
    yield Program("region/ring", "8", around(mapped(ring, ("a,-",), "a,-")), ("16,32:a,-",))
    yield Program("region/number", "4", around(mapped(numbered, ("a,-",), "a,-")), ("16,32",))
    partly = mapped(psum, ("-,a", "a,-"), "-,-", "a")
    yield Program("region/partly", "2x4", around(partly), ("16,32:b,a", "32,8:a,-"))
    both = mapped(partial(psum), ("b,a", "a,-"), "b,-")
    yield Program("region/two axes", "2x4", around(both), ("16,32:b,a", "32,8:a,-"))
    yield Program("region/pipeline", "4", pipeline, ("16,32:a,-", "4,32,32:a,-,-"))
    yield Program("region/step", "4", region_step, ("16,32:-,a", "32,8:a,-"))
