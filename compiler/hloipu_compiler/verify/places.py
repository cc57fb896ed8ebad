"""Find the parts of a faulty statement in the text.

The parser keeps only where a statement begins and ends. A part that cannot be found (the text may
be sugar for something else) gives the span of the whole statement.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.source import Span

_BLANK = r"(?:\s|/\*.*?\*/|//[^\n]*)*"
_NAME = re.compile(rf"{_BLANK}(?:ROOT(?![\w.\-]){_BLANK})?(%?[\w.\-]+){_BLANK}=", re.S)
_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|/\*.*?\*/|//[^\n]*|\s+|%?[A-Za-z_][\w.\-]*=?|.', re.S
)
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")

Range = tuple[int, int]


class Parts(NamedTuple):
    """Offsets of the parts of a statement, counted from its first character."""

    name: Range | None
    shape: Range | None
    opcode: Range | None
    operands: tuple[Range, ...]
    attributes: dict[str, Range]


class _Scan:
    """One walk over the tokens of a statement; knows how deep in brackets it stands."""

    def __init__(self, text: str, stage: str = "shape") -> None:
        self.text = text
        named = _NAME.match(text) if stage == "shape" else None
        self.name = named.span(1) if named else None
        self.body = named.end() if named else 0
        self.shape: Range | None = None
        self.opcode: Range | None = None
        self.operands: list[Range] = []
        self.attributes: dict[str, Range] = {}
        self._depth = 0
        self._part: Range | None = None
        self._key = ""
        self._stage = stage

    def walk(self) -> Parts:
        for token in _TOKEN.finditer(self.text, self.body):
            word = token.group()
            if not word.isspace() and not word.startswith(("/*", "//")):
                self._take(word, token.start(), token.end())
        self._close()
        return Parts(self.name, self.shape, self.opcode, tuple(self.operands), self.attributes)

    def _take(self, word: str, start: int, end: int) -> None:
        if self._stage == "shape" and self._depth == 0 and self._is_opcode(word, end):
            self.shape, self.opcode, self._part = self._part, (start, end), None
            self._stage = "opcode"
            return
        level = 1 if self._stage == "operands" else 0
        if word in _CLOSING:
            self._depth -= 1
            if self._stage == "operands" and self._depth == 0:
                self._close()
                self._stage = "attributes"
                return
        if self._depth == level and word == "," and self._stage != "shape":
            self._close()
            return
        if word in _OPENING:
            self._depth += 1
            if self._stage == "opcode":
                self._stage = "operands"
                return
        if self._stage == "attributes" and self._part is None:
            self._key = word[:-1] if word.endswith("=") else ""
        self._part = (self._part[0] if self._part else start, end)

    def _is_opcode(self, word: str, end: int) -> bool:
        if not word[0].isalpha() or word == "b":  # b( opens a buffer's shape
            return False
        return self.text[end : end + 64].lstrip()[:1] == "("

    def _close(self) -> None:
        part, self._part = self._part, None
        if part is None:
            return
        if self._stage == "operands":
            self.operands.append(part)
        elif self._stage == "attributes" and self._key:
            self.attributes.setdefault(self._key, part)


MOST_SCANNED = 100_000
"""Characters of a statement that are looked at; only constants are longer."""


@lru_cache(maxsize=64)
def statement_parts(text: str) -> Parts:
    """Return where name, shape, opcode, operands and attributes stand in one statement's text."""
    return _Scan(text).walk()


def _parts(module: Module, instruction: Instruction) -> Parts | None:
    if instruction.start < 0:
        return None
    end = min(instruction.end, instruction.start + MOST_SCANNED)
    return statement_parts(module.source.text[instruction.start : end])


def _within(module: Module, instruction: Instruction, part: Range | None) -> Span | None:
    if part is None:
        return module.span(instruction)
    return module.source.span(instruction.start + part[0], instruction.start + part[1])


def name_span(module: Module, instruction: Instruction) -> Span | None:
    """Return where an instruction's name is defined."""
    parts = _parts(module, instruction)
    return _within(module, instruction, parts.name if parts else None)


def shape_span(module: Module, instruction: Instruction) -> Span | None:
    """Return where an instruction's shape stands, or its opcode when the text gives no shape."""
    parts = _parts(module, instruction)
    return _within(module, instruction, (parts.shape or parts.opcode) if parts else None)


def opcode_span(module: Module, instruction: Instruction) -> Span | None:
    """Return where an instruction's opcode stands."""
    parts = _parts(module, instruction)
    return _within(module, instruction, parts.opcode if parts else None)


def operand_span(module: Module, instruction: Instruction, number: int) -> Span | None:
    """Return where an operand stands, or the statement when the text has not that many."""
    parts = _parts(module, instruction)
    spans = parts.operands if parts else ()
    return _within(module, instruction, spans[number] if 0 <= number < len(spans) else None)


def attribute_span(module: Module, instruction: Instruction, key: str) -> Span | None:
    """Return where `key=value` stands, or the opcode where the attribute is not written."""
    parts = _parts(module, instruction)
    if parts is None:
        return None
    return _within(module, instruction, parts.attributes.get(key) or parts.opcode)


def computation_span(module: Module, computation: Computation) -> Span | None:
    """Return the line on which a computation begins."""
    if computation.start < 0:
        return None
    text = module.source.text
    brace = text.find("{", computation.start, max(computation.start, computation.end))
    line = text.find("\n", computation.start)
    ends = [offset for offset in (brace, line, computation.end) if offset > computation.start]
    end = min(ends, default=computation.start)
    return module.source.span(
        computation.start, computation.start + len(text[computation.start : end].rstrip())
    )


@lru_cache(maxsize=4)
def _header_parts(header: str) -> dict[str, Range]:
    return _Scan(header, stage="attributes").walk().attributes


def header_span(module: Module, key: str) -> Span | None:
    """Return where `key=value` stands in the module's header, or the header's first line."""
    text = module.source.text
    first = min((c.start for c in module.computations if c.start >= 0), default=0)
    if not text or first <= 0:
        return None
    header = text[:first]
    span = _header_parts(header).get(key)
    if span is None:
        return module.source.span(0, header.find("\n") if "\n" in header else first)
    return module.source.span(*span)
