"""What becomes of a numbered case, whose worker has a limit of memory and of time."""

from functools import lru_cache
from pathlib import Path

from hloipu_runtime.errors import ArtefactError
from tools.fuzz_ipux import cases, trial
from tools.fuzzing import pool
from tools.fuzzing.trial import Outcome

FOLDERS = (Path(__file__).resolve().parents[2] / "hlo_samples",)
MEMORY_BYTES = 2 * 2**30
SECONDS = 4 * trial.SECONDS + pool.GRACE_SECONDS


@lru_cache(maxsize=1)
def _cases(seed: int) -> cases.Cases:
    return cases.read(seed, FOLDERS)


def judged(case: str, seed: int) -> pool.Result:
    """Load and run the file of a case, such as "forged 17"."""
    files, number = _cases(seed), int(case.split()[1])
    try:
        data = files.data(number)
    except ArtefactError as error:
        return pool.Result(case, Outcome("refused", f"write {error.code}"))
    return pool.Result(case, trial.try_file(data), len(data))
