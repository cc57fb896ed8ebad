"""Loops around products: attention over blocks of keys, decoding, losses and gradients in parts."""

from collections.abc import Sequence

from tools.fuzz_blocks import nodes as n
from tools.fuzz_blocks.attention import Heads, heads_drawn
from tools.fuzz_blocks.dense import layered, projected
from tools.fuzz_blocks.draws import Draw, softmax
from tools.fuzz_blocks.gradients import gradients
from tools.fuzz_blocks.nodes import Node
from tools.fuzz_blocks.stacks import Body, loop, substituted


def block_at(x: Node, index: Node, axis: int, size: int) -> Node:
    """Return a block of an array along an axis, which a turn counts."""
    start = n.elementwise("multiply", index, n.constant("s32", size))
    starts = [start if d == axis else n.constant("s32", 0) for d in range(x.rank)]
    return n.dynamic_slice(x, starts, (*x.sizes[:axis], size, *x.sizes[axis + 1 :]))


def looped(draw: Draw) -> Node:
    """Return the result of one such loop."""
    kinds = (blockwise_attention, decoding, loss_in_parts, summed_gradients)
    return draw.one(kinds)(draw)


def _blocks(draw: Draw, size: int) -> int:
    """Return the size of a block that divides a size."""
    return draw.one([b for b in (1, 2, 4, 8, 16, 64, 128, 512, 1024) if size % b == 0])


def blockwise_attention(draw: Draw) -> Node:
    """Return an attention whose keys come block by block, with running sums and maxima."""
    h = heads_drawn(draw)
    layout = draw.one(("btnd", "bntd"))
    q, k, v = (_heads(draw, h, layout) for _ in range(3))
    size = max(_blocks(draw, h.tokens), -(-h.tokens // 64))
    size = size if h.tokens % size == 0 else h.tokens
    axis, of_k = layout.index("t"), layout.replace("t", "s")
    rows = (h.batch, h.heads, h.tokens)
    sums = n.full("f32", (*rows, h.size), 0)
    carried = [sums, n.full("f32", rows, 0), n.full("f32", rows, -1e4), q, k, v]

    def turn(index: Node, given: Sequence[Node]) -> Sequence[Node]:
        total, weight, most, queries, keys, values = given
        key, value = (block_at(x, index, axis, size) for x in (keys, values))
        scores = n.converted(n.product(queries, layout, key, of_k, "bnts"), "f32")
        new = n.elementwise("maximum", most, n.reduce(scores, (3,), "maximum"))
        wide = n.broadcast(new, scores.sizes, (0, 1, 2))
        shares = n.elementwise("exponential", n.elementwise("subtract", scores, wide))
        factor = n.elementwise("exponential", n.elementwise("subtract", most, new))
        weight = n.elementwise(
            "add", n.elementwise("multiply", weight, factor), n.reduce(shares, (3,))
        )
        result = n.product(n.converted(shares, value.type), "bnts", value, of_k, "bntd")
        spread = n.broadcast(factor, total.sizes, (0, 1, 2))
        total = n.elementwise(
            "add", n.elementwise("multiply", total, spread), n.converted(result, "f32")
        )
        return [total, weight, new, queries, keys, values]

    total, weight, *_ = loop(h.tokens // size, carried, turn)
    result = n.elementwise("divide", total, n.broadcast(weight, total.sizes, (0, 1, 2)))
    result = n.transpose(n.converted(result, q.type), (0, 2, 1, 3))
    return projected(draw, n.reshape(result, (h.batch, h.tokens, h.heads * h.size)), h.hidden)


def _heads(draw: Draw, h: Heads, layout: str) -> Node:
    known = {"b": h.batch, "t": h.tokens, "n": h.heads, "d": h.size}
    if draw.maybe():
        return draw.input(*(known[a] for a in layout))
    x = projected(draw, draw.input(h.batch, h.tokens, h.hidden), h.heads * h.size)
    x = n.reshape(x, (h.batch, h.tokens, h.heads, h.size))
    return n.transpose(x, ["btnd".index(a) for a in layout])


def decoding(draw: Draw) -> Node:
    """Return what layers, in a loop of their own, make of one token after the other."""
    h = heads_drawn(draw)
    layers, turns = draw.one(draw.scale.layers[:3]), min(h.tokens, draw.one((2, 5, 16)))
    width = h.heads * h.size
    stacked = [draw.weight(layers, h.hidden, 3 * width), draw.weight(layers, width, h.hidden)]
    cache = (layers, h.batch, h.tokens, h.heads, h.size)
    kept = [draw.input(*cache), draw.input(*cache)]
    x = draw.input(h.batch, h.hidden)

    def layer() -> Body:
        def turn(index: Node, given: Sequence[Node]) -> Sequence[Node]:
            state, keys, values, own, out, now = given
            projection = n.product(state, "bh", n.at_index(own, index), "hk", "bk")
            projection = n.reshape(projection, (h.batch, 3, h.heads, h.size))
            q, k, v = (
                n.reshape(n.part(projection, 1, i, i + 1), (h.batch, h.heads, h.size))
                for i in range(3)
            )
            keys, values = (_written(a, b, index, now) for a, b in ((keys, k), (values, v)))
            mine, others = n.at_index(keys, index), n.at_index(values, index)
            scores = n.converted(n.product(q, "bnd", mine, "bsnd", "bns"), "f32")
            shares = n.converted(softmax(scores), q.type)
            output = n.product(shares, "bns", others, "bsnd", "bnd")
            output = n.reshape(output, (h.batch, width))
            output = n.product(output, "bk", n.at_index(out, index), "kh", "bh")
            return [n.elementwise("add", state, output), keys, values, own, out, now]

        return turn

    def token(index: Node, given: Sequence[Node]) -> Sequence[Node]:
        state, keys, values, own, out = given
        inner = loop(layers, [state, keys, values, own, out, index], layer())
        return inner[:5]

    return loop(turns, [x, *kept, *stacked], token)[draw.one((0, 1))]


def _written(cache: Node, new: Node, layer: Node, place: Node) -> Node:
    """Return a cache with a token's keys or values at its place in one layer."""
    zero = n.constant("s32", 0)
    sizes = (1, new.sizes[0], 1, *new.sizes[1:])
    return n.dynamic_update(cache, n.reshape(new, sizes), [layer, zero, place, zero, zero])


def loss_in_parts(draw: Draw) -> Node:
    """Return a loss over a vocabulary, computed for a few rows at a time."""
    scale = draw.scale
    t, v = draw.sizes(lambda: (draw.one(scale.tokens), draw.one(scale.vocabulary)))
    h = min(draw.one(scale.hidden), max(1, scale.most // v))
    x, weight = draw.input(t, h), draw.weight(h, v)
    labels, size = draw.ids(v, t), _blocks(draw, t)
    while t // size > 64:
        size *= 2
    size = size if t % size == 0 else t

    def turn(index: Node, given: Sequence[Node]) -> Sequence[Node]:
        total, data, own, right = given
        rows = block_at(data, index, 0, size)
        logits = n.converted(n.product(rows, "th", own, "hv", "tv"), "f32")
        hot = n.compare(
            "EQ",
            n.broadcast(block_at(right, index, 0, size), logits.sizes, (0,)),
            n.iota("s32", logits.sizes, 1),
        )
        cost = n.elementwise("log", softmax(logits))
        cost = n.elementwise("select", hot, cost, n.full("f32", logits.sizes, 0))
        return [n.elementwise("add", total, n.reduce(cost, (0, 1))), data, own, right]

    return loop(t // size, [n.full("f32", (), 0), x, weight, labels], turn)[0]


def summed_gradients(draw: Draw) -> Node:
    """Return the sum of a layer's gradients over parts of a batch."""
    inner = Draw(draw.random, draw.scale)
    inner.type = draw.type
    scale = draw.scale
    parts, t, h = draw.sizes(
        lambda: (draw.one((2, 4, 8)), draw.one(scale.tokens), draw.one(scale.hidden)),
        scale.most >> 4,
    )
    x = n.parameter(draw.type, (t, h))
    result = n.converted(layered(inner, x), "f32")
    cost = n.reduce(n.elementwise("multiply", result, result), tuple(range(result.rank)))
    slopes = gradients(cost, n.constant("f32", 1), inner.weights)
    data = draw.input(parts, t, h)
    weights = [draw.weight(*w.sizes, type_=w.type) for w in inner.weights]
    start = [n.full("f32", w.sizes, 0) for w in weights]

    def turn(index: Node, given: Sequence[Node]) -> Sequence[Node]:
        sums, rest = given[: len(start)], given[len(start) :]
        own = {id(a): b for a, b in zip(inner.weights, rest[1:], strict=True)}
        own[id(x)] = n.at_index(rest[0], index)
        new = substituted(slopes, own)
        added = [
            n.elementwise("add", a, n.converted(b, "f32")) for a, b in zip(sums, new, strict=True)
        ]
        return [*added, *rest]

    return draw.one(loop(parts, [*start, data, *weights], turn)[: len(start)])
