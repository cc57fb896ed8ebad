"""Readers of shapes, grids, parts of dimensions, boxes, constants, codelets and collectives."""

import hashlib
from dataclasses import fields
from math import prod
from typing import Any, get_type_hints

import numpy as np

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.constants import value_of
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.errors import ArtefactError, HloipuError
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.program.collective import Collective, CollectiveForm, Moved
from hloipu_runtime.program.loading import not_given
from hloipu_runtime.program.mapping import Box, Sizes, Span, Spans, Tiles, whole
from hloipu_runtime.program.program import Array, Variable
from hloipu_runtime.program_io.records.coders import Json, Reading, all_codelets, coder_of
from hloipu_runtime.program_io.text.printer import MOST_SHOWN
from tests.support.program_reader.reading import Names
from tests.support.program_reader.tokens import Cursor, ProgramTextError, Token


def read_sizes(cursor: Cursor) -> Sizes:
    """Read sizes in brackets."""
    return cursor.items("[", "]", cursor.integer)


def read_tiles(cursor: Cursor) -> Tiles:
    """Read a grid of tiles."""
    cursor.expect("@")
    first = cursor.integer()
    axes = cursor.items("[", "]", lambda: _axis(cursor)) if cursor.sees("[") else ()
    return Tiles(tuple(n for n, _ in axes), tuple(s for _, s in axes), first)


def _axis(cursor: Cursor) -> tuple[int, int]:
    extent = cursor.integer()
    cursor.expect("x")
    return extent, cursor.integer()


def read_spans(cursor: Cursor, shape: Sizes) -> Spans:
    """Read the parts of all dimensions of a shape."""
    spans: list[Span] = []

    def read() -> Span:
        number = len(spans)
        if cursor.take("*"):
            if number >= len(shape):
                cursor.fail("there are fewer dimensions")
            spans.append(whole(shape[number]))
        else:
            spans.append(_read_span(cursor))
        return spans[-1]

    return cursor.items("(", ")", read)


def _read_span(cursor: Cursor) -> Span:
    axis, step, offset = -1, 0, 0
    if cursor.token.kind == "word":
        start = cursor.token
        word = cursor.word("a grid axis")
        if word == "a":
            axis = cursor.integer()
        elif word[0] == "a" and word[1:].isdecimal() and len(word) < 4:
            axis = int(word[1:])
        else:
            cursor.fail("grid axes are a0, a1 and so on", start)
        cursor.expect("*")
        step = cursor.integer()
        if not cursor.sees(":"):
            cursor.take("+")
            offset = cursor.integer()
    else:
        offset = cursor.integer()
    cursor.expect(":")
    return Span(axis, step, offset, cursor.integer())


def read_box(cursor: Cursor) -> Box:
    """Read a box."""
    return cursor.items("(", ")", lambda: _range(cursor))


def _range(cursor: Cursor) -> tuple[int, int]:
    low = cursor.integer()
    cursor.expect("..")
    return low, cursor.integer()


def read_numbers(cursor: Cursor) -> Sizes:
    """Read numbers in parentheses."""
    return cursor.items("(", ")", cursor.integer)


MOST_BYTES = 2**32


def read_constant(cursor: Cursor, variable: Variable, supplied: Array | None) -> Array:
    """Read a constant's array in storage form; `supplied` stands in for an elided one."""
    start = cursor.token
    form = cursor.word("values, bytes, elided or given")
    if form == "given":
        return not_given(variable.element_type, variable.shape)
    text = cursor.string()
    dtype = storage_dtype(variable.element_type)
    count = prod(variable.shape)
    if form == "elided":
        if supplied is None:
            raise ProgramTextError(
                "E4021",
                "a constant whose values were left out",
                cursor.span(start),
                hint="print the program with all constants, or give its array",
            )
        if (supplied.dtype, supplied.shape) != (dtype, variable.shape) or text != _digest(supplied):
            cursor.fail("the array that was given is not what was left out", start)
        return supplied
    if form == "values":
        array = _constant_values(cursor, text, variable, start)
    elif form == "bytes":
        try:
            array = np.frombuffer(bytes.fromhex(text), dtype)
        except ValueError:
            cursor.fail("not the bytes of such a constant", start)
    else:
        cursor.fail("a constant is given as values, bytes, elided or given", start)
    if array.size != count:
        cursor.fail(f"{array.size} elements, not {count}", start)
    array = array.reshape(variable.shape)
    array.flags.writeable = False
    return array


def _constant_values(cursor: Cursor, text: str, variable: Variable, start: Token) -> Array:
    words = text.split()
    if len(words) > MOST_SHOWN:
        cursor.fail(f"more than {MOST_SHOWN} elements are given as bytes", start)
    array = np.empty(len(words), storage_dtype(variable.element_type))
    for place, word in enumerate(words):
        try:
            array[place] = value_of(word, variable.element_type)
        except HloipuError as error:
            cursor.fail(error.message, start)
    return array


def _digest(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


_PLAIN = {"null": None, "true": True, "false": False}


def read_codelet(cursor: Cursor) -> Codelet:
    """Read a codelet with its parameters."""
    start = cursor.token
    kind = all_codelets().get(cursor.word("a codelet"))
    if kind is None:
        cursor.fail(f"there is no codelet {start.text[:40]!r}", start)
    type_hints = get_type_hints(kind)
    hints = {field.name: type_hints[field.name] for field in fields(kind)}
    waiting = list(hints)
    value_by_name: dict[str, Any] = {}

    def read() -> None:
        if len(value_by_name) == len(waiting) or not cursor.sees(waiting[len(value_by_name)]):
            cursor.wrong("the next parameter" if len(value_by_name) < len(waiting) else "')'")
        name = cursor.advance().text
        cursor.expect("=")
        value_by_name[name] = _read_parameter(cursor, hints[name])

    cursor.items("(", ")", read)
    if len(value_by_name) != len(waiting):
        cursor.fail(f"the parameter {waiting[len(value_by_name)]} is missing", start)
    return kind(**value_by_name)


def _read_parameter(cursor: Cursor, annotation: Any) -> Any:
    start = cursor.token
    if cursor.sees("{"):
        return read_expression(cursor)
    if annotation == tuple[Expression, ...]:
        return tuple(cursor.items("[", "]", lambda: read_expression(cursor)))
    try:
        return coder_of(annotation).read(_read_json(cursor), Reading(""))
    except ArtefactError as error:
        if error.span is not None:
            raise
        cursor.fail(error.message.removeprefix("the program: "), start)


def _read_json(cursor: Cursor) -> Json:
    if cursor.token.kind == "text":
        return cursor.string()
    if cursor.token.kind == "number":
        return cursor.integer()
    if cursor.sees("["):
        return list(cursor.items("[", "]", lambda: _read_json(cursor)))
    if cursor.token.text in _PLAIN:
        return _PLAIN[cursor.advance().text]
    cursor.wrong("a number, a text or a list")


def read_expression(cursor: Cursor) -> Expression:
    """Read an expression in braces."""
    cursor.expect("{")
    types = cursor.items("(", ")", lambda: cursor.word("an element type"))
    nodes: list[Node] = []
    cursor.expect(";")
    while not cursor.take("return"):
        start = cursor.token
        if cursor.integer() != len(types) + len(nodes):
            cursor.fail(f"the next node is {len(types) + len(nodes)}", start)
        cursor.expect("=")
        nodes.append(_read_node(cursor))
        cursor.expect(";")
    results = read_numbers(cursor)
    cursor.expect("}")
    return Expression(types, tuple(nodes), results)


def _read_node(cursor: Cursor) -> Node:
    element_type = cursor.word("an element type")
    op = cursor.word("an op")
    arguments: list[int] = []
    parameters: list[tuple[str, str | int]] = []

    def read() -> None:
        if cursor.token.kind == "number":
            arguments.append(cursor.integer())
            return
        key = cursor.word("a number or a parameter")
        cursor.expect("=")
        is_text = cursor.token.kind == "text"
        parameters.append((key, cursor.string() if is_text else cursor.integer()))

    cursor.items("(", ")", read)
    return Node(op, tuple(arguments), element_type, tuple(parameters))


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
