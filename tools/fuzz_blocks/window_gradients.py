"""Gradients of convolutions and pooling: transposed convolutions, dilated windows, scatters."""

from collections.abc import Sequence
from dataclasses import replace

from tools.fuzz_blocks import nodes as n
from tools.fuzz_blocks.nodes import Node
from tools.fuzz_blocks.window_nodes import (
    Convolution,
    Window,
    WindowNode,
    convolution,
    pooled,
    scattered,
    spatial,
)


def convolved(x: Node, given: Node) -> Sequence[Node | None]:
    """Return the gradients of a convolution's image and kernel."""
    assert isinstance(x, WindowNode)
    assert x.convolution is not None
    image, kernel = x.operands
    how = x.convolution
    return _of_image(image, kernel, given, how), _of_kernel(image, kernel, given, how)


def _of_image(image: Node, kernel: Node, given: Node, how: Convolution) -> Node:
    """Return the image's gradient: a convolution of the result's with the kernel turned round."""
    w = how.window
    sizes = [image.sizes[i] for i in spatial(how.lhs)]
    stands = [given.sizes[i] for i in spatial(how.result)]
    reach = [(a - 1) * b + 1 for a, b in zip(w.sizes, w.inner, strict=True)]
    low = tuple(a - 1 - b for a, b in zip(reach, w.low, strict=True))
    spread = [(a - 1) * b + 1 for a, b in zip(stands, w.strides, strict=True)]
    high = tuple(
        size + a - 1 - b - c for size, a, b, c in zip(sizes, reach, spread, low, strict=True)
    )
    ones = (1,) * len(sizes)
    back = Window(w.sizes, ones, low, high, w.strides, w.inner)
    turned = n.reverse(kernel, spatial(how.rhs))
    labels = how.rhs.replace("i", "x").replace("o", "i").replace("x", "o")
    if how.groups > 1:
        turned = _regrouped(turned, how)
        labels = how.rhs
    return convolution(given, turned, Convolution(back, how.result, labels, how.lhs, how.groups))


def _regrouped(kernel: Node, how: Convolution) -> Node:
    """Return a kernel of several groups with inputs and outputs of each group exchanged."""
    i, o = how.rhs.index("i"), how.rhs.index("o")
    sizes = list(kernel.sizes)
    split = [*sizes[:o], how.groups, sizes[o] // how.groups, *sizes[o + 1 :]]
    apart = n.reshape(kernel, split)
    inner = i + 1 if i > o else i
    order = [x for x in range(apart.rank) if x not in (o, o + 1, inner)]
    others = iter(order)
    wanted: list[int] = []
    for place in range(kernel.rank):
        wanted += [o, inner] if place == o else [o + 1] if place == i else [next(others)]
    sizes[i], sizes[o] = kernel.sizes[o] // how.groups, kernel.sizes[i] * how.groups
    return n.reshape(n.transpose(apart, wanted), sizes)


def _of_kernel(image: Node, kernel: Node, given: Node, how: Convolution) -> Node:
    """Return the kernel's gradient: the result's gradient slides over the image."""
    w = how.window
    sizes = [image.sizes[i] for i in spatial(how.lhs)]
    stands = tuple(given.sizes[i] for i in spatial(how.result))
    high = tuple(
        (stands[i] - 1) * w.strides[i] + 1 + (w.sizes[i] - 1) * w.inner[i] - sizes[i] - w.low[i]
        for i in range(len(sizes))
    )
    slid = Window(stands, w.inner, w.low, high, (1,) * len(sizes), w.strides)
    lhs = how.lhs.replace("b", "x").replace("f", "b").replace("x", "f")
    rhs = how.result.replace("b", "i").replace("f", "o")
    result = how.rhs.replace("i", "b").replace("o", "f")
    return convolution(image, given, Convolution(slid, lhs, rhs, result, 1, how.groups))


def pooled_windows(x: Node, given: Node) -> Sequence[Node | None]:
    """Return the gradient of pooling: spread, or at the largest element of each window."""
    assert isinstance(x, WindowNode)
    assert x.pooling is not None
    source, how = x.operands[0], x.pooling
    if x.called[0][1].root.opcode != "add":
        return scattered(source, given, how), None
    steps = [a - 1 for a in how.strides]
    low = [a - 1 - b for a, b in zip(how.sizes, how.low, strict=True)]
    spread = [(a - 1) * b + 1 for a, b in zip(x.sizes, how.strides, strict=True)]
    high = [
        size + a - 1 - b - c
        for size, a, b, c in zip(source.sizes, how.sizes, spread, low, strict=True)
    ]
    ones, zeros = (1,) * x.rank, (0,) * x.rank
    once = replace(how, strides=ones, low=zeros, high=zeros)
    return pooled(n.pad(given, low, high, steps), once, "add"), None
