"""Whole models in small: a table, a few layers of attention and perceptrons, a loss."""

from tools.fuzz_blocks import nodes as n
from tools.fuzz_blocks.attention import attended_block, heads_drawn
from tools.fuzz_blocks.dense import layered, normed, projected
from tools.fuzz_blocks.draws import Draw
from tools.fuzz_blocks.nodes import Node
from tools.fuzz_blocks.tables import cross_entropy, room_for


def model(draw: Draw) -> Node:
    """Return the loss of a language model, or its logits."""
    h = heads_drawn(draw)
    vocabulary = draw.one(draw.scale.vocabulary)
    while h.hidden * vocabulary > draw.scale.most:
        vocabulary = max(2, vocabulary // 4)
    table = draw.weight(vocabulary, h.hidden)
    x = n.gather_rows(table, draw.ids(vocabulary, h.batch, h.tokens))
    for _ in range(draw.one((1, 2, 2, 3))):
        x = n.elementwise("add", x, attended_block(draw, h, normed(draw, x)))
        result = layered(draw, x)
        x = result if result.sizes == x.sizes else projected(draw, result, h.hidden)
    if not room_for(draw, x, vocabulary):
        return x
    if draw.maybe(0.4):
        return cross_entropy(draw, n.product(x, "bth", table, "vh", "btv"))
    return cross_entropy(draw, projected(draw, x, vocabulary))
