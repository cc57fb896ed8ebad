"""Recipes of language models as they are trained on many devices: scanned, remat, sharded.

What they have in common with AI-Hypercomputer/maxtext: src/MaxText/train.py and layers/decoders.py:
layers stacked along any axis, policies of what to keep, constraints on shardings, norms as metrics.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tools.trainers.nets import (
    CLIPPED,
    LENGTH,
    WORDS,
    cross_entropy,
    normal,
    rms_normed,
    supervised,
    tokens,
    updated,
)
from tools.trainers.recipe import Batch, Metrics, Recipe, Rng, State, Tree

WIDTH, HEADS, HIDDEN = 8, 2, 12
LAYERS = 3
_KEPT = ("qkv", "out")
_POLICIES: dict[str, Callable[[Any], Any]] = {
    "": lambda f: f,
    "full": jax.checkpoint,
    "dots": lambda f: jax.checkpoint(
        f, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    ),
    "names": lambda f: jax.checkpoint(
        f, policy=jax.checkpoint_policies.save_only_these_names(*_KEPT)
    ),
    "uncommon": lambda f: jax.checkpoint(f, prevent_cse=False),
    "offload": lambda f: jax.checkpoint(
        f,
        policy=jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=["out"], names_which_can_be_offloaded=["qkv"],
            offload_src="device", offload_dst="pinned_host",
        ),
    ),
}  # fmt: skip
"""What is kept for the backward pass."""


@dataclass(frozen=True)
class Decoder:
    """How a decoder is written."""

    axis: int = 0
    """Along which layers are stacked; it is the last at -1."""
    policy: str = ""
    shards: bool = False
    compute: Any = np.float32
    tied: bool = True
    unroll: int = 1
    written_out: bool = False
    """Whether layers are written one by one."""
    same: bool = False
    """Whether all layers have the same weights."""
    experts: int = 0
    soft_cap: float = 0.0

    def weights(self, rng: Rng) -> Tree:
        """Return what the decoder learns."""
        block = {
            "down": (HIDDEN, WIDTH), "norm": (WIDTH,), "out": (WIDTH, WIDTH),
            "qkv": (WIDTH, 3 * WIDTH), "up": (WIDTH, HIDDEN),
        }  # fmt: skip
        if self.experts:
            block["down"], block["up"] = (
                (self.experts, *block["down"]),
                (self.experts, *block["up"]),
            )
            block["router"] = (WIDTH, self.experts)
        arrays_by_name = {
            name: [normal(rng, *shape) for _ in range(LAYERS)] for name, shape in block.items()
        }
        arrays_by_name["norm"] = [1 + 0.1 * x for x in arrays_by_name["norm"]]
        blocks: Tree = {name: self._stacked(each) for name, each in arrays_by_name.items()}
        if self.written_out:
            blocks = [
                {name: each[n] for name, each in arrays_by_name.items()} for n in range(LAYERS)
            ]
        tree = {
            "blocks": blocks,
            "last": np.ones(WIDTH, np.float32),
            "words": normal(rng, WORDS, WIDTH),
        }
        return tree if self.tied else tree | {"head": normal(rng, WIDTH, WORDS)}

    def _stacked(self, each: Sequence[Any]) -> Any:
        if self.same:
            return each[0]
        return np.stack(each, min(self.axis, each[0].ndim) if self.axis >= 0 else -1)

    def scores(self, weights: Tree, x: Any) -> tuple[Any, Any]:
        """Return scores of words, and a penalty of routers."""

        def cast(w: Any) -> Any:
            return w.astype(self.compute)

        h = self._sharded(cast(weights["words"])[x], "data", None, None)
        layer = _POLICIES[self.policy](self._layer)
        if self.written_out:
            extras = []
            for block in weights["blocks"]:
                h, extra = layer(h, jax.tree.map(cast, block))
                extras.append(extra)
            penalty = jnp.mean(jnp.stack(extras))
        elif self.same:
            block = jax.tree.map(cast, weights["blocks"])
            h, penalty = lax.scan(lambda h, _: layer(h, block), h, None, LAYERS)
        else:
            blocks = {name: cast(self._first(name, w)) for name, w in weights["blocks"].items()}
            h, penalty = lax.scan(layer, h, blocks, unroll=self.unroll)
        h = rms_normed(h, cast(weights["last"]))
        head = weights["words"].T if self.tied else weights["head"]
        scores = self._sharded((h @ cast(head)).astype(jnp.float32), "data", None, None)
        if self.soft_cap:
            scores = self.soft_cap * jnp.tanh(scores / self.soft_cap)
        return scores, jnp.mean(penalty)

    def _first(self, name: str, w: Any) -> Any:
        rank = w.ndim - 1
        return jnp.moveaxis(w, min(self.axis, rank) if self.axis >= 0 else -1, 0)

    def _sharded(self, x: Any, *axes: str | None) -> Any:
        if not self.shards:
            return x
        mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"))
        return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*axes)))

    def _layer(self, x: Any, w: Tree) -> tuple[Any, Any]:
        normed = rms_normed(x, w["norm"])
        qkv = checkpoint_name(normed @ w["qkv"], "qkv")
        q, k, v = jnp.split(qkv.reshape(*x.shape[:2], HEADS, -1), 3, -1)
        q, k = _rotated(q), _rotated(k)
        logits = jnp.einsum("bthd,bshd->bhts", q, k).astype(jnp.float32) / np.sqrt(q.shape[-1])
        mask = np.tril(np.ones((x.shape[1], x.shape[1]), bool))
        shares = jax.nn.softmax(jnp.where(mask, logits, -1e9)).astype(x.dtype)
        mixed = jnp.einsum("bhts,bshd->bthd", shares, v).reshape(x.shape)
        x = self._sharded(x + checkpoint_name(mixed @ w["out"], "out"), "data", None, "model")
        if self.experts:
            more, extra = _routed(x, w)
            return x + more, extra
        hidden = self._sharded(jax.nn.silu(x @ w["up"]), "data", None, "model")
        return x + hidden @ w["down"], jnp.zeros(())


def _rotated(x: Any) -> Any:
    """Return heads turned by their positions."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None, None] / 10.0 ** np.arange(half)
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def _routed(x: Any, w: Tree) -> tuple[Any, Any]:
    """Send each token to its two best experts; return their output and the router's penalty.

    Sources: W. Fedus et al., "Switch Transformers", JMLR 23 (2022), equation 4 (balance); B. Zoph
    et al., "ST-MoE" (2022), equation 5 (z-loss).
    """
    logits = (x @ w["router"]).astype(jnp.float32)
    shares = jax.nn.softmax(logits)
    best, chosen = lax.top_k(shares, 2)
    gates = jnp.sum(jax.nn.one_hot(chosen, shares.shape[-1]) * best[..., None], -2)
    each = jnp.einsum("bth,ehw->btew", x, w["up"])
    out = jnp.einsum("btew,ewh,bte->bth", jax.nn.gelu(each), w["down"], gates.astype(x.dtype))
    load = jnp.mean((gates > 0).astype(jnp.float32), (0, 1))
    balance = shares.shape[-1] * jnp.sum(load * jnp.mean(shares, (0, 1)))
    return out, balance + 0.1 * jnp.mean(jax.nn.logsumexp(logits, -1) ** 2)


def _language_model(
    name: str, how: Decoder, optimizer: Any = CLIPPED, *, penalty: float = 0.0, **more: Any
) -> Recipe:
    def loss(weights: Tree, state: State, x: Any, y: Any) -> Any:
        scores, extra = how.scores(weights, x)
        each = cross_entropy(scores, y)
        z = 1e-2 * jnp.mean(jax.nn.logsumexp(scores, -1) ** 2)
        right = jnp.mean((jnp.argmax(scores, -1) == y).astype(jnp.float32))
        return jnp.mean(each) + z + penalty * extra, ((), {"accuracy": right, "z_loss": z})

    more.setdefault("layers", 0 if how.written_out or how.same else LAYERS)
    if np.dtype(how.compute).itemsize < 4:
        more.update(near=8e-2, absolute=2e-2)
    return supervised(name, loss, optimizer, how.weights, tokens, **more)


def _with_metrics(optimizer: Any, schedule: Any) -> Callable[[State, Tree], tuple[Tree, Metrics]]:
    def update(state: State, slopes: Tree) -> tuple[Tree, Metrics]:
        new = updated(optimizer, state.learned, slopes)
        counts = [x for x in jax.tree.leaves(new["optimizer"]) if x.dtype == jnp.int32]
        return new, {
            "grad_norm": optax.tree.norm(slopes),
            "learning_rate": schedule(counts[0] - 1),
            "param_norm": optax.tree.norm(new["weights"]),
        }

    return update


def _masked_tokens(rng: Rng) -> Batch:
    x, y = tokens(rng)
    lengths = rng.integers(2, LENGTH + 1, len(x))
    return x, y, (np.arange(LENGTH) < lengths[:, None]).astype(np.float32)


def _by_token_counts(name: str, how: Decoder) -> Recipe:
    """Divide by the count of tokens that the mask leaves, as maxtext's loss does."""

    def loss(weights: Tree, state: State, x: Any, y: Any, mask: Any) -> Any:
        scores, _ = how.scores(weights, x)
        total, count = jnp.sum(cross_entropy(scores, y) * mask), jnp.sum(mask)
        return total / (count + 1e-8), ((), {"tokens": count})

    coupled = "each micro-batch divides by its own count of tokens"
    return supervised(
        name, loss, CLIPPED, how.weights, _masked_tokens, layers=LAYERS, coupled=coupled
    )


def _accumulating(name: str) -> Recipe:
    """Add up gradients of two parts of the batch in a loop of the step's own."""
    how = Decoder(written_out=True)
    plain = _language_model(name, how)

    def gradients(state: State, x: Any, y: Any) -> tuple[Tree, Tree, Metrics]:
        def part(total: Tree, given: Any) -> tuple[Tree, None]:
            slopes, _, metrics = plain.gradients(state, *given)
            return jax.tree.map(jnp.add, total, (slopes, metrics["loss"])), None

        parts = jax.tree.map(lambda x: x.reshape(2, -1, *x.shape[1:]), (x, y))
        zeros = jax.tree.map(jnp.zeros_like, (state.learned["weights"], 0.0))
        (slopes, value), _ = lax.scan(part, zeros, parts)
        return jax.tree.map(lambda g: g / 2, slopes), (), {"loss": value / 2}

    return replace(plain, gradients=gradients)


def large_models() -> list[Recipe]:
    """Return the recipes."""
    schedule = optax.warmup_cosine_decay_schedule(1e-3, 1e-2, 3, 20)
    adam = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(schedule, eps=1e-4))
    factored = optax.adafactor(1e-2, min_dim_size_to_factor=4)
    bf16 = jnp.bfloat16
    narrow = replace(Decoder(), policy="full", compute=bf16)
    balanced = "loads of experts are of each micro-batch"
    return [
        _language_model("scan_axis_0", Decoder(), adam, update=_with_metrics(adam, schedule)),
        _language_model("scan_axis_1_full", Decoder(axis=1, policy="full")),
        _language_model("scan_axis_last_dots", Decoder(axis=-1, policy="dots", tied=False)),
        _language_model("scan_names", Decoder(axis=1, policy="names", soft_cap=10.0)),
        _language_model("scan_uncommon", Decoder(policy="uncommon"), factored),
        _language_model("scan_offload", Decoder(policy="offload")),
        _language_model("scan_shardy", Decoder(axis=1, policy="full", shards=True)),
        _language_model("scan_gspmd", Decoder(axis=1, policy="dots", shards=True), shardy=False),
        _language_model("scan_not_donated", Decoder(policy="dots"), donates=False),
        _language_model("scan_bf16", narrow, optax.sgd(0.1, 0.9)),
        _language_model("scan_unrolled", Decoder(unroll=LAYERS), optax.lamb(1e-2)),
        _language_model("scan_same_weights", Decoder(same=True)),
        _language_model("layers_written_out", Decoder(written_out=True, policy="full")),
        _language_model(
            "layers_sharded_gspmd", Decoder(written_out=True, shards=True), shardy=False
        ),
        _language_model(
            "scan_experts", Decoder(experts=4, policy="full"), penalty=0.1, coupled=balanced
        ),
        _language_model(
            "experts_written_out", Decoder(experts=4, written_out=True), penalty=0.1,
            coupled=balanced,
        ),
        _by_token_counts("scan_token_counts", Decoder(policy="full")),
        _accumulating("accumulates_itself"),
    ]  # fmt: skip
