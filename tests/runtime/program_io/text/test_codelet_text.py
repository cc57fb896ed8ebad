"""Every codelet's parameters as text and back."""

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.program_io.records.coders import all_codelets
from hloipu_runtime.program_io.text.printer import codelet_text, expression_text
from tests.support.cases import each
from tests.support.program_reader.tokens import Cursor
from tests.support.program_reader.values import read_codelet, read_expression

EXPRESSION = Expression(
    ("f32", "pred"),
    (
        Node("constant", (), "f32", (("value", '0x1p+0"\\'),)),
        Node("select", (1, 0, 2), "f32"),
        Node("reduce-precision", (3,), "f32", (("exponent_bits", 5), ("mantissa_bits", -1))),
    ),
    (4, 0),
)
SCALARS: dict[Any, Callable[[int], Any]] = {
    int: lambda turn: turn - 7,
    bool: lambda turn: turn % 2 == 0,
    str: lambda turn: f'a "{turn}"',
    float: lambda turn: (0.1, -math.inf, 5e-324, 0.0)[turn % 4],
    type(None): lambda _: None,
}


def example(annotation: Any, turn: int) -> Any:
    """Return some value of an annotation, another one each turn."""
    if annotation is Expression:
        return EXPRESSION
    if annotation in SCALARS:
        return SCALARS[annotation](turn)
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        return arguments[turn % len(arguments)]
    if get_origin(annotation) is tuple:
        if arguments[-1] is Ellipsis:
            return tuple(example(arguments[0], turn + i) for i in range(turn % 3))
        return tuple(example(x, turn + i) for i, x in enumerate(arguments))
    if arguments:
        return example(arguments[turn % len(arguments)], turn)
    return some(annotation, turn)


def some(kind: Any, turn: int) -> Any:
    hints = get_type_hints(kind)
    names = kind._fields if issubclass(kind, tuple) else [x.name for x in fields(kind)]
    return kind(**{name: example(hints[name], turn) for name in names})


@each("turn", range(4))
@each("name", sorted(all_codelets()))
def test_every_codelet_comes_back_from_its_text(name: str, turn: int) -> None:
    codelet = some(all_codelets()[name], turn)
    text = codelet_text(codelet)
    cursor = Cursor(text, "t")
    found = read_codelet(cursor)
    assert found == codelet
    assert repr(found) == repr(codelet)  # True is not 1
    assert cursor.token.kind == "end"
    assert codelet_text(found) == text


def test_an_expression_as_it_reads() -> None:
    text = (
        '{(f32, pred); 2 = f32 constant(value="0x1p+0\\"\\\\"); 3 = f32 select(1, 0, 2); '
        "4 = f32 reduce-precision(3, exponent_bits=5, mantissa_bits=-1); return (4, 0)}"
    )
    assert expression_text(EXPRESSION) == text
    assert read_expression(Cursor(text, "t")) == EXPRESSION
