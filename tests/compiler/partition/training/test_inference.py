"""Pipelines of steps that update nothing: forward stages, one feed element a micro-batch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hloipu
from hloipu_compiler.plan.roles import required_wrapping
from hloipu_compiler.plan.wrapping import WrappingRequest

LAYERS, WIDTH, BATCH = 5, 8, 3


def predict(params: list[jax.Array], image: jax.Array) -> jax.Array:
    for weight in params:
        image = jnp.tanh(image @ weight)
    return image.sum(axis=1)


def weights() -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    return [draw.normal(size=(WIDTH, WIDTH)).astype(np.float32) for _ in range(LAYERS)]


def text(named: bool = True) -> str:
    lowered = jax.jit(predict, keep_unused=True).lower(
        weights(), np.zeros((BATCH, WIDTH), np.float32)
    )
    if named:
        return str(lowered.compiler_ir("hlo").as_hlo_module().to_string())
    return str(lowered.compiler_ir("hlo").as_hlo_text())


@pytest.mark.parametrize("schedule", ["grouped", "interleaved", "sequential"])
@pytest.mark.parametrize("mode", ["functional", "exact"])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_every_micro_batch_goes_through_all_stages(stages: int, mode: str, schedule: Any) -> None:
    count = 3
    exe = hloipu.compile(
        text(named=False), target="tiny", over_memory="allow", stages=stages, micro_batches=count,
        schedule=schedule, feed={"data": [LAYERS]}, loop=2, cache=False,
    )  # fmt: skip
    batches = np.random.default_rng(1).normal(size=(2 * count, BATCH, WIDTH)).astype(np.float32)
    constants = dict(enumerate(weights()))
    with exe.session(infeeds={"data": iter(batches)}, constants=constants, mode=mode) as session:
        session.run(2)
        found = np.stack([x.element for x in session.stream("result.0").drain()])
    expected = np.stack([np.asarray(predict(weights(), x)) for x in batches])
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    if stages > 1:
        (row,) = exe.profile().pipelines
        interval = stages if schedule == "sequential" else 1
        assert [x.name for x in row.positions] == [f"F{n}" for n in range(stages)]
        assert row.slots == interval * (count - 1) + stages


def test_arguments_of_one_array_are_data_and_others_are_weights() -> None:
    module = hloipu.parse(text())
    found = required_wrapping(module, WrappingRequest(1), feeds_rest=True)
    assert [feed.places for feed in found.feeds] == [(LAYERS,)]
    assert found.constants == tuple(range(LAYERS))
    assert not found.state


def test_without_metadata_parameter_names_tell_which_are_data() -> None:
    found = required_wrapping(hloipu.parse(text(named=False)), WrappingRequest(1), feeds_rest=True)
    assert [feed.places for feed in found.feeds] == [(LAYERS,)]
    assert found.constants == tuple(range(LAYERS))
    assert "image.1 f32[3,8], as arguments of one array" in found.assumed
