"""What a case draws from: sizes of real networks, or small ones; parameters as it needs them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from random import Random
from typing import TypeVar

from tools.fuzz_blocks import nodes as n
from tools.fuzz_blocks.nodes import Node

T = TypeVar("T")

FLOATS = ("f32", "f32", "f32", "f16", "f16", "bf16", "bf16")
NARROWEST = ("f8e4m3fn", "f8e5m2")


@dataclass(frozen=True, slots=True)
class Scale:
    """From which sizes a case draws; a size that is listed twice comes twice as often."""

    hidden: tuple[int, ...]
    tokens: tuple[int, ...]
    batch: tuple[int, ...]
    heads: tuple[int, ...]
    head: tuple[int, ...]
    vocabulary: tuple[int, ...]
    experts: tuple[int, ...]
    images: tuple[int, ...]
    channels: tuple[int, ...]
    layers: tuple[int, ...]
    most: int
    """Elements of the largest array."""


REAL = Scale(
    hidden=(
        256, 384, 512, 512, 768, 768, 1000, 1024, 1024, 1280, 1536, 1600, 2048, 2048, 2560, 3072,
        4096, 4096, 5120, 6144, 8192, 11008, 12288, 14336, 16384,
    ),
    tokens=(
        1, 16, 49, 64, 77, 128, 128, 197, 256, 256, 384, 500, 512, 512, 577, 1024, 1024, 1500,
        2048, 2048, 4096, 8192,
    ),
    batch=(1, 1, 1, 2, 2, 3, 4, 4, 8, 8, 16, 32, 64),
    heads=(1, 4, 6, 8, 12, 12, 16, 20, 25, 32, 32, 40, 64),
    head=(32, 40, 64, 64, 64, 80, 96, 128, 128, 256),
    vocabulary=(2, 10, 1000, 8192, 30522, 32000, 32128, 50257, 50304, 128256, 151936, 256000),
    experts=(2, 4, 8, 8, 16, 32, 64, 128),
    images=(7, 14, 16, 28, 32, 32, 56, 64, 96, 112, 128, 224, 224, 256, 299, 384, 512),
    channels=(1, 3, 3, 4, 16, 24, 32, 64, 64, 96, 128, 256, 320, 512, 960, 1280, 2048),
    layers=(2, 2, 3, 4, 6, 12, 24, 32, 48, 80),
    most=1 << 29,
)  # fmt: skip
UNEVEN = Scale(
    hidden=(17, 30, 64, 97, 100, 131, 192, 257, 384, 500, 769),
    tokens=(1, 5, 13, 31, 64, 97, 100, 197, 333),
    batch=(1, 1, 2, 3, 5, 7, 11),
    heads=(1, 2, 3, 5, 6, 7, 12),
    head=(2, 6, 10, 16, 20, 34, 50, 64),
    vocabulary=(2, 10, 97, 500, 1009, 5003),
    experts=(2, 3, 5, 8, 13),
    images=(3, 5, 7, 11, 14, 17, 23, 31, 37),
    channels=(1, 2, 3, 5, 8, 12, 20, 24, 33, 56, 72),
    layers=(2, 3, 5, 7),
    most=1 << 22,
)
"""Sizes that hardly anything divides."""
SMALL = Scale(
    hidden=(1, 2, 3, 4, 5, 6, 8, 8, 12, 16),
    tokens=(1, 2, 3, 4, 5, 6, 8, 8, 12),
    batch=(1, 1, 2, 2, 3, 4),
    heads=(1, 2, 2, 3, 4),
    head=(1, 2, 3, 4, 8),
    vocabulary=(2, 5, 10, 17, 32),
    experts=(2, 3, 4, 8),
    images=(3, 4, 5, 6, 7, 8),
    channels=(1, 2, 3, 4, 6, 8),
    layers=(2, 2, 3, 4),
    most=1 << 12,
)


SCALES = {"real": REAL, "uneven": UNEVEN, "small": SMALL}


class Draw:
    """The choices of one case, and the parameters that it has come to need."""

    def __init__(self, random: Random, scale: Scale) -> None:
        """Begin a case: its element type is drawn first."""
        self.random = random
        self.scale = scale
        self.is_plain = random.random() < 0.5
        """Whether nothing is put between one op and the next that a block does not need."""
        self.type = random.choice(FLOATS)
        self.weights: list[Node] = []
        self.inputs: list[Node] = []

    def one(self, choices: Sequence[T]) -> T:
        """Return one of several."""
        return self.random.choice(choices)

    def maybe(self, share: float = 0.5) -> bool:
        """Return true that often."""
        return self.random.random() < share

    def sizes(self, draw: Callable[[], tuple[int, ...]], most: int = 0) -> tuple[int, ...]:
        """Return sizes whose product is not beyond the largest array."""
        bound = min(most or self.scale.most, self.scale.most)
        for _ in range(40):
            sizes = draw()
            if prod(sizes) <= bound:
                return sizes
        return tuple(min(x, 8) for x in sizes)

    def weight(self, *sizes: int, type_: str = "") -> Node:
        """Return a parameter that is trained, in a type of its own now and then."""
        stored = type_ or ("f32" if self.type != "f32" and self.maybe(0.3) else self.type)
        parameter = n.parameter(stored, sizes)
        self.weights.append(parameter)
        return n.converted(parameter, type_ or self.type)

    def input(self, *sizes: int, type_: str = "") -> Node:
        """Return a parameter that is data."""
        parameter = n.parameter(type_ or self.type, sizes)
        self.inputs.append(parameter)
        return parameter

    def ids(self, below: int, *sizes: int) -> Node:
        """Return a parameter that numbers something."""
        parameter = n.parameter("s32", sizes, below)
        self.inputs.append(parameter)
        return parameter

    def activation(self, x: Node) -> Node:
        """Return an array after one of the usual nonlinearities, or as it is."""
        if self.is_plain and self.maybe():
            return x
        kind = self.one(("none", "none", "relu", "tanh", "gelu", "silu", "square"))
        if kind == "relu":
            return n.elementwise("maximum", x, n.full(x.type, x.sizes, 0))
        if kind == "tanh":
            return n.elementwise("tanh", x)
        if kind == "silu":
            return n.elementwise("multiply", x, n.elementwise("logistic", x))
        if kind == "square":
            return n.elementwise("multiply", x, x)
        return _gelu(x) if kind == "gelu" else x

    def biased(self, x: Node) -> Node:
        """Return an array with a bias along its last dimension, or as it is."""
        if self.maybe(0.8 if self.is_plain else 0.5):
            return x
        bias = self.weight(x.sizes[-1])
        return n.elementwise("add", x, n.broadcast(bias, x.sizes, (x.rank - 1,)))

    def seen(self, x: Node) -> Node:
        """Return the same array, now and then by way of another shape, order or type."""
        while not self.is_plain and self.maybe(0.25):
            x = self._seen_once(x)
        return x

    def _seen_once(self, x: Node) -> Node:
        kind = self.one(("convert", "transpose", "split", "merge", "copy", "extra"))
        if kind == "convert":
            between = self.one(("f32", "f16", "bf16", *NARROWEST) if self.maybe(0.3) else ("f32",))
            return n.converted(n.converted(x, between), x.type)
        if kind == "transpose" and x.rank > 1:
            order = self.random.sample(range(x.rank), x.rank)
            there = self.seen(n.transpose(x, order))
            return n.transpose(there, [order.index(i) for i in range(x.rank)])
        if kind == "split":
            return n.reshape(self.seen(n.reshape(x, self.split(x.sizes))), x.sizes)
        if kind == "merge" and x.rank > 1:
            at = self.random.randrange(x.rank - 1)
            merged = (*x.sizes[:at], x.sizes[at] * x.sizes[at + 1], *x.sizes[at + 2 :])
            return n.reshape(self.seen(n.reshape(x, merged)), x.sizes)
        if kind == "extra":
            at = self.random.randrange(x.rank + 1)
            return n.reshape(n.reshape(x, (*x.sizes[:at], 1, *x.sizes[at:])), x.sizes)
        return n.elementwise("copy", x)

    def split(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return sizes with one dimension as two."""
        at = self.random.randrange(len(sizes))
        usual = [d for d in (2, 3, 4, 8, 12, 16, 32, 64, 128) if sizes[at] % d == 0] or [1]
        by = self.one(usual)
        halves = (by, sizes[at] // by) if self.maybe() else (sizes[at] // by, by)
        return (*sizes[:at], *halves, *sizes[at + 1 :])


def _gelu(x: Node) -> Node:
    """Return the tanh form of the Gaussian error linear unit."""
    cube = n.elementwise("multiply", n.elementwise("multiply", x, x), x)
    inner = n.elementwise("add", x, n.elementwise("multiply", cube, _like(x, 0.044715)))
    bent = n.elementwise("tanh", n.elementwise("multiply", inner, _like(x, 0.797885)))
    share = n.elementwise("multiply", n.elementwise("add", bent, _like(x, 1)), _like(x, 0.5))
    return n.elementwise("multiply", x, share)


def _like(x: Node, value: float) -> Node:
    return n.full(x.type, x.sizes, value)


def softmax(x: Node, dimension: int = -1) -> Node:
    """Return a softmax along one dimension."""
    at = dimension % x.rank
    kept = [i for i in range(x.rank) if i != at]
    most = n.broadcast(n.reduce(x, (at,), "maximum"), x.sizes, kept)
    powers = n.elementwise("exponential", n.elementwise("subtract", x, most))
    return n.elementwise("divide", powers, n.broadcast(n.reduce(powers, (at,)), x.sizes, kept))
