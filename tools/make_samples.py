"""Make the samples of `hlo_samples/` anew: programs in JAX, printed in full with their constants.

    python -m tools.make_samples [FOLDER]

Each sample starts with a comment that says what it shows. Needs the dependency group `oracle`.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxlib import _hlo

from tools.corpus.case import Case, array, f32, s32
from tools.corpus.models import Block, ConvNet, Mlp, train_case

FOLDER = Path(__file__).resolve().parents[1] / "hlo_samples"
P = PartitionSpec


@dataclass(frozen=True)
class Sample:
    """A case and the words that lead its file."""

    case: Case
    shows: str


def samples() -> Iterator[Sample]:
    """Yield the samples."""
    yield from _train_steps()
    yield from _transformers()
    yield _scanned_layers()
    yield from _loops_and_branches()
    yield from _data()
    yield _sharded()


def _train_steps() -> Iterator[Sample]:
    mlp = Mlp((128, 10))
    yield Sample(
        train_case("mnist_train_step", mlp, optax.sgd(0.1), f32(32, 28, 28, 1), s32(32)),
        "One training step of a 784-128-10 perceptron: batch 32, cross entropy, SGD. The\n"
        "parameters are donated, so that they stay on the device: input_output_alias.",
    )
    yield Sample(
        train_case("mnist_adam_step", mlp, optax.adam(1e-3), f32(32, 28, 28, 1), s32(32)),
        "The same perceptron under Adam: both moments and the step count are donated state.",
    )
    yield Sample(
        train_case(
            "convnet_train_step", ConvNet("group"), optax.sgd(0.1, 0.9), f32(8, 16, 16, 3), s32(8)
        ),
        "One training step of a convolutional net with group normalisation and max pooling:\n"
        "convolutions forward and backward, select-and-scatter, momentum.",
    )


def _transformers() -> Iterator[Sample]:
    def attention(query: Any, key: Any, value: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / jnp.sqrt(query.shape[-1])
        mask = jnp.tril(jnp.ones((query.shape[1], key.shape[1]), bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        return jnp.einsum("bhqk,bkhd->bqhd", weights, value)

    yield Sample(
        Case("attention", attention, [f32(2, 32, 4, 16)] * 3),
        "Causal attention of four heads: batched dots, a mask, a softmax.",
    )
    block = Block(heads=4, dtype=jnp.bfloat16, norm=nn.RMSNorm)
    inputs = array("bfloat16", 2, 32, 64)
    variables = jax.eval_shape(block.init, jax.ShapeDtypeStruct((2,), jnp.uint32), inputs)
    yield Sample(
        Case("transformer_block_bf16", block.apply, [variables, inputs]),
        "A pre-norm transformer block: parameters in f32, arithmetic in bf16.",
    )


def _scanned_layers() -> Sample:
    layers, width, hidden = 4, 32, 64
    optimizer = optax.adam(1e-3)

    def block(x: Any, w: Any) -> tuple[Any, None]:
        normed = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * w["scale"]
        return x + jax.nn.gelu(normed @ w["up"]) @ w["down"], None

    def loss(w: Any, x: Any, y: Any) -> Any:
        x, _ = lax.scan(jax.checkpoint(block), x @ w["first"], w["blocks"])
        return jnp.mean((x @ w["last"] - y) ** 2)

    def step(w: Any, state: Any, x: Any, y: Any) -> Any:
        error, slopes = jax.value_and_grad(loss)(w, x, y)
        changes, state = optimizer.update(slopes, state, w)
        return optax.apply_updates(w, changes), state, error

    blocks = {
        "scale": f32(layers, width),
        "up": f32(layers, width, hidden),
        "down": f32(layers, hidden, width),
    }
    weights = {"first": f32(16, width), "blocks": blocks, "last": f32(width, 8)}
    state = jax.eval_shape(optimizer.init, weights)
    return Sample(
        Case(
            "scanned_blocks_train_step", step, [weights, state, f32(8, 16), f32(8, 8)],
            {"donate_argnums": (0, 1)},
        ),
        "One training step of four blocks scanned over stacked weights, checkpointed, under Adam:\n"
        "one loop over the layers forward, one backward. Try --stages 4 --micro-batches 8.",
    )  # fmt: skip


def _loops_and_branches() -> Iterator[Sample]:
    def recurrent(weights: Any, inputs: Any) -> Any:
        def step(hidden: Any, x: Any) -> Any:
            hidden = jnp.tanh(hidden @ weights["recurrent"] + x @ weights["input"])
            return hidden, hidden

        return lax.scan(step, jnp.zeros((inputs.shape[1], 32)), inputs)

    weights = {"recurrent": f32(32, 32), "input": f32(16, 32)}
    yield Sample(
        Case("scan_rnn", recurrent, [weights, f32(20, 4, 16)]),
        "A recurrent net over 20 steps: a while loop whose trip count can be read from its text.",
    )

    def solve(target: Any) -> Any:
        def unfinished(state: Any) -> Any:
            return jnp.abs(state[0] * state[0] - target) > 1e-6 * target

        def step(state: Any) -> Any:
            return (state[0] + target / state[0]) / 2, state[1] + 1

        return lax.while_loop(unfinished, step, (target, 0))

    yield Sample(
        Case("newton_while", solve, [f32()]),
        "A square root by Newton's method: how often the loop runs depends on the data.",
    )

    def branches(index: Any, flag: Any, x: Any) -> Any:
        x = lax.switch(index, [jnp.sin, lambda v: v * 2, jnp.cumsum], x)
        return lax.cond(flag, lambda v: v[::-1], lambda v: -v, x)

    yield Sample(
        Case("cond_switch", branches, [s32(), array("bool"), f32(16)]),
        "A conditional over an index with three branches, and one over a predicate.",
    )


def _data() -> Iterator[Sample]:
    def ranking(scores: Any, ids: Any) -> Any:
        values, places = lax.top_k(scores, 5)
        ordered, names = lax.sort((scores, ids), num_keys=1)
        return values, places, ordered, names, jnp.argmax(scores, -1)

    yield Sample(
        Case("sort_topk", ranking, [f32(8, 64), s32(8, 64)]),
        "Sorting: the five largest, a stable sort of keys with values, the largest's place.",
    )

    def embedding(table: Any, tokens: Any, targets: Any) -> Any:
        def loss(table: Any) -> Any:
            pooled = jnp.take(table, tokens, axis=0).mean(1)
            return ((pooled - targets) ** 2).sum()

        return table - 0.1 * jax.grad(loss)(table)

    yield Sample(
        Case(
            "embedding_grad",
            embedding,
            [f32(1000, 32), s32(16, 8), f32(16, 32)],
            {"donate_argnums": 0},
        ),
        "An embedding table and its gradient: gather forward, scatter backward.",
    )

    def sampled(key: Any, logits: Any) -> Any:
        noise = jax.random.gumbel(jax.random.wrap_key_data(key), logits.shape)
        return jnp.argmax(logits + noise, -1)

    yield Sample(
        Case("random_sampling", sampled, [array("uint32", 2), f32(4, 100)]),
        "Sampling from a distribution: counter-based random bits, made of integer operations.",
    )


def _sharded() -> Sample:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def argument(spec: PartitionSpec, *sizes: int) -> Any:
        return jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=NamedSharding(mesh, spec))

    def layer(x: Any, first: Any, second: Any) -> Any:
        return lax.psum(jax.nn.relu(x @ first) @ second, "model")

    specs = (P("data", None), P(None, "model"), P("model", None))
    function = jax.shard_map(layer, mesh=mesh, in_specs=specs, out_specs=P("data", None))
    arguments = [argument(specs[0], 16, 32), argument(specs[1], 32, 64), argument(specs[2], 64, 32)]
    return Sample(
        Case("sharded_mlp", function, arguments),
        "Two dense layers on a mesh of 2 x 4 devices, rows and columns sharded: an all-reduce.",
    )


def text(sample: Sample) -> str:
    """Return the file of a sample: its comment, then the module with every constant."""
    computation = sample.case.lower().compiler_ir("hlo")
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    module = computation.as_hlo_module()
    lead = "".join(f"// {line}\n" for line in sample.shows.splitlines())
    return f"{lead}{_without_paths(module.to_string(options))}"


def _without_paths(printed: str) -> str:
    """Return a print whose file names do not say where JAX and this project lie."""
    shorter = re.sub(r'"/[^"\n]*/site-packages/', '"', printed)
    return shorter.replace(f'"{FOLDER.parent}/', '"').rstrip("\n") + "\n"


def write(folder: Path, make: Callable[[], Iterator[Sample]] = samples) -> int:
    """Write every sample; return the bytes written."""
    folder.mkdir(parents=True, exist_ok=True)
    total = 0
    for sample in make():
        content = text(sample)
        (folder / f"{sample.case.name}.hlo").write_text(content, encoding="utf-8")
        total += len(content)
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the samples and say how large they are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    folder = parser.parse_args(arguments).folder
    print(f"{folder}: {write(folder) / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
