"""A transformer that does not fit one IPU, cut into a pipeline by hloipu and trained, against JAX.

    python -m tools.demo_pipeline [--target NAME] [--layers N] [--width N] [--updates N]

The step is lowered for a machine whose tiles are small, so that the demonstration runs in a minute
on a desk: first the verdict for one IPU, which it does not fit, then the ways that `--plan auto`
finds for 4 and for 8 IPUs. The step then runs on 4 IPUs, as the best of these ways says, and its
weights are compared with the same updates in JAX. The chart is drawn, and the bubble compared with
the slots taken one by one. Exit status 1: something of that is not so.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

import hloipu
from hloipu.choice_trials import Choice
from hloipu.choosing import chosen
from hloipu.cli.result_text import choice_text
from hloipu.jax import LoweredFunction, lower
from hloipu.options.resolve import resolve
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.report.pipeline_chart import chart
from hloipu_runtime.report.pipelines import PipelineRow
from hloipu_runtime.report.verdict import verdict

RATE, DECAY, EPSILON = 0.05, 0.9, 1e-5
RELATIVE, ABSOLUTE = 1e-4, 1e-5
"""Bounds between weights: sums of eight gradients in another order, over some updates."""
MICRO_BATCHES = 8
IPUS = 4
Tree = Any


@dataclass(frozen=True)
class Sizes:
    """Of the model and of one micro-batch."""

    layers: int
    width: int
    heads: int = 4
    words: int = 8
    batch: int = 2
    vocabulary: int = 64


def first_weights(sizes: Sizes) -> Tree:
    """Return weights that are drawn anew in each run alike."""
    draw = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return (draw.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)

    w = sizes.width
    layer = {"qkv": (w, 3 * w), "out": (w, w), "up": (w, 4 * w), "down": (4 * w, w)}
    return {
        "embedding": normal(sizes.vocabulary, w),
        "layers": [{name: normal(*shape) for name, shape in layer.items()}
                   for _ in range(sizes.layers)],
        "head": normal(w, sizes.vocabulary),
    }  # fmt: skip


def normed(x: Any) -> Any:
    """Return rows of mean 0 and variance 1."""
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + EPSILON)


def attention(layer: Tree, x: Any, heads: int) -> Any:
    """Return what words take from those before them."""
    batch, words, width = x.shape
    q, k, v = jnp.split(
        (x @ layer["qkv"]).reshape(batch, words, 3 * heads, width // heads), 3, axis=2
    )
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(width // heads)
    scores = jnp.where(jnp.tril(jnp.ones((words, words), bool)), scores, -1e9)
    attended = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    return attended.reshape(batch, words, width) @ layer["out"]


def loss_of(weights: Tree, text: Any, following: Any, heads: int) -> Any:
    """Return the mean surprise at the following words."""
    x = weights["embedding"][text]
    for layer in weights["layers"]:
        x = x + attention(layer, normed(x), heads)
        x = x + jax.nn.gelu(normed(x) @ layer["up"]) @ layer["down"]
    scores = jax.nn.log_softmax(normed(x) @ weights["head"])
    return -jnp.mean(jnp.take_along_axis(scores, following[..., None], -1))


@dataclass(frozen=True)
class Model:
    """The step, whole for hloipu and in parts for JAX."""

    sizes: Sizes

    def gradients(self, weights: Tree, text: Any, following: Any) -> Any:
        """Return the loss and the gradients of one micro-batch."""
        return jax.value_and_grad(loss_of)(weights, text, following, self.sizes.heads)

    def update(self, weights: Tree, speeds: Tree, slopes: Tree) -> tuple[Tree, Tree]:
        """Return weights and speeds after an update by SGD with momentum."""
        speeds = jax.tree.map(lambda v, g: DECAY * v + g, speeds, slopes)
        return jax.tree.map(lambda w, v: w - RATE * v, weights, speeds), speeds

    def step(self, state: Tree, text: Any, following: Any) -> tuple[Tree, Any]:
        """Return the state after a step of one micro-batch, and its loss."""
        loss, slopes = self.gradients(state[0], text, following)
        weights, speeds = state
        return self.update(weights, speeds, slopes), loss

    def state(self) -> Tree:
        """Return weights and speeds to begin with."""
        weights = first_weights(self.sizes)
        return weights, jax.tree.map(np.zeros_like, weights)

    def batches(self, count: int) -> list[tuple[Any, Any]]:
        """Return micro-batches: words, and those that follow them."""
        shape = (count, self.sizes.batch, self.sizes.words + 1)
        words = np.random.default_rng(1).integers(0, self.sizes.vocabulary, shape, np.int32)
        return [(x[:, :-1].copy(), x[:, 1:].copy()) for x in words]

    def trained(self, updates: int, each: int) -> list[Any]:
        """Return the state after some updates of `each` micro-batches, in JAX."""
        gradients, update = jax.jit(self.gradients), jax.jit(self.update)
        weights, speeds = self.state()
        batches = iter(self.batches(updates * each))
        for _ in range(updates):
            slopes = [gradients(weights, *next(batches))[1] for _ in range(each)]
            mean = jax.tree.map(lambda *all_of: sum(all_of) / each, *slopes)
            weights, speeds = update(weights, speeds, mean)
        return [np.asarray(x) for x in jax.tree.leaves((weights, speeds))]


def planned(lowered: LoweredFunction, target: str, settings: Any, ipus: int) -> Choice:
    """Return the ways that are found for a system of IPUs, and print them."""
    asked = {"target": target, "set": settings, "ipus": ipus, "micro_batches": MICRO_BATCHES}
    options = resolve("compile", {**asked, "plan": "auto"}).options
    choice = chosen(lowered.module, options)
    print(f"\n--plan auto --ipus {ipus} --micro-batches {MICRO_BATCHES}")
    print(choice_text(choice))
    return choice


def bubble_of_slots(row: PipelineRow) -> float:
    """Return the share of waiting, slots walked one by one."""
    span = 0
    for slot in range(row.slots):
        busy: dict[int, int] = {}
        for number, position in enumerate(row.positions):
            turn, rest = divmod(slot - number, row.interval)
            if not rest and 0 <= turn < row.micro_batches:
                busy[position.ipu] = busy.get(position.ipu, 0) + position.cycles
        span += max(busy.values(), default=0)
    work = row.micro_batches * sum(position.cycles for position in row.positions)
    return 1 - work / (len({position.ipu for position in row.positions}) * span)


def run(model: Model, lowered: LoweredFunction, program: CompiledProgram, updates: int) -> bool:
    """Train on the simulated IPUs; return whether the state is JAX's."""
    state = [np.asarray(x) for x in jax.tree.leaves(model.state())]
    each = MICRO_BATCHES * program.program.replicas
    batches = iter(model.batches(updates * each))
    with program.session(state=state, infeeds={"data": batches}) as session:
        session.run(updates)
        arrays = list(session.state().values())
    wanted = model.trained(updates, each)
    worst = max(float(np.max(np.abs(a - b))) for a, b in zip(arrays, wanted, strict=True))
    alike = all(
        (a.dtype, a.shape) == (b.dtype, b.shape) and np.allclose(a, b, RELATIVE, ABSOLUTE)
        for a, b in zip(arrays, map(np.asarray, wanted), strict=True)
    )
    print(f"\n{updates} updates on {IPUS} IPUs: state differs from JAX's by "
          f"{worst:.1e} at most: {'the same' if alike else 'NOT the same'}")  # fmt: skip
    return alike


def main(arguments: Sequence[str] | None = None) -> int:
    """Show it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", default="gc200")
    parser.add_argument("--tiles", type=int, default=32, help="tiles of each IPU")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--updates", type=int, default=2)
    asked = parser.parse_args(arguments)
    model = Model(Sizes(asked.layers, asked.width))
    settings = {"tiles_per_ipu": str(asked.tiles)}
    lowered = lower(model.step, model.state(), *model.batches(1)[0], donate=0)
    common = {**lowered.wrapping(None, ["loss"]), "target": asked.target, "set": settings,
              "loop": asked.updates, "cache": False}  # fmt: skip
    whole = hloipu.compile(lowered.text, micro_batches=MICRO_BATCHES, **common)
    print(verdict(replace(whole.profile(), fitting=None)))
    planned(lowered, asked.target, settings, 8)
    planned(lowered, asked.target, settings, IPUS)
    program = hloipu.compile(
        lowered.text, plan="auto", ipus=IPUS, micro_batches=MICRO_BATCHES, **common
    )
    profile = program.profile()
    print(f"\n{verdict(profile)}\n\n{chart(profile)}")
    (row,) = profile.pipelines
    expected = bubble_of_slots(row)
    formula = abs(row.bubble - expected) < 1e-9
    ipus = program.program.ipus
    equal = (ipus - 1) / (MICRO_BATCHES + ipus - 1)
    print(f"\nbubble {row.bubble:.4%}, of slots one by one {expected:.4%}")
    print(f"(S - 1) / (K + S - 1) = {equal:.4%} is that of equal stages")
    alike = run(model, lowered, program, asked.updates)
    return 0 if alike and formula and not whole.fits and program.fits else 1


if __name__ == "__main__":
    sys.exit(main())
