"""Updates of weights: plain, with momentum, with two moments."""

from collections.abc import Sequence

from tools.fuzz_blocks import nodes as n
from tools.fuzz_blocks.draws import Draw
from tools.fuzz_blocks.nodes import Node

RATE = 0.01


def updated(draw: Draw, gradients: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """Return an optimizer's state, and the next weights followed by its next state."""
    moments = draw.one((0, 0, 1, 2))
    kept = draw.one(("f32", ""))
    state: list[Node] = []
    weights: list[Node] = []
    following: list[Node] = []
    for weight, gradient in zip(draw.weights, gradients, strict=True):
        own = [n.parameter(kept or weight.type, weight.sizes) for _ in range(moments)]
        slope = n.converted(gradient, kept or weight.type)
        new_moments = [_moment(x, slope, 0.9 if not i else 0.999, i) for i, x in enumerate(own)]
        step = new_moments[0] if new_moments else slope
        if moments == 2:
            spread = n.elementwise("sqrt", n.elementwise("add", new_moments[1], _like(step, 1e-4)))
            step = n.elementwise("divide", step, spread)
        step = n.elementwise("multiply", step, _like(step, RATE))
        weights.append(n.elementwise("subtract", weight, n.converted(step, weight.type)))
        state += own
        following += new_moments
    return state, [*weights, *following]


def _moment(before: Node, slope: Node, share: float, number: int) -> Node:
    """Return a running mean of gradients, or of their squares."""
    new = n.elementwise("multiply", slope, slope) if number else slope
    new = n.elementwise("multiply", new, _like(new, 1 - share))
    return n.elementwise("add", n.elementwise("multiply", before, _like(before, share)), new)


def _like(x: Node, value: float) -> Node:
    return n.full(x.type, x.sizes, value)
