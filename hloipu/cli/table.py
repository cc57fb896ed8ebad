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
    value = float(count)
    for unit in units:
        if value < base or unit == units[-1]:
            return f"{count} {unit}".strip() if unit == units[0] else f"{value:.3g} {unit}"
        value /= base
    return str(count)


def readable_bytes(count: int) -> str:
    """Return bytes in binary units, such as `1.5 MiB`."""
    return scaled(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def readable_count(count: int) -> str:
    """Return a count in decimal units, such as `2.1 G`."""
    return scaled(count, 1000, ("", "k", "M", "G", "T", "P", "E"))


def shortened(text: str, width: int) -> str:
    """Return `text` cut to `width` characters, the cut shown."""
    return text if len(text) <= width else text[: width - 1] + "…"
