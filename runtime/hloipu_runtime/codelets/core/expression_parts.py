"""Cuts an expression on few elements into kernels and single functions of numpy, as calls.

Large arrays go through kernels and numpy's functions block by block (`native_stages`). For few
elements what is between the calls counts: each is a call of its own, and each kernel one that is
told nothing but arrays.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hloipu_runtime.codelets.core.call_writer import CallWriter
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.core.expression_planning import IN_KERNELS
from hloipu_runtime.codelets.core.straight import Straight
from hloipu_runtime.element_types import GRIDS
from hloipu_runtime.kernels.elementwise.unary import ON_GRID, REAL_KERNELS

Shape = tuple[int, ...]


class _Kind(NamedTuple):
    """What nodes of one part have in common."""

    level: int
    """Parts of lower ones come first."""
    shape: Shape
    alone: int
    """The node that numpy computes; -1: a kernel's."""


def calls_in_parts(
    expression: Expression, shapes: Sequence[Shape], shape: Shape
) -> Straight | None:
    """Return an expression on operands of these shapes as calls, `shape` being the results'.

    None where there is but one part.
    """
    expression = _rounded_apart(expression)
    parts = _parts(expression, shapes)
    if len(parts) < 2:
        return None
    writer = CallWriter(shapes)
    written = {number: number for number in range(len(shapes))}
    read_by: dict[int, set[int]] = {}
    for n, part in enumerate(parts):
        for number in part:
            for x in _node(expression, number).arguments:
                read_by.setdefault(x, set()).add(n)
    for n, part in enumerate(parts):
        read_elsewhere = [x for x in part if x in expression.results or read_by.get(x, set()) - {n}]
        stored = {x: _stored_as(expression, x) for x in read_elsewhere}
        computed = [x for x in dict.fromkeys(stored.values()) if x in part]
        one, operands = _cut(expression, part, computed)
        numbers = writer.expression(one, [written[x] for x in operands]) if computed else []
        if numbers is None:
            return None
        written.update(zip(computed, numbers, strict=True))
        written.update((x, written[y]) for x, y in stored.items())
    if not all(x in written for x in expression.results):
        return None  # a constant
    return writer.straight([writer.spread(written[x], shape) for x in expression.results])


def _node(expression: Expression, number: int) -> Node:
    return expression.nodes[number - len(expression.operand_types)]


def _stored_as(expression: Expression, number: int) -> int:
    """Return the value that one is stored like: narrow floats are in f32 as they are."""
    while number >= len(expression.operand_types):
        node = _node(expression, number)
        if node.op != "convert" or node.element_type != "f32":
            break
        if expression.type_of(node.arguments[0]) not in GRIDS:
            break
        number = node.arguments[0]
    return number


def _rounded_apart(expression: Expression) -> Expression:
    """Return an expression whose functions of narrow floats are f32's, and rounding a convert."""
    count = len(expression.operand_types)
    nodes: list[Node] = []
    number_of = {number: number for number in range(count)}

    def add(op: str, arguments: tuple[int, ...], kind: str) -> int:
        nodes.append(Node(op, arguments, kind))
        return count + len(nodes) - 1

    for number, node in enumerate(expression.nodes, count):
        given = tuple(number_of[x] for x in node.arguments)
        kind = node.element_type
        if node.op in REAL_KERNELS and node.op not in (*IN_KERNELS, *ON_GRID) and kind in GRIDS:
            wide = tuple(add("convert", (x,), "f32") for x in given)
            number_of[number] = add("convert", (add(node.op, wide, "f32"),), kind)
        else:
            nodes.append(node._replace(arguments=given))
            number_of[number] = count + len(nodes) - 1
    results = tuple(number_of[x] for x in expression.results)
    return Expression(expression.operand_types, tuple(nodes), results)


def _parts(expression: Expression, shapes: Sequence[Shape]) -> list[list[int]]:
    """Return the numbers of the nodes of each part; constants belong to none."""
    count = len(shapes)
    shape_of: list[Shape] = [*shapes]
    kinds: dict[int, _Kind] = {}
    members: dict[_Kind, list[int]] = {}
    for number, node in enumerate(expression.nodes, count):
        shape_of.append(np.broadcast_shapes(*(shape_of[x] for x in node.arguments)))
        if node.op == "constant":
            continue
        alone = -1 if node.op in IN_KERNELS or node.op == "copy" else number
        level = 0
        for x in node.arguments:
            if x in kinds:
                same = kinds[x].shape == shape_of[number] and kinds[x].alone == alone
                level = max(level, kinds[x].level + (0 if same else 1))
        kind = kinds[number] = _Kind(level, shape_of[number], alone)
        members.setdefault(kind, []).append(number)
    return [members[kind] for kind in sorted(members, key=lambda kind: kind.level)]


def _cut(
    expression: Expression, part: Sequence[int], results: Sequence[int]
) -> tuple[Expression, list[int]]:
    """Return some nodes as an expression, and which values are its operands."""
    count = len(expression.operand_types)
    inside = set(part)
    read = dict.fromkeys(x for n in part for x in _node(expression, n).arguments if x not in inside)
    constants = [x for x in read if x >= count and _node(expression, x).op == "constant"]
    operands = [x for x in read if x not in constants]
    place = {x: n for n, x in enumerate((*operands, *constants, *part))}
    nodes = (
        _node(expression, x)._replace(
            arguments=tuple(place[a] for a in _node(expression, x).arguments)
        )
        for x in (*constants, *part)
    )
    types = tuple(expression.type_of(x) for x in operands)
    return Expression(types, tuple(nodes), tuple(place[x] for x in results)), operands
