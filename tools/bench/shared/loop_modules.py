"""Loops of many small ops, printed by JAX: what one instruction costs decides their time."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Programs = Any


def _f32(*sizes: int) -> Any:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def _decode(weights: Any, keys: Any, values: Any, token: Any) -> Any:
    """Choose 16 tokens one by one with a cache of keys and values: one layer, 4 heads."""
    heads, width, length = keys.shape[0], weights["out"].shape[0], keys.shape[1]

    def step(state: Any, place: Any) -> Any:
        keys, values, token = state
        x = weights["embedding"][token]
        q, k, v = (part.reshape(heads, -1) for part in jnp.split(x @ weights["qkv"], 3))
        keys = lax.dynamic_update_slice(keys, k[:, None], (0, place, 0))
        values = lax.dynamic_update_slice(values, v[:, None], (0, place, 0))
        scores = jnp.einsum("hd,hsd->hs", q, keys) / (width // heads) ** 0.5
        weight = jax.nn.softmax(jnp.where(jnp.arange(length) <= place, scores, -1e4))
        x = x + jnp.einsum("hs,hsd->hd", weight, values).reshape(width) @ weights["out"]
        x = x + jax.nn.gelu(x @ weights["up"]) @ weights["down"]
        token = jnp.argmax(x @ weights["embedding"].T).astype(jnp.int32)
        return (keys, values, token), token

    return lax.scan(step, (keys, values, token), jnp.arange(16))[1]


def _power_iteration(a: Any, x: Any) -> Any:
    def turn(_: Any, x: Any) -> Any:
        y = a @ x
        return y / jnp.sqrt(jnp.sum(y * y))

    return lax.fori_loop(0, 50, turn, x)


def _conjugate_gradients(a: Any, b: Any) -> Any:
    a = a @ a.T + jnp.eye(b.shape[0], dtype=b.dtype)

    def turn(state: Any) -> Any:
        k, x, r, p, rr = state
        q = a @ p
        alpha = rr / (p @ q)
        x, r = x + alpha * p, r - alpha * q
        following = r @ r
        return k + 1, x, r, r + following / rr * p, following

    def goes_on(state: Any) -> Any:
        return (state[0] < 40) & (state[4] > 1e-6)

    return lax.while_loop(goes_on, turn, (0, jnp.zeros_like(b), b, b, b @ b))[1]


def _newton(x: Any) -> Any:
    """Take the root of each element, by at most 60 iterations."""

    def turn(state: Any) -> Any:
        k, y, _ = state
        following = 0.5 * (y + (1 + jnp.abs(x)) / y)
        return k + 1, following, jnp.max(jnp.abs(following - y))

    started = (0, 1 + jnp.abs(x), jnp.asarray(1, x.dtype))
    return lax.while_loop(lambda s: (s[0] < 60) & (s[2] > 1e-6), turn, started)[1]


def _gru(weights: Any, inputs: Any) -> Any:
    def cell(h: Any, x: Any) -> Any:
        r, z = jnp.split(jax.nn.sigmoid(jnp.concatenate([x, h], -1) @ weights["gates"]), 2, -1)
        candidate = jnp.tanh(jnp.concatenate([x, r * h], -1) @ weights["candidate"])
        h = (1 - z) * h + z * candidate
        return h, h

    zeros = jnp.zeros((inputs.shape[1], weights["candidate"].shape[1]), inputs.dtype)
    return lax.scan(cell, zeros, inputs)[1]


def _lstm(weights: Any, inputs: Any) -> Any:
    def cell(state: Any, x: Any) -> Any:
        h, c = state
        gates = x @ weights["x"] + h @ weights["h"] + weights["b"]
        i, f, g, o = jnp.split(gates, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((inputs.shape[1], weights["h"].shape[0]), inputs.dtype)
    return lax.scan(cell, (zeros, zeros), inputs)[1]


def _cumulative(x: Any) -> Any:
    """Add up and find the largest so far, row by row."""

    def row(state: Any, x: Any) -> Any:
        total, largest = state[0] + x, jnp.maximum(state[1], x)
        return (total, largest), total - largest

    return lax.scan(row, (x[0], x[0]), x)[1]


def _euler(x: Any) -> Any:
    """Integrate Lorenz' equations."""

    def turn(_: Any, s: Any) -> Any:
        x, y, z = s[0], s[1], s[2]
        return s + 0.01 * jnp.stack([10 * (y - x), x * (28 - z) - y, x * y - z * (8 / 3)])

    return lax.fori_loop(0, 100, turn, x)


def _sinkhorn(cost: Any) -> Any:
    kernel = jnp.exp(-jnp.abs(cost))

    def turn(_: Any, state: Any) -> Any:
        u, v = state
        u = 1 / (kernel @ v)
        return u, 1 / (kernel.T @ u)

    ones = jnp.ones(cost.shape[0], cost.dtype)
    return lax.fori_loop(0, 50, turn, (ones, ones))


def _beam(start: Any, steps: Any) -> Any:
    """Follow the four best paths through 32 states."""

    def step(scores: Any, x: Any) -> Any:
        whole = scores[:, None] + x[None, :]
        best, places = [], []
        flat = whole.reshape(-1)
        for _ in range(4):
            place = jnp.argmax(flat)
            best.append(flat[place])
            places.append(place.astype(jnp.int32))
            flat = jnp.where(jnp.arange(flat.shape[0]) == place, -1e4, flat)
        return jnp.stack(best), jnp.stack(places)

    return lax.scan(step, start, steps)


def _k_means(points: Any, centres: Any) -> Any:
    def turn(_: Any, centres: Any) -> Any:
        distance = jnp.sum((points[:, None] - centres[None]) ** 2, -1)
        nearest = jax.nn.one_hot(jnp.argmin(distance, 1), centres.shape[0], dtype=points.dtype)
        return (nearest.T @ points) / (1 + jnp.sum(nearest, 0))[:, None]

    return lax.fori_loop(0, 20, turn, centres)


def _random_walk(key: Any, x: Any) -> Any:
    def turn(_: Any, state: Any) -> Any:
        key, x = state
        key, own = jax.random.split(jax.random.wrap_key_data(key))
        step = jax.random.uniform(own, x.shape, x.dtype) - 0.5
        return jax.random.key_data(key), x + step

    return lax.fori_loop(0, 50, turn, (key, x))[1]


def _tridiagonal(below: Any, middle: Any, above: Any, right: Any) -> Any:
    """Solve a tridiagonal system by one scan forwards and one backwards."""

    def forward(state: Any, row: Any) -> Any:
        c, d = state
        low, mid, high, b = row
        pivot = 1 / (mid + 3 - low * c)
        c, d = high * pivot, (b - low * d) * pivot
        return (c, d), (c, d)

    def backward(x: Any, row: Any) -> Any:
        c, d = row
        x = d - c * x
        return x, x

    zero = jnp.zeros((), right.dtype)
    _, rows = lax.scan(forward, (zero, zero), (below, middle, above, right))
    return lax.scan(backward, zero, rows, reverse=True)[1]


def _collatz(x: Any) -> Any:
    """Count halvings and threefolds until one is reached."""

    def turn(state: Any) -> Any:
        n, count = state
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), count + 1

    return lax.while_loop(lambda s: s[0] > 1, turn, (27 + jnp.abs(x) % 2, 0))[1]


def programs() -> Programs:
    """Yield each program: name, function, abstract arguments."""
    s32, u32 = jnp.int32, jnp.uint32
    layer = {
        "embedding": _f32(96, 64), "qkv": _f32(64, 192), "out": _f32(64, 64),
        "up": _f32(64, 256), "down": _f32(256, 64),
    }  # fmt: skip
    cache = _f32(4, 48, 16)
    gru = {"gates": _f32(96, 128), "candidate": _f32(96, 64)}
    lstm = {"x": _f32(32, 256), "h": _f32(64, 256), "b": _f32(256)}
    yield "decode with a cache", _decode, (layer, cache, cache, jax.ShapeDtypeStruct((), s32))
    yield "power iteration", _power_iteration, (_f32(64, 64), _f32(64))
    yield "conjugate gradients", _conjugate_gradients, (_f32(32, 32), _f32(32))
    yield "Newton", _newton, (_f32(64),)
    for batch in (1, 32):
        yield f"GRU scan of batch {batch}", _gru, (gru, _f32(32, batch, 32))
        yield f"LSTM scan of batch {batch}", _lstm, (lstm, _f32(32, batch, 32))
    yield "cumulative scan", _cumulative, (_f32(64, 32),)
    yield "Euler integration", _euler, (_f32(3),)
    yield "Sinkhorn", _sinkhorn, (_f32(32, 32),)
    yield "beam search", _beam, (_f32(4), _f32(32, 32))
    yield "k-means", _k_means, (_f32(128, 8), _f32(8, 8))
    yield "random walk", _random_walk, (jax.ShapeDtypeStruct((2,), u32), _f32(16))
    yield "tridiagonal solve", _tridiagonal, (_f32(64),) * 4
    yield "Collatz", _collatz, (jax.ShapeDtypeStruct((), s32),)
