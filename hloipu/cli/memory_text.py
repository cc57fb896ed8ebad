"""The memory report as text: what fills the fullest tile, and how full the others are."""

from collections.abc import Iterator

from hloipu.cli.table import counted, shortened, table
from hloipu_runtime.memory.categories import Category
from hloipu_runtime.memory.report import MemoryReport

_WIDEST = 48


def culprits_text(report: MemoryReport) -> str:
    """Return a table of the variables that fill the fullest tile at its peak, largest first."""
    rows = [
        (
            shortened(culprit.name, _WIDEST),
            f"{culprit.element_type}[{','.join(map(str, culprit.shape))}]",
            culprit.role + (", always live" if culprit.always_live else ""),
            culprit.source or "-",
            f"{culprit.size_bytes:,}",
        )
        for culprit in report.culprits
    ]
    more = report.culprits_left_out
    text = table(("tensor", "type", "role", "source", "bytes on the tile"), rows, left=4)
    return text + (f"\n… and {counted(more, 'smaller one')}" if more else "")


def uses_text(report: MemoryReport) -> str:
    """Return in a line what the fullest tile's bytes are for, the most first."""
    parts = sorted(report.peak.parts.items(), key=lambda item: -item[1])
    shown = [f"{category.value} {size:,}" for category, size in parts if size]
    return f"tile {report.peak.tile} of IPU {report.peak.ipu}: {', '.join(shown)}"


def memory_text(report: MemoryReport) -> str:
    """Return the whole report: verdict, parts, culprits, tiles by how full they are."""
    return "\n\n".join(_sections(report))


def _sections(report: MemoryReport) -> Iterator[str]:
    peak = report.peak
    fits = "fits" if report.fits else "does NOT fit"
    code = "" if report.code_memory else ", code not counted"
    step = f"{peak.step} ({peak.step_name})" if peak.step_name else peak.step
    gaps = peak.parts[Category.GAPS]
    wasted = f", of which {gaps:,} above what is live at once (gaps)" if gaps else ""
    yield (
        f"{fits}: tile {peak.tile} of IPU {peak.ipu} needs {peak.total_bytes:,} of "
        f"{report.available_bytes:,} bytes{code}\n"
        f"at {step}\n"
        f"always live {peak.always_live_bytes:,}, "
        f"not always {peak.not_always_live_bytes:,}{wasted}\n"
        f"code of tile {report.code_peak.tile} of IPU {report.code_peak.ipu}: "
        f"{report.code_bytes:,} of {report.executable_bytes:,} bytes"
    )
    for use in report.ipus:
        if use.remote_bytes:
            parts = ", ".join(f"{kind.value} {size:,}" for kind, size in use.remote.items())
            needed = f"{use.remote_bytes:,} of {report.remote_available_bytes:,} bytes"
            yield f"beside IPU {use.ipu}, in remote buffers: {needed} ({parts})"
    rows = [
        (category.value, f"{size:,}", f"{report.parts[category]:,}")
        for category, size in peak.parts.items()
    ]
    total = ("total", f"{peak.total_bytes:,}", f"{report.total_bytes:,}")
    yield table(("bytes for", "fullest tile", "all tiles"), [*rows, total])
    yield culprits_text(report)
    if report.exchange_culprits:
        exchanges = [
            (shortened(one.origin, _WIDEST), one.source or "-", f"{one.size_bytes:,}")
            for one in report.exchange_culprits
        ]
        yield table(("exchanges for", "source", "bytes of code"), exchanges, left=2)
    bins = [
        (
            f"{one.low_bytes:,} .. "
            + (f"{one.high_bytes:,}" if one.high_bytes >= 0 else "more than there is"),
            f"{one.tiles:,}",
        )
        for one in report.histogram
        if one.tiles
    ]
    yield table(("bytes needed", "tiles"), bins)
