"""`parse`: HLO text to a module, on the fast path where the text allows it."""

from collections.abc import Mapping
from dataclasses import replace

from hloipu_compiler.errors import Fault, ParseError
from hloipu_compiler.hlo.reading import balance
from hloipu_compiler.hlo.reading.build import ModuleBuilder, Unprinted
from hloipu_compiler.hlo.reading.line_lexer import LineReader
from hloipu_compiler.hlo.reading.statements import StatementReader
from hloipu_compiler.hlo.syntax import grammar
from hloipu_compiler.hlo.syntax.lexer import Finder
from hloipu_compiler.hlo.syntax.limits import DEFAULT_LIMITS, Limits, TextLimitError, check_limit
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.source import Source
from hloipu_runtime.collection import without_collection


def parse(source: Source | str, *, fast: bool = True, limits: Limits = DEFAULT_LIMITS) -> Module:
    """Return the module that an HLO text spells.

    With `fast` off every line goes through the grammar; the result is the same.
    Raises ParseError (E01xx) with places where the text is wrong, LimitError (E50xx) where it is
    larger or deeper than `limits`.
    """
    if isinstance(source, str):
        source = Source(source)
    check_limit(limits, "input_bytes", len(source.text))
    nul = source.text.find("\0")
    if nul >= 0:
        fault = Fault("E0104", "the text holds a NUL character", source.span(nul, nul + 1))
        raise ParseError([fault])
    try:
        with without_collection():
            try:
                return _parsed(source, limits, fast=fast)
            except ParseError:
                from hloipu_compiler.hlo.reading.foreign_text import respelled

                text = respelled(source.text)
                if text == source.text:
                    raise
                return replace(_parsed(Source(text, source.name), limits, fast=fast), source=source)
    except TextLimitError as error:
        at = min(error.offset or 0, max(len(source.text) - 1, 0))
        error.span = source.span(at, at + 1)
        raise


def _parsed(source: Source, limits: Limits, *, fast: bool) -> Module:
    if fast:
        try:
            return _parse(source, limits, fast=True)
        except Unprinted:
            pass
    return _parse(source, limits, fast=False)


def _parse(source: Source, limits: Limits, *, fast: bool) -> Module:
    reader = StatementReader(limits)
    finders: Mapping[str, Finder] = balance.finders(limits)
    if fast:
        finders = {**finders, **LineReader(reader).finders()}
    try:
        text = grammar.parse_text(source.text, finders, limits)
    except TextFault as fault:
        if fast:
            raise Unprinted from None
        at = min(fault.offset, len(source.text))
        span = source.span(at, at + 1)
        from hloipu_compiler.hlo.reading.foreign_text import foreign_hint

        hint = fault.hint or foreign_hint(source.text)
        syntax_fault = Fault(fault.code, fault.message, span, fault.expected, hint)
        raise ParseError([syntax_fault]) from None
    return ModuleBuilder(source, reader, text).build()
