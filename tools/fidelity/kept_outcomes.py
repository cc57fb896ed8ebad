"""What networks were said to need, kept in a file as they are compiled, so that no run begins anew.

A line of out/fidelity-models.jsonl is one outcome, with the commit that it is of. A run that was
interrupted goes on where it was: what is there of this commit is not compiled again. With `OLDER`
set in the environment, outcomes of other commits do as well, the newest line of each; with
`OLDER=only`, nothing is compiled, and what is not there stays out.
"""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
PATH = _ROOT / "out" / "fidelity-models.jsonl"
OLDER = "OLDER"
"""Variable of the environment."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is compiled."""

    run: str
    target: str
    micro_batches: int
    replicas: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What hloipu says of a run."""

    fits: bool
    peak_bytes: int
    """On the fullest tile."""
    available_bytes: int
    parts: Mapping[str, int]
    """Bytes of that tile by what they are for, those kept through loops once more."""
    device_seconds: float
    """Of one call: an update, or as many steps as are in the loop; without the host."""
    told: str
    """Where cycles go."""
    commit: str = ""
    """Whose outcome it is."""


class NotKept(LookupError):
    """There is no outcome, and none is to be made."""


def kept_or_made(asked: Asked, make: Callable[[], Outcome], path: Path = PATH) -> Outcome:
    """Return what is kept, or what is made now, and keep it.

    Raises NotKept where only what is there is asked for, and it is not.
    """
    commit, older = commit_now(), os.environ.get(OLDER, "")
    kept = [(found, outcome) for found, outcome in _lines(path) if found == asked]
    mine = [outcome for _, outcome in kept if older or outcome.commit == commit]
    if mine:
        return next((x for x in reversed(mine) if x.commit == commit), mine[-1])
    if older == "only":
        raise NotKept(asked.run)
    made = make()
    row = {**asdict(asked), **asdict(made), "commit": commit}
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n{json.dumps(row)}\n")  # the last line may have been cut off
    return Outcome(**{**asdict(made), "commit": commit})


def _lines(path: Path) -> list[tuple[Asked, Outcome]]:
    """Return what is kept, in order; a line that was cut off by the end of a run is none."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        asked = Asked(*(row.pop(name) for name in Asked.__slots__))
        found.append((asked, Outcome(**row)))
    return found


@lru_cache(1)
def commit_now() -> str:
    """Return the commit that is checked out, with a mark where the sources differ from it."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        ran = subprocess.run(command, cwd=_ROOT, check=True, capture_output=True, text=True)
        return ran.stdout.strip()

    changed = git("status", "--porcelain", "--", "compiler", "runtime", "hloipu", "tools/models")
    return git("rev-parse", "--short=7", "HEAD") + ("+" if changed else "")
