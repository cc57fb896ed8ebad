"""Shells complete commands, options, and their values where those are cheap to know."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hloipu.cli import COMMANDS, COMPLETE_VARIABLE
from tests.support.command_line import run
from tests.support.tile_texts import DOT

HLOIPU = f'#!/bin/sh\nexec "{sys.executable}" -m hloipu "$@"\n'


def asked(words: list[str], begun: str) -> list[str]:
    """Return what a shell is told that asks what may stand for a word."""
    asking = {
        COMPLETE_VARIABLE: "bash_complete",
        "COMP_WORDS": " ".join(["hloipu", *words, begun]),
        "COMP_CWORD": str(len(words) + 1),
    }
    found = subprocess.run(
        [sys.executable, "-m", "hloipu"], env={**os.environ, **asking}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    return [line.partition(",")[2] for line in found.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "begun", "some", "none"),
    [
        ([], "", {"compile", "completion"}, set()),
        (["compile"], "--tar", {"--target"}, {"--set"}),
        (["compile", "--target"], "g", {"gc200"}, {"bow"}),
        (["compile", "--over-memory"], "", {"allow", "refuse"}, set()),
        (["compile", "--passes"], "front,inline", {"front,inline-calls"}, {"inline-calls"}),
        (["compile", "--set"], "tiles_per_i", {"tiles_per_ipu="}, {"bytes_per_tile="}),
        (["compile", "m.hlo", "--role"], "a", {"a=weight", "a=data"}, {"b=weight"}),
        (["compile", "gone.hlo", "--role"], "a", set(), {"a=weight"}),
        (["completion"], "", {"bash", "zsh", "fish"}, set()),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else None,
)
@pytest.mark.thinned(3)
def test_what_may_come_next(
    words: list[str],
    begun: str,
    some: set[str],
    none: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "m.hlo").write_text(DOT)
    monkeypatch.chdir(tmp_path)
    found = set(asked(words, begun))
    assert found >= some
    assert not found & none


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_takes_its_script(shell: str, tmp_path: Path) -> None:
    script = run("completion", shell)
    assert script.code == 0
    assert COMPLETE_VARIABLE in script.out
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    (tmp_path / "script").write_text(script.out)
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes(tmp_path: Path) -> None:
    (tmp_path / "hloipu").write_text(HLOIPU)
    (tmp_path / "hloipu").chmod(0o755)
    words = """
        eval "$(hloipu completion bash)"
        COMP_WORDS=(hloipu com) COMP_CWORD=1
        $(complete -p hloipu | sed 's/.*-F \\([^ ]*\\).*/\\1/') hloipu
        echo "${COMPREPLY[@]}"
    """
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    found = subprocess.run(
        ["bash", "-c", words], env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    wanted = sorted(name for name in COMMANDS if name.startswith("com"))
    assert sorted(found.stdout.split()) == wanted, found.stderr
