"""Ops that move, order and count: transposes, pads, running totals, sorts, branches."""

from math import prod

from tools.fuzz_blocks import nodes as n
from tools.fuzz_blocks.dense import projected
from tools.fuzz_blocks.draws import Draw
from tools.fuzz_blocks.nodes import Node
from tools.fuzz_blocks.window_nodes import pooled, window

MOST_MOVED = 1 << 27
MOST_SORTED = 1 << 22


def moved(draw: Draw) -> Node:
    """Return an array after a few such ops, with a projection at either end now and then."""
    scale = draw.scale
    pool = [*scale.tokens, *scale.hidden, *scale.heads, *scale.batch, *scale.head]
    rank = draw.one((1, 2, 2, 3, 3, 4))
    x = draw.input(*draw.sizes(lambda: tuple(draw.one(pool) for _ in range(rank)), MOST_MOVED))
    if draw.maybe(0.3) and x.rank > 1:
        x = projected(draw, x, min(draw.one(scale.hidden), _room(draw, x)))
    for _ in range(draw.one((1, 2, 3, 4))):
        x = _step(draw, x)
    if draw.maybe(0.4) and x.rank > 1 and x.sizes[-1] <= max(scale.hidden):
        x = projected(draw, x, min(draw.one(scale.hidden), _room(draw, x)))
    return x


def _room(draw: Draw, x: Node) -> int:
    return max(1, min(draw.scale.most, MOST_MOVED) // max(1, prod(x.sizes[:-1])))


def _step(draw: Draw, x: Node) -> Node:
    kind = draw.one(
        ("transpose", "reshape", "concatenate", "pad", "slice", "reverse", "total", "sort",
         "shift", "branch", "update", "rows", "outer", "reduce")
    )  # fmt: skip
    at = draw.random.randrange(max(1, x.rank))
    if not x.rank or prod(x.sizes) > MOST_MOVED:
        return x
    if kind == "transpose":
        return n.transpose(x, draw.random.sample(range(x.rank), x.rank))
    if kind == "reshape":
        return n.reshape(x, draw.split(x.sizes))
    if kind == "concatenate":
        other = draw.input(*x.sizes) if draw.maybe() else n.elementwise("negate", x)
        return n.concatenate([x, other, x][: draw.one((2, 3))], at)
    if kind == "pad":
        edge = tuple(draw.one((0, 1, 3)) if d == at else 0 for d in range(x.rank))
        return n.pad(x, edge, edge, (draw.one((0, 0, 1)),) * x.rank)
    if kind == "slice" and x.sizes[at] > 2:
        return _sliced(draw, x, at)
    if kind == "reverse":
        return n.reverse(x, (at,))
    if kind == "sort" and prod(x.sizes) <= MOST_SORTED and x.sizes[at] > 1:
        numbers = n.iota("s32", x.sizes, at)
        return draw.one(n.sorted_pair(x, n.converted(numbers, x.type), at))
    if kind == "total" and prod(x.sizes) <= MOST_SORTED and x.sizes[at] > 1:
        return _total(x, at)
    return _other(draw, x, at, kind)


def _other(draw: Draw, x: Node, at: int, kind: str) -> Node:
    if kind == "shift" and x.sizes[at] > 1:
        cut = draw.random.randrange(1, x.sizes[at])
        return n.concatenate([n.part(x, at, cut, x.sizes[at]), n.part(x, at, 0, cut)], at)
    if kind == "branch":
        return _branched(draw, x)
    if kind == "update":
        return _updated(draw, x, at)
    if kind == "rows" and x.rank == 2:
        return n.gather_rows(x, draw.ids(x.sizes[0], draw.one(draw.scale.tokens)))
    if kind == "outer" and x.rank < 4:
        size = min(draw.one(draw.scale.tokens), max(1, MOST_MOVED // prod(x.sizes)))
        sizes = (*x.sizes[:at], size, *x.sizes[at:])
        return n.broadcast(x, sizes, [d for d in range(len(sizes)) if d != at])
    if kind == "reduce" and x.rank > 1:
        return n.reduce(x, (at,), draw.one(("add", "maximum")))
    return draw.activation(x)


def _sliced(draw: Draw, x: Node, at: int) -> Node:
    low = draw.random.randrange(x.sizes[at] - 1)
    high = draw.random.randrange(low + 1, x.sizes[at] + 1)
    starts = tuple(low if d == at else 0 for d in range(x.rank))
    stops = tuple(high if d == at else size for d, size in enumerate(x.sizes))
    stride = draw.one((1, 1, 2, 3))
    return n.slice_(x, starts, stops, tuple(stride if d == at else 1 for d in range(x.rank)))


def _total(x: Node, at: int) -> Node:
    """Return running totals along a dimension, as a window that reaches back to the start."""
    size = x.sizes[at]
    sizes = tuple(size if d == at else 1 for d in range(x.rank))
    low = tuple(size - 1 if d == at else 0 for d in range(x.rank))
    ones = (1,) * x.rank
    return pooled(x, window(sizes, ones, ones, [low, (0,) * x.rank]), "add")


def _branched(draw: Draw, x: Node) -> Node:
    """Return what one of two computations makes of an array; the data says which."""
    if draw.weights or not draw.inputs:
        # Nothing goes back through branches here: they stand at the beginning.
        return draw.activation(x)
    first, second = n.parameter(x.type, x.sizes), n.parameter(x.type, x.sizes)
    views = draw.seen(first), draw.seen(draw.activation(second))
    regions = [n.Region((p,), r) for p, r in zip((first, second), views, strict=True)]
    called = (("true_computation", regions[0]), ("false_computation", regions[1]))
    choice = draw.input(type_="pred")
    return n.Node("conditional", (choice, x, x), x.type, x.sizes, called=called)


def _updated(draw: Draw, x: Node, at: int) -> Node:
    """Return an array with a part from elsewhere, at a place that data tells."""
    size = draw.random.randrange(1, x.sizes[at] + 1)
    shape = tuple(size if d == at else k for d, k in enumerate(x.sizes))
    index = draw.ids(max(1, x.sizes[at] - size))
    starts = [index if d == at else n.constant("s32", 0) for d in range(x.rank)]
    if draw.maybe():
        return n.dynamic_slice(x, starts, shape)
    return n.dynamic_update(x, draw.input(*shape), starts)
