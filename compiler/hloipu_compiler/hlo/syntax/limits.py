"""Limits of the parser on text, nesting and size."""

from dataclasses import dataclass

from hloipu_compiler.source import Span
from hloipu_runtime.arguments import Number, checked_record
from hloipu_runtime.errors import LimitError, UsageError
from hloipu_runtime.plain_text import plain_lines

MOST_NESTING = 200


@checked_record
@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one input text; each is set by name (`--limit rank=32`).

    All can be raised but `nesting`: raises UsageError (E3117) above its default, because readers
    of nested shapes recurse.
    """

    input_bytes: Number = 256 * 2**20
    instructions: Number = 5_000_000
    nesting: Number = MOST_NESTING
    """Depth of tuple shapes, braces, nested operands and computations within attributes."""
    tuple_leaves: Number = 1_000_000
    inferred_leaves: Number = 65_536
    """Of a tuple whose shape no text spells out: `tuple(t, t)` doubles them in a dozen signs."""
    rank: Number = 64
    """XLA's parser has no bound; numpy's is 64, and no dump seen has more than 16."""
    elements: Number = 2**63 - 1
    """Elements of one array: beyond this XLA's own products overflow, unnoticed."""
    constant_bytes: Number = 64 * 2**20

    def __post_init__(self) -> None:
        if self.nesting > MOST_NESTING:
            raise UsageError("E3117", f"the limit nesting cannot be raised above {MOST_NESTING}")


DEFAULT_LIMITS = Limits()

_CODES = {
    "input_bytes": ("E5001", "the text is too long", "bytes"),
    "instructions": ("E5002", "the module has too many instructions", "instructions"),
    "nesting": ("E5003", "the text is nested too deeply", "levels"),
    "tuple_leaves": ("E5004", "a tuple shape has too many leaves", "leaves"),
    "inferred_leaves": (
        "E5009",
        "a tuple whose shape is not written has too many leaves",
        "leaves",
    ),
    "rank": ("E5005", "an array shape has too many dimensions", "dimensions"),
    "elements": ("E5006", "an array shape has too many elements", "elements"),
    "constant_bytes": ("E5007", "a constant's text is too long", "bytes"),
}


class TextLimitError(LimitError):
    """A text is larger or deeper than a limit allows; `span` is the place where it became so."""

    def __init__(
        self, code: str, message: str, *, limit: str, allowed: int, found: int, hint: str = ""
    ) -> None:
        super().__init__(code, message, limit=limit, allowed=allowed, found=found, hint=hint)
        self.offset: int | None = None
        self.span: Span | None = None

    def placed(self, offset: int) -> "TextLimitError":
        """Return the error with a place in the text, unless it has one already."""
        if self.offset is None:
            self.offset = offset
        return self

    def __str__(self) -> str:
        where = f"{self.span}: " if self.span else ""
        caret = f"\n{self.span.caret_lines()}" if self.span else ""
        hint = f"\n  hint: {self.hint}" if self.hint else ""
        return plain_lines(f"{where}error[{self.code}]: {self.message}{caret}{hint}")


def check_limit(limits: Limits, name: str, found: int, offset: int | None = None) -> None:
    """Raise TextLimitError if `found` exceeds the limit called `name`."""
    allowed: int = getattr(limits, name)
    if found <= allowed:
        return
    code, subject, unit = _CODES[name]
    shown = f"{found:,}" if found < 10**21 else "more than 10**21"
    error = TextLimitError(
        code,
        f"{subject}: at least {shown} {unit}, {allowed:,} are allowed",
        limit=name,
        allowed=allowed,
        found=found,
        hint=f"if the text is right, raise the limit: --limit {name}=N"
        if name != "nesting"
        else "",
    )
    error.offset = offset
    raise error
