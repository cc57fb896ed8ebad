"""Layers that several networks share: types, dense layers, norms, equal blocks."""

from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata


@dataclass(frozen=True, slots=True)
class Style:
    """How a network is written, apart from its sizes."""

    dtype: Any = jnp.float16
    """Type of weights and activations."""
    norm: str = "half"
    """`half`: norms compute in `dtype`, with sums in f32, as popnn's; `flax`: in f32, as flax's."""
    groups: int = 0
    """Groups of channels of a group norm; 0: batch norm."""
    dropout: float = 0.0
    random: str = "rbg"
    """Generator of dropout's bits: `rbg`, which the machine chooses, or `threefry2x32`."""
    scan: bool = False
    """Equal blocks run in one loop over stacked weights."""
    remat: bool = False
    """Blocks and ResNet's stem keep their inputs only, for gradients (`jax.checkpoint`)."""
    stages: tuple[int, ...] = ()
    """Blocks of each stage, where ops are annotated with their stage (`ipu_stage`): stems and
    embeddings go with the first stage, heads with the last, which may have no blocks."""
    train: bool = True

    @property
    def types(self) -> dict[str, Any]:
        """Type of weights and of results, as flax's layers take them."""
        return {"dtype": self.dtype, "param_dtype": self.dtype}


def dense(style: Style, features: int, name: str | None = None) -> nn.Dense:
    """Return a dense layer."""
    return nn.Dense(features, name=name, **style.types)


def layer_norm(style: Style, name: str | None = None) -> nn.LayerNorm:
    """Return a layer norm with BERT's epsilon where `dtype` has room for it."""
    return nn.LayerNorm(
        epsilon=1e-5, name=name, force_float32_reductions=style.norm == "flax", **style.types
    )


def channel_norm(style: Style, name: str | None = None, *, zero: bool = False) -> Any:
    """Return a norm of a convolution's channels; with `zero`, its scale begins at zero."""
    shared = {
        "name": name,
        "scale_init": nn.initializers.zeros if zero else nn.initializers.ones,
        "force_float32_reductions": style.norm == "flax",
        **style.types,
    }
    if style.groups:
        return nn.GroupNorm(num_groups=style.groups, epsilon=1e-3, **shared)
    return nn.BatchNorm(use_running_average=not style.train, momentum=0.97, epsilon=1e-3, **shared)


def repeated(
    style: Style, block: type[nn.Module], count: int, name: str, *, first: int = 0, **sizes: Any
) -> Any:
    """Return a function of x (and of arguments that all blocks share) that runs equal blocks.

    `first`: the first one's number among all blocks, which stages count.
    """
    one = nn.remat(block, prevent_cse=not style.scan) if style.remat else block
    if not style.scan:

        def written_out(x: Any, *shared: Any) -> Any:
            for i in range(count):
                with at_block(style, first + i):
                    x = one(style=style, name=f"{name}_{i}", **sizes)(x, *shared)
            return x

        return written_out

    class Turn(nn.Module):  # type: ignore[misc]
        """One turn of the loop."""

        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any, *shared: Any) -> Any:
            """Return what goes on to the next turn, and nothing beside."""
            return one(style=style, name="block", **sizes)(x, *shared), None

    def looped(x: Any, *shared: Any) -> Any:
        loop = nn.scan(
            Turn,
            variable_axes={"params": 0, "batch_stats": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=nn.broadcast,
            length=count,
        )
        return loop(name=name)(x, *shared)[0]

    return looped


def group(
    style: Style, block: type[nn.Module], count: int, name: str, first: int, **sizes: Any
) -> Any:
    """Return a function of x that runs a block with a stride and then count - 1 equal ones."""
    rest = repeated(style, block, count - 1, name, first=first + 1, **{**sizes, "stride": 1})
    one = nn.remat(block) if style.remat else block

    def run(x: Any) -> Any:
        with at_block(style, first):
            x = one(style=style, name=f"{name}_first", **sizes)(x)
        return rest(x) if count > 1 else x

    return run


def at_first(style: Style) -> Any:
    """Return a context in which ops are annotated with the first stage."""
    return _at(style, 0)


def at_block(style: Style, block: int) -> Any:
    """Return a context in which ops are annotated with the stage of a block."""
    ends = accumulate(style.stages[:-1])
    return _at(style, sum(block >= end for end in ends))


def at_last(style: Style) -> Any:
    """Return a context in which ops are annotated with the last stage."""
    return _at(style, len(style.stages) - 1)


def _at(style: Style, stage: int) -> Any:
    return set_xla_metadata(ipu_stage=str(stage)) if style.stages else nullcontext()
