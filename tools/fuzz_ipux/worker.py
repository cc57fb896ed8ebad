"""A child process that runs numbered cases under a memory limit; the parent minds the time.

Reads lines `forged NUMBER`, answers each with two lines of JSON: the time allowed, the outcome.
"""

import json
import resource
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from hloipu_runtime.errors import ArtefactError
from tools.fuzz_ipux import cases, trial
from tools.fuzzing.trial import Outcome

ADDRESS_SPACE_BYTES = 2 * 2**30


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the standard input ends."""
    seed, *folders = sys.argv[1:] if arguments is None else arguments
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    made = cases.read(int(seed), [Path(folder) for folder in folders])
    for line in sys.stdin:
        _, number = line.split()
        begun = {"case": line.strip(), "seconds_allowed": trial.SECONDS}
        print(json.dumps(begun), flush=True)
        characters = 0
        try:
            data = made.data(int(number))
            characters = len(data)
            outcome = trial.try_file(data)
        except ArtefactError as error:
            outcome = Outcome("refused", f"write {error.code}")
        print(json.dumps({**asdict(outcome), "characters": characters}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
