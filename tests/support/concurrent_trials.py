"""Steps with towers, cut so that these run at once, against JAX's gradients and updates apart."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np

import hloipu
from hloipu_runtime.compiled import CompiledProgram, Mode
from hloipu_runtime.program.steps import Parallel, Pipeline, inner_steps
from hloipu_runtime.program.steps import Step as ProgramStep
from tests.support.covering import covering
from tests.support.pipeline_reference import of_replica
from tests.support.tower_models import LINES, TOWERS
from tests.support.training_models import Tree
from tests.support.training_steps import OPTIMIZERS, Step, trained

UPDATES = 2
RELATIVE, ABSOLUTE = 2e-5, 2e-6
DIMENSIONS: Mapping[str, tuple[Any, ...]] = {
    "model": tuple(TOWERS),
    "optimizer": ("sgd", "momentum", "adamw_clipped"),
    "marked": (True, False),
    "schedule": ("grouped", "interleaved", "sequential"),
    "micro_batches": (1, 3, 4),
    "reduction": ("mean", "sum", "running_mean"),
    "recompute": ("none", "cheap", "full"),
    "replicas": (1, 2),
    "offload": ("on", "off"),
    "shard_optimizer": (False, True),
    "map": ("apart", "reused", "turned"),
}


@dataclass(frozen=True)
class Concurrent:
    """A configuration."""

    model: str
    optimizer: str = "momentum"
    marked: bool = True
    schedule: str = "grouped"
    micro_batches: int = 3
    reduction: str = "mean"
    recompute: str = "none"
    replicas: int = 1
    offload: str = "auto"
    shard_optimizer: bool = False
    map: str = "apart"
    """`apart`: each stage on IPUs of its own; `reused`: branches on those of other stages, too;
    `turned`: the last branch first."""

    def __str__(self) -> str:
        said = [self.model, self.optimizer, "marked" if self.marked else "found", self.schedule]
        said += [str(self.micro_batches), self.reduction, self.recompute, self.map]
        said += [f"{self.replicas}r", self.offload, "shard" if self.shard_optimizer else ""]
        return "-".join(word for word in said if word)

    @property
    def device_map(self) -> tuple[int | tuple[int, ...], ...]:
        """The IPUs of each stage."""
        towers = TOWERS[self.model]
        found: list[int | tuple[int, ...]] = []
        first = 0
        for stage in range(towers.stages):
            if stage != towers.concurrent:
                found.append(0 if self.map == "reused" and stage else first)
                first += found[-1] == first
                continue
            here = tuple(range(first, first + towers.branches))
            if self.map == "reused" and stage:
                here = (*range(1, towers.branches), 0)
            first = max(first, *(ipu + 1 for ipu in here))
            found.append(tuple(reversed(here)) if self.map == "turned" else here)
        return tuple(found)

    @property
    def step(self) -> Step:
        """The training step."""
        return _step(self.model, self.optimizer, self.marked)


@lru_cache(64)
def _step(model: str, optimizer: str, marked: bool) -> Step:
    towers = LINES if model == "lines" else TOWERS[model]
    return Step(towers.model(marked), optimizer, OPTIMIZERS[optimizer])


def compiled(cut: Concurrent, **options: Any) -> CompiledProgram:
    """Compile a step as a configuration says."""
    first = cut.step.state_count
    given = {
        "schedule": cut.schedule, "micro_batches": cut.micro_batches, "reduction": cut.reduction,
        "recompute": cut.recompute, "replicas": cut.replicas, "offload": cut.offload,
        "shard_optimizer": cut.shard_optimizer, "loop": UPDATES,
        **options,
    }  # fmt: skip
    if "device_map" not in given:
        given["device_map"] = cut.device_map
    return hloipu.compile(
        cut.step.text, target="tiny", over_memory="allow", cache=False,
        feed={"data": (first, first + 1)}, outfeed=[f"loss={first}"], **given,
    )  # fmt: skip


def assert_equal_to_jax(
    cut: Concurrent, program: CompiledProgram, mode: Mode = "functional"
) -> None:
    """Train for two updates and compare every replica's state and losses."""
    step = cut.step
    batches = UPDATES * cut.micro_batches * cut.replicas
    losses, found = trained(step, program, UPDATES, batches, cut.replicas, mode)
    states, wanted = _expected(
        cut.model, cut.optimizer, cut.micro_batches, cut.replicas, cut.reduction
    )
    np.testing.assert_allclose(losses.reshape(wanted.shape), wanted, RELATIVE, ABSOLUTE)
    for mine, theirs in zip(found, states, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(a, b, RELATIVE, ABSOLUTE)


@lru_cache(64)
def _functions(model: str, optimizer: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    step = _step(model, optimizer, False)
    return jax.jit(step.gradients), jax.jit(step.update)


@lru_cache(256)
def _expected(
    model: str, optimizer: str, micro_batches: int, replicas: int, reduction: str
) -> tuple[list[list[Any]], np.ndarray[Any, Any]]:
    """Return each replica's state after two updates, and losses by micro-batch and replica."""
    step = _step(model, optimizer, False)
    gradients, update = _functions(model, optimizer)
    weights, state, first = step.state()
    own: list[Tree] = [of_replica(first, replica) for replica in range(replicas)]
    losses = np.zeros((UPDATES * micro_batches, replicas))
    share = replicas * (1 if reduction == "sum" else micro_batches)
    for number in range(UPDATES):
        slopes = []
        for k in range(number * micro_batches, (number + 1) * micro_batches):
            for r in range(replicas):
                here = weights, state, own[r]
                losses[k, r], each, own[r] = gradients(here, *step.batch(k * replicas + r))
                slopes.append(each)
        mean = jax.tree.map(lambda *x: sum(map(np.asarray, x)) / np.float32(share), *slopes)
        weights, state = update(mean, (weights, state, own[0]))
    states = [[np.asarray(x) for x in jax.tree.leaves((weights, state, each))] for each in own]
    return states, losses


def pipeline_of(program: CompiledProgram) -> Pipeline:
    """Return the one pipeline of a program."""
    waiting: list[ProgramStep] = [program.program.body]
    while waiting:
        step = waiting.pop()
        if isinstance(step, Pipeline):
            return step
        waiting.extend(inner_steps(step))
    raise LookupError("no pipeline")


def branches_at_once(pipeline: Pipeline) -> list[int]:
    """Return how many branches each position runs at once at most; 0: none."""
    return [
        max((len(x.branches) for x in stage.body.steps if isinstance(x, Parallel)), default=0)
        for stage in pipeline.stages
    ]


def sample(count: int, seed: int = 0) -> list[Concurrent]:
    """Return configurations in which every two values of different dimensions come together."""
    return [Concurrent(**row) for row in covering(DIMENSIONS, count, seed)]
