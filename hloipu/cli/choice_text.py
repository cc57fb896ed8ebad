"""The table of ways to cut a step over IPUs, for people."""

from hloipu.choosing import MOST_ROWS, Choice
from hloipu.cli.table import readable_bytes, table
from hloipu.sharding import fitting_text
from hloipu_compiler.partition.search.candidate import Estimate

_HEAD = ("micro-batches/s", "needed on an IPU", "bubble", "fits", "flags")


def choice_text(choice: Choice, most: int = MOST_ROWS) -> str:
    """Return the first rows of a choice as a table, and what was chosen."""
    lines = [table(_HEAD, [_row(row) for row in choice.rows[:most]], left=0)]
    if len(choice.rows) > most:
        lines.append(f"… and {len(choice.rows) - most} more")
    fits = "fits" if choice.is_tried else fitting_text(choice.best)
    lines.append(f"best of {choice.looked_at} ({fits}): {choice.best.candidate.flags()}")
    lines += [f"  {note}" for note in choice.notes]
    if choice.best.candidate.stages > 1 and choice.best.candidate.micro_batches == 1:
        lines.append("  micro-batches would fill the pipeline: --plan auto chooses how many")
    return "\n".join(lines)


def _row(row: Estimate) -> tuple[str, ...]:
    return (
        f"{row.per_second:,.1f}",
        readable_bytes(row.needed_bytes),
        f"{row.bubble:.1%}",
        "yes" if row.fits else "no",
        row.candidate.flags(),
    )
