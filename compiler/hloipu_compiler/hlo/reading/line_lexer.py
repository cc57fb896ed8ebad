"""Fast path: one regular expression for each line in the printer's form.

To the parser this is a lexer for two terminals: STATEMENTS, a run of printed instruction lines, and
COMPUTATION_TEXT, a computation printed throughout. A line of any other form is left to the grammar,
and so is a line whose parts turn out wrong, so every error is the grammar's.

What a line matches here it also matches there: names, values and strings are at least as strict,
and the attribute list must reach the end of the line, with the next line beginning a new statement
or closing the computation (two statements may share a line, and a list may go on in the next).
Quantifiers are possessive and brackets nest to a fixed depth, so matching is linear.
"""

import re
from functools import partial
from typing import NamedTuple

from hloipu_compiler.hlo.attributes.metadata import check_metadata
from hloipu_compiler.hlo.reading.statements import Prepared, Statement, StatementReader
from hloipu_compiler.hlo.syntax.lexer import Finder, Piece
from hloipu_compiler.hlo.syntax.limits import TextLimitError
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.ir.shapes import Shape


def _nested(opening: str, closing: str, plain: str, depth: int) -> str:
    """Return a pattern for balanced brackets up to `depth`, `plain` being what else may stand."""
    pattern = rf"{opening}(?>(?:{plain})*){closing}"
    for _ in range(depth - 1):
        pattern = rf"{opening}(?>(?:{plain}|{pattern})*){closing}"
    return pattern


NAME = r"(?!__(?!xla_))[A-Za-z_][\w.\-]*+"
_COMMENT = r"/\*[\w= \-.]*+\*/"
_STRING = r'"(?>(?:[^"\\\n]++|\\(?:[abfnrtv\\?\'"]|[0-3][0-7]{2}))*)"'
_ARRAY = r"[a-z]\w*+\[[0-9<=?,]*+\](?>(?:\{[^{}\"'\n/]*+\})?)"
_PARENTHESES = _nested(r"\(", r"\)", rf"[^()\"/\n]++|{_COMMENT}", 4)
SHAPE = rf"(?:{_ARRAY}|{_PARENTHESES})"
_INSIDE = rf"(?>(?:[^()\"\n/]++|{_COMMENT}|{_PARENTHESES})*)"
_BRACES = _nested(r"\{", r"\}", rf"[^{{}}\"'\n/]++|{_STRING}|{_COMMENT}", 4)
_VALUE = rf"(?:[\w.\-%+>?]++|{_BRACES}|{_STRING}|\[[0-9,]++\]<=\[[0-9,]++\](?>(?:T\([0-9,]++\))?))"
_ATTRIBUTE = rf", (?!metadata=|backend_config=|literal=)([A-Za-z_][\w\-.]*+)=({_VALUE})"
_ATTRIBUTES = rf"(?>(?:, (?!metadata=|backend_config=|literal=)[A-Za-z_][\w\-.]*+={_VALUE})*)"
_METADATA = (
    r"\{"
    + "".join(
        rf"(?>(?:{key}={_STRING if quoted else '[0-9]{1,9}+'}(?=[ }}]) ?+)?)"
        for key, quoted in (
            ("op_type", True), ("op_name", True), ("source_file", True), ("source_line", False),
            ("source_end_line", False), ("source_column", False), ("source_end_column", False),
            ("deduplicated_name", True), ("scheduling_name", True), ("stack_frame_id", False),
        )
    )
    + r"\}"
)  # fmt: skip
_LOOSE = _nested(r"\{", r"\}", rf"[^{{}}\"'\n]++|{_STRING}", 5)

LINE = re.compile(
    rf"(ROOT )?+%?+({NAME}) = ({SHAPE}) ([a-z][\w\-]*+)\(({_INSIDE})\)({_ATTRIBUTES})"
    rf"(?>(?:, metadata=(?:({_METADATA})|({_LOOSE})))?)"
    rf"(?>(?:, backend_config=({_STRING}|{_LOOSE}))?)"
    r"()[ \t\r]*+(?>(?://[^\n]*+)?)\n\s*+(?=[%A-Za-z_}])",
    re.ASCII,
)
_FORMAL = rf"{NAME}: {SHAPE}"
HEAD = re.compile(
    rf"(ENTRY )?+%?+({NAME}) (?>(?:\(((?>(?:{_FORMAL}(?:, (?>(?:{_COMMENT})?){_FORMAL})*)?))\) -> "
    rf"({SHAPE}) )?)\{{[ \t\r]*+\n\s*+(?=[%A-Za-z_])",
    re.ASCII,
)
_formal = re.compile(rf"{NAME}: ({SHAPE})", re.ASCII)
_attribute = re.compile(_ATTRIBUTE, re.ASCII)


class PrintedComputation(NamedTuple):
    """A computation in printed form, its statements read."""

    name: str
    is_entry: bool
    has_signature: bool
    result: Shape | None
    statements: list[Statement]
    start: int
    end: int
    thread: Piece | None = None


class LineReader:
    """Reads runs of printed lines of one text."""

    def __init__(self, reader: StatementReader) -> None:
        self._reader = reader
        self._prepared: dict[tuple[str, str], Prepared] = {}
        self._runs: dict[int, Piece | None] = {}
        self.count = 0
        """Statements read."""

    def finders(self) -> dict[str, Finder]:
        """Return the code that finds the two terminals."""
        return {"STATEMENTS": self._statements, "COMPUTATION_TEXT": self._computation}

    def _statements(self, text: str, at: int) -> Piece | None:
        if at in self._runs:
            return self._runs[at]
        statements, end = self._run(text, at)
        if not statements:
            return None
        return Piece("STATEMENTS", "", at, end, statements)

    def _computation(self, text: str, at: int) -> Piece | None:
        head = HEAD.match(text, at)
        if head is None:
            return None
        entry, name, formals, result_text = head.groups()
        try:
            result = self._reader.shapes.read(result_text) if result_text else None
            for formal in _formal.finditer(formals or ""):
                self._reader.shapes.read(formal[1])
        except (TextFault, TextLimitError):
            return None
        body = head.end()
        statements, end = self._run(text, body)
        if not statements or not text.startswith("}", end):
            self._runs[body] = (
                Piece("STATEMENTS", "", body, end, statements) if statements else None
            )
            return None
        printed = PrintedComputation(
            name, entry is not None, formals is not None, result, statements, at, end + 1
        )
        return Piece("COMPUTATION_TEXT", "", at, end + 1, printed)

    def _run(self, text: str, at: int) -> tuple[list[Statement], int]:
        """Read printed lines from offset `at`; return the statements and where the run ends."""
        shapes, prepared = self._reader.shapes.memo, self._prepared
        make = partial(tuple.__new__, Statement)
        statements: list[Statement] = []
        append = statements.append
        for line in iter(LINE.scanner(text, at).match, None):  # type: ignore[attr-defined]
            (
                root, name, shape_text, opcode, inside, attributes, metadata, short, config, _,
            ) = line.groups("")  # fmt: skip
            shape = shapes.get(shape_text)
            known = prepared.get((opcode, attributes))
            if shape is None or known is None or short:
                try:
                    shape = shape or self._reader.shapes.read(shape_text)
                    known = known or self._prepare(opcode, attributes)
                    if short:
                        check_metadata(short)
                        metadata = short
                except (TextFault, TextLimitError):
                    break
                if known.faults:
                    break
            start, end = line.start(), line.end(10)
            append(make((name, root, shape, known, inside, metadata, config, start, end, None)))
            at = line.end()
        self.count += len(statements)
        return statements, at

    def _prepare(self, opcode: str, attributes: str) -> Prepared:
        pairs = tuple(m.group(1, 2) for m in _attribute.finditer(attributes))
        known = self._reader.prepare(opcode, pairs)  # type: ignore[arg-type]
        if not known.faults:
            self._prepared[opcode, attributes] = known
        return known
