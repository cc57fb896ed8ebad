"""Results as tables: memory, choices of a search, findings."""

from collections.abc import Iterator

from hloipu.choice_trials import Choice
from hloipu.choosing import MOST_ROWS
from hloipu.cli.table import counted, readable_bytes, shortened, table
from hloipu.sharding import fitting_text
from hloipu_compiler.partition.search.candidate import Estimate
from hloipu_runtime.element_types import shape_text
from hloipu_runtime.memory.categories import Category
from hloipu_runtime.memory.report import MemoryReport
from hloipu_runtime.report.change import Finding
from hloipu_runtime.report.profile import Profile
from hloipu_runtime.report.verdict import saved_text

_WIDEST = 48


def culprits_text(report: MemoryReport) -> str:
    """Return a table of the variables that fill the fullest tile at its peak, largest first."""
    rows = [
        (
            shortened(culprit.name, _WIDEST),
            shape_text(culprit.element_type, culprit.shape),
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


def findings_text(profile: Profile) -> str:
    """Return every finding: what, where, the cure, what it saves at most and by measurement."""
    if not profile.findings:
        return "no findings"
    lines = [counted(len(profile.findings), "finding")]
    for number, finding in enumerate(profile.findings, 1):
        lines += _lines(number, finding, profile)
    return "\n".join(lines)


def _lines(number: int, finding: Finding, profile: Profile) -> Iterator[str]:
    yield f"{number}. {finding.kind}: {finding.placed_statement}"
    yield f"   cure: {finding.cure}"
    yield f"   saves at most {saved_text(finding, profile)}"
    if finding.measured is not None:
        yield f"   measured with {finding.measured.line()}"
