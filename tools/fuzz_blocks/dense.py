"""Projections, products in every order of dimensions, and norms."""

from math import prod

from tools.fuzz_blocks import nodes as n
from tools.fuzz_blocks.draws import NARROWEST, Draw
from tools.fuzz_blocks.nodes import Node

LETTERS = "abcdefgh"


def tokens(draw: Draw) -> Node:
    """Return data of a batch of sequences, or of tokens in one row."""
    scale = draw.scale
    if draw.maybe(0.3):
        return draw.input(*draw.sizes(lambda: (draw.one(scale.tokens), draw.one(scale.hidden))))
    b, t, h = draw.sizes(
        lambda: (draw.one(scale.batch), draw.one(scale.tokens), draw.one(scale.hidden)),
        scale.most >> 4,
    )
    return draw.input(b, t, h)


def projected(draw: Draw, x: Node, width: int) -> Node:
    """Return an array's product with a weight along its last dimension."""
    depth = x.sizes[-1]
    axes = LETTERS[: x.rank - 1]
    x = draw.seen(x)
    if draw.maybe(0.1) and draw.type != "f32":
        narrow = draw.one(NARROWEST)
        weight = draw.seen(draw.weight(depth, width))
        projection = n.product(
            n.converted(x, narrow), axes + "k", n.converted(weight, narrow), "kn", axes + "n",
            draw.type,
        )  # fmt: skip
    elif draw.maybe(0.3):
        weight = draw.seen(draw.weight(width, depth))
        projection = n.product(x, axes + "k", weight, "nk", axes + "n")
    elif draw.maybe(0.2) and x.rank > 2:
        flat = n.reshape(x, (prod(x.sizes[:-1]), depth))
        projection = n.product(flat, "rk", draw.weight(depth, width), "kn", "rn")
        projection = n.reshape(projection, (*x.sizes[:-1], width))
    else:
        weight = draw.seen(draw.weight(depth, width))
        projection = n.product(x, axes + "k", weight, "kn", axes + "n")
    return draw.seen(draw.biased(projection))


def dense(draw: Draw) -> Node:
    """Return a few projections one after the other, gated and with residuals now and then."""
    x = tokens(draw)
    for _ in range(draw.one((1, 1, 2, 2, 3))):
        x = layered(draw, x)
    return x


def layered(draw: Draw, x: Node) -> Node:
    """Return one perceptron layer: wide, gated or plain."""
    kind = draw.one(("plain", "wide", "gated"))
    room = max(1, draw.scale.most // max(1, prod(x.sizes[:-1])))
    width = min(draw.one(draw.scale.hidden), room)
    if kind == "plain":
        return draw.activation(projected(draw, x, width))
    inner = normed(draw, x) if draw.maybe() else x
    wide = draw.activation(projected(draw, inner, width))
    if kind == "gated":
        wide = n.elementwise("multiply", wide, projected(draw, inner, width))
    return n.elementwise("add", x, projected(draw, wide, x.sizes[-1]))


def products(draw: Draw) -> Node:
    """Return products of arrays in any order of dimensions, views and other ops between them."""
    names = draw.random.sample(LETTERS, draw.one((3, 3, 4, 4, 5)))
    scale = draw.scale
    pool = [*scale.tokens, *scale.hidden, *scale.heads, *scale.head, *scale.batch]
    kinds = {name: draw.one(("both", "first", "second", "summed", "first")) for name in names}
    kinds[names[0]], kinds[names[1]], kinds[names[2]] = "summed", "first", "second"
    for _ in range(200):
        known = {name: draw.one(pool) for name in names}
        sides = [[a for a in names if kinds[a] != other] for other in ("second", "first")]
        wanted = [a for a in names if kinds[a] != "summed"]
        if all(prod(known[a] for a in x) <= scale.most for x in (*sides, wanted)):
            break
    else:
        known = dict.fromkeys(names, 4)
    orders = ["".join(draw.random.sample(x, len(x))) for x in (*sides, wanted)]
    x = draw.input(*(known[a] for a in orders[0]))
    if draw.maybe(0.3):
        x = draw.activation(x)
    weight = draw.seen(draw.weight(*(known[a] for a in orders[1])))
    product = draw.seen(n.product(draw.seen(x), orders[0], weight, orders[1], orders[2]))
    return _second_product(draw, product)


def _second_product(draw: Draw, x: Node) -> Node:
    """Return a product of a result, reshaped and reordered as it may be, with another weight."""
    x = draw.activation(x)
    if draw.maybe(0.5):
        x = n.transpose(x, draw.random.sample(range(x.rank), x.rank))
    while draw.maybe(0.5):
        sizes = draw.split(x.sizes)
        if draw.maybe() and len(sizes) > 2:
            at = draw.random.randrange(len(sizes) - 1)
            sizes = (*sizes[:at], sizes[at] * sizes[at + 1], *sizes[at + 2 :])
        x = n.reshape(x, sizes)
        if draw.maybe():
            x = n.transpose(x, draw.random.sample(range(x.rank), x.rank))
    if draw.maybe(0.25) or x.sizes[-1] > max(draw.scale.hidden):
        return x
    room = max(1, draw.scale.most // max(1, prod(x.sizes[:-1])))
    return projected(draw, x, min(draw.one(draw.scale.hidden), room))


def normed(draw: Draw, x: Node) -> Node:
    """Return an array after a norm of one of the usual kinds."""
    kind = draw.one(("layer", "rms", "batch", "group"))
    last = x.rank - 1
    wide = n.converted(x, "f32")
    groups = [g for g in (2, 4, 8, 32) if x.sizes[-1] % g == 0]
    if kind == "group" and groups:
        sizes = (*x.sizes[:-1], draw.one(groups), 0)
        sizes = (*sizes[:-1], x.sizes[-1] // sizes[-2])
        even = n.reshape(normalised(n.reshape(wide, sizes), (last + 1,)), x.sizes)
    elif kind == "batch":
        even = normalised(wide, tuple(range(last)))
    else:
        even = normalised(wide, (last,), centred=kind == "layer")
    scale = n.broadcast(n.converted(draw.weight(x.sizes[-1]), "f32"), x.sizes, (last,))
    even = n.elementwise("multiply", even, scale)
    return draw.biased(n.converted(even, x.type)) if kind != "rms" else n.converted(even, x.type)


def normalised(x: Node, dimensions: tuple[int, ...], *, centred: bool = True) -> Node:
    """Return an array with mean 0, unless that is left, and variance 1 along dimensions."""
    kept = [i for i in range(x.rank) if i not in dimensions]
    share = 1 / prod(x.sizes[i] for i in dimensions)
    small = [x.sizes[i] for i in kept]

    def mean(of: Node) -> Node:
        return n.elementwise("multiply", n.reduce(of, dimensions), n.full(x.type, small, share))

    if centred:
        x = n.elementwise("subtract", x, n.broadcast(mean(x), x.sizes, kept))
    spread = n.elementwise(
        "add", mean(n.elementwise("multiply", x, x)), n.full(x.type, small, 1e-5)
    )
    factor = n.broadcast(n.elementwise("rsqrt", spread), x.sizes, kept)
    return n.elementwise("multiply", x, factor)


def norms(draw: Draw) -> Node:
    """Return a norm, with a projection around it now and then."""
    x = tokens(draw)
    if draw.maybe(0.3):
        x = layered(draw, x)
    x = draw.seen(normed(draw, draw.seen(x)))
    room = max(1, draw.scale.most // max(1, prod(x.sizes[:-1])))
    return projected(draw, x, min(draw.one(draw.scale.hidden), room)) if draw.maybe() else x
