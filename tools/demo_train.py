"""Train two nets on handwritten digits, on the simulated device, against the same training in JAX.

    python -m tools.demo_train [--target NAME] [--epochs N] [--only mlp|cnn]

A perceptron and a small convolutional net learn the 1,797 digits that come with scikit-learn. The
steps run in a loop on the device, fed from a queue; losses come out of another, read by a thread
that prints the curve while the loop runs. In the end the losses of the first 500 steps are
compared with JAX's on the same batches, and the held-out digits are told. Exit status 1: losses
differ, or fewer than 97 % are right.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from hloipu.jax import lower
from hloipu.training.record import Callback, TrainingProgress
from hloipu.training.trainer import Trainer
from hloipu_runtime.streams.arrays import from_arrays

BATCH = 32
COMPARED_STEPS = 500
MOST_DIFFERENCE = 1e-5
"""Between losses, of the larger of 1 and the loss: sums in another order, 500 steps after one
another, leave less than a tenth of that; a step done wrongly differs by thousands of times it."""
ACCURACY = 0.97
LEARNING_RATE, MOMENTUM = 0.05, 0.9
Weights = dict[str, Any]
Digits = tuple[Any, Any]


@dataclass(frozen=True)
class Net:
    """A net: its first weights, and the scores of ten digits that they give to images."""

    name: str
    shapes: dict[str, tuple[int, ...]]
    scores: Callable[[Weights, Any], Any]

    def first_weights(self) -> Weights:
        """Return weights drawn by the rule of He et al., arXiv 1502.01852, and biases of 0."""
        rng = np.random.default_rng(0)
        return {
            name: (rng.normal(0, np.sqrt(2 / np.prod(shape[:-1])), shape) * (len(shape) > 1))
            .astype(np.float32)
            for name, shape in self.shapes.items()
        }  # fmt: skip


def perceptron(weights: Weights, images: Any) -> Any:
    """Return scores by one hidden layer."""
    hidden = jax.nn.relu(images.reshape(len(images), 64) @ weights["in"] + weights["in_bias"])
    return hidden @ weights["out"] + weights["out_bias"]


def convolutional(weights: Weights, images: Any) -> Any:
    """Return scores by two convolutions, each with a pooling by maximum."""
    features = images[..., None]
    for name in ("first", "second"):
        numbers = ("NHWC", "HWIO", "NHWC")
        features = lax.conv_general_dilated(
            features, weights[name], (1, 1), "SAME", dimension_numbers=numbers
        )
        features = jax.nn.relu(features + weights[f"{name}_bias"])
        features = lax.reduce_window(
            features, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
        )
    return features.reshape(len(images), -1) @ weights["out"] + weights["out_bias"]


NETS = (
    Net("mlp", {"in": (64, 128), "in_bias": (128,), "out": (128, 10), "out_bias": (10,)},
        perceptron),
    Net("cnn", {"first": (3, 3, 1, 16), "first_bias": (16,), "second": (3, 3, 16, 32),
                "second_bias": (32,), "out": (128, 10), "out_bias": (10,)}, convolutional),
)  # fmt: skip


def training_step(net: Net) -> Callable[..., Any]:
    """Return a step of SGD with momentum under cross entropy."""

    def loss_of(weights: Weights, images: Any, labels: Any) -> Any:
        scores = jax.nn.log_softmax(net.scores(weights, images))
        return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], 1))

    def step(weights: Weights, speeds: Weights, images: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(weights, images, labels)
        speeds = jax.tree.map(lambda v, g: MOMENTUM * v + g, speeds, gradients)
        weights = jax.tree.map(lambda w, v: w - LEARNING_RATE * v, weights, speeds)
        return weights, speeds, loss

    return step


class Curve(Callback):
    """Prints the loss while the device runs; called on a thread beside it."""

    def __init__(self, every: int = 40) -> None:
        self.every = every
        self._next = 0

    def on_live(self, progress: TrainingProgress) -> None:
        """Print one point of the curve, unless the last is near."""
        step = progress.epoch * progress.steps_per_epoch + progress.step
        if step < self._next:
            return
        self._next = step + self.every
        loss = progress.metrics["loss"]
        bar = "#" * min(50, round(25 * loss))
        print(f"  step {step:>6}  loss {loss:8.5f}  {bar}", flush=True)


def digits() -> tuple[Digits, Digits]:
    """Return images of 8 x 8 from 0 to 1 with their labels, to learn from and held out."""
    dataset = load_digits()
    images = (dataset.images / 16).astype(np.float32)
    labels = dataset.target.astype(np.int32)
    split = train_test_split(
        images, labels, test_size=0.2, random_state=0, stratify=labels, shuffle=True
    )
    return (split[0], split[2]), (split[1], split[3])


def losses_in_jax(net: Net, learnt: Digits, steps: int) -> Any:
    """Return the losses of the same steps on the same batches, in JAX."""
    step = jax.jit(training_step(net))
    weights = net.first_weights()
    speeds = jax.tree.map(np.zeros_like, weights)
    losses = []
    elements = from_arrays(learnt).shuffle(0).batch(BATCH).wrap().elements()
    for images, labels in islice(elements, steps):
        weights, speeds, loss = step(weights, speeds, images, labels)
        losses.append(loss)
    return np.array(losses)


def train(net: Net, target: str, epochs: int) -> bool:
    """Train a net, compare, and tell the held-out digits; return whether all is well."""
    learnt, held_out = digits()
    weights = net.first_weights()
    speeds = jax.tree.map(np.zeros_like, weights)
    images, labels = learnt[0][:BATCH], learnt[1][:BATCH]
    step = lower(training_step(net), weights, speeds, images, labels, donate=(0, 1))
    trainer = Trainer(
        step.text,
        state=step.state,
        metrics=("loss",),
        prediction=lower(net.scores, weights, images).text,
        target=target,
    )
    print(f"{net.name}: {sum(map(np.size, weights.values()))} weights, on {target}")
    began = time.perf_counter()
    history = trainer.fit(learnt, epochs, shuffle=0, callbacks=(Curve(),), progress=False)
    seconds = time.perf_counter() - began
    ours = np.array(history.steps["loss"][:COMPARED_STEPS])
    theirs = losses_in_jax(net, learnt, len(ours))
    difference = float(np.max(np.abs(ours - theirs) / np.maximum(1, theirs)))
    right = float(np.mean(np.argmax(trainer.predict(held_out[0]), 1) == held_out[1]))
    print(
        f"{net.name}: {trainer.steps} steps in {seconds:.1f} s with compilation; "
        f"{history.samples_per_second:,.0f} samples/s, "
        f"{history.simulated_samples_per_second:,.0f} simulated\n"
        f"  losses of the first {len(ours)} steps differ from JAX's by {difference:.1e} at most "
        f"(allowed {MOST_DIFFERENCE:.0e})\n"
        f"  held-out digits told rightly: {100 * right:.2f} % of {len(held_out[1])} "
        f"(wanted {100 * ACCURACY:g} %)"
    )
    return difference <= MOST_DIFFERENCE and right >= ACCURACY


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the nets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--target", default="gc200")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--only", choices=[net.name for net in NETS])
    options = parser.parse_args(arguments)
    nets = [net for net in NETS if options.only in (None, net.name)]
    well = [train(net, options.target, options.epochs) for net in nets]
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main())
