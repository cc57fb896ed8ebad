"""Contextual, lazy lexer that can match balanced brackets.

The regular expression of a parser state is compiled when the parser stands in that state again and
again, which for a printed text is never: all of them take 0.1 s and more. Lines and columns are not
counted; offsets become lines when shown.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hloipu_compiler.hlo.syntax.parse_tables import ParseTable
from hloipu_compiler.hlo.syntax.text_fault import TextFault

COMMENT = r"/\*[^*]*+\*++(?>(?:[^*/][^*]*+\*++)*)/"
"""From `/*` to the first `*/`. Without lookahead: in Python 3.11 before 3.11.5, assertions within
possessive repeats are not kept (python/cpython: issue 106052)."""
BLANKS = re.compile(rf"(?>(?:[ \t\r\n]++|{COMMENT}|//[^\n]*+)*)")


class Piece:
    """One terminal found in the text; `value` holds what a code-found terminal was read into."""

    __slots__ = ("end", "start", "text", "type", "value")

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
Matcher = Callable[[str, int], re.Match[str] | None]
_TRIALS_ONE_BY_ONE = 16


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


class Lexer:
    """Finds the next terminal by what the parser's state can use."""

    def __init__(self, table: ParseTable) -> None:
        self._states = table.states
        self._rules = table.rules
        self._patterns = table.patterns
        self._matchers: dict[str, Matcher] = {}
        self._by_terminals: dict[frozenset[str], _StateLexer] = {}
        self._by_state: dict[int, _StateLexer] = {}

    def pieces(self, source: LexerInput, stack: list[int]) -> Iterator[Piece]:
        """Yield the terminals of a text; `stack` is that of the parser, as it stands each time.

        Raises LexFault where none fits, TooDeep where the stack grows beyond its bound.
        """
        text, seen, states = source.text, source.seen, self._by_state
        blanks = BLANKS.match
        at, end = 0, len(text)
        while True:
            if at < end and text[at] in " \n/\t\r" and (skipped := blanks(text, at)) is not None:
                at = skipped.end()
            if at >= end:
                return
            position = stack[-1]
            state = states.get(position)
            if state is None:
                state = states[position] = self._state_lexer(position)
            piece = state.next(source, at)
            if piece is None:
                raise LexFault(at, self.usable(stack))
            at = piece.end
            if seen is not None:
                seen.append(piece)
            yield piece
            if len(stack) > source.most_stacked:
                raise TooDeep(at)

    def _state_lexer(self, position: int) -> "_StateLexer":
        accepted = frozenset(
            name for name in self._states[position] if name.isupper() and name != "$END"
        )
        if accepted not in self._by_terminals:
            self._by_terminals[accepted] = _StateLexer(self._patterns, self._matchers, accepted)
        return self._by_terminals[accepted]

    def usable(self, stack: list[int]) -> frozenset[str]:
        """Return the terminals that can really come next.

        A state's own table lists more: LALR merges states, and some terminals only lead to
        reductions after which they cannot be shifted.
        """
        return frozenset(
            name
            for name in self._states[stack[-1]]
            if name.isupper() and self._can_shift(list(stack), name)
        )

    def _can_shift(self, stack: list[int], name: str) -> bool:
        while True:
            target = self._states[stack[-1]].get(name)
            if target is None:
                return False
            if target >= 0:
                return True
            rule = self._rules[-1 - target]
            if rule.length:
                del stack[-rule.length :]
            stack.append(self._states[stack[-1]][rule.origin])


class _StateLexer:
    """Finds one of the terminals that the parser can use in some of its states.

    Terminals are tried one by one at first, and by one regular expression of all where a state
    comes again and again: compiling that takes as long as some hundred trials.
    """

    def __init__(
        self, patterns: Mapping[str, str], matchers: dict[str, Matcher], accepted: frozenset[str]
    ) -> None:
        self.by_code = sorted(accepted - patterns.keys())
        self._patterns = patterns
        self._matchers = matchers
        self._named = [name for name in patterns if name in accepted]
        self._trials = 0
        self._all: Matcher | None = None

    def next(self, source: LexerInput, at: int) -> Piece | None:
        """Return the terminal that starts at offset `at`, or None."""
        text = source.text
        for name in self.by_code:
            finder = source.finders.get(name)
            piece = finder(text, at) if finder else None
            if piece is not None:
                return piece
        if self._all is None:
            self._trials += 1
            if self._trials <= _TRIALS_ONE_BY_ONE:
                return self._one_by_one(text, at)
            named = [f"(?P<{name}>{self._patterns[name]})" for name in self._named]
            self._all = re.compile("|".join(named) or "(?!)", re.ASCII).match
        match = self._all(text, at)
        if match is None or match.lastgroup is None:
            return None
        return Piece(match.lastgroup, match[0], at, match.end())

    def _one_by_one(self, text: str, at: int) -> Piece | None:
        for name in self._named:
            matcher = self._matchers.get(name)
            if matcher is None:
                matcher = re.compile(self._patterns[name], re.ASCII).match
                self._matchers[name] = matcher
            token = matcher(text, at)
            if token is not None:
                return Piece(name, token[0], at, token.end())
        return None
