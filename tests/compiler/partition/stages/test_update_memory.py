"""What updates are estimated to need, against the live bytes of compiled programs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hloipu
from hloipu.choosing import priced
from hloipu.options.resolve import resolve
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.memory.regions import Region
from hloipu_runtime.program.program import Role
from hloipu_runtime.program.steps import Pipeline
from tools.models.steps import OPTIMIZERS

WORDS, WIDTH, BATCH = 1024, 64, 4


def text(optimizer: str, *, tied: bool) -> str:
    """Return a step of an embedding and an output layer, which are one weight or two."""
    begin, update = OPTIMIZERS[optimizer]()

    def loss(weights: Any, words: Any, labels: Any) -> Any:
        hidden = jnp.tanh(weights["words"][words] @ weights["inner"])
        logits = hidden @ weights["words" if tied else "head"].T
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
        return -chosen.astype(jnp.float32).mean()

    def step(weights: Any, state: Any, words: Any, labels: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(weights, words, labels)
        slopes = jax.tree.map(lambda g: g * jnp.float16(0.5), slopes)
        return *update(slopes, state, weights), value

    shapes = {"words": (WORDS, WIDTH), "inner": (WIDTH, WIDTH)}
    shapes |= {} if tied else {"head": (WORDS // 2, WIDTH)}
    weights = {name: np.zeros(shape, np.float16) for name, shape in shapes.items()}
    batch = np.zeros(BATCH, np.int32)
    lowered = jax.jit(step, donate_argnums=(0, 1)).lower(weights, begin(weights), batch, batch)
    return str(lowered.as_text(dialect="hlo"))


def end_of_pipeline(region: Region, start: int = 0) -> int:
    """Return the first point behind the micro-batches."""
    for item in region.items:
        first = start + item.offset
        if isinstance(item.step, Pipeline):
            return first + item.length
        for _, inner in item.children:
            if found := end_of_pipeline(inner, first):
                return found
            first += inner.length
    return 0


def most_after(program: hloipu.CompiledProgram) -> int:
    """Return the most bytes of what is not state, at any point of the update."""
    plan = program.memory_plan
    begin, points = end_of_pipeline(plan.liveness.region), plan.liveness.points
    there = np.zeros(points, np.int64)
    for number, variable in enumerate(plan.program.variables):
        if variable.role in (Role.REMOTE, Role.STATE):
            continue
        size = int(np.prod(variable.shape)) * ELEMENT_TYPES[variable.element_type].bits // 8
        for first, last in plan.liveness.ranges[number]:
            there[first : last + 1] += size
    return int(there[begin:].max())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "lamb"])
def test_an_update_needs_what_its_largest_weight_does(optimizer: str, tied: bool) -> None:
    module = text(optimizer, tied=tied)
    options: dict[str, Any] = {"target": "gc200", "micro_batches": 4, "offload": "on", "stages": 1,
               "set": {"tiles_per_ipu": "16"}, "cache": False, "loop": 1}  # fmt: skip
    program = hloipu.compile(module, over_memory="allow", **options)
    loads = priced(hloipu.verify(module), resolve("compile", options).options).loads
    estimated = loads.gradients_until[-1] + loads.updates[1].max()
    assert 0.8 < estimated / most_after(program) < 1.25


@pytest.mark.parametrize(
    ("optimizer", "made", "fetched"),
    [
        ("sgd", 0, 2),  # the next weight in place of its gradient; the momentum
        ("adam", 4, 10),  # the gradient in f32; both moments, but not the gradient in f16
        ("lamb", 4, 10),  # the change of the weight in f32, the next weight
    ],
)
def test_bytes_for_each_element(optimizer: str, made: int, fetched: int) -> None:
    module = hloipu.verify(text(optimizer, tied=True))
    options = resolve("compile", {"target": "gc200", "micro_batches": 4}).options
    found = priced(module, options).loads.updates.max(axis=1)
    expected = [each * WORDS * WIDTH for each in (made, fetched)]
    assert found == pytest.approx(expected, rel=0.01, abs=16)
