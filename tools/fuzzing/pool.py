"""What becomes of a numbered case of a fuzzer, whose worker has a limit of memory and of time."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hloipu.sweeping.jobs import ended_after
from tools.fuzzing import cases, trial
from tools.fuzzing.trial import Outcome

MEMORY_BYTES = 2**30
GRACE_SECONDS = 5.0
"""Over the allowed processor time, for a machine that does other work too."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one case."""

    case: str
    outcome: Outcome
    characters: int = 0
    repro: str = ""


@lru_cache(maxsize=1)
def _cases(seed: int, folders: Sequence[Path]) -> cases.Cases:
    return cases.read(seed, folders)


def judged(case: str, seed: int, folders: tuple[Path, ...]) -> Result:
    """Read the text of a case, such as "part 17"; what does not end ends its worker.

    A regular expression that runs away can only be stopped from outside.
    """
    kind, number = case.split()
    text = _cases(seed, folders).text(int(number), whole=kind == "whole")
    with ended_after(4 * trial.allowed_seconds(text) + GRACE_SECONDS):
        outcome = trial.run(text)
    is_reducible = outcome.kind in ("traceback", "unplaced")
    repro = trial.smallest(text, outcome) if is_reducible else ""
    return Result(case, outcome, len(text), repro)


def lost(case: str, said: str) -> Result:
    """Return what became of a case whose worker died: it crashed, or did not end."""
    return Result(case, Outcome("died", said))
