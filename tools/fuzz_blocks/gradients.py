"""Gradients of blocks: for each op the products, sums and views that its backward pass takes."""

from collections.abc import Callable, Mapping, Sequence

from tools.fuzz_blocks import nodes as n
from tools.fuzz_blocks.nodes import Node, Sizes
from tools.fuzz_blocks.text import in_order
from tools.fuzz_blocks.window_gradients import convolved, pooled_windows

Rule = Callable[[Node, Node], Sequence[Node | None]]
"""Of an op and the gradient of its result: the gradients of its operands; None: it has none."""


def gradients(result: Node, seed: Node, inputs: Sequence[Node]) -> list[Node]:
    """Return the gradients of a result, given its own, with respect to inputs.

    Where nothing leads from an input to the result, its gradient is zeros.
    """
    order = in_order([result])
    depends = {id(x) for x in inputs}
    for node in order:
        if any(id(x) in depends for x in node.operands):
            depends.add(id(node))
    known: dict[int, Node] = {id(result): seed}
    for node in reversed(order):
        given = known.get(id(node))
        if given is None or not any(id(x) in depends for x in node.operands):
            continue
        for x, own in zip(node.operands, RULES[node.opcode](node, given), strict=False):
            if own is None or id(x) not in depends:
                continue
            before = known.get(id(x))
            known[id(x)] = own if before is None else n.elementwise("add", before, own)
    return [known.get(id(x)) or n.full(x.type, x.sizes, 0) for x in inputs]


def _times(x: Node, y: Node) -> Node:
    return n.elementwise("multiply", x, y)


def _negated(x: Node) -> Node:
    return n.elementwise("negate", x)


def _scaled(x: Node, factor: float) -> Node:
    return _times(x, n.full(x.type, x.sizes, factor))


def _add(x: Node, given: Node) -> Sequence[Node | None]:
    return given, given


def _subtract(x: Node, given: Node) -> Sequence[Node | None]:
    return given, _negated(given)


def _multiply(x: Node, given: Node) -> Sequence[Node | None]:
    return _times(given, x.operands[1]), _times(given, x.operands[0])


def _divide(x: Node, given: Node) -> Sequence[Node | None]:
    over = n.elementwise("divide", given, x.operands[1])
    return over, _negated(_times(over, x))


def _negate(x: Node, given: Node) -> Sequence[Node | None]:
    return (_negated(given),)


def _exponential(x: Node, given: Node) -> Sequence[Node | None]:
    return (_times(given, x),)


def _log(x: Node, given: Node) -> Sequence[Node | None]:
    return (n.elementwise("divide", given, x.operands[0]),)


def _tanh(x: Node, given: Node) -> Sequence[Node | None]:
    one = n.full(x.type, x.sizes, 1)
    return (_times(given, n.elementwise("subtract", one, _times(x, x))),)


def _logistic(x: Node, given: Node) -> Sequence[Node | None]:
    one = n.full(x.type, x.sizes, 1)
    return (_times(given, _times(x, n.elementwise("subtract", one, x))),)


def _rsqrt(x: Node, given: Node) -> Sequence[Node | None]:
    return (_scaled(_times(given, _times(x, _times(x, x))), -0.5),)


def _maximum(x: Node, given: Node) -> Sequence[Node | None]:
    first = n.compare("GT", *x.operands)
    zero = n.full(x.type, x.sizes, 0)
    return n.elementwise("select", first, given, zero), n.elementwise("select", first, zero, given)


def _select(x: Node, given: Node) -> Sequence[Node | None]:
    zero, first = n.full(x.type, x.sizes, 0), x.operands[0]
    chosen = n.elementwise("select", first, given, zero)
    return None, chosen, n.elementwise("select", first, zero, given)


def _convert(x: Node, given: Node) -> Sequence[Node | None]:
    return (n.converted(given, x.operands[0].type),)


def _copy(x: Node, given: Node) -> Sequence[Node | None]:
    return (given,)


def _broadcast(x: Node, given: Node) -> Sequence[Node | None]:
    kept = x.settings["dimensions"]
    gone = [i for i in range(x.rank) if i not in kept]
    wide = n.converted(given, "f32") if gone else given
    return (n.converted(n.reduce(wide, gone), given.type) if gone else given,)


def _reshape(x: Node, given: Node) -> Sequence[Node | None]:
    return (n.reshape(given, x.operands[0].sizes),)


def inverse(permutation: Sequence[int]) -> list[int]:
    """Return the permutation that undoes another."""
    return [list(permutation).index(i) for i in range(len(permutation))]


def _transpose(x: Node, given: Node) -> Sequence[Node | None]:
    return (n.transpose(given, inverse(x.settings["dimensions"])),)


def _reverse(x: Node, given: Node) -> Sequence[Node | None]:
    return (n.reverse(given, x.settings["dimensions"]),)


def _reduce(x: Node, given: Node) -> Sequence[Node | None]:
    source = x.operands[0]
    gone = x.settings["dimensions"]
    kept = [i for i in range(source.rank) if i not in gone]
    spread = n.broadcast(given, source.sizes, kept)
    if x.called[0][1].root.opcode == "add":
        return spread, None
    most = n.compare("EQ", source, n.broadcast(x, source.sizes, kept))
    return n.elementwise("select", most, spread, n.full(x.type, source.sizes, 0)), None


def _slice(x: Node, given: Node) -> Sequence[Node | None]:
    source = x.operands[0]
    starts, strides = x.settings["starts"], x.settings["strides"]
    reach = [a + (k - 1) * c + 1 for a, k, c in zip(starts, x.sizes, strides, strict=True)]
    rest = [size - stop for size, stop in zip(source.sizes, reach, strict=True)]
    return (n.pad(given, starts, rest, [c - 1 for c in strides]),)


def _concatenate(x: Node, given: Node) -> Sequence[Node | None]:
    (dimension,) = x.settings["dimensions"]
    parts, start = [], 0
    for operand in x.operands:
        stop = start + operand.sizes[dimension]
        parts.append(n.part(given, dimension, start, stop))
        start = stop
    return parts


def _pad(x: Node, given: Node) -> Sequence[Node | None]:
    low, inner = x.settings["low"], x.settings["inner"]
    steps = [c + 1 for c in inner]
    sizes = x.operands[0].sizes
    stops = [a + (k - 1) * c + 1 for a, k, c in zip(low, sizes, steps, strict=True)]
    return n.slice_(given, low, stops, steps), None


def _dot(x: Node, given: Node) -> Sequence[Node | None]:
    s = x.settings
    a, b = s.get("lhs_batch_dims", ()), s.get("rhs_batch_dims", ())
    c, d = s["lhs_contracting_dims"], s["rhs_contracting_dims"]
    lhs, rhs = x.operands
    own, others = n.free_dimensions(lhs, a, c), n.free_dimensions(rhs, b, d)
    batch = tuple(range(len(a)))
    of_own = tuple(range(len(a), len(a) + len(own)))
    of_others = tuple(range(len(a) + len(own), x.rank))
    first = _factor(given, rhs, n.Contraction(batch, b, of_others, others), (a, own, c), d)
    second = _factor(given, lhs, n.Contraction(batch, a, of_own, own), (b, others, d), c)
    return n.converted(first, lhs.type), n.converted(second, rhs.type)


def _factor(
    given: Node,
    other: Node,
    how: n.Contraction,
    wanted: tuple[Sizes, Sizes, Sizes],
    contracted: Sizes,
) -> Node:
    """Return the gradient of one factor, its dimensions in their order.

    `wanted`: the factor's dimensions of the batch, its own, and those that were summed up;
    `contracted`: the other's dimensions that belong to the last.
    """
    product = n.dot(n.converted(given, other.type), other, how)
    batch, own, summed = wanted
    rising = [summed[i] for i in sorted(range(len(summed)), key=lambda i: contracted[i])]
    return n.transpose(product, inverse([*batch, *own, *rising]))


def _gather(x: Node, given: Node) -> Sequence[Node | None]:
    table, ids = x.operands
    return n.scatter_rows(n.full(table.type, table.sizes, 0), ids, given), None


def _dynamic_slice(x: Node, given: Node) -> Sequence[Node | None]:
    source, *starts = x.operands
    return (n.dynamic_update(n.full(source.type, source.sizes, 0), given, starts),)


def _dynamic_update(x: Node, given: Node) -> Sequence[Node | None]:
    _, update, *starts = x.operands
    outside = n.dynamic_update(given, n.full(x.type, update.sizes, 0), starts)
    return outside, n.dynamic_slice(given, starts, update.sizes)


def _nothing(x: Node, given: Node) -> Sequence[Node | None]:
    return tuple(None for _ in x.operands)


RULES: Mapping[str, Rule] = {
    "add": _add, "subtract": _subtract, "multiply": _multiply, "divide": _divide,
    "negate": _negate, "exponential": _exponential, "log": _log, "tanh": _tanh,
    "logistic": _logistic, "rsqrt": _rsqrt, "maximum": _maximum, "select": _select,
    "convert": _convert, "copy": _copy, "broadcast": _broadcast, "reshape": _reshape,
    "transpose": _transpose, "reverse": _reverse, "reduce": _reduce, "slice": _slice,
    "concatenate": _concatenate, "pad": _pad, "dot": _dot, "gather": _gather,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update, "convolution": convolved,
    "reduce-window": pooled_windows, "topk": _nothing, "sort": _nothing,
    "get-tuple-element": _nothing, "compare": _nothing, "conditional": _nothing,
}  # fmt: skip
