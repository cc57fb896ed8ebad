"""The kept parse tables are those of the grammar, and an edited grammar is parsed as edited."""

import json
from pathlib import Path

import pytest

from hloipu_compiler.hlo.syntax import parse_tables
from hloipu_compiler.hlo.syntax.grammar import Parser
from hloipu_compiler.hlo.syntax.lexer import LexerInput
from hloipu_compiler.hlo.syntax.parse_tables import GRAMMAR, TABLES, made_tables, parse_table


def test_the_kept_tables_are_those_that_lark_makes() -> None:
    made = json.loads(json.dumps(made_tables(GRAMMAR.read_bytes())))
    assert json.loads(TABLES.read_bytes()) == made, "make grammar"


def test_an_edited_grammar_is_used_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edited = tmp_path / "hlo.lark"
    edited.write_text(GRAMMAR.read_text().replace('donor: "("', 'donor: "give" "("'))
    monkeypatch.setattr(parse_tables, "GRAMMAR", edited)
    for cached in (parse_tables._tables, parse_table):
        cached.cache_clear()
    try:
        seen = LexerInput("{ give (0, {1})}", {})
        seen.seen = []
        Parser(parse_table("values"), None).parse(seen, "donors")
        assert [piece.text for piece in seen.seen] == ["{", "give", "(", "0", ",", "{1}", ")", "}"]
    finally:
        for cached in (parse_tables._tables, parse_table):
            cached.cache_clear()
