"""Every command with a standard stream or the working directory gone, or stopped by a signal.

None shows a traceback, each ends with an exit code of its own, and no file is left half-written.
"""

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any, NamedTuple

import numpy as np
import pytest

import hloipu
from hloipu.cli import COMMANDS
from hloipu.sweeping.store import Store
from tests.support.command_line import run

MODULE = """HloModule m
ENTRY e {
  p = f32[8,8]{1,0} parameter(0)
  d = f32[8,8]{1,0} dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT x = f32[8,8]{1,0} exponential(d)
}
"""
CALLS: dict[str, str] = {
    "capture": "-o dumps -- bash dump.sh",
    "compile": "FILE --target tiny -o out.ipux",
    "run": "FILE --target tiny --random 0 -o out.npz",
    "estimate": "FILE --target tiny",
    "sweep": "FILE --over target=tiny -o out.db --workers 0",
    "sweep-show": "study.db",
    "advise": "FILE --target tiny",
    "verify": "FILE",
    "show": "FILE",
    "eval": "FILE --random 0 -o out.npz",
    "check": "FILE --against evaluator-f64",
    "targets": "gc200",
    "opt": "FILE -o out.hlo",
    "reduce": "FILE --test true -o out.hlo",
    "emit": "FILE --stage program --target tiny",
    "feed-bench": "rows.npy",
    "report": "FILE --target tiny -o out.html",
    "trace": "FILE --target tiny -o out.json.gz",
    "compare": "profile.json profile.json",
    "init": "--target bow",
    "explain": "E5020",
    "completion": "bash",
}


def _page(path: Path) -> None:
    assert path.read_bytes().endswith(b"</html>\n")


def _trace(path: Path) -> None:
    json.loads(gzip.decompress(path.read_bytes()))


def _study(path: Path) -> None:
    with Store.opened(path) as store:
        assert store.count()[0] <= 1


READERS = {"out.db": _study, "out.db-wal": Path.exists, "out.db-shm": Path.exists,
           "out.ipux": hloipu.load, "out.npz": np.load, "out.hlo": hloipu.parse,
           "out.html": _page, "out.json.gz": _trace,
           "dumps": lambda folder: json.loads((folder / "capture.json").read_bytes())}  # fmt: skip


class Surroundings(NamedTuple):
    """How a command is called, with which exit codes it may end."""

    script: str
    """Of a shell; `"$@"` is the command."""
    codes: set[int]
    signal: int = 0


SURROUNDINGS = {
    "stdout closed": Surroundings('"$@" >&-', {0, 2}),
    "stdout full": Surroundings('"$@" > /dev/full', {0, 2}),
    "stderr closed": Surroundings('"$@" 2>&-', {0}),
    "stderr full": Surroundings('"$@" 2> /dev/full', {0}),
    "stdin closed": Surroundings('"$@" <&-', {0, 2}),
    "all closed": Surroundings('"$@" <&- >&- 2>&-', {0, 2}),
    "reader gone": Surroundings('"$@" | true; exit ${PIPESTATUS[0]}', {0, 141}),
    "no working directory": Surroundings('mkdir gone; cd gone; rmdir ../gone; "$@"', {0, 2}),
    "SIGTERM": Surroundings('exec "$@"', {0, -signal.SIGTERM}, signal.SIGTERM),
    "SIGINT": Surroundings('exec "$@"', {0, 130}, signal.SIGINT),
    "SIGHUP": Surroundings('exec "$@"', {0, -signal.SIGHUP}, signal.SIGHUP),
}
_MAIN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs without
from hloipu.cli import main
STARTED
main()
"""
_STARTED = "open('started', 'w').close()\n"
"""Before the command line is called, Python itself ends with a traceback."""
_LONGEST_DELAY_SECONDS = 0.8


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "m.hlo").write_text(MODULE)
    # Stands for a script that XLA compiles m.hlo for.
    dumped = "$HLOIPU_CAPTURE/1/module_0.m.before_optimizations.txt"
    (folder / "dump.sh").write_text(f'mkdir "$HLOIPU_CAPTURE/1"; cp {folder / "m.hlo"} "{dumped}"')
    np.save(folder / "rows.npy", np.ones((9, 6), np.float32))
    found = run(
        "estimate", str(folder / "m.hlo"), "--target", "tiny",
        "--profile", str(folder / "profile.json"),
    )  # fmt: skip
    assert found.code == 0
    hloipu.sweep(folder / "m.hlo", {"target": ["tiny"]}, path=folder / "study.db", workers=0)
    return folder


@pytest.mark.thinned(36)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", SURROUNDINGS)
def test_commands_end_as_they_should(command: str, name: str, inputs: Path, tmp_path: Path) -> None:
    around = SURROUNDINGS[name]
    file = "-" if name == "stdin closed" else str(inputs / "m.hlo")
    words = [
        str(inputs / word) if (inputs / word).exists() else file if word == "FILE" else word
        for word in CALLS[command].split()
    ]
    started = tmp_path / "started"
    main = _MAIN.replace("STARTED", _STARTED if around.signal else "")
    shell = ["bash", "-c", around.script, "bash", sys.executable, "-c", main, command, *words]
    with subprocess.Popen(
        shell,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as child:
        if around.signal:
            limit = monotonic() + 30
            while not started.exists() and monotonic() < limit:
                sleep(0.01)
            started.unlink()
            sleep(Random(f"{command} {name}").random() * _LONGEST_DELAY_SECONDS)
            child.send_signal(around.signal)
        _, said = child.communicate(timeout=60)
    assert not any(word in said for word in ("Traceback", "Exception ignored", "Fatal")), said
    assert child.returncode in around.codes, said
    if child.returncode == 2:
        assert "error[E3" in said or "Error" in said or "closed" in name
    for left in tmp_path.iterdir():
        read: Any = READERS[left.name]
        read(left)
