"""The page: only its own scripts run, nothing is loaded, hostile names are inert."""

import base64
import gzip
import hashlib
import json
import re
from importlib.resources import files
from pathlib import Path

import hloipu
from hloipu.report.page import report_page
from hloipu.report.record import report_record
from hloipu.report.trace import trace_file, trace_record
from hloipu_runtime.report.timeline import full_timeline
from tests.support.command_line import run
from tools.report_pages import HOSTILE_NAMES

VENDORED = {
    "vendor/uPlot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "vendor/uPlot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "vendor/dagre.js": "54a503e346f93ca0bb10abe7999587e037262935687aca45eb4e4b0f64bbb578",
}
"""SHA-256 of what others wrote: uPlot 1.6.32 (MIT) and @dagrejs/dagre 3.1.3 (MIT), from npm."""


def _data(page: bytes) -> str:
    found = re.search(rb'id="data">([^<]*)</script>', page)
    assert found is not None
    return gzip.decompress(base64.b64decode(found[1])).decode()


def test_hostile_names_stay_data() -> None:
    assert len(HOSTILE_NAMES) == 60
    program = hloipu.compile("hlo_samples/sort_topk.hlo", target="tiny", over_memory="allow")
    record = report_record(program)
    strip = re.compile(rb'<title>.*?</title>|id="data">[^<]*<', re.S)
    plain = strip.sub(b"", report_page(record))
    timeline = full_timeline(program.costs, program.estimate().counts)
    for name in HOSTILE_NAMES:
        record["profile"]["program"] = name
        record["profile"]["origins"]["name"][0] = name
        record["profile"]["origins"]["source"][0] = name
        page = report_page(record)
        # Outside of the compressed block the page differs in its title alone, which is escaped.
        assert json.loads(_data(page))["profile"]["program"] == name
        title = re.search(r"<title>(.*?)</title>", page.decode(), re.S)
        assert title is not None
        assert not re.search(r"[<>]", title[1])
        assert strip.sub(b"", page) == plain
        timeline["step_names"][0] = name
        trace = trace_record(timeline, clock_hz=10**9, ipus=1)
        assert json.loads(gzip.decompress(trace_file(trace)))["traceEvents"][1]["name"] == name


def test_scripts_run_by_their_hashes_alone() -> None:
    program = hloipu.compile("hlo_samples/sort_topk.hlo", target="tiny", over_memory="allow")
    page = report_page(report_record(program)).decode()
    found = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert found is not None
    policy = found[1]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http" not in policy
    for tag in ("script", "style"):
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        assert len(inside) == 1
        digest = base64.b64encode(hashlib.sha256(inside[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not re.search(r'(?:src|href)="(?!#)', page)


def test_vendored_files_are_what_their_authors_published() -> None:
    assets = files("hloipu.report").joinpath("assets")
    for name, digest in VENDORED.items():
        assert hashlib.sha256(assets.joinpath(name).read_bytes()).hexdigest() == digest
        licence = name.rsplit(".", 1)[0] + ".LICENSE"
        assert "Permission is hereby granted" in assets.joinpath(licence).read_text()


def test_commands_write_pages_and_traces(tmp_path: Path) -> None:
    sample, page = "hlo_samples/sort_topk.hlo", tmp_path / "r.html"
    assert run("report", sample, "--target=tiny", "--over-memory=allow", "-o", str(page)).code == 0
    assert json.loads(_data(page.read_bytes()))["module"]["name"]
    profile = tmp_path / "p.json"
    assert run("estimate", sample, "--profile", str(profile)).code == 0
    assert run("report", str(profile), "-o", str(page)).code == 0
    assert "timeline" not in json.loads(_data(page.read_bytes()))
    trace = tmp_path / "t.json.gz"
    assert run("trace", sample, "-o", str(trace), "--most-events", "100").code == 0
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert events[-1].keys() >= {"ph", "name", "pid", "ts", "dur"}
