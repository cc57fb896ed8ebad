"""Layers with caches, cut into stages: caches go along in pieces, kept or fed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hloipu

LAYERS, TIMES, BATCH, WIDTH, TOKENS = 4, 5, 2, 6, 6
Cached = tuple[jax.Array, jax.Array, jax.Array]
RNG = np.random.default_rng(0)
PARAMS = {
    "b": RNG.normal(size=(LAYERS, WIDTH)).astype(np.float32),
    "w": (RNG.normal(size=(LAYERS, WIDTH, WIDTH)) / 3).astype(np.float32),
}
CACHE = RNG.normal(size=(LAYERS, TIMES, BATCH, WIDTH)).astype(np.float32)
TOKEN_ROWS = RNG.normal(size=(TOKENS, BATCH, WIDTH)).astype(np.float32)
CUTS = [
    {"stages": 2, "micro_batches": 1, "loop": TOKENS},
    {"stages": 2, "micro_batches": 3, "loop": TOKENS // 3},
    {"stages": 4, "micro_batches": TOKENS, "loop": 1, "schedule": "interleaved"},
]


def layer(x: jax.Array, of: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    params, cache = of
    x = jnp.tanh(x @ params["w"] + params["b"]) + x
    cache = jax.lax.dynamic_update_slice(cache, x[None], (jnp.int32(1), 0, 0))
    x = (x + cache.sum(0)) / TIMES
    return x, (cache, x)


def decoded(cache: jax.Array, params: dict[str, jax.Array], x: jax.Array) -> Cached:
    x, (cache, hidden) = jax.lax.scan(layer, x, (params, cache))
    return cache, x, hidden


def filled(params: dict[str, jax.Array], x: jax.Array, cache: jax.Array) -> Cached:
    cache, x, hidden = decoded(cache, params, x)
    return x, cache, hidden.sum()


def text(function: Any, *arguments: Any) -> str:
    lowered = jax.jit(function, keep_unused=True).lower(*arguments)
    return str(lowered.compiler_ir("hlo").as_hlo_text())


def given(session: Any) -> list[list[Any]]:
    queues = [q.name for q in session.program.queues if not q.to_device]
    return [[x.element for x in session.stream(name).drain()] for name in queues]


def assert_near(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("mode", ["functional", "exact"])
@pytest.mark.parametrize("options", CUTS, ids=str)
def test_kept_caches_go_from_token_to_token(options: dict[str, Any], mode: Any) -> None:
    program = hloipu.compile(
        text(decoded, CACHE, PARAMS, TOKEN_ROWS[0]), target="tiny", over_memory="allow",
        cache=False, role={"0": "carry"}, feed={"x": (3,)}, **options,
    )  # fmt: skip
    assert len(program.program.stacks) == 5
    with program.session(
        state=[CACHE], constants={1: PARAMS["b"], 2: PARAMS["w"]}, infeeds={"x": TOKEN_ROWS},
        mode=mode,
    ) as session:  # fmt: skip
        session.run()
        rows, hidden = given(session)
        (kept,) = session.state().values()
    cache = jnp.asarray(CACHE)
    for number, x in enumerate(TOKEN_ROWS):
        cache, row, each = decoded(cache, PARAMS, x)
        assert_near(rows[number], row)
        assert_near(hidden[number], each)
    assert_near(kept, cache)


@pytest.mark.parametrize("replicas", [1, 2])
def test_fed_caches_are_cut_on_the_way_in_and_joined_on_the_way_out(replicas: int) -> None:
    caches = RNG.normal(size=(TOKENS, *CACHE.shape)).astype(np.float32)
    program = hloipu.compile(
        text(filled, PARAMS, TOKEN_ROWS[0], CACHE), target="tiny", over_memory="allow",
        cache=False, feed={"data": (2, 3)}, stages=2, micro_batches=3, loop=2 // replicas,
        replicas=replicas,
    )  # fmt: skip
    assert len(program.program.stacks) == 4
    with program.session(
        constants={0: PARAMS["b"], 1: PARAMS["w"]}, infeeds={"data": (TOKEN_ROWS, caches)}
    ) as session:
        session.run()
        found = given(session)
    if replicas > 1:
        found = [[row for element in each for row in element] for each in found]
    for number, x in enumerate(TOKEN_ROWS):
        for got, want in zip(found, filled(PARAMS, x, caches[number]), strict=True):
            assert_near(got[number], want)
