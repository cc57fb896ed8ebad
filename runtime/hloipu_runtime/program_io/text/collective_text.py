"""Collectives as text, and back.

collective "all-reduce" groups [[0,1],[2,3]] by "add" "grads" (v4 = %7) <- (v3 = %6)
"""

import json

from hloipu_runtime.program.collective import Collective, CollectiveForm, Moved
from hloipu_runtime.program_io.text.codelet_text import expression_text, read_expression
from hloipu_runtime.program_io.text.reading import Names
from hloipu_runtime.program_io.text.tokens import Cursor


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


def read_collective(cursor: Cursor, names: Names) -> Collective:
    """Read what comes after the word `collective`."""
    kind = cursor.string()
    groups = _lists(cursor) if cursor.take("groups") else ()
    start = cursor.token
    pairs = []
    for pair in _lists(cursor) if cursor.take("pairs") else ():
        if len(pair) != 2:
            cursor.fail("a pair is of two participants", start)
        pairs.append((pair[0], pair[1]))
    dimension = cursor.integer() if cursor.take("dimension") else 0
    monoid = cursor.string() if cursor.take("by") else ""
    body = read_expression(cursor) if cursor.take("with") else None
    starts = _lists(cursor) if cursor.take("starts") else ()
    name = cursor.optional_string()
    outputs = _moved(cursor, names)
    cursor.expect("<-")
    form = CollectiveForm(kind, groups, tuple(pairs), dimension, monoid, body, starts)
    return Collective(form, _moved(cursor, names), outputs, name)


def _lists(cursor: Cursor) -> tuple[tuple[int, ...], ...]:
    return tuple(cursor.items("[", "]", lambda: cursor.items("[", "]", cursor.integer)))


def _moved(cursor: Cursor, names: Names) -> tuple[Moved, ...]:
    return tuple(cursor.items("(", ")", lambda: Moved(*names.variable_and_value())))
