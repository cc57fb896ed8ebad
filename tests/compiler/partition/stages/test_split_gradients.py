"""Gradients that stages add together: accumulated apart, the same training."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.xla_metadata import set_xla_metadata

import hloipu
from hloipu_runtime.program.steps import Pipeline
from hloipu_runtime.program.uses import steps_within

WORDS, WIDTH, BATCH, MICRO_BATCHES = 24, 8, 4, 3
EMBEDDING = (WORDS, WIDTH)


def loss(weights: Any, words: Any, labels: Any) -> Any:
    hidden = jnp.tanh(weights["embedding"][words] @ weights["first"])
    hidden = jnp.tanh(hidden @ weights["second"])
    logits = hidden @ weights["embedding"].T
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


def step(weights: Any, words: Any, labels: Any, of: Any = loss) -> Any:
    value, gradients = jax.value_and_grad(of)(weights, words, labels)
    new = jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)
    return new, value


def state() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    shapes = {"embedding": EMBEDDING, "first": (WIDTH, WIDTH), "second": (WIDTH, WIDTH)}
    return {name: draw.normal(size=x).astype(np.float32) for name, x in shapes.items()}


def batches(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    draw = np.random.default_rng(1)
    return [
        (draw.integers(0, WORDS, BATCH, np.int32), draw.integers(0, WORDS, BATCH, np.int32))
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def text() -> str:
    words, labels = batches(1)[0]
    lowered = jax.jit(step, donate_argnums=0).lower(state(), words, labels)
    return str(lowered.as_text(dialect="hlo"))


@pytest.mark.parametrize("schedule", ["grouped", "sequential"])
@pytest.mark.parametrize("stages", [3, 4])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.thinned(4)
def test_both_parts_of_a_tied_weight_are_accumulated_where_they_are_made(
    text: str, stages: int, schedule: Any, replicas: int
) -> None:
    program = hloipu.compile(
        text, target="tiny", stages=stages, schedule=schedule, micro_batches=MICRO_BATCHES,
        loop=1, replicas=replicas
    )  # fmt: skip
    (pipeline,) = (x for x in steps_within(program.program.body, program.program)
                   if isinstance(x, Pipeline))  # fmt: skip
    variables = program.program.variables
    summed = [variables[x.variable] for x in pipeline.carried]
    places = [x.ipu for x in summed if x.shape == EMBEDDING]
    assert len(places) == 2
    assert len(set(places)) == 2
    handed = [variables[channel.source].shape for channel in pipeline.channels]
    assert EMBEDDING not in handed
    # The last stage multiplies by the transposed weight as it lies: no step keeps another one.
    assert EMBEDDING[::-1] not in {x.shape for x in variables}


def staged_loss(weights: Any, words: Any, labels: Any) -> Any:
    with set_xla_metadata(ipu_stage="0"):
        hidden = jnp.tanh(weights["embedding"][words] @ weights["first"])
    with set_xla_metadata(ipu_stage="1"):
        hidden = jnp.tanh(hidden @ weights["second"])
    with set_xla_metadata(ipu_stage="2"):
        logits = hidden @ weights["embedding"].T
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


@pytest.mark.parametrize(
    ("schedule", "options", "count"),
    [
        ("grouped", {}, 1),
        ("interleaved", {}, 1),
        ("sequential", {"batch_serialization": 2}, 1),
        ("grouped", {"reduction": "running_mean"}, 2),
        ("grouped", {"offload_accumulators": True}, 2),
    ],
)
def test_parts_of_a_tied_weight_on_one_ipu_go_to_one_accumulator(
    schedule: Any, options: dict[str, Any], count: int
) -> None:
    words, labels = batches(1)[0]
    staged = jax.jit(partial(step, of=staged_loss), donate_argnums=0)
    program = hloipu.compile(
        str(staged.lower(state(), words, labels).as_text(dialect="hlo")),
        target="tiny", device_map="0,1,0", schedule=schedule, micro_batches=MICRO_BATCHES,
        loop=1, accumulator_dtype="f32", **options
    )  # fmt: skip
    (pipeline,) = (x for x in steps_within(program.program.body, program.program)
                   if isinstance(x, Pipeline))  # fmt: skip
    variables = program.program.variables
    assert [variables[x.variable].shape for x in pipeline.carried].count(EMBEDDING) == count
    assert_trains_as_whole_batches(program, "functional")
    assert_trains_as_whole_batches(program, "exact")


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("mode", ["functional", "exact"])
def test_training_is_that_of_the_whole_batch(text: str, stages: int, mode: str) -> None:
    program = hloipu.compile(
        text, target="tiny", stages=stages, micro_batches=MICRO_BATCHES, loop=1
    )
    assert_trains_as_whole_batches(program, mode)


def assert_trains_as_whole_batches(program: hloipu.CompiledProgram, mode: Any) -> None:
    fed = batches(2 * MICRO_BATCHES)
    begin = state()
    with program.session(
        state=jax.tree.leaves(begin), infeeds={"data": iter(fed)}, mode=mode
    ) as session:
        session.run(2)
        found = list(session.state().values())
    expected = begin
    for update in range(2):
        own = fed[update * MICRO_BATCHES : (update + 1) * MICRO_BATCHES]
        whole = [np.concatenate(parts) for parts in zip(*own, strict=True)]
        expected, _ = step(expected, *whole)
    for got, want in zip(found, jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, np.asarray(want), rtol=2e-5, atol=2e-6, strict=True)
