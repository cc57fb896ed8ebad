"""A command that is interrupted says so, with exit code 130 and no traceback."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import click
import numpy as np
import pytest

from hloipu.showing import interruptible
from hloipu_compiler.partition.search.candidate import Candidate, Estimate
from hloipu_compiler.partition.search.estimates import Step
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.streams import faults
from hloipu_runtime.watching import current_search
from tests.compiler.partition.training.test_inference import LAYERS, text
from tests.support.command_line import run
from tests.support.sessions import SUMS
from tests.support.tile_texts import DOT

INTERRUPTIBLE = """
import signal
from hloipu.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""
"""The command line; a shell starts jobs in the background with interrupts ignored."""


def interrupted_click(cause: BaseException) -> click.Abort:
    abort = click.Abort()
    abort.__cause__ = cause
    return abort


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyboardInterrupt(), "interrupted"),
        (interrupted_click(KeyboardInterrupt()), "interrupted"),
        (interrupted_click(faults.interrupted("data", 7)), "error[E2027]"),
    ],
)
def test_what_is_said(monkeypatch: pytest.MonkeyPatch, error: BaseException, said: str) -> None:
    def stop(**_: object) -> None:
        raise error

    monkeypatch.setattr("hloipu.cli.application.application", stop)
    found = run("targets")
    assert found.code == 130
    assert found.out == ""
    assert found.err.startswith(said)


def test_an_interrupt_while_modules_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hloipu.cli.import_module", stop)
    assert run("targets").code == 130


def test_a_run_with_checkpoints_is_left_whole(tmp_path: Path) -> None:
    (tmp_path / "sums.hlo").write_text(SUMS)
    np.save(tmp_path / "rows.npy", np.ones((9, 6), np.float32))
    command = [
        sys.executable, "-c", INTERRUPTIBLE, "run", "sums.hlo", "--target", "tiny", "--no-cache",
        "--loop", "3", "--feed", "data=2", "--outfeed", "seen", "--random", "0", "--repeat",
        "--infeed", "data=rows.npy", "--checkpoint", "kept", "--every", "3", "--steps", "3000000",
    ]  # fmt: skip
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        limit = monotonic() + 60
        while not (tmp_path / "kept" / "checkpoint.hloipu").exists() and monotonic() < limit:
            sleep(0.01)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert "error[E5029]: interrupted while the program ran" in err or "error[E2027]" in err
    assert os.listdir(tmp_path / "kept") == ["checkpoint.hloipu"]


def test_a_run_says_what_an_interrupt_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(CompiledProgram, "run", stop)
    output = tmp_path / "out.npz"
    given = ("--target", "tiny", "--random", "0", "-o", str(output))
    found = run("run", "-", *given, stdin=DOT)
    assert found.code == 130
    assert found.out == ""
    assert "error[E5029]: interrupted while the program ran" in found.err
    assert not output.exists()


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Have interrupts met as Python does, which a shell changes for what it runs beside itself."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_the_first_interrupt_ends_a_search_and_the_second_stops() -> None:
    with interruptible():
        search = current_search()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)  # there is nothing yet
        with search.improving():
            signal.raise_signal(signal.SIGINT)
            assert search.is_over()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("interrupts")
def test_an_interrupted_search_gives_the_best_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "step.hlo"
    path.write_text(text(named=False))
    estimate, looked_at = Step.estimate, []

    def interrupted(self: Step, candidate: Candidate) -> Estimate:
        looked_at.append(candidate)
        if len(looked_at) == 3:
            signal.raise_signal(signal.SIGINT)
        return estimate(self, candidate)

    monkeypatch.setattr(Step, "estimate", interrupted)
    cut = ("--plan", "auto", "--ipus", "4", "--micro-batches", "8", "--loop", "1", "--no-cache")
    found = run("estimate", str(path), *cut, "--feed", f"data={LAYERS}")
    assert found.code == 0, found
    assert len(looked_at) <= 4
    assert "looking for better ended early (interrupted): this is the best so far" in found.err
    assert "cycles" in found.out
