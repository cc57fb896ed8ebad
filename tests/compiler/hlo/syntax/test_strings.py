import pytest

from hloipu_compiler.hlo.syntax.strings import quote, unquote
from hloipu_compiler.hlo.syntax.text_fault import TextFault


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"plain"', "plain"),
        ("'it'", "it"),
        (r'"a\"b\\c\'d\n\t\r"', "a\"b\\c'd\n\t\r"),
        (r'"\x41\102\0"', "AB\0"),
        (r'"\303\244"', "ä"),
        (r'"\u00e4"', "ä"),
        (r'"\377"', "\udcff"),
        (r'"\x0041"', "A"),
    ],
)
def test_unquote(text: str, value: str) -> None:
    assert unquote(text) == value


@pytest.mark.parametrize("text", [r'"\q"', r'"\x141"', r'"\ud800"', r'"\400"', '"', "abc", "\"a'"])
def test_bad_strings(text: str) -> None:
    with pytest.raises(TextFault):
        unquote(text)


def test_quote_escapes_as_xla() -> None:
    assert quote("p['L']\n\"ä\"") == r'"p[\'L\']\n\"\303\244\""'


@pytest.mark.parametrize("value", ["", "a", "\0\x01\x7f", "äß", "\udcff\udc80", "\\\"'"])
def test_round_trip(value: str) -> None:
    assert unquote(quote(value)) == value
