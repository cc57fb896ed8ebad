"""What long work tells is shown on a terminal, and nowhere else; programs hear it alike."""

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from time import sleep
from types import ModuleType

import pytest

import hloipu
from hloipu import showing
from hloipu.cli.application import outcome
from hloipu_runtime.watching import doing, each, listening, telling
from tests.support.command_line import run
from tests.support.tile_texts import DOT


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()
    monkeypatch.setattr(showing, "_FIRST_SECONDS", 0.01)
    monkeypatch.setattr(showing, "_NEXT_SECONDS", 0.01)
    for name, value in {"TERM": "xterm", "COLUMNS": "120", "CI": "", showing.OFF: ""}.items():
        monkeypatch.setenv(name, value)
    return stream


def said_within(stream: io.StringIO, words: str) -> bool:
    """Whether a stream has words within some seconds."""
    for _ in range(300):
        if words in stream.getvalue():
            return True
        sleep(0.01)
    return False


def test_a_terminal_shows_what_goes_on(terminal: Terminal) -> None:
    with redirect_stderr(terminal), showing.shown(), doing("compiling"), doing("lowering"):
        telling("ops\x1b[2J", 3, 9)
        assert said_within(terminal, "compiling: lowering: ops?[2J, 3 of 9 (33 %), ")
        with showing.hidden():
            before = terminal.getvalue()
            assert before.endswith("\x1b[2K\x1b[?25h") or "\x1b[2K" in before[-40:]
            sleep(0.05)
            assert terminal.getvalue() == before
        telling("merging")
        assert said_within(terminal, "compiling: lowering: merging, ")
    end = terminal.getvalue()
    telling("nobody hears this")
    sleep(0.05)
    assert terminal.getvalue() == end


@pytest.mark.parametrize(
    "silent",
    [
        lambda patch: patch.setattr(Terminal, "isatty", lambda _: False),
        lambda patch: patch.setenv("CI", "true"),
        lambda patch: patch.setenv("TERM", "dumb"),
        lambda patch: patch.setenv(showing.OFF, "off"),
    ],
    ids=["a pipe", "a log", "dumb", "off"],
)
def test_nothing_is_shown_elsewhere(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, silent: Callable[[object], None]
) -> None:
    silent(monkeypatch)
    with redirect_stderr(terminal), showing.shown(), doing("compiling"):
        sleep(0.05)
    assert terminal.getvalue() == ""


def test_who_wants_nothing_is_shown_nothing(terminal: Terminal) -> None:
    with (
        redirect_stderr(terminal),
        showing.shown(wanted=False),
        showing.shown(),
        doing("compiling"),
    ):
        sleep(0.05)
    assert terminal.getvalue() == ""


class ZMQInteractiveShell:
    """Named as the shell of a notebook's kernel is."""


def test_a_notebook_shows_what_goes_on(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = ModuleType("IPython")
    vars(kernel)["get_ipython"] = ZMQInteractiveShell
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setattr(Terminal, "isatty", lambda _: False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with redirect_stderr(terminal), showing.shown(), doing("compiling"):
        assert said_within(terminal, "compiling, ")


def test_a_line_tells_where_work_is_and_how_far() -> None:
    parts = ("search", "cut 3", "codegen", "lowering", "ops", "more than fits a line")
    assert showing.text_of(parts, 0, 0, 2.4) == "search: cut 3: codegen: lowering: ops, 2 s"
    assert showing.text_of(("run",), 1200, 4800, 2.4) == "run, 1,200 of 4,800 (25 %), 2 s"
    assert showing.text_of(("run", "run"), 1200, 0, 2.4) == "run, 1,200, 2 s"


def test_a_compile_tells_its_passes_and_ops() -> None:
    heard: list[tuple[tuple[str, ...], int, int]] = []
    with listening(lambda *told: heard.append(told)):
        hloipu.compile(DOT, target="tiny", cache=False)
    paths = [": ".join(parts) for parts, _, _ in heard]
    for part in ("parsing", "verifying", "passes: pass ", "lowering: ops lowered", "merging steps"):
        assert any(path.startswith(part) for path in paths), part
    ops = [(done, count) for parts, done, count in heard if parts[-1] == "ops lowered"]
    assert ops == [(done, ops[0][1]) for done in range(ops[0][1])]


def test_nothing_is_kept_of_a_loop_that_nobody_hears() -> None:
    some = [1, 2]
    assert each("ones", some, 2) is some


@pytest.mark.parametrize(
    ("options", "is_shown"), [((), True), (("--json",), False), (("--no-progress",), False)]
)
def test_a_command_shows_what_it_is_at(
    options: tuple[str, ...],
    is_shown: bool,
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "m.hlo").write_text(DOT)
    command = "run" if "--no-progress" in options else "estimate"

    def slow(*_: object) -> None:
        assert said_within(terminal, f"{command}, ") == is_shown
        raise KeyboardInterrupt

    monkeypatch.setattr(f"hloipu.cli.commands.{command}.read_verified", slow)
    monkeypatch.setattr("hloipu.cli.compiling.read_verified", slow)
    arguments = ["hloipu", command, str(tmp_path / "m.hlo"), "--target", "tiny", *options]
    monkeypatch.setattr(sys, "argv", arguments)
    with redirect_stderr(terminal):
        assert outcome() == 130
    assert terminal.getvalue().count("interrupted") == 1


def test_a_command_says_nothing_of_it_in_a_pipe() -> None:
    outcome = run("compile", "-", "--target", "tiny", stdin=DOT)
    assert outcome.code == 0
    assert "lowering" not in outcome.err
