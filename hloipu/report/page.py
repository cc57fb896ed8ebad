"""The report as one self-contained HTML file.

Scripts and styles stand in the file and run by their hashes alone (Content-Security-Policy); the
record is in a block that no browser runs, compressed, and reaches the page as text only.
"""

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from hloipu.report.record import report_record
from hloipu_runtime.arguments import checked
from hloipu_runtime.atomic_file import replacing
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.report.overview import BYTE_PAINTS
from hloipu_runtime.report.profile import Profile

_SCRIPTS = (
    "vendor/uPlot.js", "vendor/dagre.js", "core.js", "overview.js", "flame.js", "roofline.js",
    "memory.js", "program.js", "trace.js", "tiles.js", "graph.js", "links.js", "queues.js",
    "passes.js", "compare.js",
    "main.js",
)  # fmt: skip
_STYLES = ("vendor/uPlot.css", "style.css")


@checked
def write_report(
    program: CompiledProgram, path: str | Path, profile: Profile | None = None
) -> None:
    """Write a page that shows what a program does, for any browser.

    It is of an estimate, or of the run that `profile` is of: `result.profile`, or a session's. The
    commands `hloipu report` and `hloipu run --report` write the same. Call stacks, scopes, roofline
    and graph are in it where the program was compiled in this process, with `cache=False`, and not
    read from a file or the cache.
    Raises UsageError E3004 where the file cannot be written, E3221 for another program's profile.
    """
    write_page(report_record(program, profile), Path(path))


def write_page(record: Mapping[str, Any], path: Path) -> int:
    """Write the page of a record, whole or not at all; return its size in bytes."""
    page = report_page(record)
    with replacing(path) as stream:
        stream.write(page)
    return len(page)


def report_page(record: Mapping[str, Any]) -> bytes:
    """Return the page of a report's record."""
    title = f"hloipu: {record['profile']['program'] or 'report'}"
    return page_of(record, title, _SCRIPTS, _STYLES)


def page_of(
    record: Mapping[str, Any], title: str, scripts: Sequence[str], styles: Sequence[str]
) -> bytes:
    """Return a page that scripts draw from a record, under the same rules for all pages."""
    style = "\n".join(_asset(name) for name in styles)
    paints = f"const CATEGORIES = {json.dumps(list(BYTE_PAINTS.items()))};"
    script = "\n".join([paints, *map(_asset, scripts)])
    text = json.dumps(record, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    data = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    )
    page = Template(_asset("page.html")).substitute(
        policy=policy, title=html.escape(title), style=style, script=script, data=data
    )
    return page.encode()


def _asset(name: str) -> str:
    return files("hloipu.report").joinpath("assets", name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
