"""Names of terminals in plain words, for messages."""

import re

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.nearest import Suggestions
from hloipu_runtime.plain_text import printable

_WORDS = {
    "HLO_MODULE": "HloModule", "ENTRY": "a computation", "ROOT": "an instruction",
    "STACK_TABLES": "FileNames", "COMPUTATION_TEXT": "a computation",
    "STATEMENTS": "an instruction", "SHAPE_KEY": "an attribute", "LITERAL_KEY": "an attribute",
    "RAW_KEY": "an attribute", "COMPUTATION_KEY": "an attribute",
    "COMPUTATIONS_KEY": "an attribute", "KEY": "an attribute like dimensions={0}",
    "BUFFER": "a shape", "TYPE": "a shape like f32[2,3]", "ARRAY": "a shape like f32[2,3]",
    "ARRAYS": "a shape like f32[2,3]", "LPAR": "(", "RPAR": ")",
    "SIZES_BEGUN": "sizes like [2,3]", "LAYOUT": "a layout like {1,0}",
    "PARAMETER": "an opcode", "CONSTANT": "an opcode",
    "OPCODE": "an opcode and ( like add(",
    "GROUPS_IOTA": "a value", "GROUPS_MESH": "a value", "LABELS": "a value", "FLOAT": "a number",
    "SIZES": "sizes like 3x3", "PADS": "paddings like 1_1x0_0", "INT": "an integer",
    "STRING": "a quoted string", "BOOLEAN": "true or false", "NAME": "a name", "NAMES": "a name",
    "INTEGERS": "integers like {0,1}", "INTEGERS_BEGUN": "integers like {0,1}",
    "LBRACE": "{", "RBRACE": "}", "RBRACKET": "]", "LSQB": "[",
    "COMMA": ",", "EQUAL": "=", "QMARK": "?", "BRACES": "{", "RAW_BRACES": "{",
    "LITERAL": "a literal", "TYPED_LITERAL": "a shape and a literal", "HASH": "#", "COLON": ":",
    "$END": "the end of the text",
}  # fmt: skip
_SYMBOLS = {"__ANON_0": "->", "__ANON_1": "<="}
_COVERED = (
    ("a shape like f32[2,3]", ("a shape", "(")),
    ("an attribute like dimensions={0}", ("an attribute",)),
    ("an opcode and ( like add(", ("an opcode",)),
    ("an instruction", ("a name",)),
    ("a computation", ("a name", "an instruction")),
    ("a value", ("an integer", "a number", "{", "sizes like 3x3", "paddings like 1_1x0_0")),
)
_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.){0,40}"?|%?[\w.\-]+[=:]?|\S', re.ASCII)
_CLOSED_STRING = re.compile(r"\"(?>(?:[^\"\\]|\\.)*)\"|'(?>(?:[^'\\]|\\.)*)'", re.DOTALL)
_TYPE_AND_SIZES = re.compile(r"([A-Za-z]\w{0,30})[ \t]*\[", re.ASCII)
_NEGATIVE_SIZE = re.compile(r"[\[,][ \t]*-\d+[ \t]*\Z")
_MOST_SHOWN = 48


def in_words(text: str, offset: int, accepted: frozenset[str]) -> tuple[str, str, str]:
    """Return what was found at `offset`, what was expected there, and a hint or ''."""
    if offset >= len(text) or (text[offset].isspace() and not text[offset:].strip()):
        return "the text ends here", _expected(accepted), ""
    if text.startswith("/*", offset):
        return "this comment is never closed", "*/", ""
    if text[offset] in "\"'":
        if not _CLOSED_STRING.match(text, offset):
            return "this string is never closed", f"{text[offset]} at its end", ""
        if "STRING" in accepted:
            known = "\\ only before n, t, quotes, \\, xHH or octal digits"
            return "this string has an unknown escape", known, ""
    if text[offset] == "\ufeff":
        return "a byte order mark", _expected(accepted), "save the file as UTF-8 without one"
    typed = _TYPE_AND_SIZES.match(text, offset)
    if typed and "TYPE" in accepted:
        hint = Suggestions().hint(typed[1], ELEMENT_TYPES)
        return f"unknown element type {typed[1]}", "a type like f32, bf16, s32 or pred", hint
    if not text[offset].isprintable():
        return f"unexpected character U+{ord(text[offset]):04X}", _expected(accepted), ""
    match = _TOKEN.match(text, offset)
    token = printable((match[0] if match else text[offset])[:_MOST_SHOWN])
    if accepted == {"RBRACKET"} and _NEGATIVE_SIZE.search(text[max(0, offset - 40) : offset]):
        return "a negative size", "sizes of 0 and more", ""
    return f"unexpected {token}", _expected(accepted), _hint(token, accepted)


def _expected(accepted: frozenset[str]) -> str:
    words = {_WORDS.get(name) or _symbol(name) for name in accepted}
    for general, special in _COVERED:
        if general in words:
            words -= set(special)
    if len(words) > 1:
        words.discard("#")  # `name#1` is for tuples alone, and hardly ever written
    if words == {"]"}:
        words.add(",")
    ordered = [w if len(w) > 2 else f"`{w}`" for w in sorted(words, key=lambda w: (len(w) < 3, w))]
    return (
        " or ".join(ordered) if len(ordered) < 3 else f"{', '.join(ordered[:-1])} or {ordered[-1]}"
    )


def _symbol(name: str) -> str:
    return _SYMBOLS.get(name, name.lower().replace("_", " "))


def _hint(token: str, accepted: frozenset[str]) -> str:
    if token.endswith("=") and "ROOT" in accepted:
        return f"write a blank before the = sign: {token[:-1]} ="
    if token.endswith("=") and "OPCODE" in accepted:
        return "close the operands with ) before the attributes"
    if token == ":" and "TYPE" in accepted:
        return "a colon stands at once after its name: p: f32[4]"
    if token == ";":
        return "HLO has no statement separator; end the line without one"
    return ""
