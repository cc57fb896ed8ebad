"""Case number -> text: deterministic, so that a case can be made again anywhere."""

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.texts_invalid import UNPARSABLE, UNVERIFIABLE
from tests.support.texts_valid import OLD_DIALECTS, valid_texts
from tools.fuzzing.mutators import mutate

LARGEST_WINDOW = 32_000
_COMPUTATION = re.compile(r"^[%\w][^=\n]*\{$", re.MULTILINE)
"""The line that opens a computation, behind the header and the stack tables."""
SMALLEST_WINDOW = 500


@dataclass(frozen=True)
class Cases:
    """The texts that mutants are made of, and the seed."""

    seed: int
    dumps: Sequence[str]
    small: Sequence[str]

    def text(self, number: int, *, whole: bool) -> str:
        """Return the mutant of a number: of a whole dump, or of a text of at most 32 kB."""
        rng = random.Random(f"{self.seed}:{'whole' if whole else 'part'}:{number}")
        if whole:
            return mutate(rng.choice(self.dumps), rng, self.dumps)
        if rng.random() < 0.3 or not self.dumps:
            return mutate(rng.choice(self.small), rng, self.small)
        return mutate(window(rng.choice(self.dumps), rng), rng, self.small)


def window(text: str, rng: random.Random) -> str:
    """Return a part of at most 32 kB, its size drawn evenly on a logarithmic scale.

    One in ten is a stretch of lines; the others are modules that could be whole: the header, and
    computations in the order of the text, as many instructions as there is room for.
    """
    size = round(math.exp(rng.uniform(math.log(SMALLEST_WINDOW), math.log(LARGEST_WINDOW))))
    if len(text) <= size:
        return text
    if rng.random() < 0.1:
        start = text.find("\n", rng.randrange(len(text))) + 1
        return text[start : start + size]
    first = _COMPUTATION.search(text)
    start = first.start() if first else 0
    part = text[start : start + size].rpartition("\n")[0].rstrip()
    return f"HloModule part\n\n{part}\n" + ("" if part.endswith("\n}") else "}\n")


def read(seed: int, folders: Sequence[Path]) -> Cases:
    """Read the dumps of some folders."""
    files = [file for folder in folders for file in sorted(folder.glob("*.hlo"))]
    dumps = [file.read_text(encoding="utf-8") for file in files]
    return Cases(seed, dumps, [*valid_texts(), *OLD_DIALECTS, *UNPARSABLE, *UNVERIFIABLE])
