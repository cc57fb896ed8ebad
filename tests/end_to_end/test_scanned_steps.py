"""Steps that scan over stacked layers, cut into stages, train as JAX's gradients and update do."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hloipu
from tests.support.pipeline_reference import UPDATES
from tests.support.pipeline_trials import Cut, assert_equal_to_jax, compiled
from tests.support.training_steps import SCANNED_STEPS

CUTS = [
    Cut("scanned_mlp_adam", 2, "grouped", 3),
    Cut("scanned_mlp_adam", 4, "sequential", 1, recompute="full"),
    Cut("scanned_mlp_again_adam", 2, "interleaved", 4, recompute="full"),
    Cut("scanned_mlp_again_adamw_clipped", 4, "grouped", 4),
    Cut("scanned_mlp_adamw_clipped", 3, "grouped", 4, recompute="cheap", replicas=2),
    Cut("scanned_transformer_adamw_clipped", 2, "sequential", 3, recompute="full"),
    Cut("scanned_transformer_adam", 4, "interleaved", 3),
    Cut("scanned_transformer_again_adam", 2, "grouped", 4, recompute="full"),
    Cut("scanned_transformer_again_adamw_clipped", 4, "interleaved", 1),
    Cut("scanned_statistics_adam", 2, "grouped", 3),
    Cut("scanned_statistics_adam", 4, "interleaved", 4, recompute="full"),
    Cut("scanned_statistics_adamw_clipped", 1, "grouped", 3),
]


@pytest.mark.large
@pytest.mark.thinned(9)
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_scanned_steps_train_in_stages_as_in_jax(cut: Cut) -> None:
    assert_equal_to_jax(cut, compiled(cut))


def test_a_scanned_step_trains_in_stages_tile_by_tile() -> None:
    cut = Cut("scanned_mlp_again_adam", 2, "grouped", 3)
    assert_equal_to_jax(cut, compiled(cut), mode="exact")


def test_names_of_what_jax_differentiates_change_nothing() -> None:
    step = SCANNED_STEPS["scanned_mlp_adam"]
    first = step.state_count
    state = [np.asarray(x) for x in jax.tree.leaves(step.state())]
    found = []
    for text in (step.text, step.named_text):
        program = hloipu.compile(
            text, target="tiny", over_memory="allow", cache=False, stages=4, micro_batches=2,
            feed={"data": (first, first + 1)}, outfeed=[f"loss={first}"], loop=UPDATES,
        )  # fmt: skip
        data = iter([step.batch(n) for n in range(2 * UPDATES)])
        with program.session(state=state, infeeds={"data": data}) as session:
            session.run(UPDATES)
            found.append(list(session.state().values()))
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


LAYERS, WIDTH, BATCH, LENGTH, WORDS = 4, 8, 2, 6, 13
Tree = Any


def _block(x: Any, w: Tree, keys: Any, values: Any, position: Any) -> Any:
    scores = jnp.einsum("bd,btd->bt", x @ w["q"], keys) / np.sqrt(WIDTH)
    scores = jnp.where(jnp.arange(LENGTH) <= position, scores, -1e9)
    x = x + jnp.einsum("bt,btd->bd", jax.nn.softmax(scores), values)
    return x + jnp.tanh(x @ w["up"]) @ w["down"]


def rows_of_caches(caches: Tree, w: Tree, token: Any, position: Any) -> tuple[Tree, Any]:
    """Answer a token; each layer gets rows of the caches, and gives new ones."""

    def layer(x: Any, given: tuple[Tree, Any, Any]) -> tuple[Any, Any]:
        w, keys, values = given
        keys = lax.dynamic_update_slice(keys, (x @ w["k"])[:, None], (0, position, 0))
        values = lax.dynamic_update_slice(values, (x @ w["v"])[:, None], (0, position, 0))
        return _block(x, w, keys, values, position), (keys, values)

    x, new = lax.scan(layer, w["words"][token], (w["layers"], *caches))
    return new, x @ w["words"].T


def whole_caches(caches: Tree, w: Tree, token: Any, position: Any) -> tuple[Tree, Any]:
    """Answer a token; the loop carries the caches, and each layer writes a part of a row."""

    def layer(state: tuple[Any, Any, Any], given: tuple[Tree, Any]) -> tuple[Any, None]:
        (x, keys, values), (w, n) = state, given
        at = (n, 0, position, 0)
        keys = lax.dynamic_update_slice(keys, (x @ w["k"])[None, :, None], at)
        values = lax.dynamic_update_slice(values, (x @ w["v"])[None, :, None], at)
        return (_block(x, w, keys[n], values[n], position), keys, values), None

    given = (w["words"][token], *caches)
    (x, *new), _ = lax.scan(layer, given, (w["layers"], jnp.arange(LAYERS)))
    return tuple(new), x @ w["words"].T


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (2, 3), (4, 3)])
@pytest.mark.parametrize("answer", [rows_of_caches, whole_caches])
def test_caches_go_with_their_layers(answer: Any, stages: int, micro_batches: int) -> None:
    rng = np.random.default_rng(0)

    def normal(*sizes: int) -> Any:
        return rng.normal(0, 0.4, sizes).astype(np.float32)

    square = (LAYERS, WIDTH, WIDTH)
    layers = {name: normal(*square) for name in ("q", "k", "v", "up", "down")}
    weights = {"layers": layers, "words": normal(WORDS, WIDTH)}
    caches = [np.zeros((LAYERS, BATCH, LENGTH, WIDTH), np.float32)] * 2
    tokens = rng.integers(0, WORDS, (LENGTH, BATCH)).astype(np.int32)
    function = jax.jit(answer, donate_argnums=0, keep_unused=True)
    text = function.lower(tuple(caches), weights, tokens[0], np.int32(0)).compiler_ir("hlo")
    program = hloipu.compile(
        text.as_hlo_text(print_large_constants=True), target="tiny", over_memory="allow",
        cache=False, stages=stages, micro_batches=micro_batches, loop=LENGTH // micro_batches,
        role={"0": "carry", "1": "carry"}, feed={"data": (8, 9)}, outfeed=["scores=2"],
    )  # fmt: skip
    rows = [stack.sizes for stack in program.program.stacks if stack.name.startswith("caches")]
    assert rows
    fed = iter(zip(tokens, np.arange(LENGTH, dtype=np.int32), strict=True))
    constants = jax.tree.leaves(weights)
    with program.session(state=caches, constants=constants, infeeds={"data": fed}) as session:
        session.run(LENGTH // micro_batches)
        found = [np.asarray(x.element) for x in session.stream("scores").drain()]
        kept = list(session.state().values())
    state: Tree = tuple(caches)
    for number, scores in enumerate(found):
        state, wanted = jax.jit(answer)(state, weights, tokens[number], np.int32(number))
        np.testing.assert_allclose(scores, wanted, 1e-4, 1e-5)
    for a, b in zip(kept, state, strict=True):
        np.testing.assert_allclose(a, b, 1e-4, 1e-5)


@pytest.mark.parametrize("stages", [2, 4])
def test_weights_of_inference_go_with_their_layers(stages: int) -> None:
    """The result is an array, no tuple; each IPU has the rows of its own layers alone."""
    rng = np.random.default_rng(0)
    w = rng.normal(0, 0.4, (LAYERS, WIDTH, WIDTH)).astype(np.float32)
    images = rng.normal(size=(4, BATCH, WIDTH)).astype(np.float32)

    def predict(w: Any, x: Any) -> Any:
        return lax.scan(lambda x, layer: (x + jnp.tanh(x @ layer), None), x, w)[0]

    text = jax.jit(predict).lower(w, images[0]).compiler_ir("hlo").as_hlo_text()
    program = hloipu.compile(
        text, target="tiny", over_memory="allow", cache=False, stages=stages, micro_batches=2,
        loop=2, feed={"data": (1,)},
    )  # fmt: skip
    assert [stack.sizes for stack in program.program.stacks] == [(LAYERS // stages,) * stages]
    with program.session(constants={0: w}, infeeds={"data": iter(images)}) as session:
        session.run(2)
        found = [np.asarray(x.element) for x in session.stream("result.0").drain()]
    np.testing.assert_allclose(found, [predict(w, x) for x in images], 2e-5, 2e-6)
