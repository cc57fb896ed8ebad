"""Parse tables of `hlo.lark`: made by lark, kept in `hlo.tables.json`, read at start-up.

Making them takes lark a tenth of a second, more than most modules take to compile. The file is
made by `make grammar`, and a test holds it against the grammar. Where `hlo.lark` was edited since,
tables are made anew in every process, so that an edit can be tried at once. Never lark's
`cache=True`: it keeps a pickle in a shared folder.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

GRAMMAR = Path(__file__).with_name("hlo.lark")
TABLES = Path(__file__).with_name("hlo.tables.json")

STARTS: Mapping[str, list[str]] = {
    "text": ["text"],
    "values": [
        "shape", "integers", "integer_lists", "booleans", "words", "slices", "window", "shapes",
        "program_shape", "aliases", "donors",
    ],
}  # fmt: skip
"""Table -> its start rules: one for whole texts, one for the values of attributes."""


class Rule(NamedTuple):
    """A production, and which of its symbols' values its action is given."""

    origin: str
    """What it reduces to."""
    length: int
    """Symbols of its right side."""
    action: str
    """Name of the action; a rule without one is a list of values for whoever includes it."""
    kept: list[tuple[int, bool, int]]
    """Symbol, whether its value is a list to be included item by item, Nones before it."""
    nones: int
    """At the end, for symbols that may be left out and are."""


class ParseTable(NamedTuple):
    """An LALR(1) parser as data."""

    states: list[dict[str, int]]
    """For each state, symbol -> the next state, or to reduce rule r: -1 - r."""
    rules: list[Rule]
    starts: dict[str, int]
    """Start rule -> first state."""
    ends: dict[str, int]
    """Start rule -> state in which it is complete."""
    patterns: dict[str, str]
    """Terminal -> regular expression, those tried first coming first."""


@lru_cache(maxsize=1)
def _tables() -> Mapping[str, Any]:
    grammar = GRAMMAR.read_bytes()
    stored: Mapping[str, Any] = json.loads(TABLES.read_bytes())
    if stored["crc32"] == crc32(grammar):
        return stored
    return made_tables(grammar)


@lru_cache(maxsize=2)
def parse_table(name: str) -> ParseTable:
    """Return one of the two tables, `text` or `values`."""
    states, rules, *start_end_terminals = _tables()[name]
    return ParseTable(states, [Rule(*rule) for rule in rules], *start_end_terminals)


def made_tables(grammar: bytes) -> dict[str, Any]:
    """Return the tables of a grammar as JSON data, made by lark; equal grammars give equal data."""
    table_by_start = {name: _made(grammar.decode(), starts) for name, starts in STARTS.items()}
    return {"crc32": crc32(grammar), **table_by_start}


def _made(grammar: str, starts: list[str]) -> ParseTable:
    from lark import Lark
    from lark.parse_tree_builder import maybe_create_child_filter
    from lark.parsers.lalr_analysis import Shift

    parser: Any = Lark(grammar, parser="lalr", lexer="basic", start=starts, maybe_placeholders=True)
    table = parser.parser.parser._parse_table
    numbers = _numbered(table)
    rules = sorted(parser.rules, key=lambda rule: (rule.origin.name, rule.order))
    rule_numbers = {rule: number for number, rule in enumerate(rules)}
    states: list[dict[str, int]] = [{} for _ in numbers]
    for old, actions in table.states.items():
        for symbol in sorted(actions):
            action, target = actions[symbol]
            shifts = action is Shift
            states[numbers[old]][symbol] = numbers[target] if shifts else -1 - rule_numbers[target]
    rule_records = []
    for rule in rules:
        options, length = rule.options, len(rule.expansion)
        filtered = maybe_create_child_filter(
            rule.expansion, options.keep_all_tokens, False, options.empty_indices
        )
        kept_children = [(n, False, 0) for n in range(length)]
        nones = 0
        if filtered is not None:
            kept_children = [
                (child[0], child[1], child[2] if len(child) > 2 else 0)
                for child in filtered.args[0]
            ]
            nones = filtered.args[1] if len(filtered.args) > 1 else 0
        rule_records.append(
            Rule(rule.origin.name, length, rule.alias or rule.origin.name, kept_children, nones)
        )
    terminals = sorted(
        parser.terminals,
        key=lambda t: (-t.priority, -t.pattern.max_width, -len(t.pattern.value), t.name),
    )
    return ParseTable(
        states,
        rule_records,
        {name: numbers[table.start_states[name]] for name in starts},
        {name: numbers[table.end_states[name]] for name in starts},
        {t.name: t.pattern.to_regexp() for t in terminals},
    )


def _numbered(table: Any) -> dict[int, int]:
    """Return new numbers of states in the order in which they are reached: lark's vary."""
    from lark.parsers.lalr_analysis import Shift

    numbers: dict[int, int] = {}
    waiting = [table.start_states[name] for name in sorted(table.start_states)]
    for state in waiting:
        if state not in numbers:
            numbers[state] = len(numbers)
            actions = table.states[state]
            waiting += [
                actions[symbol][1] for symbol in sorted(actions) if actions[symbol][0] is Shift
            ]
    return numbers
