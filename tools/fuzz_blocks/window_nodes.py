"""Convolutions and pooling as nodes, with every attribute of their windows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tools.fuzz_blocks.nodes import Node, Region, Sizes, constant, elementwise, parameter
from tools.fuzz_blocks.nodes import scalar_region as scalar


@dataclass(frozen=True, slots=True)
class Window:
    """A window over the spatial dimensions."""

    sizes: Sizes
    strides: Sizes
    low: Sizes
    high: Sizes
    base: Sizes
    """Dilation of what the window goes over."""
    inner: Sizes
    """Dilation of the window."""

    def text(self) -> str:
        """Return the attribute."""
        edges = zip(self.low, self.high, strict=True)
        words = ["size=" + _by(self.sizes)]
        words += ["stride=" + _by(self.strides)] if set(self.strides) - {1} else []
        if any((*self.low, *self.high)):
            words.append("pad=" + "x".join(f"{a}_{b}" for a, b in edges))
        words += ["lhs_dilate=" + _by(self.base)] if set(self.base) - {1} else []
        words += ["rhs_dilate=" + _by(self.inner)] if set(self.inner) - {1} else []
        return "window={" + " ".join(words) + "}"

    def results(self, sizes: Sequence[int]) -> Sizes:
        """Return how often the window stands along each dimension."""
        counts = []
        for i, size in enumerate(sizes):
            room = (size - 1) * self.base[i] + 1 + self.low[i] + self.high[i]
            reach = (self.sizes[i] - 1) * self.inner[i] + 1
            counts.append(max(0, (room - reach) // self.strides[i] + 1))
        return tuple(counts)


def _by(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def window(
    sizes: Sequence[int], strides: Sequence[int], inner: Sequence[int], edges: Sequence[Sizes]
) -> Window:
    """Return a window of a forward op; `edges`: low and high padding."""
    low, high = (tuple(x) for x in edges)
    return Window(tuple(sizes), tuple(strides), low, high, (1,) * len(low), tuple(inner))


@dataclass(frozen=True, slots=True)
class Convolution:
    """How a convolution's operands are laid out, and its groups; labels as HLO writes them."""

    window: Window
    lhs: str
    rhs: str
    result: str
    groups: int = 1
    batch_groups: int = 1

    @property
    def labels(self) -> str:
        """The attribute's value."""
        return f"{self.lhs}_{self.rhs}->{self.result}"


@dataclass(frozen=True, slots=True, eq=False)
class WindowNode(Node):
    """A node that keeps how its window goes."""

    convolution: Convolution | None = None
    pooling: Window | None = None


def spatial(labels: str) -> list[int]:
    """Return the places of spatial dimensions, in their order."""
    return [labels.index(a) for a in sorted(x for x in labels if x.isdigit())]


def convolution(x: Node, kernel: Node, how: Convolution) -> Node:
    """Return a convolution; the window's sizes are the kernel's."""
    sizes = tuple(kernel.sizes[i] for i in spatial(how.rhs))
    how = replace(how, window=replace(how.window, sizes=sizes))
    stands = how.window.results([x.sizes[i] for i in spatial(how.lhs)])
    known = {str(i): size for i, size in enumerate(stands)}
    known["b"] = x.sizes[how.lhs.index("b")] // how.batch_groups
    known["f"] = kernel.sizes[how.rhs.index("o")]
    said = [how.window.text(), f"dim_labels={how.labels}"]
    said += [f"feature_group_count={how.groups}"] if how.groups > 1 else []
    said += [f"batch_group_count={how.batch_groups}"] if how.batch_groups > 1 else []
    shape = tuple(known[a] for a in how.result)
    return WindowNode(
        "convolution", (x, kernel), x.type, shape, said=", ".join(said), convolution=how
    )


def pooled(x: Node, how: Window, opcode: str) -> Node:
    """Return the sum, or the largest element, of each window; it spans all dimensions."""
    start = constant(x.type, 0 if opcode == "add" else float("-inf"))
    called = (("to_apply", scalar(opcode, x.type)),)
    sizes = how.results(x.sizes)
    return WindowNode(
        "reduce-window", (x, start), x.type, sizes, said=how.text(), called=called, pooling=how
    )


def scattered(x: Node, given: Node, how: Window) -> Node:
    """Return each window's number at the place of the window's largest element."""
    said = how.text()
    called = (("select", scalar("GE", x.type)), ("scatter", _sum(x.type)))
    operands = (x, given, constant(x.type, 0))
    return Node("select-and-scatter", operands, x.type, x.sizes, said=said, called=called)


def _sum(type_: str) -> Region:
    x, y = parameter(type_, ()), parameter(type_, ())
    return Region((x, y), elementwise("add", x, y))
