"""Weights that are cast before the micro-batches: the f32 ones beside the IPUs, the same bits."""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hloipu
from hloipu_runtime.compiled import CompiledProgram, Mode
from hloipu_runtime.program.program import Role
from hloipu_runtime.program.steps import Pipeline, Repeat
from hloipu_runtime.program.uses import steps_within, used
from tests.support.memory_checker import check_memory

LAYERS, WIDTH, BATCH, COUNT = 4, 16, 6, 3
OPTIMIZER = optax.adam(1e-2)
FORMS = ("written out", "scanned")


def weights(form: str) -> Any:
    rng = np.random.default_rng(0)
    stacked = {
        "w": rng.normal(0, 0.3, (LAYERS, WIDTH, WIDTH)).astype(np.float32),
        "b": rng.normal(0, 0.1, (LAYERS, WIDTH)).astype(np.float32),
    }
    if form == "scanned":
        return stacked
    return [jax.tree.map(lambda x, n=n: x[n], stacked) for n in range(LAYERS)]


def state_of(form: str) -> Any:
    first = weights(form)
    return jax.tree.map(np.asarray, (first, OPTIMIZER.init(first)))


def batch(number: int) -> tuple[Any, Any]:
    x, y = np.random.default_rng(number).normal(size=(2, BATCH, WIDTH)).astype(np.float32)
    return x, y


def loss(layers: Any, x: Any, y: Any) -> Any:
    layers = jax.tree.map(lambda a: a.astype(jnp.bfloat16), layers)
    x = x.astype(jnp.bfloat16)

    def layer(x: Any, w: Any) -> tuple[Any, None]:
        return x + jnp.tanh(x @ w["w"] + w["b"]), None

    if isinstance(layers, dict):
        x, _ = jax.lax.scan(layer, x, layers)
    else:
        for w in layers:
            x, _ = layer(x, w)
    return jnp.mean((x.astype(jnp.float32) - y) ** 2)


@lru_cache(2)
def text_of(form: str) -> str:
    def step(state: Any, x: Any, y: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(state[0], x, y)
        changes, other = OPTIMIZER.update(slopes, state[1], state[0])
        return (optax.apply_updates(state[0], changes), other), value

    lowered = jax.jit(step, donate_argnums=0, keep_unused=True).lower(state_of(form), *batch(0))
    return str(lowered.compiler_ir("hlo").as_hlo_text())


def compiled(form: str, **options: Any) -> CompiledProgram:
    return _compiled(form, tuple(sorted(options.items())))


@lru_cache(8)
def _compiled(form: str, options: tuple[tuple[str, Any], ...]) -> CompiledProgram:
    count = len(jax.tree.leaves(state_of(form)))
    return hloipu.compile(
        text_of(form), target="tiny", over_memory="allow", cache=False, loop=2,
        feed={"data": (count, count + 1)}, outfeed=[f"loss={count}"],
        stages=2, micro_batches=COUNT, **dict(options),
    )  # fmt: skip


def left_by(program: CompiledProgram, form: str, mode: Mode) -> list[Any]:
    leaves = [np.asarray(x) for x in jax.tree.leaves(state_of(form))]
    fed, poison = iter([batch(n) for n in range(2 * COUNT)]), mode == "exact"
    with program.session(state=leaves, infeeds={"data": fed}, mode=mode, poison=poison) as session:
        session.run(2)
        losses = [np.asarray(x.element) for x in session.stream("loss").drain()]
        return [*session.state(0).values(), *losses]


def types_in_pipeline(program: CompiledProgram) -> tuple[set[str], set[str]]:
    """Return the types of matrices that are in remote memory, and that micro-batches read."""
    (loop,) = (x for x in program.program.body.steps if isinstance(x, Repeat))
    (pipe,) = (x for x in loop.body.steps if isinstance(x, Pipeline))
    variables = program.program.variables
    large = [n for n, v in enumerate(variables) if v.shape[-2:] == (WIDTH, WIDTH)]
    touched = {
        v for x in pipe.stages for b in x.blocks for y in steps_within(b, program.program)
        for v in used(y, program.program)
    }  # fmt: skip
    there = {variables[n].element_type for n in large if variables[n].role is Role.REMOTE}
    kept = {variables[n].element_type for n in large if variables[n].role is Role.STATE}
    assert not {n for n in large if variables[n].role is Role.STATE} & touched
    return there, kept


@pytest.mark.large
@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("written out", {}), ("scanned", {"offload_weights": True}),
        ("scanned", {"offload_weights": True, "offload": "off"}),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.thinned(2)
def test_not_a_bit_changes(form: str, options: dict[str, Any]) -> None:
    plain, program = compiled(form, offload="off"), compiled(form, **options)
    modes: tuple[Mode, ...] = ("functional", "exact") if options else ("functional",)
    for mode in modes:
        pairs = zip(left_by(program, form, mode), left_by(plain, form, mode), strict=True)
        for a, b in pairs:
            np.testing.assert_array_equal(a, b, strict=True)
    check_memory(program.program, program.machine)


@pytest.mark.parametrize("form", FORMS)
def test_the_f32_ones_are_on_tiles_for_casts_and_updates_alone(form: str) -> None:
    assert types_in_pipeline(compiled(form)) == ({"f32"}, set())
    assert types_in_pipeline(compiled(form, offload="off")) == (set(), {"f32"})
    away = compiled(form, offload_weights=True)
    assert types_in_pipeline(away) == ({"f32", "bf16"}, set())
