"""Programs of one size, divided over N devices, and the bytes that a device has to send.

Formulas are those of rings (Rabenseifner: Optimization of Collective Reduction Operations, 2004):
of B bytes on N devices an all-gather and a reduce-scatter send B (N - 1) / N, an all-reduce both.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType

from tools.spmd_conformance.networks import (
    adam,
    attention,
    decode,
    mlp,
    residual,
    scanned_mlp,
    sequence_block,
    step,
)
from tools.spmd_conformance.program import argument, constrain

COUNTS = (2, 4, 8, 16, 32, 64)
_TOKENS, _WIDTH, _HIDDEN = 2048, 2048, 8192
_LAYERS = 6
_PLACES = 4
"""Of tokens of a group at an expert."""
_HALF, _SINGLE = 2, 4
"""Bytes of an element."""


@dataclass(frozen=True)
class Row:
    """One program, for any number of devices."""

    name: str
    what: str
    """Its sizes, for people."""
    mesh: tuple[int, ...]
    """Sizes of its axes; 0: the devices that the others leave."""
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    """As `spmd_conformance.program` has them."""
    sent_bytes: Callable[[int], float]
    """What a device has to send for large arrays, given the number of devices."""
    why: str
    """What that is, for people."""

    def text(self, devices: int) -> str:
        """Return the program for so many devices, as JAX lowers it."""
        fixed = 1
        for size in self.mesh:
            fixed *= size or 1
        sizes = tuple(size or devices // fixed for size in self.mesh)
        axes = ("a", "b", "c")[: len(sizes)]
        mesh = AbstractMesh(sizes, axes, axis_types=(AxisType.Auto,) * len(sizes))
        given = [argument(text, mesh)[0] for text in self.arguments]
        with jax.sharding.use_abstract_mesh(mesh):
            traced = jax.jit(self.function, keep_unused=True).trace(*given)
        return str(traced.lower(lowering_platforms=("cpu",)).as_text(dialect="hlo"))


def _ring(size: float, devices: int) -> float:
    return size * (devices - 1) / devices


def _whole_weights(*arrays: Any) -> Any:
    """One step of Adam whose new weights are whole everywhere."""
    new = adam(*arrays)
    return [constrain(x, "-,-") if n % 3 == 0 else x for n, x in enumerate(new)]


def _experts(x: Any, gate: Any, up: Any, down: Any) -> Any:
    """Experts whose tokens are sent in their own type; scores and places are single floats."""
    scores = jax.nn.softmax(jnp.einsum("gsd,de->gse", x, gate).astype(jnp.float32), -1)
    first = jax.nn.one_hot(scores.argmax(-1), scores.shape[-1])
    places = jnp.cumsum(first, 1) * first - 1
    dispatch = first[..., None] * jax.nn.one_hot(places.max(-1), _PLACES)[:, :, None]
    given = dispatch.astype(x.dtype)
    sent = constrain(jnp.einsum("gsec,gsd->egcd", given, x), "a,-,-,-")
    h = jax.nn.relu(jnp.einsum("egcd,edf->egcf", sent, up))
    back = constrain(jnp.einsum("egcf,efd->egcd", h, down), "-,a,-,-")
    return jnp.einsum("gsec,egcd->gsd", given * scores[..., None].astype(x.dtype), back)


def _scanned(name: str, mesh: tuple[int, ...], data: str, model: str) -> Row:
    """Return layers in a loop on a mesh of two axes."""
    up, down = f"-,-,{model}", f"-,{model},-"
    return Row(
        name, "step, 6 layers of 1,024 to 4,096, 2,048 tokens, f16", mesh, step(scanned_mlp),
        (f"float16 2048,1024:{data},-", f"float16 6,1024,4096:{up}", f"float16 6,4096,1024:{down}"),
        lambda n: 2 * _LAYERS * 2 * _ring(_TOKENS // 2 * 1024 * _HALF, n // 2)
        + 2 * _ring(_LAYERS * 2 * 1024 * 4096 * _HALF / (n // 2), 2),
        "2 all-reduces of tokens a layer; gradients over data",
    )  # fmt: skip


def rows() -> Iterator[Row]:
    """Yield the rows of the table."""
    tokens = _TOKENS * _WIDTH * _HALF
    yield Row(
        "Megatron MLP",
        "step, 2,048 tokens, 2,048 to 8,192 wide, f16",
        (0,),
        step(mlp),
        ("float16 2048,2048:-,-", "float16 2048,8192:-,a", "float16 8192,2048:a,-"),
        lambda n: 2 * _ring(tokens, n),
        "1 all-reduce of the tokens forwards",
    )
    yield Row(
        "Megatron attention",
        "step, 4 x 512 tokens, 64 heads of 32, f16",
        (0,),
        step(attention),
        ("float16 4,512,2048:-,-,-", *["float16 2048,64,32:-,a,-"] * 3, "float16 64,32,2048:a,-,-"),
        lambda n: 2 * _ring(tokens, n),
        "1 all-reduce of the tokens forwards",
    )
    weights = 2 * 1024 * 4096 * _SINGLE
    whole = "1024,4096:-,-", "4096,1024:-,-"
    parts = "1024,4096:a,-", "4096,1024:a,-"
    yield Row(
        "FSDP, Adam",
        "16,384 tokens, 1,024 to 4,096 wide, f32",
        (0,),
        adam,
        ("16384,1024:a,-", *parts, *parts, *parts),
        lambda n: 2 * _ring(weights, n),
        "weights gathered, gradients scattered",
    )
    yield Row(
        "ZeRO-1, Adam",
        "the same, moments divided",
        (0,),
        _whole_weights,
        ("16384,1024:a,-", *whole, *parts, *parts),
        lambda n: 2 * _ring(weights, n),
        "gradients scattered, weights gathered",
    )
    sent = 64 * 64 * _PLACES * 512 * _HALF
    yield Row(
        "experts",
        "step, 64 groups of 64 tokens, 64 experts of 512 to 1,024, f16",
        (0,),
        step(_experts),
        (
            "float16 64,64,512:a,-,-",
            "float16 512,64:-,-",
            "float16 64,512,1024:a,-,-",
            "float16 64,1024,512:a,-,-",
        ),
        lambda n: 4 * _ring(sent / n, n) + 2 * _ring(512 * 64 * _HALF, n),
        "4 all-to-alls; the gate's gradient",
    )
    halo = 8 * 512 * 32 * _HALF
    yield Row(
        "convolutions, space divided",
        "residual step, 8 images of 512 x 512 x 32, f16",
        (0,),
        step(residual),
        ("float16 8,512,512,32:-,a,-,-", *["float16 3,3,32,32:-,-,-,-"] * 2),
        lambda n: 5 * 2 * halo + 2 * _ring(2 * 9 * 32 * 32 * _HALF, n),
        "2 rows for each of 5 convolutions; kernels' gradients",
    )
    yield Row(
        "sequence-parallel block",
        "step, 4 x 512 tokens, 2,048 wide, 64 heads, f16",
        (1, 0),
        step(sequence_block),
        (
            "float16 4,512,2048:a,-,-",
            *["float16 2048,64,32:-,b,-"] * 3,
            "float16 64,32,2048:b,-,-",
            "float16 2048,8192:-,b",
            "float16 8192,2048:b,-",
        ),
        lambda n: (4 + 3) * _ring(tokens, n),
        "2 gathers and 2 scatters forwards, 3 backwards",
    )
    yield _scanned("scan over layers, data major", (2, 0), "a", "b")
    yield _scanned("scan over layers, data minor", (0, 2), "b", "a")
    cache = ("float16 16,64,2048,64:-,a,-,-",) * 2
    yield Row(
        "decoding with a cache", "16 sequences, 64 heads of 64, 2,048 words kept, f16", (0,),
        decode,
        ("float16 16,64,64:-,a,-", *cache, "int32<2048 ", "float16 16,64,1,64:-,a,-,-"),
        lambda n: 0.0, "nothing",
    )  # fmt: skip
