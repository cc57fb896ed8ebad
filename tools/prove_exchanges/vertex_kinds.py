"""Kinds of mutants in which the vertices of one group are others."""

import random
from collections.abc import Callable
from dataclasses import replace

from hloipu_runtime.program.mapping import Span
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.steps import ComputeSet, Operand, VertexGroup
from tools.prove_exchanges.places import Subject, Tamper, drawn, looks, moved, put, step_replaced


def on_group(
    change: Callable[[Subject, VertexGroup, random.Random], VertexGroup | None],
) -> Tamper:
    """Return the kind that changes one vertex group."""

    def tamper(subject: Subject, rng: random.Random) -> Program | None:
        place = drawn(subject.groups, rng)
        if place is None:
            return None
        step = place.block.steps[place.step]
        assert isinstance(step, ComputeSet)
        changed = change(subject, step.groups[place.group], rng)
        if changed is None:
            return None
        groups = list(step.groups)
        groups[place.group] = changed
        new = ComputeSet(tuple(groups))
        return step_replaced(subject, place.block.path, place.step, new)

    return tamper


def stale_operand(subject: Subject, group: VertexGroup, rng: random.Random) -> VertexGroup | None:
    """Read another variable of the same type, shape and mapping."""
    choices = [
        (number, v)
        for number, operand in enumerate(group.inputs)
        for variable in [subject.variable(operand.variable)]
        for v in subject.alike[*looks(variable), variable.mapping]
        if v != operand.variable
    ]
    if not choices:
        return None
    number, v = rng.choice(choices)
    return replace(
        group, inputs=put(group.inputs, number, group.inputs[number]._replace(variable=v))
    )


def operand_moved(subject: Subject, group: VertexGroup, rng: random.Random) -> VertexGroup | None:
    """Read or write parts that begin elsewhere, are shorter, or follow another grid axis."""
    places = [
        (side, number, d)
        for side in ("inputs", "outputs")
        for number, operand in enumerate(getattr(group, side))
        for d in range(len(operand.spans))
    ]
    if not places:
        return None
    side, number, d = rng.choice(places)
    operands: tuple[Operand, ...] = getattr(group, side)
    span = operands[number].spans[d]
    changed = _span_moved(span, len(group.tiles.extents), rng)
    if changed is None:
        return None
    operand = operands[number]._replace(spans=put(operands[number].spans, d, changed))
    all_of_them = put(operands, number, operand)
    if side == "inputs":
        return replace(group, inputs=all_of_them)
    return replace(group, outputs=all_of_them)


def _span_moved(span: Span, axes: int, rng: random.Random) -> Span | None:
    choice = rng.randrange(4)
    if choice == 0 and span.size > 1:
        return span._replace(size=span.size - 1)
    if choice == 1 and axes > 1:
        return span._replace(axis=rng.choice([a for a in range(axes) if a != span.axis]))
    if choice == 2 and span.size:
        return span._replace(offset=span.offset + rng.choice((1, -1)) * span.size)
    return span._replace(offset=span.offset + rng.choice((1, -1)))


def vertices_moved(subject: Subject, group: VertexGroup, rng: random.Random) -> VertexGroup | None:
    """Put the vertices on other tiles than their operands."""
    tiles = moved(group.tiles, subject.tiles_per_ipu, rng)
    return None if tiles is None else replace(group, tiles=tiles)
