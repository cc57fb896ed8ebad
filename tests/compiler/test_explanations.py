"""Every E-code in the sources has an explanation, and every explanation a code in the sources."""

import re
from pathlib import Path

from hloipu_compiler.explanations import all_codes, explain

_ROOT = Path(__file__).resolve().parents[2]
_CODE = re.compile(r"[\"'](E\d{4})[\"']")


def _codes_in_sources() -> set[str]:
    rooms = ("compiler", "runtime", "hloipu")
    sources = [path for room in rooms for path in (_ROOT / room).rglob("*.py")]
    return {code for path in sources for code in _CODE.findall(path.read_text(encoding="utf-8"))}


def test_every_code_is_explained() -> None:
    """A code that somebody may see can be asked about."""
    assert _codes_in_sources() - set(all_codes()) == set()


def test_every_explanation_is_of_a_code() -> None:
    """What nothing reports is not explained."""
    assert set(all_codes()) - _codes_in_sources() == set()


def test_explanations_are_complete() -> None:
    """Title, meaning, example and cure are there, and the title is one line."""
    for code in all_codes():
        found = explain(code)
        assert found is not None
        assert all((found.title.strip(), found.meaning.strip(), found.example.strip()))
        assert found.cure.strip()
        assert "\n" not in found.title
        assert not found.title.endswith(".")
        assert not (found.title[0].isupper() and found.title[1].islower()), code


def test_explain() -> None:
    """Codes are found in any case; unknown ones give None."""
    found = explain("e0301")
    assert found is not None
    assert str(found).startswith("E0301: ")
    assert explain("E9999") is None
