"""A child process that runs numbered cases under a memory limit.

Reads lines `part|whole NUMBER`, answers each with two lines of JSON: the time allowed, the outcome.
It is the parent's task to end it when an answer does not come: a regular expression that runs away
can only be stopped from outside.
"""

import json
import resource
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tools.fuzzing import cases, trial

ADDRESS_SPACE_BYTES = 2**30


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the standard input ends."""
    seed, *folders = sys.argv[1:] if arguments is None else arguments
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    made = cases.read(int(seed), [Path(folder) for folder in folders])
    for line in sys.stdin:
        kind, number = line.split()
        text = made.text(int(number), whole=kind == "whole")
        print(
            json.dumps({"case": line.strip(), "seconds_allowed": trial.allowed_seconds(text)}),
            flush=True,
        )
        outcome = trial.run(text)
        answer = {**asdict(outcome), "characters": len(text)}
        if outcome.kind in ("traceback", "unplaced"):
            answer["repro"] = trial.smallest(text, outcome)
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
