"""Ops with lowerings of their own: factorisations, spectra, scatters, norms as one op."""

from math import prod

from tools.fuzz_blocks import nodes as n
from tools.fuzz_blocks.dense import projected
from tools.fuzz_blocks.draws import Draw
from tools.fuzz_blocks.nodes import Node

MOST = 1 << 20


def special(draw: Draw) -> Node:
    """Return what one such op makes, before or after a projection."""
    kinds = (_solved, _spectrum, _largest, _scattered, _integers, _batch_norm, _random)
    result = draw.one(kinds)(draw)
    if (
        result.rank > 1
        and result.type == draw.type
        and prod(result.sizes) <= 1 << 24
        and draw.maybe()
    ):
        return projected(draw, draw.seen(result), min(draw.one(draw.scale.hidden), 4096))
    return result


def _bounded(draw: Draw, most: int) -> int:
    return min(draw.one(draw.scale.hidden), most)


def _solved(draw: Draw) -> Node:
    """Return a triangular factor, or a solution with it."""
    size, columns = _bounded(draw, 512), _bounded(draw, 512)
    batch = draw.one((1, 2)) if size > 256 else draw.one((1, 3, 16))
    x = draw.input(batch, size, size, type_="f32")
    square = n.elementwise("add", n.product(x, "bij", x, "bkj", "bik"), _eye(x))
    factor = n.Node("cholesky", (square,), "f32", square.sizes, said="lower=true")
    if draw.maybe(0.4):
        return factor
    right = draw.input(batch, size, columns, type_="f32")
    said = "left_side=true, lower=true, unit_diagonal=false, transpose_a=NO_TRANSPOSE"
    return n.Node("triangular-solve", (factor, right), "f32", right.sizes, said=said)


def _eye(x: Node) -> Node:
    """Return a matrix that makes a square of another one definite."""
    same = n.compare("EQ", n.iota("s32", x.sizes, 1), n.iota("s32", x.sizes, 2))
    size = x.sizes[1]
    return n.elementwise("select", same, n.full("f32", x.sizes, size), n.full("f32", x.sizes, 0))


def _spectrum(draw: Draw) -> Node:
    """Return the magnitudes of a spectrum."""
    length = draw.one((2, 4, 16, 64, 100, 256, 400, 512, 1024))
    rows = min(draw.one(draw.scale.tokens), max(1, MOST // length))
    x = draw.input(rows, length, type_="f32")
    said = f"fft_type=RFFT, fft_length={{{length}}}"
    spectrum = n.Node("fft", (x,), "c64", (rows, length // 2 + 1), said=said)
    return n.Node("abs", (spectrum,), "f32", spectrum.sizes)


def _largest(draw: Draw) -> Node:
    """Return the numbers of the largest elements along a dimension."""
    rows, size = draw.sizes(
        lambda: (draw.one(draw.scale.tokens), draw.one(draw.scale.vocabulary)), 1 << 26
    )
    x = draw.input(rows, size)
    at = draw.one((0, 1))
    kind = x.type
    a, i, b, j = (n.parameter(t, ()) for t in (kind, "s32") * 2)
    first = n.Node("compare", (a, b), "pred", (), said="direction=GE")
    root = n.tuple_of([n.elementwise("select", first, a, b), n.elementwise("select", first, i, j)])
    sizes = tuple(k for d, k in enumerate(x.sizes) if d != at)
    starts = (n.constant(kind, float("-inf")), n.constant("s32", 0))
    operands = (x, n.iota("s32", x.sizes, at), *starts)
    called = (("to_apply", n.Region((a, i, b, j), root)),)
    settings = {"dimensions": (at,)}
    reduced = n.Node(
        "reduce", operands, "", (), settings, "", called, ((kind, sizes), ("s32", sizes))
    )
    return n.element(reduced, draw.one((0, 1)))


def _scattered(draw: Draw) -> Node:
    """Return rows added to a table, which is a product or data."""
    v, h = draw.sizes(
        lambda: (draw.one(draw.scale.vocabulary), draw.one(draw.scale.hidden)), 1 << 26
    )
    count = min(draw.one(draw.scale.tokens), max(1, (1 << 24) // h))
    rows = draw.input(count, h)
    if draw.maybe():
        rows = projected(draw, rows, h) if h <= 4096 else draw.activation(rows)
    return n.scatter_rows(draw.input(v, h), draw.ids(v, count), rows)


def _integers(draw: Draw) -> Node:
    """Return a product of narrow integers, scaled."""
    scale = draw.scale
    t, k, h = draw.sizes(
        lambda: (draw.one(scale.tokens), draw.one(scale.hidden), draw.one(scale.hidden)), 1 << 30
    )
    x, weight = draw.input(t, k, type_="s8"), draw.input(k, h, type_="s8")
    if draw.maybe():
        product = n.product(x, "tk", weight, "kh", "th", "s32")
        return n.converted(product, draw.type)
    wide = n.converted(weight, draw.type)
    factor = n.broadcast(draw.weight(h), wide.sizes, (1,))
    wide = n.elementwise("multiply", wide, factor)
    return n.product(n.converted(x, draw.type), "tk", wide, "kh", "th")


def _batch_norm(draw: Draw) -> Node:
    """Return an image after a norm that is one op."""
    scale = draw.scale
    b, side, c = draw.sizes(
        lambda: (draw.one(scale.batch), draw.one(scale.images) ** 2, draw.one(scale.channels)),
        1 << 24,
    )
    x = draw.input(b, side, c, type_="f32")
    factors = draw.weight(c, type_="f32"), draw.weight(c, type_="f32")
    said = "epsilon=0.001, feature_index=2"
    parts = (("f32", x.sizes), ("f32", (c,)), ("f32", (c,)))
    normalised = n.Node("batch-norm-training", (x, *factors), "", (), said=said, parts=parts)
    return n.element(normalised, draw.one((0, 0, 1, 2)))


def _random(draw: Draw) -> Node:
    """Return data where random bits say so."""
    rows, size = draw.sizes(
        lambda: (draw.one(draw.scale.tokens), draw.one(draw.scale.hidden)), 1 << 24
    )
    x = draw.input(rows, size)
    key = draw.input(2, type_="u64")
    parts = (("u64", (2,)), ("u32", x.sizes))
    drawn = n.Node("rng-bit-generator", (key,), "", (), said="algorithm=rng_default", parts=parts)
    bits = n.element(drawn, 1)
    kept = n.compare("GE", bits, n.full("u32", bits.sizes, 1 << 30))
    return n.elementwise("select", kept, x, n.full(x.type, x.sizes, 0))
