"""Convolutions of every kind, pooling and norms between them, on images, sounds and volumes."""

from math import prod

from tools.fuzz_blocks import nodes as n
from tools.fuzz_blocks.dense import normalised, projected
from tools.fuzz_blocks.draws import Draw
from tools.fuzz_blocks.nodes import Node
from tools.fuzz_blocks.window_nodes import Convolution, convolution, pooled, window


def images(draw: Draw) -> Node:
    """Return a few convolutions and poolings one after the other."""
    scale = draw.scale
    spatial = draw.one((1, 2, 2, 2, 2, 2, 3))
    first = draw.maybe(0.3)

    def sizes() -> tuple[int, ...]:
        side = draw.one(scale.images)
        sides = (side,) * spatial if draw.maybe(0.8) else draw_sides(draw, spatial)
        return (draw.one(scale.batch), *sides, draw.one(scale.channels))

    shape = draw.sizes(sizes, 1 << 25)
    digits = "012"[:spatial]
    order = f"bf{digits}" if first else f"b{digits}f"
    batch, *sides, channels = shape
    x = draw.input(*((batch, channels, *sides) if first else shape))
    for _ in range(draw.one((1, 1, 2, 2, 3))):
        x = _step(draw, x, order)
    if draw.maybe(0.25):
        places = tuple(i for i, a in enumerate(order) if a.isdigit())
        x = projected(draw, n.reduce(x, places), draw.one(scale.vocabulary[:3]))
    return x


def draw_sides(draw: Draw, spatial: int) -> tuple[int, ...]:
    """Return an image's sides, each of its own."""
    return tuple(draw.one(draw.scale.images) for _ in range(spatial))


def _step(draw: Draw, x: Node, order: str) -> Node:
    kind = draw.one(("conv", "conv", "conv", "pool", "norm", "residual"))
    if kind == "pool" and min(_sides(x, order)) > 1:
        return _pooled(draw, x, order)
    if kind == "norm":
        axis = order.index("f")
        wide = normalised(n.converted(x, "f32"), tuple(i for i in range(x.rank) if i != axis))
        factor = n.broadcast(n.converted(draw.weight(x.sizes[axis]), "f32"), x.sizes, (axis,))
        return n.converted(n.elementwise("multiply", wide, factor), x.type)
    convolved = _convolved(draw, x, order)
    if kind == "residual" and convolved.sizes == x.sizes:
        return draw.activation(n.elementwise("add", x, convolved))
    return convolved


def _sides(x: Node, order: str) -> list[int]:
    return [size for size, a in zip(x.sizes, order, strict=True) if a.isdigit()]


def _convolved(draw: Draw, x: Node, order: str) -> Node:
    sides = _sides(x, order)
    channels = x.sizes[order.index("f")]
    kernel = draw.one((1, 1, 3, 3, 3, 5, 7, 16))
    kernel = kernel if kernel <= min(sides) else 1
    stride = draw.one((1, 1, 1, 2, 2, kernel))
    inner = draw.one((1, 1, 1, 1, 2, 4)) if (kernel - 1) * 4 < min(sides) else 1
    reach = (kernel - 1) * inner
    edges = (reach // 2, reach - reach // 2) if draw.maybe(0.7) else (0, 0)
    count = len(sides)
    groups = 1
    if draw.maybe(0.3):
        groups = draw.one([g for g in (2, 4, 8, 32) if channels % g == 0] + [channels])
    most = max(1, (1 << 25) // max(1, prod(x.sizes) // channels // stride**count))
    wanted = [c for c in draw.scale.channels if c % groups == 0 and c <= most]
    outs = draw.one([*wanted, channels, channels]) if channels <= most or not wanted else 1
    outs = outs if outs % groups == 0 else channels
    digits = "012"[:count]
    labels = f"oi{digits}" if order[1] == "f" else f"{digits}io"
    known = {"i": channels // groups, "o": outs, **dict.fromkeys(digits, kernel)}
    weight = draw.weight(*(known[a] for a in labels))
    how = window((kernel,) * count, (stride,) * count, (inner,) * count,
                 [(edges[0],) * count, (edges[1],) * count])  # fmt: skip
    result = convolution(draw.seen(x), weight, Convolution(how, order, labels, order, groups))
    if draw.maybe():
        axis = order.index("f")
        result = n.elementwise("add", result, n.broadcast(draw.weight(outs), result.sizes, (axis,)))
    return draw.activation(result)


def _pooled(draw: Draw, x: Node, order: str) -> Node:
    side = draw.one([s for s in (2, 2, 3, 5) if s <= min(_sides(x, order))])
    stride = draw.one((1, 2, side))
    high = 1 if draw.maybe(0.3) and side > 2 else 0
    places = [a.isdigit() for a in order]
    how = window(
        [side if p else 1 for p in places],
        [stride if p else 1 for p in places],
        (1,) * x.rank,
        [tuple(high if p else 0 for p in places)] * 2,
    )
    if draw.maybe():
        return pooled(x, how, "maximum")
    total = pooled(x, how, "add")
    return n.elementwise("multiply", total, n.full(total.type, total.sizes, side**-2))
