"""Single ops and short chains of them, on arrays divided in all ways."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tools.spmd_conformance.program import Program, constrain

Array = Any

DOTS = (
    ("a,b", "-,-", ""), ("a,-", "-,b", ""), ("-,a", "a,-", ""), ("a,b", "b,-", ""),
    ("a,-", "a,-", ""), ("a,b", "a,b", ""), ("-,-", "-,ab", ""), ("ab,-", "-,-", ""),
    ("-,ab", "ab,-", ""), ("a,-", "-,a", ""), ("-,b", "b,a", "a,b"), ("-,b", "b,-", "b,-"),
    ("-,b", "b,-", "-,b"), ("a,b", "b,-", "ab,-"), ("a,b", "b,-", "a,b"), ("a,-", "-,b", "b,a"),
    ("a,-", "-,b", "-,-"), ("-,-", "-,-", "a,b"), ("ab,-", "-,ab", "a,b"), ("b,a", "a,-", "-,a"),
)  # fmt: skip
"""How both operands and the result of a product are divided."""
RESHARDS = (
    ("a,b", "b,a"), ("a,b", "ab,-"), ("ab,-", "a,b"), ("ab,-", "ba,-"), ("ab,-", "-,ab"),
    ("a,-", "b,-"), ("a,-", "-,b"), ("a,-", "ab,-"), ("ab,-", "b,-"), ("-,ab", "b,a"),
    ("ab,-", "-,a"), ("a,b", "-,-"), ("-,-", "b,a"), ("a,b", "-,ba"), ("b,-", "-,a"),
    ("ba,-", "a,-"),
)  # fmt: skip


def moved(target: str) -> Any:
    """Return a function that asks for another division."""
    return lambda x: constrain(x * 2, target) + 1


def top(x: Array) -> Any:
    """Return the three largest and where they stand."""
    return lax.top_k(x, 3)


def two_sums(x: Array, y: Array, a: Array, b: Array) -> Array:
    """Add two products whose terms are divided."""
    return x @ a + y @ b


def linear_chain(x: Array, a: Array, y: Array) -> Array:
    """Scale a divided sum, turn it and sum on."""
    return (3 * (x @ a).T).sum(0) + y


def many_sums(x: Array) -> Any:
    """Several small sums of one array."""
    return x.sum(0), (x * x).sum(0), x.max(0), jnp.abs(x).sum()


def softmax(x: Array) -> Array:
    """Weights along the last dimension."""
    return jax.nn.softmax(x, -1)


def gathered(x: Array, indices: Array) -> Array:
    """Rows by number."""
    return x[indices]


def added(x: Array, indices: Array, updates: Array) -> Array:
    """Rows added up by number."""
    return x.at[indices].add(updates)


def stored(x: Array, indices: Array, updates: Array) -> Array:
    """Rows set by number."""
    return x.at[indices].set(updates, unique_indices=True)


def sliced(x: Array, at: Array) -> Array:
    """Part of the rows, from a number on."""
    return lax.dynamic_slice(x, (at, 0), (4, x.shape[1]))


def updated(x: Array, at: Array, new: Array) -> Array:
    """Write some rows anew."""
    return lax.dynamic_update_slice(x, new, (at, 0))


def masked(x: Array, y: Array) -> Array:
    """Bits, comparisons and choices."""
    return jnp.where((x > 0) & (y < 1), x, y).sum(0)


def rotated(x: Array) -> Array:
    """Rotary positions."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] / 10.0 ** jnp.arange(half)
    a, b = x[..., :half], x[..., half:]
    turned = (a * jnp.cos(angles) - b * jnp.sin(angles), a * jnp.sin(angles) + b * jnp.cos(angles))
    return jnp.concatenate(turned, -1)


def solved(a: Array, b: Array) -> Array:
    """Triangular systems, one for each of a batch."""
    factor = jnp.linalg.cholesky(a @ a.mT + 8 * jnp.eye(a.shape[-1]))
    return lax.linalg.triangular_solve(factor, b, left_side=True, lower=True)


def drawn(key: Array) -> Array:
    """Random numbers from a key."""
    return constrain(jax.random.uniform(jax.random.wrap_key_data(key), (16, 8)), "a,b")


def dropped(x: Array, key: Array) -> Array:
    """Elements left out at random."""
    kept = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.5, x.shape)
    return jnp.where(kept, x * 2, 0)


BLOCK, ROWS, COLUMNS = "16,32:a,b", "16,32:a,-", "16,32:-,a"
ALONG = "along the divided dimension"
UNARY: tuple[tuple[str, Any, str], ...] = (
    ("softmax/divided", softmax, BLOCK),
    ("softmax/rows", softmax, "16,32:ab,-"),
    ("sum/all", jnp.sum, BLOCK),
    ("sum/one", lambda x: x.sum(1), BLOCK),
    ("sum/many", many_sums, BLOCK),
    ("sum/integers", lambda x: x.sum(0), "int32<100 16,32:ab,-"),
    ("sum/bf16", lambda x: x.sum(1), "bfloat16 16,32:a,b"),
    ("product", lambda x: jnp.prod(x, 0), BLOCK),
    ("maximum", lambda x: (x.max(0), x.min(1)), BLOCK),
    ("all and any", lambda x: (jnp.all(x, 0), jnp.any(x, 1)), "bool 16,32:a,b"),
    ("argmax/divided", lambda x: x.argmax(1), BLOCK),
    ("argmax/whole", lambda x: x.argmax(1), "16,32:ab,-"),
    (f"sort/{ALONG}", lambda x: jnp.sort(x, 0), BLOCK),
    ("sort/other", lambda x: jnp.sort(x, 1), "16,32:ab,-"),
    ("sort/with indices", lambda x: jnp.argsort(x, 0), BLOCK),
    ("top/other", top, "16,32:ab,-"),
    (f"top/{ALONG}", top, BLOCK),
    ("running sum/other", lambda x: jnp.cumsum(x, 1), "16,32:ab,-"),
    (f"running sum/{ALONG}", lambda x: jnp.cumsum(x, 0), BLOCK),
    ("running maximum", lambda x: lax.cummax(x, 1), "16,32:a,-"),
    ("reverse/other", lambda x: x[:, ::-1], "16,32:ab,-"),
    (f"reverse/{ALONG}", lambda x: x[::-1], BLOCK),
    ("roll", lambda x: jnp.roll(x, 3, 0), BLOCK),
    ("slice/other", lambda x: x[:, 3:17], "16,32:ab,-"),
    (f"slice/{ALONG}", lambda x: x[4:12], BLOCK),
    ("pad/other", lambda x: jnp.pad(x, ((0, 0), (1, 3))), "16,32:ab,-"),
    (f"pad/{ALONG}", lambda x: jnp.pad(x, ((8, 8), (0, 0))), BLOCK),
    ("halves joined", lambda x: jnp.concatenate([x[:8], x[8:] * 2], 0), BLOCK),
    ("joined/other", lambda x: jnp.concatenate([x, x * 2], 1), "16,32:ab,-"),
    (f"joined/{ALONG}", lambda x: jnp.concatenate([x, x * 2], 0), BLOCK),
    ("stacked", lambda x: jnp.stack([x, x * 2]), BLOCK),
    ("transpose", lambda x: x.T @ x, BLOCK),
    ("split dimension", lambda x: x.reshape(16, 4, 8).transpose(1, 0, 2), BLOCK),
    ("merged dimensions", lambda x: x.reshape(4, 4, 32).reshape(4, 128), BLOCK),
    ("strided merge", lambda x: x.reshape(64, 8), "8,8,8:-,a,-"),
    ("tiled", lambda x: jnp.tile(x, (2, 2)), BLOCK),
    ("repeated", lambda x: jnp.repeat(x, 2, 0), BLOCK),
    ("differences", lambda x: x[1:] - x[:-1], "17,32:-,b"),
    ("triangle", jnp.tril, BLOCK),
    ("one hot", lambda x: jax.nn.one_hot(x, 16), "int32<16 32:a"),
    ("norms", lambda x: jnp.sqrt((x**2).sum()) * x, BLOCK),
    ("variance", lambda x: x.var(0), BLOCK),
    ("outer", lambda x: x[:, 0][:, None] * x[0][None], BLOCK),
    ("rotary", rotated, "4,16,8:a,b,-"),
    ("bits", lambda x: lax.bitcast_convert_type(x, jnp.uint32) >> 3, BLOCK),
    ("bytes", lambda x: lax.bitcast_convert_type(x, jnp.uint8), BLOCK),
    ("int8", lambda x: (x.astype(jnp.int32) @ x.T.astype(jnp.int32)), "int8<7 16,32:a,b"),
    ("fourier/other", lambda x: jnp.fft.rfft(x).real, "16,32:ab,-"),
    ("identity", lambda x: x, BLOCK),
    ("moments", lambda x: (x.mean(0), x.std(0), x.mean(1)), "16,32:a,b"),
)  # fmt: skip


INDEXED = (
    ("rows", "32,16:b,-", "int32<32 8:-"),
    ("columns", "32,16:-,b", "int32<32 8:a"),
    ("indices", "32,16:-,-", "int32<32 8:a"),
    ("all", "32,16:b,-", "int32<32 8:a"),
)
"""How arrays and the numbers of their rows are divided."""


def programs() -> Iterator[Program]:
    """Yield the rows of this part of the table."""
    for x, y, out in DOTS:
        given = (f"16,32:{x}", f"32,64:{y}")
        name = f"product/{x} by {y}" + (f" to {out}" if out else "")
        yield Program(name, "2x4", jnp.matmul, given, out)
    yield Program("product/batches", "2x4", jnp.matmul, ("8,16,32:a,-,b", "8,32,16:a,b,-"))
    yield Program("product/three axes", "2x2x2", jnp.matmul, ("16,32:a,b", "32,64:b,c"))
    yield Program(
        "product/three axes to c", "2x2x2", jnp.matmul, ("16,32:a,bc", "32,64:bc,-"), "a,c"
    )
    for source, target in RESHARDS:
        yield Program(f"moved/{source} to {target}", "2x4", moved(target), (f"16,32:{source}",))
    for source, target in (("abc,-", "a,bc"), ("a,bc", "c,ba"), ("ab,c", "c,ab"), ("cb,-", "b,-")):
        yield Program(f"moved/{source} to {target}", "2x2x2", moved(target), (f"16,32:{source}",))
    for name, function, text in UNARY:
        yield Program(name, "2x4", function, (text,))
    yield Program("sums/two products", "4", two_sums, (COLUMNS, COLUMNS, "32,8:a,-", "32,8:a,-"))
    yield Program("sums/linear chain", "4", linear_chain, (COLUMNS, "32,8:a,-", "16"))
    yield Program("sums/wanted in parts", "4", two_sums,
                  (COLUMNS, COLUMNS, "32,8:a,-", "32,8:a,-"), "a,-")  # fmt: skip
    yield Program("masked", "2x4", masked, (BLOCK, BLOCK))
    yield Program("disagreeing", "2x4", jnp.add, ("16,32:a,b", "16,32:b,a"))
    yield Program("disagreeing/rows and columns", "4", jnp.add, (ROWS, COLUMNS))
    for name, x, i in INDEXED:
        yield Program(f"gather/{name}", "2x4", gathered, (x, i))
        update = f"8,16:{i[-1]},-"
        yield Program(f"scatter add/{name}", "2x4", added, (x, i, update))
    yield Program("gather/batches", "4", lambda x, i: jnp.take_along_axis(x, i, 1),
                  (ROWS, "int32<32 16,4:a,-"))  # fmt: skip
    yield Program("scatter/columns", "2x4", stored, ("32,16:-,b", "int32<32 1", "1,16:-,b"))
    yield Program("scatter/rows", "4", stored, ("32,16:a,-", "int32<32 1", "1,16"))
    yield Program("dynamic slice/other", "4", sliced, (COLUMNS, "int32<12 "))
    yield Program(f"dynamic slice/{ALONG}", "4", sliced, (ROWS, "int32<12 "))
    yield Program("dynamic update/other", "4", updated, (COLUMNS, "int32<12 ", "4,32:-,a"))
    yield Program(f"dynamic update/{ALONG}", "4", updated, (ROWS, "int32<12 ", "4,32"))
    yield Program("dynamic update/one row", "4", updated, (ROWS, "int32<12 ", "1,32"))
    yield Program("solve/batch", "4", solved, ("8,8,8:a,-,-", "8,8,4:a,-,-"))
    yield Program("random", "2x4", drawn, ("uint32<9 2",))
    yield Program("dropout", "2x4", dropped, (BLOCK, "uint32<9 2"))
