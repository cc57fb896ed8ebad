"""Pipelines that do not fit as they are make values again, as much as it takes."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import hloipu
from hloipu import api
from hloipu_runtime.compiled import CompiledProgram
from tests.support.training_steps import STEPS

STEP = STEPS["transformer_adam"]
FIRST = STEP.state_count


def compiled(recompute: Any, bytes_per_tile: int) -> CompiledProgram:
    given: dict[str, Any] = {"stages": 3, "micro_batches": 8, "feed": {"data": (FIRST, FIRST + 1)}}
    return hloipu.compile(
        STEP.text, target="tiny", set={"memory.bytes_per_tile": bytes_per_tile}, cache=False,
        over_memory="allow", recompute=recompute, **given,
    )  # fmt: skip


def most_that_does_not_fit(recompute: str) -> int:
    """Return bytes of a tile that are too few, however few copies of weights are kept."""
    bytes_per_tile = 1 << 17
    while (program := compiled(recompute, bytes_per_tile)).fits:
        needed = max(int(ipu.needed_bytes.max()) for ipu in program.memory_plan.ipus)
        bytes_per_tile = needed - 8
    return bytes_per_tile


@pytest.mark.large
@pytest.mark.thinned(2)
@pytest.mark.parametrize(("fitting", "fewer"), [(("cheap", "full"), "none"), (("full",), "cheap")])
def test_a_mild_one_that_fits_is_taken(fitting: tuple[str, ...], fewer: str) -> None:
    """Where cheap values made again are enough only with smaller plans, all may be made again."""
    bytes_per_tile = most_that_does_not_fit(fewer)
    program = compiled("auto", bytes_per_tile)
    assert program.fits
    assert program.options["recompute"] in fitting
    alone = compiled(fitting[0], bytes_per_tile)
    assert alone.fits
    assert program.estimate().device_cycles <= 1.05 * alone.estimate().device_cycles


def deep_step(weights: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    """Twelve layers, each of which keeps a megabyte for the way back."""

    def loss(weights: list[jax.Array]) -> jax.Array:
        h = x
        for w in weights:
            h = jnp.tanh(h @ w)
        return (h**2).sum()

    value, gradients = jax.value_and_grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value


def test_one_stage_computes_blocks_again_where_nothing_else_fits() -> None:
    weights = [jax.ShapeDtypeStruct((16, 16), jnp.float32)] * 12
    lowered = jax.jit(deep_step).lower(weights, jax.ShapeDtypeStruct((16384, 16), jnp.float32))
    text = lowered.compiler_ir("hlo").as_hlo_text()

    memory = {"memory.bytes_per_tile": 3 << 20, "memory.executable_bytes": 1 << 17}

    def program(recompute: Any) -> CompiledProgram:
        return hloipu.compile(
            text, target="tiny", set=memory, cache=False,
            over_memory="allow", recompute=recompute, micro_batches=4, feed={"data": (12,)},
        )  # fmt: skip

    assert not program("cheap").fits
    made = program("auto")
    assert made.fits
    assert made.options["recompute"] == "blocks"


def test_what_one_variable_is_too_large_for_is_compiled_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 0
    programmed = api._programmed

    def counted(*given: Any) -> CompiledProgram:
        nonlocal count
        count += 1
        return programmed(*given)

    monkeypatch.setattr(api, "_programmed", counted)
    weights = [jax.ShapeDtypeStruct((16, 16), jnp.float32)] * 12
    lowered = jax.jit(deep_step).lower(weights, jax.ShapeDtypeStruct((65536, 16), jnp.float32))
    text = lowered.compiler_ir("hlo").as_hlo_text()
    program = hloipu.compile(
        text, target="tiny", cache=False, over_memory="allow",
        stages=2, micro_batches=4, recompute="none", feed={"data": (12,)},
    )  # fmt: skip
    assert program.memory_plan.lacks_in_any_order
    assert count == 2  # the second is the same with copies before loops
