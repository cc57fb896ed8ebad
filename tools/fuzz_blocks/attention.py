"""Attention in every layout: merged heads, heads apart, grouped queries, masks, rotations."""

from dataclasses import dataclass
from math import prod

from tools.fuzz_blocks import nodes as n
from tools.fuzz_blocks.dense import projected
from tools.fuzz_blocks.draws import Draw, softmax
from tools.fuzz_blocks.nodes import Node

LAYOUTS = ("btnd", "bntd", "tbnd", "nbtd", "bndt")
"""Batch, tokens, heads, size of a head."""


@dataclass(frozen=True, slots=True)
class Heads:
    """How many heads there are, of queries and of keys, and how large they are."""

    batch: int
    tokens: int
    heads: int
    groups: int
    size: int
    hidden: int


def heads_drawn(draw: Draw) -> Heads:
    """Return sizes of an attention whose scores are not beyond the largest array."""
    scale = draw.scale

    def sizes() -> tuple[int, ...]:
        t = draw.one(scale.tokens)
        return draw.one(scale.batch), t, t, draw.one(scale.heads)

    batch, tokens, _, heads = draw.sizes(sizes, scale.most >> 2)
    size = draw.one(scale.head)
    groups = draw.one([g for g in range(1, heads + 1) if heads % g == 0] + [heads] * 4)
    hidden = heads * size if draw.maybe(0.8) else draw.one(scale.hidden)
    return Heads(batch, tokens, heads, groups, size, hidden)


def attention(draw: Draw) -> Node:
    """Return an attention with its projections, or on queries, keys and values as given."""
    h = heads_drawn(draw)
    if draw.maybe(0.15):
        return latent(draw, h)
    if draw.maybe(0.25):
        layout = draw.one(LAYOUTS)
        q, k, v = (draw.input(*_sizes(h, layout, g)) for g in (h.heads, h.groups, h.groups))
        result, _ = attended(draw, h, (q, k, v), (layout, layout, layout))
        return result
    return attended_block(draw, h, draw.input(h.batch, h.tokens, h.hidden))


def merged_heads(draw: Draw) -> Node:
    """Return the projection of heads, merged, to any width."""
    h = heads_drawn(draw)
    layout = draw.one(("bntd", "bntd", *LAYOUTS))
    x = draw.activation(draw.input(*_sizes(h, layout, h.heads)))
    x = n.transpose(x, [layout.index(a) for a in "btnd"])
    x = n.reshape(x, (h.batch, h.tokens, h.heads * h.size))
    return projected(
        draw, x, min(draw.one(draw.scale.hidden), draw.scale.most // prod(x.sizes[:2]))
    )


def attended_block(draw: Draw, h: Heads, x: Node) -> Node:
    """Return an attention of a batch of sequences with all its projections."""
    if draw.maybe(0.2):
        parts = _from_one_weight(draw, h, x)
        layouts = ("btnd",) * 3
    else:
        layouts = (draw.one(LAYOUTS[:2]),) * 3
        counts = (h.heads, h.groups, h.groups)
        parts = tuple(
            _head_projected(draw, h, x, g, a) for g, a in zip(counts, layouts, strict=True)
        )
    result, layout = attended(draw, h, parts, layouts)
    return _merged(draw, h, result, layout)


def _sizes(h: Heads, layout: str, heads: int) -> tuple[int, ...]:
    known = {"b": h.batch, "t": h.tokens, "n": heads, "d": h.size}
    return tuple(known[a] for a in layout)


def _head_projected(draw: Draw, h: Heads, x: Node, heads: int, layout: str) -> Node:
    kind = draw.one(("merged", "merged", "apart", "first"))
    if kind == "merged":
        projection = projected(draw, x, heads * h.size)
        projection = n.reshape(projection, (h.batch, h.tokens, heads, h.size))
        return n.transpose(projection, ["btnd".index(a) for a in layout])
    if kind == "apart":
        weight = draw.seen(draw.weight(h.hidden, heads, h.size))
        return n.product(draw.seen(x), "bth", weight, "hnd", layout)
    weight = draw.seen(draw.weight(heads, h.hidden, h.size))
    return n.product(draw.seen(x), "bth", weight, "nhd", layout)


def _from_one_weight(draw: Draw, h: Heads, x: Node) -> tuple[Node, ...]:
    counts = (h.heads, h.groups, h.groups)
    projection = projected(draw, x, sum(counts) * h.size)
    heads_of_each, start = [], 0
    for heads in counts:
        stop = start + heads * h.size
        heads_of_each.append(
            n.reshape(n.part(projection, 2, start, stop), (h.batch, h.tokens, heads, h.size))
        )
        start = stop
    return tuple(heads_of_each)


def attended(
    draw: Draw, h: Heads, parts: tuple[Node, ...], layouts: tuple[str, ...]
) -> tuple[Node, str]:
    """Return what queries find, and in which layout."""
    q, k, v = parts
    of_q, of_k, of_v = layouts
    if draw.maybe(0.25) and h.size % 2 == 0:
        q, k = rotated(q, of_q), rotated(k, of_k)
    grouped = h.groups < h.heads and draw.maybe()
    if h.groups < h.heads and not grouped:
        k, v = repeated(k, of_k, h), repeated(v, of_v, h)
    if grouped:
        at = of_q.index("n")
        q = n.reshape(q, (*q.sizes[:at], h.groups, h.heads // h.groups, *q.sizes[at + 1 :]))
        of_q = of_q.replace("n", "nr")
    of_k, of_v = of_k.replace("t", "s"), of_v.replace("t", "s")
    own = "bnrts" if grouped else draw.one(("bnts", "bnts", "nbts", "bnst"))
    factor = n.full(q.type, q.sizes, h.size**-0.5)
    q = n.elementwise("multiply", q, factor)
    kind = "f32" if q.type != "f32" and draw.maybe() else q.type
    scores = n.converted(n.product(draw.seen(q), of_q, draw.seen(k), of_k, own), kind)
    if draw.maybe(0.4):
        scores = masked(draw, scores, own)
    shares = n.converted(_shares(draw, draw.seen(scores), own), q.type)
    layout = draw.one(LAYOUTS[:4])
    wanted = layout.replace("n", "nr") if grouped else layout
    result = n.product(draw.seen(shares), own, draw.seen(v), of_v, wanted)
    return n.reshape(result, _sizes(h, layout, h.heads)), layout


def _shares(draw: Draw, scores: Node, order: str) -> Node:
    """Return a softmax over keys; with one score of each head beside theirs now and then."""
    at = order.index("s")
    if draw.maybe(0.85):
        return softmax(scores, at)
    heads = order.index("n")
    sink = n.converted(draw.weight(scores.sizes[heads]), scores.type)
    sizes = tuple(1 if d == at else size for d, size in enumerate(scores.sizes))
    every = n.concatenate([scores, n.broadcast(sink, sizes, (heads,))], at)
    return n.part(softmax(every, at), at, 0, scores.sizes[at])


def latent(draw: Draw, h: Heads) -> Node:
    """Return an attention whose keys and values come from a narrow array that heads share."""
    x = draw.input(h.batch, h.tokens, h.hidden)
    narrow, turned = draw.one(draw.scale.hidden[:8]), max(2, h.size // 4 * 2)
    q = projected(draw, x, h.heads * (h.size + turned))
    q = n.reshape(q, (h.batch, h.tokens, h.heads, h.size + turned))
    both = projected(draw, x, narrow + turned)
    inner, key = n.part(both, 2, 0, narrow), n.part(both, 2, narrow, narrow + turned)
    kv = n.reshape(projected(draw, inner, h.heads * 2 * h.size), (*q.sizes[:3], 2 * h.size))
    k, v = n.part(kv, 3, 0, h.size), n.part(kv, 3, h.size, 2 * h.size)
    key = rotated(n.reshape(key, (h.batch, h.tokens, 1, turned)), "btnd")
    key = n.broadcast(
        n.reshape(key, (h.batch, h.tokens, turned)), (*k.sizes[:3], turned), (0, 1, 3)
    )
    own = n.part(q, 3, h.size, h.size + turned)
    q = n.concatenate([n.part(q, 3, 0, h.size), rotated(own, "btnd")], 3)
    k = n.concatenate([k, key], 3)
    scores = n.product(q, "btnd", k, "bsnd", "bnts")
    shares = n.converted(softmax(n.converted(scores, "f32")), q.type)
    result = n.product(shares, "bnts", v, "bsnd", "btnd")
    return _merged(draw, h, result, "btnd")


def masked(draw: Draw, scores: Node, order: str) -> Node:
    """Return scores with those of later tokens, or of tokens that are data's choice, left out."""
    lowest = n.full(scores.type, scores.sizes, -1e4)
    if draw.maybe(0.7):
        rows = n.iota("s32", scores.sizes, order.index("t"))
        columns = n.iota("s32", scores.sizes, order.index("s"))
        allowed = n.compare("GE", rows, columns)
    else:
        at = (order.index("b"), order.index("s"))
        chosen = draw.input(*(scores.sizes[i] for i in at), type_="pred")
        if at[0] > at[1]:
            chosen, at = n.transpose(chosen, (1, 0)), (at[1], at[0])
        allowed = n.broadcast(chosen, scores.sizes, at)
    return n.elementwise("select", allowed, scores, lowest)


def repeated(x: Node, layout: str, h: Heads) -> Node:
    """Return keys or values once for each head of queries."""
    at = layout.index("n")
    times = h.heads // h.groups
    sizes = (*x.sizes[: at + 1], times, *x.sizes[at + 1 :])
    kept = [i for i in range(len(sizes)) if i != at + 1]
    return n.reshape(n.broadcast(x, sizes, kept), _repeated_sizes(x, at, times))


def _repeated_sizes(x: Node, at: int, times: int) -> tuple[int, ...]:
    return (*x.sizes[:at], x.sizes[at] * times, *x.sizes[at + 1 :])


def rotated(x: Node, layout: str) -> Node:
    """Return queries or keys turned by an angle for each place."""
    at, t = layout.index("d"), layout.index("t")
    half = x.sizes[at] // 2
    if at == x.rank - 1 and x.sizes[t] % 2 == 0:
        turned = _pairs_turned(x)
    else:
        first, second = n.part(x, at, 0, half), n.part(x, at, half, 2 * half)
        turned = n.concatenate([n.elementwise("negate", second), first], at)
    steps = n.converted(n.iota("s32", (x.sizes[t],), 0), x.type)
    angles = n.elementwise("multiply", steps, n.full(x.type, steps.sizes, 0.001))
    cosine = n.broadcast(n.elementwise("cosine", angles), x.sizes, (t,))
    sine = n.broadcast(n.elementwise("sine", angles), x.sizes, (t,))
    kept = n.elementwise("multiply", x, cosine)
    return n.elementwise("add", kept, n.elementwise("multiply", turned, sine))


def _pairs_turned(x: Node) -> Node:
    """Return the elements of each pair along the last dimension exchanged, one of them negated."""
    pairs = n.reshape(x, (*x.sizes[:-1], x.sizes[-1] // 2, 2))
    first, second = n.part(pairs, x.rank, 0, 1), n.part(pairs, x.rank, 1, 2)
    return n.reshape(n.concatenate([n.elementwise("negate", second), first], x.rank), x.sizes)


def _merged(draw: Draw, h: Heads, x: Node, layout: str) -> Node:
    """Return the output projection of heads."""
    if draw.maybe(0.3):
        weight = draw.seen(draw.weight(h.heads, h.size, h.hidden))
        return n.product(x, layout, weight, "ndh", "bth")
    x = n.transpose(x, [layout.index(a) for a in "btnd"])
    return projected(draw, n.reshape(x, (h.batch, h.tokens, h.heads * h.size)), h.hidden)
