"""Terminal charts: bars, pipeline charts, and the tree of a program's steps.

Rich draws them: in colours on a terminal, as plain lines of text elsewhere.
"""

import io
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hloipu.cli.saying import say_as_it_is
from hloipu.cli.table import counted, readable_bytes
from hloipu.report.trace import Unfolded
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.costs.counting import BlockCounts
from hloipu_runtime.plain_text import printable
from hloipu_runtime.report.pipeline_chart import chart
from hloipu_runtime.report.profile import Profile
from hloipu_runtime.report.timeline import full_timeline

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

_STYLES = {
    "compute": "blue", "exchange": "yellow", "sync": "bright_black", "remote": "magenta",
    "host": "green", "idle": "bright_black",
}  # fmt: skip
"""By bucket, close to those of pages."""
_BUCKET_OF_KIND = (
    ("compute", "compute"), ("sync", "sync"), ("slots", "sync"), ("remote", "remote"),
    ("stored", "remote"), ("stream", "host"), ("host", "host"), ("fill", "host"),
)  # fmt: skip
_LOOPS = ("repeat", "while", "pipeline")
_PLAIN_COLUMNS = 10_000
"""Lines that nobody sees on a terminal are not cut."""
_BAR_COLUMNS = 40
_TREE_BAR_COLUMNS = 12


def say_drawn(drawings: Iterable[Any]) -> None:
    """Print what Rich draws, in colours where a terminal shows them."""
    from rich.console import Console

    is_seen = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    stream = io.StringIO()
    width = shutil.get_terminal_size((100, 24)).columns if is_seen else _PLAIN_COLUMNS
    console = Console(
        file=stream, force_terminal=is_seen, width=width, highlight=False,
        color_system="auto" if is_seen else None, force_jupyter=False,
    )  # fmt: skip
    for drawing in drawings:
        console.print(drawing, no_wrap=True, overflow="ellipsis", soft_wrap=False)
    say_as_it_is("\n".join(line.rstrip() for line in stream.getvalue().splitlines()))


def bars(profile: Profile) -> Iterator["Text"]:
    """Yield bars of what the device's cycles and the fullest tile's bytes are spent on."""
    yield from _bars("device cycles", profile.device, _STYLES, str)
    peak = profile.memory.get("peak")
    if peak:
        yield from _bars("bytes of the fullest tile", peak["parts"], {}, readable_bytes)


def _bars(
    title: str, parts: Mapping[str, int], styles: Mapping[str, str], text: Any
) -> Iterator["Text"]:
    from rich.text import Text

    total, most = sum(parts.values()), max(parts.values(), default=0)
    if not most:
        return
    yield Text(f"{title}: {total:,}", style="bold")
    margin = max(map(len, parts))
    for name, value in parts.items():
        if value:
            bar = "█" * max(1, round(_BAR_COLUMNS * value / most))
            shown = f"{value:,}" if text is str else text(value)
            yield Text.assemble(
                f"  {name.ljust(margin)} ", (bar.ljust(_BAR_COLUMNS), styles.get(name, "cyan")),
                f" {shown} ({value / total:.1%})",
            )  # fmt: skip


def pipelines(profile: Profile) -> Iterator["Text"]:
    """Yield the lines of the chart of each pipeline: forwards and backwards in their colours."""
    from rich.text import Text

    width = shutil.get_terminal_size((100, 24)).columns
    for line in map(printable, chart(profile, width).split("\n")):
        yield _coloured(Text(line), line)


def _coloured(text: "Text", line: str) -> "Text":
    row = re.match(r"IPU \d+ (\w+)\s", line)
    if row is not None:
        style = "yellow" if row[1].startswith("B") else "blue"
        for number in re.finditer(r"(?<= )\d+(?=\s|$)", line[row.end() :]):
            text.stylize(style, row.end() + number.start(), row.end() + number.end())
    return text


def tree(program: CompiledProgram, counts: BlockCounts, most: int) -> "Tree":
    """Return the steps of a program with what they cost in a run: of each body the `most` dearest.

    Steps stand in the order of the program; those left out are one line in their place.
    """
    return _Drawing(program, counts, most).tree()


class _Drawing:
    """Draws the blocks of a timeline record."""

    def __init__(self, program: CompiledProgram, counts: BlockCounts, most: int) -> None:
        self.timeline = full_timeline(program.costs, counts)
        self.lengths = Unfolded(self.timeline)
        self.counts, self.most = counts.counts, most
        self.name, self.ipus = program.program.name, program.program.ipus
        root = self.timeline["root"]
        self.total = self.timeline["blocks"][root]["cycles"] * self.timeline["runs"]

    def tree(self) -> "Tree":
        from rich.tree import Tree

        tree = Tree(self._label(self.name or "program", "", self.total))
        self._block(self.timeline["root"], tree)
        return tree

    def _label(self, name: str, kind: str, cycles: float, note: str = "") -> "Text":
        from rich.text import Text

        share = cycles / self.total if self.total else 0.0
        bar = "█" * round(_TREE_BAR_COLUMNS * min(1.0, share))
        bucket = next((bucket for start, bucket in _BUCKET_OF_KIND if kind.startswith(start)),
                      "exchange")  # fmt: skip
        return Text.assemble(
            (printable(name), "bold"), f"  {kind}" if kind else "",
            f"  {round(cycles):,} cycles {share:.1%} ", (bar, _STYLES[bucket]),
            (f"  {note}" if note else "", "bright_black"),
        )  # fmt: skip

    def _block(self, number: int, node: "Tree") -> None:
        entries: Sequence[int] = self.timeline["blocks"][number]["entries"]
        lengths = [self.lengths.length_of(entry) for entry in entries]
        dearest = sorted(range(len(entries)), key=lambda n: -lengths[n])[: self.most]
        shown_places, left = frozenset(dearest), []
        for place, entry in enumerate(entries):
            if place not in shown_places:
                left.append(lengths[place])
                continue
            self._left_out(node, left, number)
            left = []
            if entry >= 0:
                self._step(entry, self.counts[number], node)
            else:
                self._inner(~entry, lengths[place] * self.counts[number], node)
        self._left_out(node, left, number)

    def _left_out(self, node: "Tree", lengths: Sequence[float], number: int) -> None:
        if lengths:
            cycles = sum(lengths) * self.counts[number]
            node.add(self._label(f"… {counted(len(lengths), 'step')}", "", cycles))

    def _step(self, step: int, executions: int, node: "Tree") -> None:
        timeline = self.timeline
        tiles, ipus = timeline["step_tiles"][step], timeline["step_ipus"][step]
        notes = [counted(executions, "time")] if executions != 1 else []
        notes += [counted(tiles, "tile")] if tiles else []
        if self.ipus > 1 and ipus:
            notes.append(f"IPU {', '.join(map(str, ipus))}")
        name = timeline["step_names"][step] or "(program)"
        cycles = timeline["step_cycles"][step] * executions
        node.add(self._label(name, timeline["step_kinds"][step], cycles, ", ".join(notes)))

    def _inner(self, number: int, cycles: float, node: "Tree") -> None:
        inner = self.timeline["inner"][number]
        times, blocks = inner["times"], inner["blocks"]
        note = f"{times[-1]:,g} iterations" if inner["kind"] in _LOOPS else ""
        if inner["kind"] == "while" and not times[-1]:
            note = "data decides how often: nothing is assumed"
        below = node.add(self._label(inner["name"] or inner["kind"], inner["kind"], cycles, note))
        for place, block in enumerate(blocks):
            branch = below
            if len(blocks) > 1:
                spent = self.timeline["blocks"][block]["cycles"] * self.counts[block]
                branch = below.add(self._label(_branch_name(inner, place), "", spent))
            if self.counts[block]:
                self._block(block, branch)


def _branch_name(inner: Mapping[str, Any], place: int) -> str:
    names = inner.get("names", ())
    if place < len(names):
        return f"{names[place]} on IPU {', '.join(map(str, inner['ipus'][place]))}"
    if inner["kind"] == "while":
        return ("condition", "body")[place]
    return f"beside {place - len(names)}" if names else f"branch {place}"
