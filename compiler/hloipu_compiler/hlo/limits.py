"""How much text, nesting and size the parser accepts before it stops with a LimitError."""

from dataclasses import dataclass

from hloipu_runtime.errors import LimitError


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one input text; every one can be raised by name (`--limit rank=32`)."""

    input_bytes: int = 256 * 2**20
    instructions: int = 5_000_000
    nesting: int = 200
    """Depth of tuple shapes, braces, operands within operands and computations within attributes."""
    tuple_leaves: int = 1_000_000
    rank: int = 64
    """XLA's parser has no bound; numpy's is 64, and no dump seen has more than 16."""
    elements: int = 2**63 - 1
    """Elements of one array: beyond this XLA's own products overflow, unnoticed."""
    constant_bytes: int = 64 * 2**20


_CODES = {
    "input_bytes": ("E5001", "the text is too long", "bytes"),
    "instructions": ("E5002", "the module has too many instructions", "instructions"),
    "nesting": ("E5003", "the text is nested too deeply", "levels"),
    "tuple_leaves": ("E5004", "a tuple shape has too many leaves", "leaves"),
    "rank": ("E5005", "an array shape has too many dimensions", "dimensions"),
    "elements": ("E5006", "an array shape has too many elements", "elements"),
    "constant_bytes": ("E5007", "a constant's text is too long", "bytes"),
}


def check_limit(limits: Limits, name: str, found: int, where: str = "") -> None:
    """Raise LimitError if `found` exceeds the limit called `name`."""
    allowed: int = getattr(limits, name)
    if found > allowed:
        code, what, unit = _CODES[name]
        place = f"{where}: " if where else ""
        raise LimitError(
            code,
            f"{place}{what}: at least {found:,} {unit}, {allowed:,} are allowed",
            limit=name,
            allowed=allowed,
            found=found,
            hint=f"if the text is right, raise the limit: --limit {name}={found}",
        )
