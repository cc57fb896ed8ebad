"""Tables: embeddings, losses over a vocabulary, caches of keys and values."""

from math import prod

from tools.fuzz_blocks import nodes as n
from tools.fuzz_blocks.attention import Heads, heads_drawn, repeated
from tools.fuzz_blocks.dense import layered, normed, projected
from tools.fuzz_blocks.draws import Draw, softmax
from tools.fuzz_blocks.nodes import Node


def embedding(draw: Draw) -> Node:
    """Return rows of a table, with places or a norm; a loss from the same table now and then."""
    scale = draw.scale
    v, h = draw.sizes(lambda: (draw.one(scale.vocabulary), draw.one(scale.hidden)))
    b, t, _ = draw.sizes(
        lambda: (draw.one(scale.batch), draw.one(scale.tokens), h), scale.most >> 4
    )
    table = draw.weight(v, h)
    ids = draw.ids(v, b, t) if draw.maybe(0.8) else draw.ids(v, t)
    x = n.gather_rows(table, ids)
    if draw.maybe():
        places = draw.weight(t, h)
        x = n.elementwise("add", x, n.broadcast(places, x.sizes, (x.rank - 2, x.rank - 1)))
    x = normed(draw, x) if draw.maybe(0.3) else draw.seen(x)
    x = layered(draw, x) if draw.maybe(0.3) else x
    if draw.maybe(0.3) and x.sizes[-1] == h and room_for(draw, x, v):
        axes = "bt"[-(x.rank - 1) :]
        return cross_entropy(draw, n.product(x, axes + "h", table, "vh", axes + "v"))
    return x


def room_for(draw: Draw, x: Node, vocabulary: int) -> bool:
    """Whether logits of all rows are not beyond the largest array."""
    return prod(x.sizes[:-1]) * vocabulary <= draw.scale.most


def loss(draw: Draw) -> Node:
    """Return a softmax cross entropy over a vocabulary."""
    scale = draw.scale
    b, t, v = draw.sizes(
        lambda: (draw.one(scale.batch), draw.one(scale.tokens), draw.one(scale.vocabulary))
    )
    h = draw.one([x for x in scale.hidden if x <= 8192])
    h = min(h, max(1, scale.most // v), max(1, scale.most // (b * t)))
    x = draw.input(b, t, h) if draw.maybe() else draw.input(b * t, h)
    x = normed(draw, x) if draw.maybe(0.3) else x
    return cross_entropy(draw, projected(draw, x, v))


def cross_entropy(draw: Draw, logits: Node) -> Node:
    """Return the mean of what the right labels cost."""
    logits = n.converted(logits, "f32") if draw.maybe(0.8) else logits
    rows, last = logits.sizes[:-1], logits.rank - 1
    kept = list(range(last))
    labels = draw.ids(logits.sizes[-1], *rows)
    most = n.reduce(logits, (last,), "maximum")
    shifted = n.elementwise("subtract", logits, n.broadcast(most, logits.sizes, kept))
    total = n.elementwise("log", n.reduce(n.elementwise("exponential", shifted), (last,)))
    spread = n.broadcast(labels, logits.sizes, kept)
    hot = n.compare("EQ", spread, n.iota("s32", logits.sizes, last))
    if draw.maybe():
        own = n.elementwise("select", hot, shifted, n.full(logits.type, logits.sizes, 0))
    else:
        own = n.elementwise("multiply", n.converted(hot, logits.type), shifted)
    costs = n.elementwise("subtract", total, n.reduce(own, (last,)))
    share = 1 / prod(rows)
    if draw.maybe(0.2):
        return costs
    return n.elementwise("multiply", n.reduce(costs, kept), n.constant(logits.type, share))


def cached(draw: Draw) -> Node:
    """Return one more token's attention to keys and values that are kept; those are results too."""
    h = heads_drawn(draw)
    x = draw.input(h.batch, 1, h.hidden)
    index = draw.ids(h.tokens)
    layout = draw.one(("btnd", "bntd", "tbnd"))
    q = n.reshape(projected(draw, x, h.heads * h.size), (h.batch, 1, h.heads, h.size))
    k, v = (_kept(draw, h, x, index, layout) for _ in range(2))
    of_k = layout.replace("t", "s")
    if h.groups < h.heads:
        k, v = repeated(k, layout, h), repeated(v, layout, h)
    own = draw.one(("bnts", "bnst"))
    scores = n.converted(n.product(draw.seen(q), "btnd", k, of_k, own), "f32")
    at = own.index("s")
    seen = n.compare("GE", n.broadcast(index, scores.sizes, ()), n.iota("s32", scores.sizes, at))
    scores = n.elementwise("select", seen, scores, n.full("f32", scores.sizes, -1e4))
    shares = n.converted(softmax(scores, at), q.type)
    result = n.product(shares, own, v, of_k, "btnd")
    return projected(draw, n.reshape(result, (h.batch, 1, h.heads * h.size)), h.hidden)


def _kept(draw: Draw, h: Heads, x: Node, index: Node, layout: str) -> Node:
    """Return a cache with one more token in it."""
    known = {"b": h.batch, "t": h.tokens, "n": h.groups, "d": h.size}
    cache = draw.input(*(known[a] for a in layout))
    new = n.reshape(projected(draw, x, h.groups * h.size), (h.batch, 1, h.groups, h.size))
    new = n.transpose(new, ["btnd".index(a) for a in layout])
    zero = n.constant("s32", 0)
    starts = [index if a == "t" else zero for a in layout]
    return n.dynamic_update(cache, new, starts)
