"""Shapes, grids of tiles, parts of dimensions, boxes, constants, codelets, collectives as text.

f32[4,8]            a tensor
@16[2 x 4,3 x 1]    from tile 16: 2 steps of 4 tiles, by 3 steps of 1
(a0*8:8, *, a1*4-1:6, 0:2)
of each dimension: 8 elements from 8 times coordinate 0; all; 6 from one
before 4 times coordinate 1; on every tile the first 2
(0..4, 2..5)        a box

    dot(lhs_batch=[0], rhs_batch=[0], lhs_contracting=[2], …)
    elementwise(expression={(f32, f32); 2 = f32 add(0, 1); return (2)}, labels=[[0],[0]], rank=1)
    collective "all-reduce" groups [[0,1],[2,3]] by "add" "grads" (v4 = %7) <- (v3 = %6)

Parameters stand in their order, as JSON data; an expression numbers its operands, then its nodes.
"""

import hashlib
import json
from dataclasses import fields
from functools import lru_cache
from typing import Any, get_type_hints

import numpy as np

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.constants import text_of
from hloipu_runtime.codelets.core.expression_form import Expression
from hloipu_runtime.program.collective import Collective, Moved
from hloipu_runtime.program.mapping import Box, Sizes, Span, Spans, Tiles, whole
from hloipu_runtime.program.program import Array
from hloipu_runtime.program_io.records.coders import all_codelets, coder_of
from hloipu_runtime.program_io.records.pools import Writing

MOST_SHOWN = 16
"""Elements of a constant that is shown by value."""


def constant_text(array: Array, element_type: str, *, full: bool) -> str:
    """Return a constant's values, its bytes, or its digest."""
    if array.size <= MOST_SHOWN:
        values = " ".join(text_of(element, element_type) for element in array.ravel())
        return f'values "{values}"'
    raw = np.ascontiguousarray(array).tobytes()
    if full:
        return f'bytes "{raw.hex()}"'
    return f'elided "{hashlib.sha256(raw).hexdigest()}" // {len(raw)} bytes'


def sizes_text(sizes: Sizes) -> str:
    """Return sizes in brackets."""
    return f"[{','.join(map(str, sizes))}]"


def tiles_text(tiles: Tiles) -> str:
    """Return a grid of tiles."""
    axes = ",".join(f"{n} x {s}" for n, s in zip(tiles.extents, tiles.strides, strict=True))
    return f"@{tiles.first}[{axes}]" if axes else f"@{tiles.first}"


def spans_text(spans: Spans, shape: Sizes) -> str:
    """Return the parts of all dimensions."""
    shown = [
        "*" if len(shape) == len(spans) and span == whole(shape[n]) else _span_text(span)
        for n, span in enumerate(spans)
    ]
    return f"({', '.join(shown)})"


def _span_text(span: Span) -> str:
    if span.axis == -1 and span.step == 0:
        return f"{span.offset}:{span.size}"
    offset = f"{span.offset:+}" if span.offset else ""
    return f"a{span.axis}*{span.step}{offset}:{span.size}".replace("a-", "a -")


def box_text(box: Box) -> str:
    """Return a box."""
    return f"({', '.join(f'{low}..{high}' for low, high in box)})"


def numbers_text(numbers: Sizes) -> str:
    """Return numbers in parentheses."""
    return f"({', '.join(map(str, numbers))})"


@lru_cache(maxsize=512)
def _parameters(name: str) -> dict[str, Any]:
    kind = all_codelets()[name]
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def codelet_text(codelet: Codelet) -> str:
    """Return a codelet with its parameters."""
    shown = [
        f"{name}={_parameter_text(getattr(codelet, name), annotation)}"
        for name, annotation in _parameters(codelet.name).items()
    ]
    return f"{codelet.name}({', '.join(shown)})"


def _parameter_text(value: Any, annotation: Any) -> str:
    if isinstance(value, Expression):
        return expression_text(value)
    if annotation == tuple[Expression, ...]:
        return f"[{', '.join(map(expression_text, value))}]"
    return json.dumps(coder_of(annotation).write(value, Writing()), separators=(",", ":"))


def expression_text(expression: Expression) -> str:
    """Return an expression in braces."""
    parts = [f"({', '.join(expression.operand_types)})"]
    for number, node in enumerate(expression.nodes, len(expression.operand_types)):
        parameters = [f"{key}={json.dumps(value)}" for key, value in node.parameters]
        inner = ", ".join([*map(str, node.arguments), *parameters])
        parts.append(f"{number} = {node.element_type} {node.op}({inner})")
    return f"{{{'; '.join(parts)}; return {numbers_text(expression.results)}}}"


def collective_text(step: Collective) -> str:
    """Return a collective in one line."""
    form = step.form
    words = ["collective", json.dumps(form.kind)]
    if form.groups:
        words += ["groups", json.dumps(form.groups, separators=(",", ":"))]
    if form.pairs:
        words += ["pairs", json.dumps(form.pairs, separators=(",", ":"))]
    if form.dimension:
        words += ["dimension", str(form.dimension)]
    if form.monoid:
        words += ["by", json.dumps(form.monoid)]
    if form.body is not None:
        words += ["with", expression_text(form.body)]
    if form.starts:
        words += ["starts", json.dumps(form.starts, separators=(",", ":"))]
    if step.name:
        words.append(json.dumps(step.name))
    return " ".join([*words, _moved_text(step.outputs), "<-", _moved_text(step.inputs)])


def _moved_text(moved: tuple[Moved, ...]) -> str:
    return f"({', '.join(f'v{operand.variable} = %{operand.value}' for operand in moved)})"
