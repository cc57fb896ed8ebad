"""The documents: short pages, links that lead somewhere, paths and options that exist."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath

import click
import pytest

import hloipu
from hloipu.cli.application import application
from tests.support.cases import each

ROOT = Path(__file__).parents[1]
MOST_LINES = 200
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^(?:```.*?^```|(?: {4}[^\n]*\n)+)", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"`(?:\w+: )?((?:[\w.-]+/)+[\w.-]*|[\w-]+\.py)`")
_NAMED = re.compile(
    r"((?:`[\w.]+`(?:,|\s+and)\s+)*`[\w.]+`)\s+(?:in\s+|\()`(?:\w+:\s+)?([\w/]+\.py)`"
)
_COMMAND = re.compile(r"\bhloipu ([a-z-]+)((?:(?!hloipu )(?:[^`\n]|\\\n))*)")
_TARGET = re.compile(r"(?:`|^ {4})make ([a-z-]+)", re.MULTILINE)
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_NOT_IN_THE_TREE = frozenset({"graphcore/tensorflow", "graphcore/poplibs", "tutorials/tut6"})


def pages() -> dict[str, str]:
    """Return the documents by their paths in the tree."""
    paths = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def anchors(text: str) -> set[str]:
    """Return the names by which GitHub's links find a page's headings."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def link_faults(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield links of pages that lead nowhere, and pages that no other page links."""
    linked = {"README.md", "CHANGELOG.md"}
    for name, text in texts.items():
        for link in _LINK.findall(_FENCE.sub("", text)):
            if "://" in link:
                continue
            path, _, anchor = link.partition("#")
            target = _normal(PurePosixPath(name).parent / path) if path else name
            if target not in texts and not (ROOT / target).exists():
                yield f"{name}: {link} leads nowhere"
            elif anchor and anchor not in anchors(texts.get(target, "")):
                yield f"{name}: {link}: no such heading"
            elif target != name:
                linked.add(target)
    yield from (f"{name}: no page links it" for name in sorted(texts.keys() - linked))


def _normal(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def length_faults(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield pages that are too long to be read in one go."""
    for name, text in texts.items():
        lines = len(text.splitlines())
        if lines > MOST_LINES:
            yield f"{name}: {lines} lines, {MOST_LINES} allowed"


def path_faults(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield paths in backticks that end no path of the tree."""
    tree = _tree()
    for name, text in texts.items():
        for shown in _PATH.findall(text):
            path = shown.rstrip("/")
            if path.split("/")[-1].find(".") < 0 and not shown.endswith("/"):
                continue  # not a file: `batch/ids`
            if path not in _NOT_IN_THE_TREE and not any(f"/{x}".endswith(f"/{path}") for x in tree):
                yield f"{name}: {shown} is not in the tree"


def name_faults(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield names that a page places in a file of the code (`x` in `y.py`) without them."""
    for name, text in texts.items():
        for words, shown in _NAMED.findall(text):
            files = [ROOT / x for x in _tree() if f"/{x}".endswith(f"/{shown}")]
            code = "".join(x.read_text(encoding="utf-8") for x in files)
            for word in re.findall(r"`([\w.]+)`", words):
                if not re.search(rf"\b{word.split('.')[-1]}\b", code):
                    yield f"{name}: no {word} in {shown}"


@cache
def _tree() -> frozenset[str]:
    roots = ("compiler", "hloipu", "runtime", "tools", "tests", "docs", "hlo_samples", ".ci")
    paths = [path for root in roots for path in (ROOT / root).rglob("*")]
    shown = {path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*"), *paths]}
    return frozenset({*shown, *roots})


def command_faults(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield commands of hloipu, and their options, that do not exist."""
    context = click.Context(application)
    for name, text in texts.items():
        for command, rest in _COMMAND.findall(text):
            known = application.get_command(context, command)
            if known is None:
                if rest.lstrip().startswith(("-", "FILE")) or ".hlo" in rest:
                    yield f"{name}: hloipu {command} is no command"
                continue
            options = _options(known)
            words = rest.split("#")[0]
            yield from (
                f"{name}: hloipu {command} has no {option}"
                for option in _OPTION.findall(words)
                if option not in options
            )


def make_faults(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield targets of make, and modules of tools, that do not exist."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for name, text in texts.items():
        for target in set(_TARGET.findall(text)) - targets:
            yield f"{name}: make {target} is no target"
        for module in set(re.findall(r"python -m (tools[.\w]+)", text)):
            path = module.rstrip(".").replace(".", "/")
            if f"{path}.py" not in _tree() and path not in _tree():
                yield f"{name}: {module} is no module"


def _options(command: click.Command) -> set[str]:
    shown = [x for x in command.params if isinstance(x, click.Option)]
    return {opt for x in shown for opt in (*x.opts, *x.secondary_opts)} | {"--help", "--version"}


CHECKS = (link_faults, length_faults, path_faults, command_faults, make_faults, name_faults)


@pytest.mark.parametrize("check", CHECKS)
def test_every_page_is_in_order(check: object) -> None:
    assert callable(check)
    assert not list(check(pages()))


@each(
    "text, check",
    [
        ("[x](nowhere.md)", link_faults),
        ("[x](CHANGELOG.md#nowhere)", link_faults),
        ("line\n" * (MOST_LINES + 1), length_faults),
        ("see `lowering/nowhere.py`", path_faults),
        ("    hloipu compile x.hlo --nowhere 4", command_faults),
        ("    hloipu nowhere x.hlo", command_faults),
        ("see `make nowhere`", make_faults),
        ("run `python -m tools.nowhere`", make_faults),
        ("`Plan` and `nowhere` in `compiler: plan/plan.py`", name_faults),
        ("`nowhere`\n(`plan/plan.py`)", name_faults),
    ],
)
def test_a_planted_fault_is_found(text: str, check: object) -> None:
    assert callable(check)
    planted = {**pages(), "planted.md": text, "README.md": "[x](planted.md)"}
    assert [fault for fault in check(planted) if fault.startswith("planted.md:")]


def test_a_page_that_nothing_links_is_found() -> None:
    assert "planted.md: no page links it" in list(link_faults({**pages(), "planted.md": "text"}))


def test_the_example_of_an_op_is_the_code() -> None:
    text = (ROOT / "docs" / "adding-an-op.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^ +((?:return|@lowers) ?.*)$", text, re.MULTILINE))
    families = ("interpret/ops/contractions.py", "lowering/ops/linear_algebra.py")
    sources = (ROOT / "compiler" / "hloipu_compiler" / x for x in families)
    code = "".join(x.read_text(encoding="utf-8") for x in sources)
    assert len(shown) == 3
    assert not [line for line in shown if line not in code]


FOR_DEVELOPERS = frozenset(
    f"docs/{name}.md" for name in ("adding-an-op", "decisions", "design", "planning", "program")
) | {"CONTRIBUTING.md", "CHANGELOG.md"}
_PRIVATE = re.compile(r"hloipu_(?:compiler|runtime)|\bhloipu(?:\.\w+)*\._[a-z]\w*")

_IMPORTS = re.compile(r"^\s*(?:from|import) .*", re.MULTILINE)


def told_to_users() -> Iterator[tuple[str, str]]:
    """Yield texts that users read: pages, explanations of errors, what errors and hints say."""
    yield from ((name, text) for name, text in pages().items() if name not in FOR_DEVELOPERS)
    explained = ROOT / "compiler" / "hloipu_compiler" / "explanations.toml"
    yield explained.name, explained.read_text(encoding="utf-8")
    for folder in ("hloipu", "compiler", "runtime"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for part in said_in_code(text) if _PRIVATE.search(_IMPORTS.sub("", text)) else ():
                yield path.relative_to(ROOT).as_posix(), part


def said_in_code(text: str) -> Iterator[str]:
    """Yield the texts in what is raised, warned of and said, and in helps and hints."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.keyword) and node.arg in ("hint", "help"):
            said: ast.AST = node.value
        elif isinstance(node, ast.Call) and _name_of(node.func).endswith(
            ("Error", "Warning", "warn", "say", "echo", "Fault")
        ):
            said = node
        else:
            continue
        for part in ast.walk(said):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def _name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_nothing_private_is_told_to_users() -> None:
    assert [x for x in told_to_users() if _PRIVATE.search(x[1])] == []
    planted = 'raise UsageError("E1", "no", hint=f"see {x} of hloipu_runtime.compiled")'
    assert any(_PRIVATE.search(x) for x in said_in_code(planted))


_FORMATS = frozenset("config costs memory profile sweep toml keras tensorflow torch_xla".split())
"""Of files and records: `hloipu.profile` is no Python name; and modules that need a framework."""


def test_what_users_are_told_to_import_is_there() -> None:
    said = "\n".join(text for name, text in pages().items() if name not in FOR_DEVELOPERS)
    names = sorted(set(re.findall(r"(?<![\w/.])hloipu((?:\.[A-Za-z]\w*)+)", said)))
    assert len(names) > 20
    for dotted in names:
        first, *rest = dotted[1:].split(".")
        if first not in _FORMATS:
            found: object = getattr(hloipu, first)
            for part in rest:
                found = getattr(found, part)
