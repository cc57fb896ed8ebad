"""One commit's answers to the referee: a child process that calls the command line in itself.

    python side.py < requests > answers

It runs with another commit's sources on its path, so that it may use nothing of hloipu but the
entry point of the command line. A request is a line of JSON, `{"file", "flags", "run_flags"}`; so
is the answer, an `Answer` as a dictionary.
"""

import gc
import hashlib
import json
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

RUNS = 3
"""A run is timed as often, and its fastest time counts."""


def called(*arguments: str) -> tuple[int, str, str, float]:
    """Call the command line; return its exit code, stdout, stderr and processor seconds."""
    from hloipu.cli import main

    printed, complained = StringIO(), StringIO()
    code: Any = 0
    before = sys.argv
    sys.argv = ["hloipu", *arguments]
    gc.collect()
    start = time.process_time()
    try:
        with redirect_stdout(printed), redirect_stderr(complained):
            main()
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv = before
    return int(code), printed.getvalue(), complained.getvalue(), time.process_time() - start


def digest(text: str) -> str:
    """Return a short fingerprint of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def array_digest(path: Path) -> str:
    """Return a fingerprint of a file's arrays: an archive itself holds the time it was written."""
    with np.load(path) as arrays:
        return digest(
            "".join(f"{n} {a.dtype} {a.shape} {a.tobytes().hex()}" for n, a in arrays.items())
        )


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Compile a program, print all that is known of it, and run it where that is asked for."""
    file, flags = request["file"], request["flags"]
    with tempfile.TemporaryDirectory() as folder:
        profile, executable = Path(folder) / "p.json", Path(folder) / "x.ipux"
        code, verdict, complaint, seconds = called(
            "compile", file, *flags, "--no-cache", "--findings",
            "-o", str(executable), "--profile", str(profile),
        )  # fmt: skip
        told: dict[str, Any] = {
            "exit_code": code,
            "verdict": (verdict + complaint).replace(folder, ""),
            "compile_seconds": seconds,
        }
        if profile.exists():
            record = json.loads(profile.read_text(encoding="utf-8"))
            told["cycles"] = {"total": record.get("total_cycles"), **record.get("by_bucket", {})}
            told["memory"] = record.get("memory")
        if not executable.exists():
            return told
        program = called("emit", "--stage=program", "--constants", str(executable))
        told["program"] = digest(program[1] + program[2])
        if request["run_flags"] is not None:
            run = ["run", str(executable), *request["run_flags"]]
            results = Path(folder) / "r.npz"
            times = []
            for _ in range(RUNS):
                run_code, _, problem, run_seconds = called(*run, "--output", str(results))
                times.append(run_seconds)
            told["values"] = array_digest(results) if run_code == 0 else problem
            told["run_seconds"] = min(times)
    return told


def serve() -> None:
    """Answer requests until there are no more."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
