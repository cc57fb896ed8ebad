"""Records of spans that the grammar makes of a text, before names and values are resolved.

`SyntaxActions` runs inside the parser, rule by rule and bottom up, so no tree is built and no
walk recurses. The records hold offsets; `statements.py` turns them into values.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from hloipu_compiler.hlo.syntax.lexer import COMMENT, Piece


class Stretch(NamedTuple):
    """Characters from `start` to before `end` of the text."""

    start: int
    end: int


class SyntaxAttribute(NamedTuple):
    """`key=value`; a computation attribute has callees instead of a value."""

    key: str
    key_at: int
    value: Stretch
    callees: "tuple[SyntaxCallee, ...] | None" = None


class SyntaxCallee(NamedTuple):
    """A computation named in an attribute, or written out there."""

    name: str
    statements: "tuple[SyntaxStatement, ...]"
    where: Stretch


class SyntaxOperand(NamedTuple):
    """An operand: a name, perhaps with tuple indices, or an instruction written in its place."""

    name: str
    shape: Stretch | None
    indices: tuple[Piece, ...]
    call: "SyntaxCall | None"
    where: Stretch


class SyntaxCall(NamedTuple):
    """`opcode(operands)`; parameters and constants have one piece of text inside."""

    opcode: Piece
    operands: tuple[SyntaxOperand, ...]
    inside: Piece | None
    end: int
    depth: int


class SyntaxStatement(NamedTuple):
    """`ROOT name = shape opcode(operands), attributes`."""

    name: str
    name_at: Stretch
    is_root: bool
    shape: Stretch | None
    call: SyntaxCall
    attributes: tuple[SyntaxAttribute, ...]
    where: Stretch
    depth: int


class SyntaxComputation(NamedTuple):
    """One computation; `body` mixes statements with runs that the line lexer has read."""

    name: str
    name_at: Stretch
    is_entry: bool
    has_signature: bool
    result: Stretch | None
    body: "tuple[SyntaxStatement | Piece, ...]"
    where: Stretch
    thread: Piece | None


class SyntaxText(NamedTuple):
    """A whole text: a module, computations without a header, or one instruction."""

    name: str
    header: tuple[SyntaxAttribute, ...]
    stack_tables: Piece | None
    computations: "tuple[SyntaxComputation | Piece, ...]"
    single: SyntaxStatement | None = None
    has_header: bool = True


def bare(name: str) -> str:
    """Return a name without the `%` before it and the `:` after it."""
    return name.removeprefix("%").removesuffix(":")


_name = re.compile(r"%?[A-Za-z_][\w.\-]*+:?", re.ASCII)
_word = re.compile(r"[\w.\-]+", re.ASCII)
_comments = re.compile(rf"{COMMENT}|//[^\n]*+")


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _flat(operands: list[Any]) -> Iterator[SyntaxOperand]:
    for operand in operands:
        if isinstance(operand, list):
            yield from operand
        elif operand is not None:
            yield operand


def _stretch(first: Any, last: Any) -> Stretch:
    return Stretch(first.start, last.end)


class SyntaxActions:
    """Actions of the parser, one for each rule whose children mean something."""

    def text(self, children: list[Any]) -> SyntaxText:
        """Pass on what the text is."""
        text: SyntaxText = children[0]
        return text

    def module(self, children: list[Any]) -> SyntaxText:
        """Gather header, tables and computations."""
        attributes = tuple(c for c in children if isinstance(c, SyntaxAttribute))
        tables_and_computations = children[2 + len(attributes) :]
        tables = None
        if (
            isinstance(tables_and_computations[0], Piece)
            and tables_and_computations[0].type == "STACK_TABLES"
        ):
            tables, *tables_and_computations = tables_and_computations
        return SyntaxText(
            bare(children[1].text), attributes, tables, tuple(tables_and_computations)
        )

    def headerless(self, children: list[Any]) -> SyntaxText:
        """Gather computations that stand alone."""
        return SyntaxText("", (), None, tuple(children), has_header=False)

    def single(self, children: list[Any]) -> SyntaxText:
        """Keep the one statement."""
        return SyntaxText("", (), None, (), children[0], has_header=False)

    def nameless(self, children: list[Any]) -> SyntaxText:
        """Keep the one statement, which has no name."""
        at = Stretch(children[0].start, children[0].start)
        statement = _statement("", at, False, children[0], children[1], children[2:], at.start)
        return self.single([statement])

    def header_attribute(self, children: list[Any]) -> SyntaxAttribute:
        """Pass on the attribute."""
        attribute: SyntaxAttribute = children[0]
        return attribute

    def computation(self, children: list[Any]) -> SyntaxComputation:
        """Gather a computation's parts."""
        first = children[0]
        is_entry = first.type == "ENTRY"
        name = children[1] if is_entry else first
        remaining = children[2:] if is_entry else children[1:]
        signature = remaining.pop(0) if isinstance(remaining[0], Stretch) else None
        body, closing, *thread = remaining
        return SyntaxComputation(
            bare(name.text),
            _stretch(name, name),
            is_entry,
            signature is not None,
            signature,
            body,
            _stretch(first, closing),
            thread[0] if thread else None,
        )

    def printed_computation(self, children: list[Any]) -> Piece:
        """Pass on a computation that the line lexer has read, with its thread."""
        piece: Piece = children[0]
        if len(children) > 1:
            piece.value = piece.value._replace(thread=children[1])
        return piece

    def body(self, children: list[Any]) -> tuple[Any, ...]:
        """Keep statements and runs in order."""
        return tuple(children)

    def thread(self, children: list[Any]) -> Piece:
        """Keep the thread's name, with the key it stood under."""
        key, thread = children
        piece: Piece = thread
        piece.value = key
        return piece

    def signature(self, children: list[Any]) -> Stretch:
        """Keep the result's shape; XLA checks nothing else of a signature."""
        result: Stretch = children[-1]
        return result

    def formal(self, _children: list[Any]) -> None:
        """Drop a parameter of a signature."""
        return None

    def size(self, _children: list[Any]) -> None:
        """Drop a size; the shape is read from its whole text."""
        return None

    def value(self, children: list[Any]) -> Piece:
        """Pass on a value's terminal."""
        piece: Piece = children[0]
        return piece

    def shape(self, children: list[Any]) -> Stretch:
        """Span a shape."""
        return Stretch(children[0].start, children[-1].end)

    def statement(self, children: list[Any]) -> SyntaxStatement:
        """Gather an instruction's parts."""
        first = children[0]
        is_root = first.type == "ROOT"
        name = children[1] if is_root else first
        shape, call, *attributes = children[2:] if is_root else children[1:]
        at = _stretch(name, name)
        return _statement(bare(name.text), at, is_root, shape, call, attributes, first.start)

    def call(self, children: list[Any]) -> SyntaxCall:
        """Gather an opcode and what stands in its parentheses."""
        opcode, *inside, closing = children
        word = _word.match(opcode.text)
        if word is not None:  # the terminal reaches to the parenthesis
            opcode.text = word[0]
            opcode.end = opcode.start + len(opcode.text)
        if opcode.type == "OPCODE":
            operands = tuple(_flat(inside))
            depth = 1 + max((operand.call.depth for operand in operands if operand.call), default=0)
            return SyntaxCall(opcode, operands, None, closing.end, depth)
        return SyntaxCall(opcode, (), inside[0], closing.end, 1)

    def named_operands(self, children: list[Any]) -> list[SyntaxOperand]:
        """Split a run of plain names."""
        piece: Piece = children[0]
        start = piece.start
        return [
            SyntaxOperand(bare(m[0]), None, (), None, Stretch(start + m.start(), start + m.end()))
            for m in _name.finditer(_comments.sub(_blank, piece.text))
        ]

    def operand(self, children: list[Any]) -> SyntaxOperand:
        """Gather a named operand."""
        shape, name, *indices = children
        where = Stretch((shape or name).start, (indices[-1] if indices else name).end)
        return SyntaxOperand(bare(name.text), shape, tuple(indices), None, where)

    def nested_operand(self, children: list[Any]) -> SyntaxOperand:
        """Gather an operand that is an instruction of its own."""
        shape, call = children
        where = Stretch(shape.start if shape else call.opcode.start, call.end)
        return SyntaxOperand("", shape, (), call, where)

    def attribute(self, children: list[Any]) -> SyntaxAttribute:
        """Gather a key and the stretch of its value."""
        key, value = children
        return SyntaxAttribute(key.text[:-1], key.start, _stretch(value, value))

    shape_attribute = attribute

    def computation_attribute(self, children: list[Any]) -> SyntaxAttribute:
        """Gather a key and its callee."""
        key, callee = children
        return SyntaxAttribute(key.text[:-1], key.start, callee.where, (callee,))

    def computations_attribute(self, children: list[Any]) -> SyntaxAttribute:
        """Gather a key and its callees."""
        key, *callees, closing = children
        named_callees = tuple(c for c in callees if c is not None)
        return SyntaxAttribute(
            key.text[:-1], key.start, Stretch(key.end, closing.end), named_callees
        )

    def callee(self, children: list[Any]) -> SyntaxCallee:
        """Keep a computation's name."""
        name = children[0]
        return SyntaxCallee(bare(name.text), (), _stretch(name, name))

    def inline_computation(self, children: list[Any]) -> SyntaxCallee:
        """Keep a computation written out in place."""
        opening, *statements, closing = children
        return SyntaxCallee("", tuple(statements), _stretch(opening, closing))


def _statement(
    name: str,
    name_at: Stretch,
    is_root: bool,
    shape: Stretch | None,
    call: SyntaxCall,
    attributes: list[SyntaxAttribute],
    start: int,
) -> SyntaxStatement:
    end = attributes[-1].value.end if attributes else call.end
    inner = (s.depth for a in attributes for c in a.callees or () for s in c.statements)
    depth = max(call.depth, 1 + max(inner, default=0))
    where = Stretch(start, end)
    return SyntaxStatement(name, name_at, is_root, shape, call, tuple(attributes), where, depth)
