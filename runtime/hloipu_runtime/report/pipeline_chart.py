"""Pipeline chart for terminals: positions by slots, costs, stashes, bubble.

In each row stand the numbers of the micro-batches that a position does, slot by slot. Where slots
are more than there is room for, those in the middle are left out, which are alike.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hloipu_runtime.program.timetable import Timetable
from hloipu_runtime.report.pipelines import PipelineRow
from hloipu_runtime.report.profile import Profile

_FEWEST_SLOTS = 6
"""Shown however narrow the terminal is."""
_MOST_POSITIONS = 64
"""Rows; the middle ones of longer pipelines are left out."""


def chart(profile: Profile, width: int = 100) -> str:
    """Return the chart of each pipeline of a program, at most `width` columns wide."""
    return "\n\n".join("\n".join(_lines(row, profile.memory, width)) for row in profile.pipelines)


def pipeline_lines(profile: Profile) -> list[str]:
    """Return a line for each pipeline: stages, slots, and how much of the time IPUs wait."""
    return [_headline(row) for row in profile.pipelines]


def _headline(row: PipelineRow) -> str:
    ipus = len(_ipus_of(row))
    places = "1 IPU" if ipus == 1 else f"{ipus} IPUs"
    return (
        f"{row.name or row.path}: {row.micro_batches:,} through {len(row.positions)} "
        f"{'position' if len(row.positions) == 1 else 'positions'} on {places} in {row.slots:,} "
        f"slots, {row.cycles:,} cycles; bubble {row.bubble:.1%}"
    )


def _lines(row: PipelineRow, memory: Mapping[str, Any], width: int) -> Iterator[str]:
    yield _headline(row)
    yield from _grid(row, width)
    yield ""
    yield from _positions(row)
    yield ""
    yield from _ipus(row, memory)


def _grid(row: PipelineRow, width: int) -> Iterator[str]:
    places = sorted(
        (share.ipu, n) for n, position in enumerate(row.positions) for share in position.shares
    )
    order = [n for _, n in places]
    titles = [f"IPU {ipu} {row.positions[n].name}" for ipu, n in places]
    margin = max(len("slot"), *map(len, titles)) + 1
    cell = len(str(max(row.slots - 1, 0))) + 1
    room = max(_FEWEST_SLOTS, (width - margin) // cell)
    table = Timetable(len(row.positions), row.interval, row.micro_batches, row.group)
    shown = _shown(row.slots, room)
    yield "slot".ljust(margin) + _cells([_text(s) for s in shown], cell)
    left_out = _shown(len(order), _MOST_POSITIONS)
    for place in left_out:
        if place is None:
            yield f"… {len(order) - len(left_out) + 1} more positions"
            continue
        numbers = [None if s is None else table.micro_batch(order[place], s) for s in shown]
        cells = ["…" if s is None else _text(m, "·") for s, m in zip(shown, numbers, strict=True)]
        yield titles[place].ljust(margin) + _cells(cells, cell)
    if None in shown:
        yield f"… stands for {row.slots - len(shown) + 1:,} slots"


def _shown(count: int, room: int) -> list[int | None]:
    """Return the numbers that there is room for, None in the middle for those left out."""
    if count <= room:
        return list(range(count))
    head = room // 2
    tail = room - head - 1
    return [*range(head), None, *range(count - tail, count)]


def _text(number: int | None, nothing: str = "…") -> str:
    return nothing if number is None else str(number)


def _cells(texts: Sequence[str], width: int) -> str:
    return "".join(text.rjust(width) for text in texts)


def _positions(row: PipelineRow) -> list[str]:
    head = ["position", "IPU", "cycles", "waiting", "stash bytes", "received bytes"]
    is_hosted = any(position.host_cycles for position in row.positions)
    if is_hosted:
        head.insert(head.index("waiting"), "host cycles")
    is_offloaded = any(position.remote_bytes for position in row.positions)
    if is_offloaded:
        head.append("remote bytes")
    rows = [
        [
            position.name,
            str(share.ipu),
            f"{share.cycles:,}",
            *([f"{share.host_cycles:,}"] if is_hosted else ()),
            str(position.depth),
            f"{share.stash_bytes:,}",
            f"{share.received_bytes:,}",
            *([f"{share.remote_bytes:,}"] if is_offloaded else ()),
        ]
        for position in row.positions
        for share in position.shares
    ]
    return _columns(head, rows)


def _ipus(row: PipelineRow, memory: Mapping[str, Any]) -> list[str]:
    head = ("IPU", "busy cycles", "at work", "stash bytes", "fullest tile", "all tiles")
    used = {use["ipu"]: use for use in memory.get("ipus", ())}
    rows = []
    for ipu in _ipus_of(row):
        shares = [
            share for position in row.positions for share in position.shares if share.ipu == ipu
        ]
        busy = row.micro_batches * sum(share.cycles for share in shares)
        use = used.get(ipu, {"peak_bytes": 0, "total_bytes": 0})
        rows.append(
            (
                str(ipu),
                f"{busy:,}",
                f"{busy / row.cycles if row.cycles else 0:.0%}",
                f"{sum(share.stash_bytes for share in shares):,}",
                f"{use['peak_bytes']:,}",
                f"{use['total_bytes']:,}",
            )
        )
    return _columns(head, rows)


def _ipus_of(row: PipelineRow) -> list[int]:
    return sorted({share.ipu for position in row.positions for share in position.shares})


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in (head, *rows)
    ]
