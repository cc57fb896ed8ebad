"""One training step cut in one way, against its gradients and update as JAX computes them apart."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import jax
import numpy as np

import hloipu
from hloipu_runtime.compiled import CompiledProgram, Mode
from tests.support.annotated_texts import annotated
from tests.support.covering import Row, covering
from tests.support.pipeline_reference import (
    EVERY_STEP,
    SUBTLE_STEPS,
    UPDATES,
    expected,
    of_whole_batches,
)
from tests.support.training_steps import OTHERS, SMOOTH, trained
from tests.support.unusual_models import RECURRENT

RELATIVE, ABSOLUTE = 2e-5, 2e-6
"""Bounds for f32: sums of up to eight gradients in another order, then an optimizer's division."""
_NARROW = {"f16": 2.0**-10, "bf16": 2.0**-7}
"""The unit in the last place of 1: what a value is off by that is rounded the other way."""
_WIDENED = 8
"""Such units: sums of up to eight gradients, each rounded, and two updates."""
DIMENSIONS: Mapping[str, tuple[Any, ...]] = {
    "step": tuple(EVERY_STEP),
    "stages": (1, 2, 3, 4),
    "schedule": ("grouped", "interleaved", "sequential", "sequential/2", "sequential/3"),
    "micro_batches": (1, 3, 4, 8),
    "reduction": ("mean", "sum", "running_mean"),
    "accumulator": (None, "f32", "bf16", "f16"),
    "recompute": ("none", "cheap", "full"),
    "replicas": (1, 2),
    "offload": ("on", "off"),
    "away": ("", "activations", "weights", "accumulators", "all"),
    "shard_optimizer": (False, True),
    "loop": (UPDATES, None),
    "map": ("", "back", "shared"),
    "named": (False, True),
    "io_tiles": (0, 1),
}
"""All ways to cut a step.

`sequential/2`: groups of two micro-batches. `away`: what lies in remote buffers beside state that
only the update reads. `map`: stages on IPUs in turn, backwards, or several on one.
"""
SHARDED: Mapping[str, tuple[Any, ...]] = {
    **DIMENSIONS,
    "stages": (1,),
    "schedule": ("grouped", "sequential/2", "sequential/3"),
    "micro_batches": (1, 2, 4, 8),
    "replicas": (1, 2, 4),
    "map": ("",),
    "shards": (2, 3, 4),
    "share": (0.1, 0.5, 1),
}
"""All ways to cut a step whose ops are annotated with IPUs.

`share`: of the ops, drawn at random, that say which.
"""
ROOMY = {"set": {"bytes_per_tile": "131072", "executable_bytes": "131072"}}
"""Tiles on which every step fits: one that does not is compiled several times."""
_AWAY = ("activations", "weights", "accumulators")
_MAPS = {
    ("back", 2): (1, 0), ("back", 3): (2, 1, 0), ("back", 4): (3, 2, 1, 0),
    ("shared", 2): (0, 0), ("shared", 3): (0, 1, 0), ("shared", 4): (0, 1, 1, 0),
}  # fmt: skip


@dataclass(frozen=True)
class Cut:
    """A configuration."""

    step: str
    stages: int
    schedule: str
    micro_batches: int
    reduction: str = "mean"
    accumulator: str | None = None
    recompute: str = "none"
    replicas: int = 1
    offload: str = "auto"
    away: str = ""
    shard_optimizer: bool = False
    loop: int | None = UPDATES
    map: str = ""
    io_tiles: int = 0
    named: bool = False
    shards: int = 1
    share: float = 0

    @property
    def text(self) -> str:
        """The step, annotated with IPUs where it is to be."""
        step = EVERY_STEP[self.step]
        text = step.named_text if self.named else step.text
        return (
            text
            if self.shards == 1
            else annotated(text, Random(self.step), self.shards, self.share)
        )

    def __str__(self) -> str:
        schedule = self.schedule.replace("/", "")
        words = [self.step, f"{self.stages}x{self.micro_batches}", schedule, self.reduction]
        said = [
            (self.accumulator, self.accumulator), (self.recompute != "none", self.recompute),
            (self.replicas > 1, f"{self.replicas}r"), (self.offload == "on", "offload"),
            (self.shard_optimizer, "shard"), (self.loop is None, "noloop"), (self.map, self.map),
            (self.shards > 1, f"{self.shards}x{self.share}on"),
            (self.away, f"{self.away}-away"), (self.io_tiles, "io"), (self.named, "named"),
        ]  # fmt: skip
        return "-".join([*words, *(str(word) for is_said, word in said if is_said)])


def compiled(cut: Cut, **options: Any) -> CompiledProgram:
    """Compile a step as a configuration says."""
    step = EVERY_STEP[cut.step]
    first = step.state_count
    schedule, _, group = cut.schedule.partition("/")
    away = {f"offload_{what}": cut.away in (what, "all") for what in _AWAY}
    given = {
        **away, "batch_serialization": int(group or 1), "io_tiles": cut.io_tiles,
        "stages": cut.stages, "schedule": schedule, "micro_batches": cut.micro_batches,
        "reduction": cut.reduction, "accumulator_dtype": cut.accumulator,
        "recompute": cut.recompute, "replicas": cut.replicas, "offload": cut.offload,
        "shard_optimizer": cut.shard_optimizer, "loop": cut.loop,
        "device_map": _MAPS.get((cut.map, cut.stages)), **options,
    }  # fmt: skip
    if step.model.is_said:
        count = len(jax.tree.leaves(step.model.statistics()))
        given["role"] = {str(n): "carry" for n in range(first - count, first)}
    return hloipu.compile(
        cut.text, target="tiny", over_memory="allow", cache=False,
        feed={"data": (first, first + 1)}, outfeed=[f"loss={first}"], **given,
    )  # fmt: skip


def bounds(cut: Cut) -> tuple[float, float]:
    """Return how far a value may be off, relative to itself and absolutely.

    Exact arithmetic is off by nothing, where means divide by powers of two.
    """
    model = EVERY_STEP[cut.step].model
    narrow = cut.accumulator in _NARROW
    if model.is_exact and not (narrow and cut.accumulator != "f16"):
        thirds = cut.micro_batches == 3 and cut.reduction == "mean"
        thirds |= cut.micro_batches > 2 and cut.reduction == "running_mean"
        if not thirds:
            return 0.0, 0.0
    kinds = {np.dtype(model.precision).name, cut.accumulator}
    kinds |= {"f16"} if cut.step.endswith("_scaled") else set()
    unit = 0.0
    for name, kind in (("float16", "f16"), ("bfloat16", "bf16")):
        if kinds & {name, kind}:
            unit = max(unit, _NARROW[kind])
    return max(RELATIVE, _WIDENED * unit), max(ABSOLUTE, _WIDENED * unit / 4)


def assert_equal_to_jax(cut: Cut, program: CompiledProgram, mode: Mode = "functional") -> None:
    """Train for two updates and compare every replica's state and losses."""
    step = EVERY_STEP[cut.step]
    batches = UPDATES * cut.micro_batches * cut.replicas
    losses, found = trained(step, program, UPDATES, batches, cut.replicas, mode)
    wanted = expected(cut.step, cut.micro_batches, cut.replicas, cut.reduction, cut.accumulator)
    near = bounds(cut)
    np.testing.assert_allclose(losses.reshape(wanted.losses.shape), wanted.losses, *near)
    for mine, theirs in zip(found, wanted.states, strict=True):
        _assert_near(mine, theirs, near)
    if not step.model.couples and cut.accumulator in (None, "f32"):
        whole = of_whole_batches(cut.step, cut.micro_batches, cut.replicas, cut.reduction)
        _assert_near(found[0][: len(whole)], whole, near)


def _assert_near(found: list[Any], wanted: list[Any], near: tuple[float, float]) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype
        if np.issubdtype(b.dtype, np.integer):
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), *near)


def _can_be(row: Row) -> bool:
    """Leave out what says the same as another row, what is refused, and what has no bounds.

    Gradients below 6e-8 are nothing in f16 or twice themselves, and Adam divides by their size;
    other updates make much of any rounding.
    """
    optimizer = EVERY_STEP[row["step"]].optimizer_name
    if row["accumulator"] == "f16" and optimizer not in (*SMOOTH, "scaled"):
        return False
    if row["accumulator"] == "bf16" and optimizer in OTHERS:
        return False
    if row["accumulator"] in _NARROW and row["step"] in SUBTLE_STEPS:
        return False
    if row["stages"] == 1:
        return not row["map"]
    model = EVERY_STEP[row["step"]].model
    return model is not RECURRENT and not (model.is_said and row["stages"] > 2)


def sharded_sample(count: int, seed: int = 0) -> list[Cut]:
    """Return configurations of annotated steps, by two values that come together as well."""
    return [Cut(**row) for row in covering(SHARDED, count, seed, _can_be)]


def sample(count: int, seed: int = 0, steps: Collection[str] = ()) -> list[Cut]:
    """Return configurations in which every two values of different dimensions come together.

    `steps`: those to sample from; all unless given.
    """
    dimensions = {**DIMENSIONS, "step": tuple(steps) or DIMENSIONS["step"]}
    return [Cut(**row) for row in covering(dimensions, count, seed, _can_be)]
