"""Codelets and expressions as text, each beside its reader.

    dot(lhs_batch=[0], rhs_batch=[0], lhs_contracting=[2], …)
    elementwise(expression={(f32, f32); 2 = f32 add(0, 1); return (2)}, labels=[[0],[0]], rank=1)

Parameters stand in their order, as JSON data; an expression numbers its operands, then its nodes.
"""

import json
from dataclasses import fields
from functools import lru_cache
from typing import Any, get_type_hints

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.errors import ArtefactError
from hloipu_runtime.program_io.records.coders import all_codelets, coder_of
from hloipu_runtime.program_io.records.pools import Json, Reading, Writing
from hloipu_runtime.program_io.text.geometry import numbers_text, read_numbers
from hloipu_runtime.program_io.text.tokens import Cursor

_PLAIN = {"null": None, "true": True, "false": False}


@lru_cache(maxsize=512)
def _parameters(name: str) -> dict[str, Any]:
    """Return the annotation of every parameter of a codelet, in their order."""
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


def read_codelet(cursor: Cursor) -> Codelet:
    """Read a codelet with its parameters."""
    start = cursor.token
    kind = all_codelets().get(cursor.word("a codelet"))
    if kind is None:
        cursor.fail(f"there is no codelet {start.text[:40]!r}", start)
    hints = _parameters(kind.name)
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


def expression_text(expression: Expression) -> str:
    """Return an expression in braces."""
    parts = [f"({', '.join(expression.operand_types)})"]
    for number, node in enumerate(expression.nodes, len(expression.operand_types)):
        parameters = [f"{key}={json.dumps(value)}" for key, value in node.parameters]
        inner = ", ".join([*map(str, node.arguments), *parameters])
        parts.append(f"{number} = {node.element_type} {node.op}({inner})")
    return f"{{{'; '.join(parts)}; return {numbers_text(expression.results)}}}"


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
