"""The first screen of a report for notebooks: plain HTML without scripts, all text escaped."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from hloipu_runtime.report.profile import Profile
from hloipu_runtime.report.verdict import saved_text

BYTE_PAINTS = {
    "vertex code": "#3b5b92", "control code": "#6f8fc4", "exchange code": "#a9c0e6",
    "vertex state": "#7a4bb0", "stacks": "#b99be0", "constants": "#8a6d1d", "state": "#1c7c70",
    "parameters": "#5cc0b2", "temporaries": "#c96a12", "exchange buffers": "#f0b070",
    "alignment": "#9aa3ae", "gaps": "#d0455a",
}  # fmt: skip
"""The colour of each use of a tile's bytes, on pages and in figures."""
PAINTS = {
    "compute": "#2f6db3", "exchange": "#c96a12", "sync": "#6b7280", "remote": "#7a4bb0",
    **BYTE_PAINTS,
}  # fmt: skip
"""The colour of each use of cycles and bytes."""
_DEAREST = 6
_MOST_FINDINGS = 4


def overview_html(profile: Profile) -> str:
    """Return bars of the device's cycles and the fullest tile's bytes, and what is dearest."""
    return "".join(_parts(profile))


def _parts(profile: Profile) -> Iterator[str]:
    yield "<div style='max-width:900px'>"
    yield _bar("device cycles", profile.device, profile.device_cycles)
    peak = profile.memory.get("peak")
    if peak:
        where = f"bytes on the fullest tile, {peak['tile']} of IPU {peak['ipu']}"
        yield _bar(where, peak["parts"], profile.memory["available_bytes_per_tile"])
    rows = [
        (f"{row.cycles - row.host_cycles:,}", row.name, row.source)
        for row in sorted(profile.origins, key=lambda row: row.host_cycles - row.cycles)[:_DEAREST]
    ]
    yield _table(("device cycles", "instruction", "line"), rows)
    if profile.findings:
        findings = profile.findings[:_MOST_FINDINGS]
        yield _table(
            ("finding", "cure", "saves at most"),
            [
                (finding.statement, finding.cure, saved_text(finding, profile))
                for finding in findings
            ],
        )
    yield "</div>"


def _bar(title: str, parts: Mapping[str, int], whole_length: int) -> str:
    """Return a bar and its legend; it is longer than `whole_length` where its parts are."""
    filled = {name: size for name, size in parts.items() if size}
    length = max(1, whole_length, sum(filled.values()))
    pieces = "".join(
        f"<div title='{escape(name)}: {size:,}' style='width:{100 * size / length:.2f}%;"
        f"background:{PAINTS.get(name, '#888888')}'></div>"
        for name, size in filled.items()
    )
    legend = ", ".join(
        f"<span style='border-left:0.8em solid {PAINTS.get(name, '#888888')};padding-left:3px'>"
        f"{escape(name)} {size:,}</span>"
        for name, size in filled.items()
    )
    return (
        f"<div style='margin-top:6px'>{escape(title)}: "
        f"{sum(filled.values()):,} of {whole_length:,}</div>"
        f"<div style='display:flex;height:16px;border:1px solid #999'>{pieces}</div>"
        f"<div style='font-size:smaller'>{legend}</div>"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    titles = "".join(f"<th style='text-align:left'>{escape(title)}</th>" for title in head)
    cells = "".join(
        "<tr>"
        + "".join(f"<td style='text-align:left'>{escape(text)}</td>" for text in row)
        + "</tr>"
        for row in rows
    )
    return f"<table><tr>{titles}</tr>{cells}</table>"
