"""Attribute values from text: one quick reader per kind, the grammar for unusual spellings.

As in `shape_text.py`, a quick reader takes the printed form only; other spellings are checked by
the grammar, whose terminals joined without blanks are the printed form again. Errors come from the
grammar, with their place in the value's text.
"""

import re
from collections.abc import Callable
from itertools import pairwise

from hloipu_compiler.hlo.attributes.shape_text import ShapeReader
from hloipu_compiler.hlo.literals.values import check_literal
from hloipu_compiler.hlo.syntax import grammar
from hloipu_compiler.hlo.syntax.lexer import BLANKS
from hloipu_compiler.hlo.syntax.strings import unquote
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.ir.attribute_kinds import AttributeKind as K
from hloipu_compiler.ir.attributes import (
    Alias,
    ConvolutionLabels,
    Donor,
    PaddingDimension,
    ProgramShape,
    Raw,
    SliceRange,
    Value,
    Window,
)
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_runtime.kernels.windows_geometry import WindowDimension

NAME = r"%?[A-Za-z_][\w.\-]*+"
_INT = r"-?[0-9]+"
_INTS = rf"\{{(?:{_INT}(?>(?:,\s*{_INT})*))?\}}"
_integer = re.compile(_INT).fullmatch
_number = re.compile(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|-?(?:inf|nan)").fullmatch
_word = re.compile(r"[A-Za-z_][\w.\-]*", re.ASCII).fullmatch
_name = re.compile(rf"{NAME}:?", re.ASCII).fullmatch
_integers = re.compile(_INTS).fullmatch
_names = re.compile(rf"\{{(?:{NAME}:?(?>(?:,\s*{NAME}:?)*))?\}}", re.ASCII).fullmatch
_range = re.compile(rf"\[({_INT}):({_INT})(?::({_INT}))?\]")
_pads = re.compile(r"-?[0-9]+_-?[0-9]+(?:_[0-9]+)?(?:x-?[0-9]+_-?[0-9]+(?:_[0-9]+)?)*").fullmatch
_labels = re.compile(r"([0-9bf?]{2,})_([0-9io?]{2,})->([0-9bf?]{2,})").fullmatch
_window_item = re.compile(r"([a-z_]+)=(-?[0-9]+|[0-9]+(?:x[0-9]+)+|-?[0-9]+_[0-9x_\-]+)")
_alias = re.compile(
    rf"({_INTS}):\s*\(\s*([0-9]+),\s*({_INTS})(?:,\s*([A-Za-z_][\w.\-]*))?\)", re.ASCII
)
_donor = re.compile(rf"\(([0-9]+),\s*({_INTS})\)")
_LONGEST_INTEGER = 20
_LARGEST_WINDOW = 64


def read_value(kind: K, text: str, shapes: ShapeReader) -> Value:
    """Return the value that `text` spells as one of `kind`; TextFault where it spells none."""
    reader = _READERS.get(kind)
    if reader is None:
        return _with_shapes(kind, text, shapes)
    value = reader(text)
    if value is None and (rule := _RULES.get(kind)):
        value = reader(grammar.printed_form(text, rule, shapes.limits))
    if value is None:
        raise TextFault("E0121", f"{_shown(text)} is not {kind.value}", expected=kind.value)
    return value


def _shown(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}…"


def integer(text: str) -> int:
    """Return a 64-bit integer; the upper half of the unsigned range wraps, as XLA's reader does."""
    value = int(text) if len(text) <= _LONGEST_INTEGER else 1 << 64
    if not -(1 << 63) <= value < 1 << 64:
        raise TextFault("E0122", f"{_shown(text)} does not fit in 64 bits")
    return value if value < 1 << 63 else value - (1 << 64)


def _read_word(text: str) -> Value | None:
    return text if _word(text) else None


def _read_names(text: str) -> Value | None:
    if not _names(text):
        return None
    inside = text[1:-1].replace("%", "").replace(":", "")
    return tuple(name.strip() for name in inside.split(",")) if inside else ()


def _read_some_names(text: str) -> Value | None:
    names = _read_names(text)
    if names == ():
        raise TextFault("E0121", "the list is empty", expected="one name or more")
    return names


def _split_integers(text: str) -> tuple[int, ...]:
    inside = text[1:-1]
    return tuple([integer(word.strip()) for word in inside.split(",")]) if inside else ()


def _read_integer_lists(text: str) -> Value | None:
    lists = _items(text, re.compile(_INTS))
    return None if lists is None else tuple(_split_integers(m[0]) for m in lists)


def _read_booleans(text: str) -> Value | None:
    inside = text[1:-1] if text.startswith("{") and text.endswith("}") else text
    words = [word.strip() for word in inside.split(",")] if inside else []
    if any(word not in ("true", "false") for word in words):
        return None
    return tuple(word == "true" for word in words)


def _items(
    text: str, pattern: re.Pattern[str], allowed: tuple[str, ...] = ("",)
) -> list[re.Match[str]] | None:
    """Match `{item, item, …}` exactly; None where anything else stands between the items."""
    if not (text.startswith("{") and text.endswith("}") and len(text) > 1):
        return None
    matches = list(pattern.finditer(text, 1, len(text) - 1))
    if not matches:
        return [] if not text[1:-1].strip() else None
    if text[1 : matches[0].start()].strip() or text[matches[-1].end() : -1].strip() not in allowed:
        return None
    if any(text[a.end() : b.start()].strip() != "," for a, b in pairwise(matches)):
        return None
    return matches


def _read_slices(text: str) -> Value | None:
    ranges = _items(text, _range)
    if ranges is None:
        return None
    return tuple(
        SliceRange(integer(m[1]), integer(m[2]), integer(m[3]) if m[3] else 1) for m in ranges
    )


def _padding(word: str) -> PaddingDimension:
    return PaddingDimension(*map(integer, word.split("_")))


_WINDOW_KEYS = frozenset({"size", "stride", "pad", "lhs_dilate", "rhs_dilate", "rhs_reversal"})


def _read_window(text: str) -> Value | None:
    if not (text.startswith("{") and text.endswith("}")):
        return None
    parts: dict[str, list[str]] = {}
    for item in text[1:-1].split():
        match = _window_item.fullmatch(item)
        if match is None:
            return None
        key, value = match.groups()
        if key not in _WINDOW_KEYS or key in parts:
            fault = "twice in" if key in parts else "no part of"
            raise TextFault("E0123", f"{key}= is {fault} a window", expected=K.WINDOW.value)
        if (key == "pad") != bool(_pads(value)):
            raise TextFault("E0123", f"{key}={value} cannot be read", expected=K.WINDOW.value)
        parts[key] = value.split("x")
    return _window(parts)


def _window(parts: dict[str, list[str]]) -> Window:
    rank = len(parts.get("size", ()))
    if rank > _LARGEST_WINDOW:
        raise TextFault("E0123", f"the window has {rank} dimensions", expected="64 at most")
    for key, words in parts.items():
        if len(words) != rank and key != "rhs_reversal":
            raise TextFault("E0123", f"the window has {rank} sizes, but {len(words)} in {key}=")

    def numbers(key: str, default: int) -> list[int]:
        return list(map(integer, parts[key])) if key in parts else [default] * rank

    pads = [_padding(word) for word in parts.get("pad", ["0_0"] * rank)]
    if any("_" in word and word.count("_") > 1 for word in parts.get("pad", ())):
        raise TextFault("E0123", "a window's padding has no interior part", expected="low_high")
    flips = (numbers("rhs_reversal", 0) + [0] * rank)[:rank]
    return Window(
        tuple(
            WindowDimension(size, stride, pad.low, pad.high, base, dilation, flip == 1)
            for size, stride, pad, base, dilation, flip in zip(
                numbers("size", 1),
                numbers("stride", 1),
                pads,
                numbers("lhs_dilate", 1),
                numbers("rhs_dilate", 1),
                flips,
                strict=True,
            )
        )
    )


def _read_labels(text: str) -> Value | None:
    match = _labels(text)
    if match is None:
        return None
    for part, letters in zip(match.groups(), ("bf", "io", "bf"), strict=True):
        wanted = set(letters) | set(map(str, range(len(part.replace("?", "")) - 2)))
        if set(part) - {"?"} != wanted or len(part.replace("?", "")) != len(wanted):
            raise TextFault(
                "E0124",
                f"{_shown(part)} does not label each dimension once",
                expected=K.LABELS.value,
            )
    lhs, rhs, out = match.groups()
    if not len(lhs.replace("?", "")) == len(rhs.replace("?", "")) == len(out.replace("?", "")):
        raise TextFault("E0124", "the three parts label different numbers of dimensions")
    return ConvolutionLabels(lhs, rhs, out)


_ALIAS_KINDS = {
    None: "may-alias", "may-alias": "may-alias", "must-alias": "must-alias",
    "USER": "may-alias", "SYSTEM": "may-alias",  # until 2020
}  # fmt: skip


def _read_aliases(text: str) -> Value | None:
    matches = _items(text, _alias, ("", ","))
    if matches is None:
        return None
    for match in matches:
        if match[4] not in _ALIAS_KINDS:
            raise TextFault("E0139", f"{match[4]} is not a kind of alias", match.start(4),
                            expected="may-alias or must-alias")  # fmt: skip
    return tuple(
        Alias(_split_integers(m[1]), integer(m[2]), _split_integers(m[3]), _ALIAS_KINDS[m[4]])
        for m in matches
    )


def _read_donors(text: str) -> Value | None:
    matches = _items(text, _donor, ("", ","))
    if matches is None:
        return None
    return tuple(Donor(integer(m[1]), _split_integers(m[2])) for m in matches)


def _with_shapes(kind: K, text: str, shapes: ShapeReader) -> Value:
    if kind is K.SHAPE:
        return shapes.read(text)
    if kind is K.TYPED_LITERAL:
        from hloipu_compiler.hlo.attributes.attribute_values import check_typed_literal

        check_typed_literal(text, shapes)
        return Raw(text)
    if kind is K.SHAPES:
        return shapes.read_list(text, "shapes")
    *parameters, result = shapes.read_list(text, "program_shape")
    return ProgramShape(tuple(parameters), result)


def _read_groups(text: str) -> Value:
    from hloipu_compiler.hlo.attributes.replica_groups import read_replica_groups

    return read_replica_groups(text)


_READERS: dict[K, Callable[[str], Value | None]] = {
    K.INTEGER: lambda text: integer(text) if _integer(text) else None,
    K.FLOAT: lambda text: float(text) if _number(text) else None,
    K.BOOLEAN: lambda text: True if text == "true" else False if text == "false" else None,
    K.STRING: lambda text: unquote(text) if text[:1] in ('"', "'") else None,
    K.WORD: _read_word,
    K.INTEGERS: lambda text: _split_integers(text) if _integers(text) else None,
    K.BOOLEANS: _read_booleans,
    K.WORDS: _read_names,
    K.INTEGER_LISTS: _read_integer_lists,
    K.SLICES: _read_slices,
    K.WINDOW: _read_window,
    K.LABELS: _read_labels,
    K.PADDING: lambda text: tuple(map(_padding, text.split("x"))) if _pads(text) else None,
    K.COMPUTATION: lambda text: text.removeprefix("%").removesuffix(":") if _name(text) else None,
    K.COMPUTATIONS: _read_names,
    K.INSTRUCTIONS: _read_some_names,
    K.REPLICA_GROUPS: _read_groups,
    K.ALIASES: _read_aliases,
    K.DONORS: _read_donors,
    K.RAW: Raw,
}

_RULES: dict[K, str] = {
    K.INTEGERS: "integers",
    K.BOOLEANS: "booleans",
    K.WORDS: "words",
    K.INTEGER_LISTS: "integer_lists",
    K.SLICES: "slices",
    K.WINDOW: "window",
    K.COMPUTATIONS: "words",
    K.INSTRUCTIONS: "words",
    K.ALIASES: "aliases",
    K.DONORS: "donors",
}
"""The grammar's start rule for each kind that is more than one terminal."""


ARRAY = re.compile(r"[a-z]\w*\s*\[[^\]]*+\]\s*(?>(?:\{\s*[0-9:][^{}]*+\})?)", re.ASCII)
"""The shape before an array's value; as in XLA, `{` with a number after it is a layout."""


def check_typed_literal(text: str, shapes: ShapeReader) -> None:
    """Check a typed literal; TextFault where the shape is none or the value does not fit it.

    Of a tuple only the brackets are checked, which the grammar has done.
    """
    if text.startswith("("):
        return
    typed = ARRAY.match(text)
    if typed is None:
        raise TextFault("E0121", "a shape and a literal are expected", expected="s32[2]{0} {1, 2}")
    shape = shapes.read(typed[0].rstrip())
    layout = shape.layout if isinstance(shape, ArrayShape) else None
    if layout is not None and sorted(layout.minor_to_major) != list(
        range(len(layout.minor_to_major))
    ):
        # Elsewhere nobody looks at such a layout; here XLA lays values out by it and dies.
        raise TextFault(
            "E0121", f"layout {layout} is not an order of the dimensions", offset=typed[0].find("{")
        )
    blanks = BLANKS.match(text, typed.end())
    value = blanks.end() if blanks else typed.end()
    try:
        check_literal(text[value:], shape)
    except TextFault as fault:
        fault.offset += value
        raise
