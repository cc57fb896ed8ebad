"""Whole models: forward passes and train steps with flax, optax and donated state."""

from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from tools.corpus.case import Case, array, f32, s32


class Mlp(nn.Module):  # type: ignore[misc]
    """Dense layers with a chosen activation."""

    widths: tuple[int, ...] = (32, 16, 10)
    activation: Callable[..., Any] = nn.relu
    dtype: Any = jnp.float32

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        """Return the outputs of a batch."""
        x = x.reshape(x.shape[0], -1).astype(self.dtype)
        for width in self.widths[:-1]:
            x = self.activation(nn.Dense(width, dtype=self.dtype)(x))
        return nn.Dense(self.widths[-1], dtype=self.dtype)(x)


class ConvNet(nn.Module):  # type: ignore[misc]
    """Convolutions, normalisation, pooling and a classifier."""

    norm: str = "batch"
    pool: str = "max"

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        """Return the outputs of a batch."""
        for width in (8, 16):
            x = nn.Conv(width, (3, 3))(x)
            if self.norm == "batch":
                x = nn.BatchNorm(use_running_average=False)(x)
            elif self.norm == "group":
                x = nn.GroupNorm(4)(x)
            x = nn.relu(x)
            pool = nn.max_pool if self.pool == "max" else nn.avg_pool
            x = pool(x, (2, 2), (2, 2))
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


class Block(nn.Module):  # type: ignore[misc]
    """A pre-norm transformer block."""

    heads: int = 2
    dtype: Any = jnp.float32
    norm: Callable[..., Any] = nn.LayerNorm

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        """Return the outputs of a batch."""
        y = self.norm(dtype=self.dtype)(x)
        x = x + nn.SelfAttention(self.heads, dtype=self.dtype, deterministic=True)(y)
        y = nn.Dense(4 * x.shape[-1], dtype=self.dtype)(self.norm(dtype=self.dtype)(x))
        return x + nn.Dense(x.shape[-1], dtype=self.dtype)(nn.gelu(y))


class Transformer(nn.Module):  # type: ignore[misc]
    """Token embedding, blocks, tied read-out."""

    layers: int = 2
    width: int = 16
    vocabulary: int = 50
    dtype: Any = jnp.float32
    norm: Callable[..., Any] = nn.LayerNorm

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, tokens: Any) -> Any:
        """Return the logits of each token."""
        embed = nn.Embed(self.vocabulary, self.width, dtype=self.dtype)
        x = embed(tokens)
        for _ in range(self.layers):
            x = Block(dtype=self.dtype, norm=self.norm)(x)
        return embed.attend(x)


class Recurrent(nn.Module):  # type: ignore[misc]
    """One recurrent layer over a sequence."""

    cell: Any = nn.LSTMCell

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        """Return the outputs of a batch."""
        return nn.Dense(10)(nn.RNN(self.cell(8))(x)[:, -1])


def train_step(model: nn.Module, optimizer: Any) -> Callable[..., Any]:
    """Return `(variables, optimizer state, inputs, labels) -> (variables, state, loss)`."""

    def step(variables: Any, state: Any, inputs: Any, labels: Any) -> Any:
        def loss(parameters: Any) -> Any:
            rest = {k: v for k, v in variables.items() if k != "params"}
            logits, updates = model.apply(
                {"params": parameters, **rest}, inputs, mutable=list(rest)
            )
            losses = optax.softmax_cross_entropy_with_integer_labels(
                logits.astype("float32"), labels
            )
            return losses.mean(), updates

        (value, updates), grads = jax.value_and_grad(loss, has_aux=True)(variables["params"])
        changes, new_state = optimizer.update(grads, state, variables["params"])
        parameters = optax.apply_updates(variables["params"], changes)
        return {"params": parameters, **updates}, new_state, value

    return step


def train_case(
    name: str, model: nn.Module, optimizer: Any, inputs: Any, labels: Any, *, optimise: bool = False
) -> Case:
    """Return a train step with donated state as a case."""
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    variables = jax.eval_shape(model.init, key, inputs)
    state = jax.eval_shape(optimizer.init, variables["params"])
    step = train_step(model, optimizer)
    return Case(
        name, step, [variables, state, inputs, labels], {"donate_argnums": (0, 1)}, optimise
    )


def _optimizers() -> dict[str, Any]:
    return {
        "sgd": optax.sgd(0.1),
        "momentum": optax.sgd(0.1, momentum=0.9),
        "nesterov": optax.sgd(0.1, 0.9, nesterov=True),
        "adam": optax.adam(1e-3),
        "adamw": optax.adamw(1e-3),
        "adagrad": optax.adagrad(0.1),
        "rmsprop": optax.rmsprop(0.1),
        "lamb": optax.lamb(1e-3),
        "lion": optax.lion(1e-3),
        "adafactor": optax.adafactor(1e-3),
        "lars": optax.lars(0.1),
        "clipped": optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)),
        "yogi": optax.yogi(1e-2),
        "schedule": optax.adam(optax.cosine_decay_schedule(0.1, 100)),
        "radam": optax.radam(1e-3),
        "accumulate": optax.MultiSteps(optax.adam(1e-3), 4).gradient_transformation(),
    }


def cases() -> Iterator[Case]:
    """Yield forward passes and train steps."""
    image, labels = f32(4, 12, 12, 3), s32(4)
    for number, (name, optimizer) in enumerate(_optimizers().items()):
        yield train_case(f"mlp_{name}", Mlp(), optimizer, image, labels, optimise=number % 3 == 0)
    for norm in ("none", "batch", "group"):
        for pool in ("max", "average"):
            model = ConvNet(norm, pool)
            yield train_case(
                f"convnet_{norm}_{pool}",
                model,
                optax.sgd(0.1),
                image,
                labels,
                optimise=norm == "batch",
            )
            yield forward_case(f"convnet_forward_{norm}_{pool}", model, image)
    for dtype in ("float32", "bfloat16", "float16"):
        for layers in (1, 2, 4):
            model = Transformer(layers, dtype=jnp.dtype(dtype))
            yield train_case(
                f"transformer_{dtype}_{layers}",
                model,
                optax.adam(1e-3),
                s32(2, 7),
                s32(2, 7),
                optimise=layers == 1,
            )
            yield forward_case(f"transformer_forward_{dtype}_{layers}", model, s32(2, 7))
    yield train_case(
        "transformer_rms", Transformer(norm=nn.RMSNorm), optax.lion(1e-3), s32(2, 7), s32(2, 7)
    )
    for cell in (nn.LSTMCell, nn.GRUCell, nn.SimpleCell, nn.OptimizedLSTMCell):
        yield train_case(
            f"recurrent_{cell.__name__}",
            Recurrent(cell),
            optax.adam(1e-3),
            f32(3, 5, 6),
            s32(3),
            optimise=True,
        )
    for activation in (
        "gelu",
        "swish",
        "elu",
        "selu",
        "softplus",
        "tanh",
        "hard_tanh",
        "glu",
        "leaky_relu",
        "celu",
    ):
        widths = (32, 16, 10)
        yield forward_case(
            f"mlp_{activation}",
            Mlp(widths, getattr(nn, activation)),
            image,
            optimise=activation == "gelu",
        )
    for losses in (
        "sigmoid_binary_cross_entropy",
        "huber_loss",
        "l2_loss",
        "cosine_distance",
        "hinge_loss",
    ):
        loss = getattr(optax, losses)
        yield Case(
            f"loss_{losses}", jax.grad(lambda a, b, f=loss: f(a, b).sum()), [f32(4, 5), f32(4, 5)]
        )
    yield Case(
        "dropout",
        lambda k, x: nn.Dropout(0.3, deterministic=False).apply(
            {}, x, rngs={"dropout": jax.random.wrap_key_data(k)}
        ),
        [array("uint32", 2), f32(4, 8)],
        optimise=True,
    )


def forward_case(name: str, model: nn.Module, inputs: Any, *, optimise: bool = False) -> Case:
    """Return a forward pass as a case."""
    variables = jax.eval_shape(model.init, jax.ShapeDtypeStruct((2,), jnp.uint32), inputs)

    def apply(variables: Any, inputs: Any) -> Any:
        return model.apply(variables, inputs, mutable=[k for k in variables if k != "params"])[0]

    return Case(name, apply, [variables, inputs], optimise=optimise)


def train_pieces(layers: int) -> tuple[Callable[..., Any], Any, Any, Any, Any]:
    """Return (step, variables, optimizer state, inputs, labels) of a transformer under Adam."""
    case = train_case("pieces", Transformer(layers), optax.adam(1e-3), s32(2, 7), s32(2, 7))
    variables, state, inputs, labels = case.arguments
    return case.function, variables, state, inputs, labels
