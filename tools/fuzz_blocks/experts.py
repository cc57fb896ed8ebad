"""Mixtures of experts: the best few of a router, by one-hot dispatch, by sums over all, by rows."""

from tools.fuzz_blocks import nodes as n
from tools.fuzz_blocks.draws import Draw, softmax
from tools.fuzz_blocks.nodes import Node


def experts(draw: Draw) -> Node:
    """Return a mixture of experts' result."""
    scale = draw.scale
    kind = draw.one(("dispatch", "dispatch", "all", "rows"))
    few = [t for t in scale.tokens if t <= 16]

    def sizes() -> tuple[int, ...]:
        t = draw.one(few if kind == "rows" else scale.tokens)
        return t, draw.one(scale.experts), draw.one(scale.hidden)

    t, e, h = draw.sizes(sizes, scale.most >> 4)
    k = min(e, draw.one((1, 2, 2, 4)))
    f = min(draw.one(scale.hidden), max(1, scale.most // (e * h)), max(1, scale.most // (e * t)))
    x = draw.input(t, h)
    logits = n.converted(n.product(x, "th", draw.weight(h, e), "he", "te"), "f32")
    shares = softmax(logits) if draw.maybe() else logits
    best, chosen = _best(draw, shares, k)
    if kind == "rows":
        return _by_rows(draw, x, (chosen, best), (e, f))
    weights = _one_hot(chosen, best, e, x.type)
    first, second = draw.weight(e, h, f), draw.weight(e, f, h)
    if kind == "all":
        wide = draw.activation(
            n.product(x, "th", draw.seen(first), "ehf", draw.one(("etf", "tef")))
        )
        order = "etf" if wide.sizes[0] == e and wide.sizes[1] == t else "tef"
        back = n.product(wide, order, draw.seen(second), "efh", "teh")
        return n.product(back, "teh", weights, "te", "th")
    room = min(max(1, -(-t * k // e)), max(1, scale.most // (t * e)))
    return _by_dispatch(draw, x, weights, (first, second), room)


def _best(draw: Draw, shares: Node, k: int) -> tuple[Node, Node]:
    """Return the largest shares and the experts that have them."""
    if draw.maybe():
        return n.top_k(shares, k)
    numbers = n.iota("s32", shares.sizes, 1)
    values, order = n.sorted_pair(shares, numbers, 1)
    return n.part(values, 1, 0, k), n.part(order, 1, 0, k)


def _one_hot(chosen: Node, shares: Node, count: int, type_: str) -> Node:
    """Return each token's share of each expert, 0 for most."""
    sizes = (*chosen.sizes, count)
    spread = n.broadcast(chosen, sizes, (0, 1))
    hot = n.compare("EQ", spread, n.iota("s32", sizes, 2))
    shares = n.broadcast(n.converted(shares, type_), sizes, (0, 1))
    return n.reduce(n.elementwise("select", hot, shares, n.full(type_, sizes, 0)), (1,))


def _by_dispatch(draw: Draw, x: Node, weights: Node, stored: tuple[Node, Node], room: int) -> Node:
    """Return the sum of experts that each see a few tokens."""
    t, e = weights.sizes
    used = n.converted(n.compare("GT", weights, n.full(weights.type, (t, e), 0)), "f32")
    below = n.compare("GE", n.iota("s32", (t, t), 0), n.iota("s32", (t, t), 1))
    places = n.product(n.converted(below, "f32"), "st", used, "te", "se")
    numbers = n.converted(places, "s32")
    sizes = (t, e, room)
    here = n.compare("EQ", n.broadcast(numbers, sizes, (0, 1)), n.iota("s32", sizes, 2))
    mask = n.elementwise("multiply", n.converted(here, "f32"), n.broadcast(used, sizes, (0, 1)))
    mask = n.converted(mask, x.type)
    order = draw.one(("ech", "ceh"))
    sent = draw.seen(n.product(mask, "tec", x, "th", order))
    inner = draw.one(("ecf", "cef"))
    wide = draw.activation(n.product(sent, order, draw.seen(stored[0]), "ehf", inner))
    back = draw.seen(n.product(wide, inner, draw.seen(stored[1]), "efh", order))
    shared = n.elementwise("multiply", mask, n.broadcast(weights, sizes, (0, 1)))
    return n.product(shared, "tec", back, order, "th")


def _by_rows(draw: Draw, x: Node, best: tuple[Node, Node], sizes: tuple[int, int]) -> Node:
    """Return the sum of experts whose weights are taken by number, for few tokens."""
    chosen, shares = best
    (t, h), (e, f) = x.sizes, sizes
    k = chosen.sizes[1]
    f = min(f, max(1, draw.scale.most // (t * k * h)), max(1, draw.scale.most // (e * h)))
    first = n.gather_rows(draw.weight(e, h * f), chosen)
    second = n.gather_rows(draw.weight(e, f * h), chosen)
    wide = n.product(x, "th", n.reshape(first, (t, k, h, f)), "tkhf", "tkf")
    back = n.product(draw.activation(wide), "tkf", n.reshape(second, (t, k, f, h)), "tkfh", "tkh")
    return n.product(back, "tkh", n.converted(shares, x.type), "tk", "th")
