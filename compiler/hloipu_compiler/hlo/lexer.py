"""The lexer that lark's parser pulls terminals from: contextual, lazy, and able to match balance.

lark's own contextual lexer compiles one regular expression per parser state when the grammar is
loaded (0.1 s and more). Here each is compiled when the parser first stands in that state, which for
a printed text is hardly ever. Lines and columns are not counted; offsets become lines when shown.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lark.common import LexerConf
from lark.lexer import Lexer
from lark.parsers.lalr_analysis import Shift

from hloipu_compiler.hlo.text_fault import TextFault

BLANKS = re.compile(r"(?:[ \t\r\n]++|/\*(?:[^*]|\*(?!/))*+\*/|//[^\n]*+)*+")


class Piece:
    """One terminal found in the text; `value` holds what a code-found terminal was read into."""

    __slots__ = ("end", "start", "text", "type", "value")
    # lark borrows these for its end-of-text token and shows none of them.
    start_pos = end_pos = line = column = end_line = end_column = None

    def __init__(self, kind: str, text: str, start: int, end: int, value: Any = None) -> None:
        self.type = kind
        self.text = text
        self.start = start
        self.end = end
        self.value = value


class LexFault(TextFault):
    """No terminal that the parser can use stands here; `accepted` are those it could use."""

    def __init__(self, offset: int, accepted: frozenset[str]) -> None:
        super().__init__("E0101", "unexpected text", offset)
        self.accepted = accepted


class TooDeep(Exception):
    """The parser's stack has grown beyond its bound at a text offset."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


Finder = Callable[[str, int], Piece | None]


class LexerInput:
    """A text to be parsed, with the code that finds its `%declare`d terminals."""

    __slots__ = ("finders", "most_stacked", "seen", "text")

    def __init__(
        self, text: str, finders: Mapping[str, Finder], most_stacked: int = 10_000
    ) -> None:
        self.text = text
        self.finders = finders
        self.most_stacked = most_stacked
        """Parser states that may be open at once: some ten for each level of nesting."""
        self.seen: list[Piece] | None = None
        """Where set, collects the terminals found."""


class HloLexer(Lexer):
    """Finds the next terminal by what the parser's state can use."""

    __future_interface__ = 2

    def __init__(self, conf: LexerConf) -> None:
        terminals = sorted(
            conf.terminals,
            key=lambda t: (-t.priority, -t.pattern.max_width, -len(t.pattern.value), t.name),
        )
        self._patterns = {t.name: t.pattern.to_regexp() for t in terminals}
        self._by_terminals: dict[frozenset[str], _StateLexer] = {}
        self._by_state: dict[int, _StateLexer] = {}

    def lex(self, lexer_state: Any, parser_state: Any) -> Iterator[Piece]:  # type: ignore[override]
        """Yield the terminals of the text; raises LexFault where none fits."""
        source: LexerInput = lexer_state.text
        text = source.text
        seen, stack = source.seen, parser_state.state_stack
        states = self._by_state
        blanks = BLANKS.match
        at, end = 0, len(text)
        while True:
            if at < end and text[at] in " \n/\t\r" and (skipped := blanks(text, at)) is not None:
                at = skipped.end()
            if at >= end:
                return
            position = parser_state.position
            state = states.get(position)
            if state is None:
                state = self._state_lexer(parser_state.parse_conf.states[position])
                states[position] = state
            piece = state.next(source, at, parser_state)
            at = piece.end
            if seen is not None:
                seen.append(piece)
            yield piece
            if len(stack) > source.most_stacked:
                raise TooDeep(at)

    def _state_lexer(self, actions: Mapping[str, object]) -> "_StateLexer":
        accepted = frozenset(name for name in actions if name.isupper() and name != "$END")
        if accepted not in self._by_terminals:
            self._by_terminals[accepted] = _StateLexer(self._patterns, accepted)
        return self._by_terminals[accepted]


def usable(parser_state: Any) -> frozenset[str]:
    """Return the terminals that can really come next.

    A state's own table lists more: LALR merges states, and some terminals only lead to reductions
    after which they cannot be shifted.
    """
    states = parser_state.parse_conf.states
    return frozenset(
        name
        for name in states[parser_state.position]
        if name.isupper() and _can_shift(states, list(parser_state.state_stack), name)
    )


def _can_shift(states: Any, stack: list[int], name: str) -> bool:
    while True:
        found = states[stack[-1]].get(name)
        if found is None:
            return False
        action, rule = found
        if action is Shift:
            return True
        if rule.expansion:
            del stack[-len(rule.expansion) :]
        stack.append(states[stack[-1]][rule.origin.name][1])


class _StateLexer:
    """Finds one of the terminals that the parser can use in some of its states."""

    def __init__(self, patterns: Mapping[str, str], accepted: frozenset[str]) -> None:
        self.accepted = accepted
        self.by_code = sorted(accepted - patterns.keys())
        named = [f"(?P<{name}>{pattern})" for name, pattern in patterns.items() if name in accepted]
        self.match = re.compile("|".join(named) or "(?!)", re.ASCII).match

    def next(self, source: LexerInput, at: int, parser_state: Any) -> Piece:
        """Return the terminal that starts at offset `at`; LexFault where none does."""
        for name in self.by_code:
            finder = source.finders.get(name)
            piece = finder(source.text, at) if finder else None
            if piece is not None:
                return piece
        found = self.match(source.text, at)
        if found is None or found.lastgroup is None:
            raise LexFault(at, usable(parser_state))
        return Piece(found.lastgroup, found[0], at, found.end())
