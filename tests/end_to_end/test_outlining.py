"""Training steps whose layers are functions: the same training."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hloipu
from hloipu import api
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes import outline_blocks
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.compiled import Mode
from hloipu_runtime.program.collective import Collective
from hloipu_runtime.program.uses import steps_within

LAYERS, WIDTH, BATCH, MICRO_BATCHES = 8, 8, 4, 3
FSDP = {"mesh": {"data": 2}, "shard": ("weights_*__0_*=data", "data=data", "labels=data", "*=")}


def loss(weights: Any, data: Any, labels: Any) -> Any:
    hidden = data
    for weight, bias in weights:
        hidden = hidden + jnp.tanh(hidden @ weight + bias)
    return ((hidden - labels) ** 2).mean()


def step(weights: Any, data: Any, labels: Any) -> Any:
    value, gradients = jax.value_and_grad(loss)(weights, data, labels)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def state() -> list[tuple[np.ndarray, np.ndarray]]:
    draw = np.random.default_rng(0)
    return [
        (
            draw.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 4,
            draw.normal(size=WIDTH).astype(np.float32),
        )
        for _ in range(LAYERS)
    ]


def batches(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    draw = np.random.default_rng(1)
    shape = (count, 2, BATCH, WIDTH)
    return [(x, y) for x, y in draw.normal(size=shape).astype(np.float32)]


@pytest.fixture(scope="module")
def text() -> str:
    data, labels = batches(1)[0]
    lowered = jax.jit(step, donate_argnums=0).lower(state(), data, labels)
    return str(lowered.as_text(dialect="hlo"))


@pytest.fixture(scope="module")
def trained() -> list[np.ndarray]:
    """The state that JAX leaves after two updates by whole batches."""
    fed, weights = batches(2 * MICRO_BATCHES), state()
    update = jax.jit(step)
    for own in (fed[:MICRO_BATCHES], fed[MICRO_BATCHES:]):
        weights, _ = update(weights, *(np.concatenate(x) for x in zip(*own, strict=True)))
    return [np.asarray(x) for x in jax.tree.leaves(weights)]


@pytest.fixture(autouse=True)
def _small_blocks_count(monkeypatch: pytest.MonkeyPatch) -> None:
    outlined = outline_blocks.blocks_outlined

    def of_any_size(module: Module, plan: Plan, _: Any, ipus: Mapping[str, int]) -> Module:
        return outlined(module, plan, outline_blocks.Least(0, 1, 1), ipus)

    monkeypatch.setattr(outline_blocks, "blocks_outlined", of_any_size)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stages": 2},
        {"stages": 2, "recompute": "full", "offload": "on"},
        {"stages": 2, "schedule": "sequential", "batch_serialization": 3},
        {"stages": 2, "hoist": "none"},
        {"stages": 4, "device_map": "0,0,0,0", "schedule": "sequential", "recompute": "full"},
        {**FSDP, "gather_weights": "micro-batch"},
        {**FSDP, "gather_weights": "micro-batch", "stages": 2, "recompute": "full"},
    ],
    ids=str,
)
def test_training_is_that_of_the_whole_batch(
    text: str, trained: list[np.ndarray], options: Any
) -> None:
    program = hloipu.compile(
        text, target="tiny", micro_batches=MICRO_BATCHES, loop=1, outline="on", cache=False,
        over_memory="allow", **options,
    )  # fmt: skip
    assert program.program.functions
    made = program.program
    inside = [x for body in made.functions.values() for x in steps_within(body, made)]
    assert any(isinstance(x, Collective) for x in inside) is ("mesh" in options)
    fed, begin = batches(2 * MICRO_BATCHES), state()
    modes: tuple[Mode, ...] = ("functional", "exact")
    for mode in modes:
        with program.session(
            state=jax.tree.leaves(begin), infeeds={"data": iter(fed)}, mode=mode
        ) as session:
            session.run(2)
            found = list(session.state().values())
        for got, want in zip(found, trained, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6, strict=True)


def test_what_fits_has_no_functions_unless_asked(text: str) -> None:
    program = hloipu.compile(text, target="tiny", loop=1, micro_batches=1, cache=False)
    assert program.fits
    assert not program.program.functions


def test_what_does_not_fit_is_taken_with_functions_if_they_make_it_smaller(text: str) -> None:
    options: dict[str, Any] = {
        "target": "tiny", "loop": 1, "micro_batches": 2, "cache": False, "over_memory": "allow",
    }  # fmt: skip
    needs = {
        outline: hloipu.compile(text, outline=outline, **options).memory.peak_bytes_per_tile
        for outline in ("on", "off")
    }
    few_bytes = min(needs.values()) // 2
    scarce = {"bytes_per_tile": few_bytes, "executable_bytes": few_bytes // 2}
    needs = {
        outline: hloipu.compile(
            text, outline=outline, set=scarce, **options
        ).memory.peak_bytes_per_tile
        for outline in ("on", "off")
    }
    chosen = hloipu.compile(text, set=scarce, **options)
    assert not chosen.fits
    assert chosen.memory.peak_bytes_per_tile == min(needs.values())
    assert bool(chosen.program.functions) is (needs["on"] < needs["off"])


@pytest.mark.parametrize(("tile_bytes", "compiles"), [(9_216, ["on"]), (638_976, ["auto"])])
def test_what_surely_does_not_fit_is_not_compiled_without_functions(
    text: str, tile_bytes: int, compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    programmed = api._programmed

    def noted(*given: Any) -> Any:
        asked.append(given[-1].outline)
        return programmed(*given)

    monkeypatch.setattr(api, "_programmed", noted)
    names = ("bytes_per_tile", "executable_bytes", "element_bytes")
    sizes = (tile_bytes, min(tile_bytes, 212_992), 1024)
    hloipu.compile(
        text, target="bow", micro_batches=2, cache=False, over_memory="allow", recompute="none",
        set={f"memory.{name}": size for name, size in zip(names, sizes, strict=True)},
    )  # fmt: skip
    assert asked[:1] == compiles


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_passes_of_ones_own_say_what_becomes_a_function(text: str, micro_batches: int) -> None:
    options: dict[str, Any] = {
        "target": "tiny", "loop": 1, "micro_batches": micro_batches, "cache": False,
        "outline": "on", "over_memory": "allow",
    }  # fmt: skip
    mine = hloipu.compile(text, passes="narrow-floats,default", **options)
    assert not mine.program.functions
    assert any("--outline on without effect" in line for line in mine.options["cut"])
    usual = hloipu.compile(text, passes="default", **options)
    assert usual.program.functions
    assert not any("--outline" in line for line in usual.options.get("cut", ()))
