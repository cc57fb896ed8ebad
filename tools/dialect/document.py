"""Write docs/hlo_dialect.md from the table of documented exceptions.

python -m tools.dialect.document
"""

from collections.abc import Iterator
from pathlib import Path

from tools.dialect.exceptions import DocumentedException, read

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "hlo_dialect.md"

HEAD = """\
# The dialect of HLO text that hloipu reads

Which texts hloipu reads that XLA refuses, and the other direction, with the reasons.

hloipu reads what XLA's parser reads and refuses what it refuses; its verifier does the same for
XLA's HLO verifier. The differences below are on purpose. `make parse-conformance` judges some
14,000 texts with both parsers (jaxlib 0.10.2) and fails on a difference that is not in this table.

Limits of the parser (`hlo/syntax/limits.py`): 256 MiB of text, 5 million instructions, 200 levels
of nesting, 1 million leaves in a written tuple shape and 65,536 in one that no text spells out,
rank 64, 2^63 elements, 64 MiB in one constant.
"""

PARTS = (
    ("accept", "Accepted here, refused by XLA"),
    ("refuse", "Refused here, accepted by XLA (or its process ends)"),
)


def document(table: list[DocumentedException]) -> str:
    """Return the page."""
    return HEAD + "".join(_part(table, we, title) for we, title in PARTS)


def _part(table: list[DocumentedException], we: str, title: str) -> str:
    return f"\n## {title}\n\n| what | where | why |\n|---|---|---|\n" + "".join(_rows(table, we))


def _rows(table: list[DocumentedException], we: str) -> Iterator[str]:
    for entry in table:
        if entry.we == we:
            reason = entry.reason.replace("|", "\\|")
            yield f"| {entry.name} | {entry.stage} | {reason} |\n"


def main() -> None:
    """Write the page."""
    DOCUMENT.write_text(document(read()), encoding="utf-8")


if __name__ == "__main__":
    main()
