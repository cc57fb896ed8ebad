"""Compile real dumps in every way their users would, and say what each step was taken for.

    python -m tools.real [--jobs N] [--only WORDS] [--seconds N] [--json FILE] [--target M] PLACES

PLACES: folders or dumps. Each dump is estimated on one IPU and with `--plan auto` on 4 and 16, and
with micro-batches; what trains, with replicas and stages too. Every estimate is a process of its
own, so that its seconds and bytes can be measured and one crash ends nothing. A search for a cut
ends after `--seconds` with the best so far; no process lives longer than FACTOR times that, so that
a dump takes no longer than seven such. Ends with 1 where a process fails in any way but a refusal
whose error code stands in ACCEPTED, or where the text names backward ops and the step is cut as if
it did not train.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

FACTOR = 4
"""How much longer than its search an estimate may take: the best cut so far is compiled to the end,
and reports are made. *Assumed.*"""

ANY_STEP = {
    "1 IPU": (),
    "auto 4": ("--plan", "auto", "--ipus", "4"),
    "auto 16": ("--plan", "auto", "--ipus", "16"),
    "K=4": ("--micro-batches", "4"),
}
TRAINING = {
    "R=2": ("--replicas", "2", "--ipus", "2"),
    "R=2 K=2": ("--replicas", "2", "--ipus", "2", "--micro-batches", "2"),
    "S=4 K=8": ("--stages", "4", "--ipus", "4", "--micro-batches", "8"),
}
ACCEPTED = {
    "E0475": "the module is written for more devices than there are",
    "E0510": "the module is written for several partitions, and replicas of these are asked for",
    "E0501": "a step returns gradients or new state and no loss; it has to be said which it is",
    "E3150": "it may train, and it is not clear which parameters are its state",
}
"""What may be refused, by error code, and why a user would accept that."""

BACKWARD = "transpose(jvp("
"""How JAX names what it differentiated (`op_name`)."""
NO_TRAINER = "trains nothing"
"""How the compiler says that a step trains nothing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one dump compiled in one configuration."""

    dump: str
    configuration: str
    seconds: float
    peak_process_bytes: int
    is_failure: bool
    taken_for: str
    """What the step is, as the compiler says; empty where it was refused."""
    cycles: int | None = None
    """None: data decides, or refused."""
    bytes_per_tile: int | None = None
    code: str = ""
    message: str = ""

    @property
    def line(self) -> str:
        """Row of the table."""
        status = "FAILED" if self.is_failure else self.code or "ok"
        text = f"{self.dump[:28]:28} {self.configuration:8} {status:7} {self.seconds:6.1f} s "
        text += f"{self.peak_process_bytes / 2**20:6.0f} MiB "
        if self.message:
            return text + self.message
        cycles = "unknown" if self.cycles is None else f"{self.cycles:,}"
        return text + f"{cycles:>19} cycles {self.bytes_per_tile:>13,} B/tile  {self.taken_for}"


def estimated(
    path: Path, configuration: str, flags: Sequence[str], target: str, search_seconds: float = 60
) -> Outcome:
    """Estimate one dump in a child process and read what it says."""
    command = [sys.executable, "-m", "hloipu", "estimate", str(path), "--json", "--target", target]
    command += ["--over-memory", "allow", "--no-cache", "--time-limit", str(search_seconds), *flags]
    longest = FACTOR * search_seconds
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as errors:
        start = time.monotonic()
        child = subprocess.Popen(command, stdout=answer, stderr=errors)
        timer = threading.Timer(longest, child.kill)
        timer.start()
        _, status, usage = os.wait4(child.pid, 0)
        timer.cancel()
        # The child is waited for already; without its status `Popen` would wait again.
        child.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - start
        answer.seek(0)
        errors.seek(0)
        printed = answer.read().decode()
        complaint = errors.read().decode()
    first = Outcome(path.stem, configuration, seconds, usage.ru_maxrss * 1024, False, "")
    try:
        record: dict[str, Any] = json.loads(printed)
    except ValueError:
        last = (complaint.strip().splitlines() or ["no message"])[-1]
        said = f"longer than {longest:g} s" if seconds >= longest else last
        return replace(first, is_failure=True, message=said)
    if record["schema"].startswith("hloipu.error"):
        code = record["code"]
        return replace(first, is_failure=code not in ACCEPTED, code=code, message=record["message"])
    return replace(
        first,
        taken_for="; ".join(x.strip() for x in record["options"].get("cut", ())),
        cycles=record["total_cycles"],
        bytes_per_tile=record["memory"]["peak"]["total_bytes"],
    )


def outcomes(path: Path, target: str, search_seconds: float) -> Iterator[Outcome]:
    """Yield the outcome of each configuration that applies to one dump."""
    names_backward_ops = BACKWARD in path.read_text(encoding="utf-8", errors="replace")
    trains = names_backward_ops
    for configuration, flags in ANY_STEP.items():
        outcome = estimated(path, configuration, flags, target, search_seconds)
        yield checked(outcome, names_backward_ops=names_backward_ops)
        trains |= outcome.taken_for.startswith("trains: ")
    if trains:
        for configuration, flags in TRAINING.items():
            yield checked(
                estimated(path, configuration, flags, target, search_seconds),
                names_backward_ops=names_backward_ops,
            )


def checked(outcome: Outcome, *, names_backward_ops: bool) -> Outcome:
    """Mark as failed a step with ops named as backward whose state is taken for caches."""
    misread = names_backward_ops and outcome.taken_for.startswith(NO_TRAINER)
    return replace(outcome, is_failure=True) if misread else outcome


def dumps_in(places: Sequence[Path]) -> list[Path]:
    """Return the dumps named, and those in folders named."""
    dumps: list[Path] = []
    for place in places:
        dumps += sorted(place.glob("*.hlo")) if place.is_dir() else [place]
    return dumps


def main() -> int:
    """Print the table; 1 where anything failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("places", nargs="*", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="dumps whose name contains this")
    parser.add_argument("--seconds", type=float, default=60, help="that a search for a cut takes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--target", default="gc200")
    asked = parser.parse_args()
    dumps = [x for x in dumps_in(asked.places or [Path("hlo_samples")]) if asked.only in x.stem]
    rows: list[Outcome] = []

    def tried(path: Path) -> None:
        for outcome in outcomes(path, asked.target, asked.seconds):
            rows.append(outcome)
            print(outcome.line, flush=True)

    with ThreadPoolExecutor(asked.jobs) as pool:
        list(pool.map(tried, dumps))
    failures = sum(x.is_failure for x in rows)
    refused = sum(bool(x.code) and not x.is_failure for x in rows)
    print(f"{len(rows)} estimates of {len(dumps)} dumps: {refused} refused, {failures} failed")
    for code in sorted({x.code for x in rows if x.code and not x.is_failure}):
        print(f"  refused with {code}: {ACCEPTED[code]}")
    if asked.json is not None:
        record = {"schema": "hloipu.real/1", "target": asked.target}
        listed = [asdict(x) for x in rows]
        asked.json.write_text(json.dumps({**record, "rows": listed}, indent=1), encoding="utf-8")
    return 1 if failures or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
