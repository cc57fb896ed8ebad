"""JAX functions with shardings, lowered for meshes of devices that are not there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.support.arrays import Array

FLAT = AbstractMesh((8,), ("fsdp",))
MESH = AbstractMesh((2, 4), ("data", "model"))
CUBE = AbstractMesh((2, 2, 2), ("data", "fsdp", "model"))
BOTH = P(("data", "model"))


@dataclass(frozen=True)
class Sharded:
    """A function, the arrays that it is called with, and how they are divided."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    specs: tuple[Any, ...]
    """Nested as the arguments, or less deep."""
    mesh: AbstractMesh = MESH
    donated: tuple[int, ...] = ()

    def lowered(self) -> Any:
        """Return what JAX lowers it to."""
        placed = jax.tree.map(
            lambda spec: NamedSharding(self.mesh, spec), self.specs, is_leaf=_is_spec
        )
        jitted = jax.jit(self.function, in_shardings=placed, donate_argnums=self.donated)
        return jitted.trace(*self.arguments).lower(lowering_platforms=("cpu",))

    @cached_property
    def text(self) -> str:
        """Its HLO, annotated."""
        return str(self.lowered().as_text("hlo", debug_info=True))

    @property
    def leaves(self) -> list[Array]:
        """The arrays in the order of the parameters."""
        return [np.asarray(x) for x in jax.tree.leaves(self.arguments)]

    def results(self) -> list[Array]:
        """Return what XLA:CPU computes on one device."""
        return [np.asarray(x) for x in jax.tree.leaves(jax.jit(self.function)(*self.arguments))]


def _is_spec(x: Any) -> bool:
    return isinstance(x, P)


def draws(*shapes: Sequence[int], seed: int = 0) -> tuple[Array, ...]:
    """Return normally distributed arrays."""
    source = np.random.default_rng(seed)
    return tuple(source.standard_normal(shape, dtype=np.float32) * 0.5 for shape in shapes)


def mlp(x: Any, a: Any, b: Any) -> Any:
    return jax.nn.gelu(x @ a) @ b


def gradients(x: Any, a: Any, b: Any) -> Any:
    return jax.value_and_grad(lambda w: (mlp(x, *w) ** 2).mean())((a, b))


def attention(x: Any, q: Any, k: Any, v: Any, o: Any) -> Any:
    queries, keys, values = (jnp.einsum("bsd,dhe->bhse", x, w) for w in (q, k, v))
    weights = jax.nn.softmax(jnp.einsum("bhse,bhte->bhst", queries, keys), -1)
    return jnp.einsum("bhst,bhte,hed->bsd", weights, values, o)


def layers(ws: Any, x: Any) -> Any:
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w[0]) @ w[1] + h, None), x, ws)[0]


def layer_gradients(ws: Any, x: Any) -> Any:
    return jax.grad(lambda w: (layers(w, x) ** 2).mean())(ws)


def classified(table: Any, w: Any, tokens: Any, labels: Any) -> Any:
    scores = jax.nn.log_softmax(table[tokens].mean(1) @ w)
    return -jnp.take_along_axis(scores, labels[:, None], 1).mean()


def convolved(x: Any, w: Any) -> Any:
    layout = ("NHWC", "HWIO", "NHWC")
    made = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout)
    return jax.nn.relu(made).max((1, 2))


def moved(x: Any) -> Any:
    there = jax.lax.with_sharding_constraint(jnp.sin(x), NamedSharding(MESH, P("model", "data")))
    return there.T @ there, there.sum()


def counted(x: Any) -> Any:
    return jax.lax.while_loop(lambda h: h.sum() < 100, lambda h: h * 1.5 + 1, jnp.abs(x))


_X, _A, _B = draws((16, 32), (32, 64), (64, 32))
_TOKENS = np.arange(48, dtype=np.int32).reshape(16, 3) % 40
PROGRAMS = {
    "data parallel": Sharded(gradients, (_X, _A, _B), (P("data"), P(), P())),
    "megatron": Sharded(mlp, (_X, _A, _B), (P("data"), P(None, "model"), P("model"))),
    "megatron gradients": Sharded(
        gradients, (_X, _A, _B), (P("data"), P(None, "model"), P("model"))
    ),
    "fsdp": Sharded(gradients, (_X, _A, _B), (P("fsdp"), P("fsdp"), P(None, "fsdp")), FLAT),
    "three axes": Sharded(
        gradients,
        (_X, _A, _B),
        (P(("data", "fsdp")), P("fsdp", "model"), P("model", "fsdp")),
        CUBE,
    ),
    "attention by heads": Sharded(
        attention,
        draws((4, 16, 32), *[(32, 8, 4)] * 3, (8, 4, 32), seed=1),
        (P("data"), *[P(None, "model")] * 3, P("model")),
    ),
    "scan over layers": Sharded(
        layer_gradients,
        (draws((3, 32, 64), (3, 64, 32), seed=2), draws((16, 32))[0]),
        ((P(None, None, "model"), P(None, "model")), P("data")),
    ),
    "embedding": Sharded(
        jax.value_and_grad(classified, (0, 1)),
        (*draws((40, 16), (16, 24), seed=3), _TOKENS, np.arange(16, dtype=np.int32)),
        (P("model"), P(None, "model"), P("data"), P("data")),
    ),
    "convolution": Sharded(
        convolved,
        draws((4, 8, 8, 8), (3, 3, 8, 16), seed=4),
        (P("data"), P(None, None, None, "model")),
    ),
    "a constraint inside": Sharded(moved, draws((16, 32)), (P("data"),)),
    "a loop that data ends": Sharded(counted, draws((16, 8)), (P("data", "model"),)),
}  # fmt: skip


def loss(p: Any, x: Any, y: Any) -> Any:
    return ((jnp.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] - y) ** 2).mean()


def adam_step(state: Any, x: Any, y: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(state["p"], x, y)
    return updated(state, grads), value


def updated(state: Any, grads: Any) -> Any:
    count = state["t"] + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
    v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["v"], grads)
    rates = 0.01 / (1 - 0.9**count), 1 / (1 - 0.99**count)
    p = jax.tree.map(
        lambda p, m, v: p - rates[0] * m / (jnp.sqrt(v * rates[1]) + 1e-6), state["p"], m, v
    )
    return {"p": p, "m": m, "v": v, "t": count}


_GRADIENTS, _UPDATED = jax.jit(jax.value_and_grad(loss)), jax.jit(updated)
STEPS = 4
BATCHES = draws((STEPS, 16, 16), (STEPS, 16, 8), seed=5)


def training() -> Sharded:
    """Return a step of Adam whose state is donated and divided between all devices."""
    w1, w2, b1 = draws((16, 32), (32, 8), (32,), seed=6)
    p = {"w1": w1, "b1": b1, "w2": w2}
    zeros = jax.tree.map(np.zeros_like, p)
    specs = {"w1": P(None, ("data", "model")), "b1": P("model"), "w2": P("model", "data")}
    state = {"p": p, "m": zeros, "v": zeros, "t": np.float32(0)}
    x, y = BATCHES
    divided = {"p": specs, "m": specs, "v": specs, "t": P()}
    return Sharded(adam_step, (state, x[0], y[0]), (divided, BOTH, BOTH), donated=(0,))


def trained(
    step: Sharded, steps: int = STEPS, micro_batches: int = 1
) -> tuple[list[Array], list[float]]:
    """Return the state after so many updates on one device, leaf by leaf, and the losses."""
    state, losses = step.arguments[0], list[float]()
    for first in range(0, steps * micro_batches, micro_batches):
        rows = range(first, first + micro_batches)
        found = [_GRADIENTS(state["p"], *(array[n] for array in BATCHES)) for n in rows]
        losses += [float(value) for value, _ in found]
        grads = jax.tree.map(lambda *each: sum(each) / len(each), *(g for _, g in found))
        state = _UPDATED(state, grads)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)], losses


@dataclass(frozen=True)
class ScannedTraining(Sharded):
    """A step of gradient descent over layers in a scan."""

    batches: tuple[Array, ...] = ()

    def trained(self, steps: int) -> list[Array]:
        """Return the weights after so many steps on one device."""
        weights, one = self.arguments[0], jax.jit(self.function)
        for number in range(steps):
            weights, _ = one(weights, *(array[number] for array in self.batches))
        return [np.asarray(w) for w in weights]


def descent(ws: Any, x: Any, y: Any) -> Any:
    value, grads = jax.value_and_grad(lambda w: ((layers(w, x) - y) ** 2).mean())(ws)
    return jax.tree.map(lambda w, g: w - 0.1 * g, ws, grads), value


def scanned_training() -> ScannedTraining:
    """Return a step whose layers' weights are divided between the devices of one axis."""
    weights = tuple(w * 0.2 for w in draws((4, 32, 64), (4, 64, 32), seed=7))
    x, y = draws((STEPS, 16, 32), (STEPS, 16, 32), seed=8)
    specs = (P(None, None, "model"), P(None, "model")), P("data"), P("data")
    return ScannedTraining(descent, (weights, x[0], y[0]), specs, donated=(0,), batches=(x, y))
