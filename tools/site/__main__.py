"""Build the documentation site: the pages of docs/, and references read off the code.

    python -m tools.site [FOLDER]

Pages stay as they are for people who read them in the tree; this copies them to a folder beside an
index, a page of error codes, one of commands and one of the Python face, and runs Sphinx on them.
Any warning fails.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import hloipu
from hloipu.cli import COMMANDS
from hloipu.report.page import report_page
from hloipu.report.record import report_record

ROOT = Path(__file__).resolve().parents[2]
ERRORS = ROOT / "compiler/hloipu_compiler/explanations.toml"
_SECTION = re.compile(r"^\*\*(.+)\*\*$")
_PAGE = re.compile(r"\(docs/([\w-]+)\.md\)")


def sections() -> dict[str, list[str]]:
    """Return the pages by the headings under which the README lists them."""
    pages_by_heading: dict[str, list[str]] = {}
    heading = ""
    text = (ROOT / "README.md").read_text("utf-8").partition("## Reading on")[2]
    for line in text.splitlines():
        if (section := _SECTION.match(line)) is not None:
            heading = section[1]
        for page in _PAGE.findall(line) if heading else ():
            if all(page not in pages for pages in pages_by_heading.values()):
                pages_by_heading.setdefault(heading, []).append(page)
    rest = {path.stem for path in (ROOT / "docs").glob("*.md")}
    rest -= {page for pages in pages_by_heading.values() for page in pages}
    return {**pages_by_heading, "More": sorted(rest)}


def index() -> str:
    """Return the first page: the README's beginning, and all pages."""
    readme = (ROOT / "README.md").read_text("utf-8")
    begin = (
        readme.partition("## Reading on")[0]
        .replace("](docs/", "](")
        .replace("](CHANGELOG", "](CHANGELOG")
    )
    trees = "\n".join(_toctree(heading, pages) for heading, pages in sections().items())
    return (
        f"{begin}\n{trees}\n{_toctree('Reference', ['commands', 'python', 'errors', 'CHANGELOG'])}"
    )


def _toctree(caption: str, pages: list[str]) -> str:
    return f"```{{toctree}}\n:caption: {caption}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"


def commands() -> str:
    """Return the page of commands, written by their own help."""
    parts = ["# Commands\n"]
    for name in COMMANDS:
        module = name.replace("-", "_")
        directive = f".. click:: hloipu.cli.commands.{module}:command\n   :prog: hloipu {name}"
        parts.append(f"```{{eval-rst}}\n{directive}\n```\n")
    return "\n".join(parts)


def python_face() -> str:
    """Return the page of the Python face, written by docstrings."""
    names = [name for name in hloipu.__all__ if not name.startswith("__")]
    parts = ["# Python\n"]
    for name in names:
        value = getattr(hloipu, name)
        kind = "autoclass" if isinstance(value, type) else "autofunction"
        parts.append(f"```{{eval-rst}}\n.. {kind}:: hloipu.{name}\n```\n")
    for module in ("hloipu.jax", "hloipu.streams"):
        parts.append(f"```{{eval-rst}}\n.. automodule:: {module}\n```\n")
    return "\n".join(parts)


def errors() -> str:
    """Return the page of error codes."""
    parts = ["# Error codes\n\nWhat each code means, an example, and what to do.\n"]
    for code, entry in tomllib.loads(ERRORS.read_text("utf-8")).items():
        parts.append(f"## {code}: {entry['title']}\n\n{entry['meaning']}\n\n"
                     f"- Example: {entry['example']}\n- Cure: {entry['cure']}\n")  # fmt: skip
    return "\n".join(parts)


def sources(folder: Path) -> None:
    """Write what Sphinx reads to a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for page in (ROOT / "docs").glob("*.md"):
        text = page.read_text("utf-8").replace("](../README.md", "](index.md")
        (folder / page.name).write_text(text.replace("](../CHANGELOG.md", "](CHANGELOG.md"))
    shutil.copytree(ROOT / "docs/pictures", folder / "pictures")
    shutil.copy(ROOT / "CHANGELOG.md", folder)
    shutil.copy(Path(__file__).with_name("conf.py"), folder)
    for name, text in (("index", index()), ("commands", commands()), ("python", python_face()),
                       ("errors", errors())):  # fmt: skip
        (folder / f"{name}.md").write_text(text, "utf-8")


def example(folder: Path) -> None:
    """Write a report for readers to look at: a pipeline of two stages."""
    program = hloipu.compile(
        ROOT / "hlo_samples/mnist_train_step.hlo", target="gc200", cache=False, ipus=2, stages=2,
        micro_batches=8, loop=10, feed={"data": [4, 5]},
    )  # fmt: skip
    (folder / "example-report.html").write_bytes(report_page(report_record(program)))


def main() -> int:
    """Build the site; return Sphinx's exit code."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "out/site")
    sources(folder / "sources")
    code = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html",
         str(folder / "sources"), str(folder / "html")]
    ).returncode  # fmt: skip
    example(folder / "html")
    return code


if __name__ == "__main__":
    sys.exit(main())
