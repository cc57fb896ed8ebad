"""One trial: read a text as a user's program would, and say how it ended."""

import time
import traceback
from dataclasses import dataclass

from hloipu_compiler.errors import InvalidHloError
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printing.printer import print_module
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import HloipuError, LimitError

SECONDS_PER_MEGABYTE = 2.0
LEAST_SECONDS = 0.5
"""Allowed for any text, however small."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended: accepted, an E-code, or a failure of ours."""

    kind: str
    """"accepted", "refused", or a failure: "traceback", "unplaced", "slow", "died"."""
    detail: str
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether the trial shows a defect."""
        return self.kind not in ("accepted", "refused")


def allowed_seconds(text: str) -> float:
    """Return the processor time that a text may cost."""
    return max(LEAST_SECONDS, SECONDS_PER_MEGABYTE * len(text) / 1e6)


def run(text: str) -> Outcome:
    """Parse, verify, print; render the error where there is one."""
    start = time.process_time()
    outcome = _attempt(text)
    seconds = time.process_time() - start
    if not outcome.failed and seconds > allowed_seconds(text):
        detail = f"{seconds:.2f} s for {len(text)} characters, {outcome.detail}"
        return Outcome("slow", detail, seconds)
    return Outcome(outcome.kind, outcome.detail, seconds)


def _attempt(text: str) -> Outcome:
    try:
        module = parse(text)
        verify(module)
        print_module(module)
    except InvalidHloError as error:
        shown = str(error)
        if error.span is None or error.code not in shown:
            return Outcome("unplaced", f"{error.code}: {error.message[:200]}")
        return Outcome("refused", error.code)
    except LimitError as error:
        return Outcome("refused", str(error).partition("]")[0].partition("[")[2])
    except HloipuError as error:
        return Outcome("unplaced", f"{type(error).__name__} {error.code}: {error.message[:200]}")
    except Exception as error:  # what the fuzzer looks for
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "?"
        return Outcome("traceback", f"{type(error).__name__} at {place}: {str(error)[:200]}")
    return Outcome("accepted", "")


def smallest(text: str, outcome: Outcome, tries: int = 300) -> str:
    """Return a shorter text that fails in the same way, by leaving lines and stretches out."""
    key = outcome.detail.partition(":")[0]

    def same(candidate: str) -> bool:
        attempted = _attempt(candidate)
        return attempted.kind == outcome.kind and attempted.detail.partition(":")[0] == key

    for separator in ("\n", " "):
        pieces = text.split(separator)
        step = max(1, len(pieces) // 2)
        while step and tries > 0:
            at = 0
            while at < len(pieces) and tries > 0:
                tries -= 1
                kept = pieces[:at] + pieces[at + step :]
                if same(separator.join(kept)):
                    pieces = kept
                else:
                    at += step
            step //= 2
        text = separator.join(pieces)
    return text
