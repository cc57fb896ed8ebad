"""Plain tables and readable numbers for the terminal."""

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Lay out rows under a head; the first `left` columns are left-justified, others right."""
    columns = list(zip(head, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    )


def scaled(count: int, base: int, units: Sequence[str]) -> str:
    """Return a count with three digits and a unit; exact below the first step."""
    if count < base:
        return f"{count} {units[0]}".strip()
    value = float(count)
    for unit in units[1:]:
        value /= base
        if value < 999.5:  # what would round to four digits takes the next unit
            return f"{value:.3g} {unit}"
    return f"{value:.2e} {units[-1]}"


def readable_bytes(count: int) -> str:
    """Return bytes in binary units, such as `1.5 MiB`."""
    return scaled(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def readable_count(count: int) -> str:
    """Return a count in decimal units, such as `2.1 G`."""
    return scaled(count, 1000, ("", "k", "M", "G", "T", "P", "E"))


def readable_runs(count: int) -> str:
    """Return how often something runs, to the last digit while that can be read."""
    return str(count) if count < 10**7 else readable_count(count)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as `1 loop` and `2 loops`."""
    return f"{count} {noun}{'s' if count != 1 else ''}"


def shortened(text: str, width: int) -> str:
    """Return `text` cut to `width` characters, the cut shown."""
    return text if len(text) <= width else text[: width - 1] + "…"
