"""Find balanced stretches of text: braces, raw braces and literals, in one linear pass."""

import re
from collections.abc import Mapping
from functools import partial

from hloipu_compiler.hlo.syntax.lexer import BLANKS, COMMENT, Finder, Piece
from hloipu_compiler.hlo.syntax.limits import Limits, check_limit
from hloipu_compiler.hlo.syntax.text_fault import TextFault

STRINGS = r""""(?>(?:[^"\\]++|\\.)*)"|'(?>(?:[^'\\]++|\\.)*)'"""
COMMENTS = rf"{COMMENT}|//[^\n]*+"
_FLAT = {
    "BRACES": re.compile(rf"\{{(?>(?:[^{{}}\"'/]++|{STRINGS}|{COMMENTS})*)\}}", re.DOTALL),
    "RAW_BRACES": re.compile(rf"\{{(?>(?:[^{{}}\"']++|{STRINGS})*)\}}", re.DOTALL),
    "LITERAL": re.compile(rf"(?>(?:[^(){{}}/]++|{COMMENTS}|[({{][^(){{}}/]*+[)}}])*)(?=\))"),
}
_STEPS = {
    "BRACES": re.compile(rf"[{{}}]|{STRINGS}|{COMMENTS}|[\"']|/\*", re.DOTALL),
    "RAW_BRACES": re.compile(rf"[{{}}]|{STRINGS}|[\"']", re.DOTALL),
    "LITERAL": re.compile(rf"[(){{}}]|{COMMENTS}|/\*"),
}
_SCALAR = re.compile(r"[\w.+\-]++(?>(?:\(0x[0-9a-fA-F]++\))?)", re.ASCII)


def finders(limits: Limits) -> Mapping[str, Finder]:
    """Return the code that finds each balanced terminal."""
    return {
        "BRACES": partial(_braces, "BRACES", limits),
        "RAW_BRACES": partial(_braces, "RAW_BRACES", limits),
        "LITERAL": partial(_literal, limits),
        "TYPED_LITERAL": partial(_typed_literal, limits),
    }


def _braces(kind: str, limits: Limits, text: str, at: int) -> Piece | None:
    if not text.startswith("{", at):
        return None
    flat = _FLAT[kind].match(text, at)
    end = flat.end() if flat else _balanced_end(kind, limits, text, at)
    return Piece(kind, text[at:end], at, end)


def _literal(limits: Limits, text: str, at: int) -> Piece | None:
    """Find the text of a constant, up to the parenthesis that closes the operand list."""
    flat = _FLAT["LITERAL"].match(text, at)
    end = flat.end() if flat else _balanced_end("LITERAL", limits, text, at - 1, inside=True)
    check_limit(limits, "constant_bytes", end - at, at)
    if end == at:
        return None
    return Piece("LITERAL", text[at:end].rstrip(), at, end)


def _typed_literal(limits: Limits, text: str, at: int) -> Piece | None:
    """Find the value of `literal=`: a shape and a literal, or a tuple of these."""
    value = at
    if not text.startswith("(", at):
        from hloipu_compiler.hlo.attributes.attribute_values import ARRAY

        typed = ARRAY.match(text, at)
        blanks = BLANKS.match(text, typed.end()) if typed else None
        if blanks is None:
            return None
        value = blanks.end()
    if text.startswith(("(", "{"), value):
        end = _balanced_end("LITERAL", limits, text, value)
    else:
        scalar = _SCALAR.match(text, value)
        if scalar is None:
            return None
        end = scalar.end()
    check_limit(limits, "constant_bytes", end - at, at)
    return Piece("TYPED_LITERAL", text[at:end], at, end)


def _balanced_end(kind: str, limits: Limits, text: str, at: int, *, inside: bool = False) -> int:
    """Return the offset after the bracket that closes the one at `at`.

    With `inside` the closing bracket itself is left out, and the opening one may stand anywhere
    before `at`.
    """
    depth = 0
    start = at
    if inside:
        depth, start = 1, at + 1
    for step in _STEPS[kind].finditer(text, start):
        token = step[0]
        if token in "({":
            depth += 1
            if depth > limits.nesting:
                check_limit(limits, "nesting", depth, step.start())
        elif token in ")}":
            depth -= 1
            if depth == 0:
                return step.start() if inside else step.end()
        elif token in ("'", '"', "/*"):
            opened = "comment" if token == "/*" else "string"
            raise TextFault("E0102", f"this {opened} is never closed", step.start())
    opener = text[at]
    closer = "}" if opener == "{" else ")"
    raise TextFault("E0103", f"this {opener} is never closed", at, expected=f"a matching {closer}")
