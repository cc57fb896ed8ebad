"""Reports in a browser: every screen of several programs, driven as people would, and judged.

Needs Chromium (Debian's package, or CHROMIUM in the environment), `playwright` from PyPI, and npm
for axe-core. Finds fault with any message of the console, any request, any serious finding of
axe's, and a page of a large program that is slower or larger than it may be. Writes pictures of
all screens to FOLDER.

    python -m tools.report_pages out/report
"""

import argparse
import copy
import itertools
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import hloipu
from hloipu.report.page import report_page
from hloipu.report.record import report_record
from hloipu_runtime.report.profile import Profile

_SCRIPTS = (
    "alert(1)", "window.ran=1", "fetch('http://x.invalid')", "document.title='ran'",
    "import('http://x.invalid/a.js')",
)  # fmt: skip
_WRAPPED = (
    "<script>{}</script>", "</script><script>{}</script>", "<img src=x onerror={}>",
    "<svg onload={}>", "<svg><script>{}</script></svg>", "<iframe srcdoc='<script>{}</script>'>",
    "<a href=javascript:{}>x</a>", "\"><body onload={}>",
)  # fmt: skip
_OTHERS = (
    "<!--", "-->", "]]>", "<![CDATA[<script>window.ran=1</script>]]>",
    "</title><script>window.ran=1</script>",
    "<base href='http://x.invalid/'>", "<meta http-equiv=refresh content='0;url=http://x.invalid'>",
    "<link rel=stylesheet href='http://x.invalid/a.css'>",
    "{{constructor.constructor('alert(1)')()}}",
    "${window.ran=1}", "`${window.ran=1}`", "\u2028window.ran=1//", "\u2029window.ran=1//",
    "\u202egnp.exe", "\x1b[2J\x1b]0;title\x07", "\x00", "=cmd|' /C calc'!A0",
    "+1+cmd|' /C calc'!A0",
    "@SUM(1+1)*cmd|' /C calc'!A0", "__proto__",
)  # fmt: skip
HOSTILE_NAMES = tuple(text.format(script) for text in _WRAPPED for script in _SCRIPTS) + _OTHERS
"""Names that a stranger's module may have, meant to run in a page, a terminal or a table: what they
would run sets `window.ran`, opens a dialog, or asks for a page."""

SCREENS = ("overview", "flame", "roofline", "memory", "liveness", "program", "ops", "trace",
           "pipeline", "graph", "links", "queues", "passes")  # fmt: skip
SAMPLES = Path("hlo_samples")
FEED = {"data": [4, 5]}
MOST_BYTES, MOST_PAINT_SECONDS, MOST_ANSWER_SECONDS = 8_000_000, 1.0, 0.1
"""Of the page of 1,472 tiles, 100,000 steps and 20,000 ops; an answer is to a key or a click."""

_SHOW = """new Promise((done) => {
  location.hash = 'SCREEN';
  requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done)));
})"""
"""Until a screen is drawn."""
_ZOOM = """(() => {
  const canvas = document.querySelector('canvas'), begin = performance.now();
  const wheel = {deltaY: -100, clientX: 600, cancelable: true};
  for (let n = 0; n < 10; n += 1) canvas.dispatchEvent(new WheelEvent('wheel', wheel));
  return (performance.now() - begin) / 10;
})()"""
"""Milliseconds of one turn of the wheel."""


def programs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the records of programs of several kinds."""
    for name, sample, options in (
        ("training-loop", "mnist_train_step", {"loop": 100, "feed": FEED}),
        ("pipeline", "scanned_blocks_train_step", {"ipus": 4, "stages": 4, "micro_batches": 4}),
        (
            "does-not-fit",
            "transformer_block_bf16",
            {
                "set": {
                    "memory.bytes_per_tile": 9_216,
                    "memory.executable_bytes": 9_216,
                    "memory.element_bytes": 1024,
                }
            },
        ),
        ("data-decides", "newton_while", {}),
        ("replicas", "mnist_train_step", {"replicas": 8, "loop": 2, "feed": FEED}),
        ("branches", "cond_switch", {}),
    ):
        given: dict[str, Any] = {"target": "gc200", "over_memory": "allow", **options}
        program = hloipu.compile(SAMPLES / f"{sample}.hlo", cache=False, **given)
        yield name, report_record(program)
    program = hloipu.compile(
        SAMPLES / "mnist_train_step.hlo", target="bow", cache=False, loop=4, feed=FEED,
        outfeed=["losses"], over_memory="allow",
    )  # fmt: skip
    yield "starved-run", report_record(program, starved(program))


def starved(program: hloipu.CompiledProgram) -> Profile:
    """Return the profile of a run whose host makes a quarter of the elements that it takes."""
    rate = program.profile().queues[0]["needed_elements_per_second"] / 4
    fed = [x for x in program.inputs if x.number in FEED["data"]]
    state = {x.name: np.zeros(x.shape, x.dtype) for x in program.inputs if x.role == "state"}
    rows = tuple(np.zeros((8, *x.shape), x.dtype) for x in fed)
    with program.session(state=state, infeeds={"data": rows}, rates={"data": rate}) as session:
        session.run(8)
        return session.profile()


def large_record(record: dict[str, Any], ops: int = 20_000, steps: int = 100_000) -> dict[str, Any]:
    """Return a record with so many ops and steps, grown from that of a small program."""
    profile, timeline, module = record["profile"], record["timeline"], record["module"]
    for key, column in profile["origins"].items():
        grown = [column[n % len(column)] for n in range(ops)]
        profile["origins"][key] = (
            [f"{v}.{n}" for n, v in enumerate(grown)] if key == "name" else grown
        )
    for key, column in profile["steps"].items():
        profile["steps"][key] = [column[n % len(column)] for n in range(steps)]
    count = len(module["name"])
    for key in (
        "opcode",
        "shape",
        "scope",
        "frame",
        "computation",
        "calls",
        "runs",
        "flops",
        "bytes",
    ):
        module[key] = [module[key][n % count] for n in range(ops)]
    module["operands"] = [[max(0, n - 1), max(0, n - 7)] if n else [] for n in range(ops)]
    module["name"] = [f"{module['name'][n % count]}.{n}" for n in range(ops)]
    for key in ("step_cycles", "step_names", "step_kinds", "step_ipus", "step_tiles"):
        timeline[key] = [timeline[key][n % len(timeline[key])] for n in range(steps)]
    root = timeline["blocks"][timeline["root"]]
    root["entries"], root["cycles"] = list(range(steps)), sum(timeline["step_cycles"])
    live = record["liveness"][0]
    some = [list(each) for each in live["curve"]]
    live["curve"] = [[n, some[n % len(some)][1] + n % 977] for n in range(20_000)]
    live["steps"] = [live["steps"][n % len(some)] for n in range(20_000)]
    live["points"] = steps
    for ipu in record["tiles"]:
        ipu["classes"] = [[n % len(ipu["needed_bytes"]), 1] for n in range(1472)]
    return record


def hostile_record(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record in which all that a module names is meant to run in a page."""
    hostile = copy.deepcopy(record)
    names = itertools.cycle(HOSTILE_NAMES)
    profile, module, timeline = hostile["profile"], hostile["module"], hostile["timeline"]
    new = {name: f"{next(names)}{n}" for n, name in enumerate(profile["origins"]["name"])}
    profile["program"] = next(names)
    for table in (profile["origins"], profile["steps"]):
        table["name"] = [new.get(name, next(names)) for name in table["name"]]
    profile["origins"]["source"] = [next(names) for _ in profile["origins"]["source"]]
    module["name"] = [new.get(name, f"{next(names)}{n}") for n, name in enumerate(module["name"])]
    for key in ("scopes", "opcodes", "computations", "shape"):
        module[key] = [next(names) for _ in module[key]]
    module["frames"] = [[x[0], next(names), next(names), x[3]] for x in module["frames"]]
    timeline["step_names"] = [new.get(name, next(names)) for name in timeline["step_names"]]
    for tensor in hostile["liveness"][0]["tensors"]:
        tensor["name"], tensor["origin"], tensor["source"] = (next(names) for _ in range(3))
    for finding in profile["findings"]:
        finding["statement"] = finding["cure"] = finding["name"] = next(names)
    return hostile


def axe_source(folder: Path) -> str:
    """Return the script of axe-core, from npm."""
    subprocess.run(["npm", "pack", "--silent", "axe-core"], cwd=folder, check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    with tarfile.open(next(folder.glob("axe-core-*.tgz"))) as archive:
        script = archive.extractfile("package/axe.min.js")
        return script.read().decode() if script else ""


class Judge:
    """Opens pages and notes what is wrong with them."""

    def __init__(self, browser: Any, folder: Path, axe: str) -> None:
        self.browser, self.folder, self.axe = browser, folder, axe
        self.faults: list[str] = []
        self.session: tuple[Any, Any] | None = None

    def open(self, name: str, record: dict[str, Any], width: int, theme: str) -> Any:
        """Return the browser's page of a record, with all that it complains of noted."""
        path = self.folder / f"{name}.html"
        path.write_bytes(report_page(record))
        context = self.browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, bypass_csp=False
        )
        page = context.new_page()
        page.on("console", lambda m: self.faults.append(f"{name}: console: {m.text}")
                if m.type in ("error", "warning") else None)  # fmt: skip
        page.on("pageerror", lambda error: self.faults.append(f"{name}: {error}"))
        page.on("request", lambda r: None if r.url.startswith("file:")
                else self.faults.append(f"{name}: requests {r.url}"))  # fmt: skip
        page.goto(path.resolve().as_uri())
        page.wait_for_selector("#tabs a")
        return page

    def screens(self, name: str, record: dict[str, Any], width: int, theme: str) -> None:
        """Draw every screen, and look for what is empty, too wide or not accessible."""
        page = self.open(name, record, width, theme)
        for screen in SCREENS:
            page.evaluate(f"location.hash = '{screen}'")
            page.wait_for_timeout(150)
            if not page.inner_text("#screen").strip():
                self.faults.append(f"{name}: {screen} is empty")
            wide = page.evaluate("document.documentElement.scrollWidth > innerWidth + 1")
            if wide:
                self.faults.append(f"{name}: {screen} is wider than {width} pixels")
            page.screenshot(
                path=self.folder / f"{name}-{screen}-{width}-{theme}.png", full_page=True
            )
            for finding in page.evaluate(f"(() => {{ {self.axe} }})() || axe.run()")["violations"]:
                if finding["impact"] in ("serious", "critical"):
                    where = finding["nodes"][0]["html"][:160]
                    self.faults.append(f"{name}: {screen}: {finding['id']}: {where}")
        page.context.close()

    def hostile(self, record: dict[str, Any]) -> None:
        """Draw every screen of a module with names that are meant to run."""
        page = self.open("hostile", record, 1280, "light")
        page.on("dialog", lambda dialog: self.faults.append(f"hostile: {dialog.message}"))
        for screen in SCREENS:
            page.evaluate(f"location.hash = '{screen}'")
            page.wait_for_timeout(150)
        for tag in ("img", "iframe", "base", "link", "#screen script"):
            if page.locator(tag).count():
                self.faults.append(f"hostile: a name made an element: {tag}")
        if page.evaluate("window.ran") or page.title() == "ran":
            self.faults.append("hostile: a name ran")
        page.context.close()

    def drive(self, name: str, record: dict[str, Any]) -> None:
        """Use keys, search, zoom and clicks, and look at what they changed."""
        page = self.open(name, record, 1280, "light")

        def expect(what: str, holds: bool) -> None:
            if not holds:
                self.faults.append(f"{name}: {what}")

        page.keyboard.press("7")
        page.wait_for_timeout(100)
        expect("key 7 shows no operations", page.inner_text("h2") == "Operations")
        rows = page.locator("tbody tr").count()
        page.keyboard.press("/")
        page.keyboard.type("dot")
        page.wait_for_timeout(150)
        expect("search leaves as many rows", 0 < page.locator("tbody tr").count() < rows)
        page.locator("tbody .link").first.click()
        page.wait_for_timeout(400)
        expect("a click on an op shows no graph", page.locator("svg g.node").count() > 1)
        page.locator("svg g.node").first.click()
        page.keyboard.press("Escape")
        page.locator("#title").click()
        ground = "getComputedStyle(document.body).backgroundColor"
        before = page.evaluate(ground)
        page.keyboard.press("t")
        expect("t changes no theme", page.evaluate(ground) != before)
        page.keyboard.press("8")
        page.wait_for_timeout(200)
        shown = page.locator("[role=status]:not(#tip)").first.inner_text()
        page.locator("canvas").first.focus()
        page.keyboard.press("+")
        page.wait_for_timeout(100)
        expect(
            "+ does not zoom", page.locator("[role=status]:not(#tip)").first.inner_text() != shown
        )
        tiles = page.locator("section:has(> h3:text('Tiles within a step'))")
        shown = tiles.inner_text()
        tiles.locator("select").select_option(index=1)
        page.wait_for_timeout(100)
        expect("another step shows the same tiles", tiles.inner_text() != shown)
        page.keyboard.press("Escape")
        page.locator("#title").click()
        page.keyboard.press("5")
        page.wait_for_timeout(300)
        page.locator("tbody .link").first.click()
        expect(
            "a click on a tensor does not say what keeps it",
            "What keeps" in page.inner_text("#screen"),
        )
        page.context.close()

    def busy_seconds(self, page: Any) -> float:
        """Return the processor time that a page's thread took so far, whoever else runs here."""
        if self.session is None or self.session[0] is not page:
            self.session = page, page.context.new_cdp_session(page)
            self.session[1].send("Performance.enable", {"timeDomain": "threadTicks"})
        metrics = self.session[1].send("Performance.getMetrics")["metrics"]
        return next(float(x["value"]) for x in metrics if x["name"] == "TaskDuration")

    def large(self, record: dict[str, Any]) -> None:
        """Measure the page of a large program: its size, first paint, and answers."""
        size = len(report_page(record))
        if size > MOST_BYTES:
            self.faults.append(f"large: the page has {size:,} bytes")
        started = perf_counter()
        page = self.open("large", record, 1280, "light")
        painted = (
            page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            / 1e3
        )
        shown = perf_counter() - started
        if painted > MOST_PAINT_SECONDS:
            self.faults.append(f"large: first paint after {painted:.2f} s")
        answers = {}
        for screen in SCREENS:
            other = "queues" if screen == "passes" else "passes"
            page.evaluate(_SHOW.replace("SCREEN", other))
            before = self.busy_seconds(page)
            page.evaluate(_SHOW.replace("SCREEN", screen))
            answers[screen] = self.busy_seconds(page) - before
        page.evaluate("location.hash = 'trace'")
        page.wait_for_timeout(300)
        before = self.busy_seconds(page)
        page.evaluate(_ZOOM)
        answers["zoom"] = (self.busy_seconds(page) - before) / 10
        print(f"large: {size:,} bytes, first paint {painted:.2f} s, shown {shown:.2f} s; "
              + ", ".join(f"{k} {1e3 * v:.0f} ms" for k, v in answers.items()))  # fmt: skip
        for what, taken in answers.items():
            if taken > MOST_ANSWER_SECONDS:
                self.faults.append(f"large: {what} takes {taken:.2f} s")
        page.context.close()


def main() -> int:
    """Judge reports; return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("out/report"))
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    driver_api = import_module("playwright.sync_api")

    browser_path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    axe = axe_source(folder)
    with driver_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        judge = Judge(browser, folder, axe)
        steps: list[Callable[[], None]] = []
        records = dict(programs())
        for number, (name, record) in enumerate(records.items()):
            width, theme = (1280, 1920)[number % 2], ("light", "dark")[number // 2 % 2]
            steps.append(lambda n=name, r=record, w=width, t=theme: judge.screens(n, r, w, t))  # type: ignore[misc]
        steps.append(lambda: judge.drive("training-loop", records["training-loop"]))
        steps.append(lambda: judge.hostile(hostile_record(records["pipeline"])))
        steps.append(lambda: judge.large(large_record(records["training-loop"])))
        for step in steps:
            step()
    for fault in judge.faults:
        print(fault)
    print(f"{len(judge.faults)} faults; pictures in {folder}")
    return bool(judge.faults)


if __name__ == "__main__":
    sys.exit(main())
