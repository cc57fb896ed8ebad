"""Loops: over stacked layers forward and backward, over time, over blocks of a sequence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tools.fuzz_blocks import nodes as n
from tools.fuzz_blocks.attention import Heads, attended_block, heads_drawn
from tools.fuzz_blocks.dense import layered, normed
from tools.fuzz_blocks.draws import Draw
from tools.fuzz_blocks.gradients import gradients
from tools.fuzz_blocks.nodes import Node
from tools.fuzz_blocks.text import in_order

Body = Callable[[Node, Sequence[Node]], Sequence[Node]]


def loop(turns: int, carried: Sequence[Node], body: Body) -> list[Node]:
    """Return what a counted loop leaves; `body`: from the turn and what is carried to the next."""
    parts = [("s32", ()), *((x.type, x.sizes) for x in carried)]
    inside = n.tuple_parameter(parts)
    index = n.element(inside, 0)
    next_values = body(index, [n.element(inside, i + 1) for i in range(len(carried))])
    following = n.elementwise("add", index, n.constant("s32", 1))
    turn = n.Region((inside,), n.tuple_of([following, *next_values]))
    asked = n.tuple_parameter(parts)
    more = n.compare("LT", n.element(asked, 0), n.constant("s32", turns))
    called = (("condition", n.Region((asked,), more)), ("body", turn))
    start = n.tuple_of([n.constant("s32", 0), *carried])
    node = n.Node("while", (start,), "", (), called=called, parts=tuple(parts))
    return [n.element(node, i + 1) for i in range(len(carried))]


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One layer of a stack, from placeholders to its result."""

    x: Node
    weights: tuple[Node, ...]
    others: tuple[Node, ...]
    """Data that all layers read."""
    result: Node
    axis: int
    """Along which weights are stacked, where they have so many."""

    def stacks_along(self, weight: Node) -> int:
        """Return the axis along which a weight is stacked."""
        return min(self.axis, weight.rank)


def substituted(roots: Sequence[Node], known: dict[int, Node]) -> list[Node]:
    """Return nodes with others in place of some."""
    new_nodes = dict(known)
    for node in in_order(roots):
        if id(node) not in new_nodes:
            operands = tuple(new_nodes[id(x)] for x in node.operands)
            same = all(a is b for a, b in zip(operands, node.operands, strict=True))
            new_nodes[id(node)] = node if same else replace(node, operands=operands)
    return [new_nodes[id(x)] for x in roots]


def layer_drawn(draw: Draw) -> Layer:
    """Return a layer as its own graph: a perceptron, an attention, or both."""
    inner = Draw(draw.random, draw.scale)
    inner.type = draw.type
    kind = draw.one(("dense", "attention", "both"))
    h = heads_drawn(inner)
    if kind == "dense":
        rows, width = inner.sizes(
            lambda: (inner.one(draw.scale.tokens), inner.one(draw.scale.hidden))
        )
        h = Heads(1, rows, 1, 1, width, width)
    x = n.parameter(inner.type, (h.batch, h.tokens, h.hidden))
    result = x
    if kind != "dense":
        source = normed(inner, x) if inner.maybe() else x
        result = n.elementwise("add", result, attended_block(inner, h, source))
    if kind != "attention":
        result = layered(inner, result)
    if result.sizes != x.sizes:
        result = n.elementwise("add", x, n.reshape(_fitted(result, x), x.sizes))
    return Layer(x, tuple(inner.weights), tuple(inner.inputs), result, draw.one((0, 0, 1)))


def _fitted(result: Node, x: Node) -> Node:
    """Return an array of another width cut or padded to a width."""
    last = result.rank - 1
    lacking = x.sizes[-1] - result.sizes[-1]
    if lacking < 0:
        return n.part(result, last, 0, x.sizes[-1])
    return n.pad(result, (0,) * result.rank, (*(0,) * last, lacking), (0,) * result.rank)


def stack(draw: Draw) -> tuple[Node, Sequence[Node]]:
    """Return a scan over layers, and the gradients of its weights and input, which may be none."""
    layer = layer_drawn(draw)
    count = draw.one(draw.scale.layers)
    x = draw.input(*layer.x.sizes)
    stacked = [
        draw.weight(*n.stacked_sizes(w.sizes, count, layer.stacks_along(w)), type_=w.type)
        for w in layer.weights
    ]
    draw.inputs += layer.others
    backward = draw.maybe(0.6)
    stashes = _stashes(draw, layer) if backward else []
    kept = [n.full(s.type, (count, *s.sizes), 0) for s in stashes]
    carried = [x, *kept, *stacked, *layer.others]

    def forward(index: Node, given: Sequence[Node]) -> Sequence[Node]:
        own = dict(_bound(layer, given[0], given[1 + len(kept) :], index))
        result, *values = substituted([layer.result, *stashes], own)
        places = given[1 : 1 + len(kept)]
        values = [n.with_index(a, index, b) for a, b in zip(places, values, strict=True)]
        return [result, *values, *given[1 + len(kept) :]]

    results = loop(count, carried, forward)
    if not backward:
        return results[0], ()
    return results[0], _backward(layer, stashes, count, results)


def _bound(layer: Layer, x: Node, given: Sequence[Node], index: Node) -> list[tuple[int, Node]]:
    """Return what stands for a layer's placeholders in one turn."""
    weights = [
        n.at_index(stack, index, layer.stacks_along(w))
        for stack, w in zip(given, layer.weights, strict=False)
    ]
    bound = [(id(layer.x), x)]
    bound += [(id(a), b) for a, b in zip(layer.weights, weights, strict=True)]
    others = given[len(layer.weights) :]
    return bound + [(id(a), b) for a, b in zip(layer.others, others, strict=True)]


def _stashes(draw: Draw, layer: Layer) -> list[Node]:
    """Return what the forward pass keeps: a layer's input alone, or much else besides."""
    if draw.maybe():
        return [layer.x]
    heavy = ("dot", "multiply", "tanh", "exponential", "divide", "reshape", "transpose", "convert")
    candidates = [
        x
        for x in in_order([layer.result])
        if x.opcode in heavy and x.type[0] in "fb" and x.rank and not _of_weights(layer, x)
    ]
    chosen = draw.random.sample(candidates, min(len(candidates), draw.one((1, 3, 6))))
    return [layer.x, *chosen]


def _of_weights(layer: Layer, x: Node) -> bool:
    sources = {id(a) for a in in_order([x])}
    return id(layer.x) not in sources


def _backward(
    layer: Layer, stashes: Sequence[Node], count: int, results: Sequence[Node]
) -> Sequence[Node]:
    """Return the gradients of all weights, stacked, and of the first layer's input."""
    kept = results[1 : 1 + len(stashes)]
    rest = results[1 + len(stashes) :]
    seed = n.parameter(layer.x.type, layer.x.sizes)
    wanted = gradients(layer.result, seed, [layer.x, *layer.weights])
    axes = [layer.stacks_along(w) for w in layer.weights]
    start = [
        n.full(w.type, n.stacked_sizes(w.sizes, count, axis), 0)
        for w, axis in zip(layer.weights, axes, strict=True)
    ]
    first = n.full(layer.x.type, layer.x.sizes, 1)

    def turn(index: Node, given: Sequence[Node]) -> Sequence[Node]:
        back = n.elementwise("subtract", n.constant("s32", count - 1), index)
        many = 1 + len(start)
        kept_here, rest_here = given[many : many + len(kept)], given[many + len(kept) :]
        values = [n.at_index(s, back) for s in kept_here]
        own = dict(_bound(layer, values[0], rest_here, back))
        own.update({id(a): b for a, b in zip(stashes[1:], values[1:], strict=True)})
        own[id(seed)] = given[0]
        of_x, *of_weights = substituted(wanted, own)
        sums = [
            n.with_index(a, back, b, axis)
            for a, b, axis in zip(given[1:many], of_weights, axes, strict=True)
        ]
        return [of_x, *sums, *given[many:]]

    gradients_carried = loop(count, [first, *start, *kept, *rest], turn)
    return gradients_carried[: 1 + len(start)]


def recurrent(draw: Draw) -> Node:
    """Return a recurrent layer's state at all times."""
    scale = draw.scale
    t, b, h = draw.sizes(
        lambda: (draw.one(scale.tokens), draw.one(scale.batch), draw.one(scale.hidden)),
        scale.most >> 4,
    )
    h = min(h, 8192)
    x = draw.input(t, b, h)
    weight = draw.weight(h, h)
    inputs = draw.weight(h, h) if draw.maybe() else None
    carried = [n.full(x.type, (b, h), 0), n.full(x.type, (t, b, h), 0), x, weight]
    carried += [inputs] if inputs else []

    def turn(index: Node, given: Sequence[Node]) -> Sequence[Node]:
        state, places, data, own, *others = given
        now = n.at_index(data, index)
        now = n.product(now, "bh", others[0], "hk", "bk") if others else now
        new = n.elementwise(
            "tanh", n.elementwise("add", n.product(state, "bh", own, "hk", "bk"), now)
        )
        return [new, n.with_index(places, index, new), data, own, *others]

    return draw.seen(loop(t, carried, turn)[1])
