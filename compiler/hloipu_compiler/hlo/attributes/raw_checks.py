"""Check attribute values that are kept as text against XLA's parser: shardings, origins."""

from collections.abc import Callable

from hloipu_compiler.hlo.attributes.frontend_attributes import read_frontend_attributes
from hloipu_compiler.hlo.attributes.metadata import check_metadata
from hloipu_compiler.hlo.attributes.value_cursor import Cursor, Kind
from hloipu_compiler.hlo.syntax.strings import unquote
from hloipu_compiler.hlo.syntax.text_fault import TextFault

_CODE = "E0147"
_DEEPEST_ORIGIN = 100


def _statistics(cursor: Cursor) -> None:
    """Check `{visualizing_index=0,name=1.5,…}`."""
    if cursor.kind is Kind.KEY:
        if cursor.key() != "visualizing_index":
            raise TextFault(_CODE, "statistics begin with visualizing_index=", 1)
        cursor.integer()
        while cursor.take(","):
            cursor.key()
            _number(cursor)


def _number(cursor: Cursor) -> None:
    if cursor.kind not in (Kind.DECIMAL, Kind.INTEGER) and cursor.text not in ("inf", "nan"):
        raise cursor.fault(expected="a number")
    cursor.advance()


def _accuracy(cursor: Cursor) -> None:
    """Check `{mode=highest}` or `{tolerance={atol=0.5, rtol=0.1, ulps=2}}`."""
    key = cursor.key()
    if key == "mode":
        if cursor.text.lower() not in ("default", "highest"):
            raise cursor.fault(expected="default or highest")
        cursor.advance()
    elif key == "tolerance":
        cursor.expect("{")
        while not cursor.at("}"):
            cursor.take(",")
            if cursor.key() not in ("atol", "rtol", "ulps"):
                raise cursor.fault(expected="atol=, rtol= or ulps=")
            if cursor.text.startswith("-"):  # XLA's parser dies on these
                raise cursor.fault("a tolerance is not negative")
            _number(cursor)
        cursor.expect("}")
    else:
        raise TextFault(_CODE, f"{key}= is unknown here", 1, expected="mode= or tolerance=")


def _domain(cursor: Cursor) -> None:
    """Check `{kind="sharding", entry={…}, exit={…}}`."""
    missing = {"kind", "entry", "exit"}
    while not cursor.at("}"):
        cursor.take(",")
        start = cursor.start
        key = cursor.key()
        if key not in missing:
            raise TextFault(_CODE, f"{key}= is unknown or twice here", start)
        missing.remove(key)
        if key != "kind":
            from hloipu_compiler.hlo.attributes.sharding import take_sharding

            take_sharding(cursor)
        elif cursor.string() != "sharding":
            raise TextFault(_CODE, "a domain's kind is sharding", start, expected='"sharding"')
    if missing:
        raise cursor.fault("the domain is incomplete", expected=f"{sorted(missing)[0]}=")


def _origin(cursor: Cursor) -> None:
    """Check `{{"name" {1}}}`, `{({"a"}, {"b" {0}})}` or `{[synthetic_call]}`."""
    if cursor.take("["):
        if cursor.text not in ("synthetic_call", "synthetic"):
            raise cursor.fault(expected="synthetic_call")
        cursor.advance()
        cursor.expect("]")
    else:
        _origin_tree(cursor, 0)


def _origin_tree(cursor: Cursor, depth: int) -> None:
    if cursor.take("("):
        if depth > _DEEPEST_ORIGIN:
            raise cursor.fault("the origin is nested too deeply")
        while not cursor.at(")"):
            _origin_tree(cursor, depth + 1)
            if not cursor.take(","):
                break
        cursor.expect(")")
    else:
        _origin_array(cursor)


def _origin_array(cursor: Cursor) -> None:
    cursor.expect("{")
    if not cursor.at("}"):
        cursor.string()
        if cursor.at("{"):
            cursor.integers("{", "}")
    cursor.expect("}")


def _recovery_table(cursor: Cursor) -> None:
    """Check `{ {"a"} : {"b"}, "HloModule …" … }`; the modules inside are not parsed."""
    while not cursor.at("}"):
        cursor.take(",")
        _origin_array(cursor)
        cursor.expect(":")
        _origin_array(cursor)
        if cursor.take(",") and cursor.kind is Kind.STRING:
            cursor.string()


def _sharding(text: str) -> None:
    from hloipu_compiler.hlo.attributes.sharding import read_sharding

    read_sharding(text)


_CHECKS: dict[str, Callable[[str], object]] = {
    "metadata": check_metadata,
    "sharding": _sharding,
    "frontend_attributes": read_frontend_attributes,
}
_BRACED: dict[str, Callable[[Cursor], None]] = {
    "statistics": _statistics,
    "result_accuracy": _accuracy,
    "domain": _domain,
    "origin": _origin,
    "origin_recovery_table": _recovery_table,
}
"""Checks of what stands between braces."""


def check_raw(key: str, text: str) -> None:
    """Check a raw value that has a language of its own; TextFault where it is wrong."""
    if key in _CHECKS:
        _CHECKS[key](text)
    elif key in _BRACED:
        cursor = Cursor(text, _CODE)
        cursor.expect("{")
        _BRACED[key](cursor)
        cursor.expect("}")
        cursor.finish()
    elif text[:1] in ("'", '"'):
        unquote(text)
