"""Make the corpus: HLO texts of many JAX programs, in a folder.

    python -m tools.make_corpus [FOLDER] [--only TEXT]

Writes `<name>.short.hlo`, `<name>.full.hlo` and, for some, `<name>.optimised.hlo`; a module whose
short text was already written under another name is left out. Needs the dependency group `oracle`.
"""

import argparse
import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

from tools.corpus import control_flow, elementwise, models, movement, reductions, sharded
from tools.corpus.case import Case, texts

DEFAULT_FOLDER = Path("out/corpus")
SUBJECTS = (elementwise, movement, reductions, control_flow, models, sharded)


def all_cases() -> Iterator[Case]:
    """Yield every case, its name led by its subject."""
    for subject in SUBJECTS:
        lead = subject.__name__.rpartition(".")[2]
        for case in subject.cases():
            name = "".join(c if c.isalnum() or c in "._-" else "-" for c in case.name)
            yield Case(f"{lead}.{name}", case.function, case.arguments, case.options, case.optimise)


def write(folder: Path, only: str = "") -> tuple[Counter[str], list[str]]:
    """Write the corpus; return how many texts of each form, and what JAX refused to lower."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.hlo"):
        stale.unlink()
    seen: set[bytes] = set()
    counts: Counter[str] = Counter()
    refused = []
    for case in all_cases():
        if only not in case.name:
            continue
        try:
            forms = list(texts(case))
        except Exception as error:  # whatever JAX raises: the case is reported and left out
            refused.append(
                f"{case.name}: {type(error).__name__}: {str(error).splitlines()[0][:120]}"
            )
            continue
        digest = hashlib.sha256(forms[0][1].partition("\n")[2].encode()).digest()
        if digest in seen:
            counts["repeated"] += 1
            continue
        seen.add(digest)
        for form, text in forms:
            (folder / f"{case.name}.{form}.hlo").write_text(text, encoding="utf-8")
            counts[form] += 1
    return counts, refused


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the corpus and say what it holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--only", default="", help="only the cases whose name contains this")
    options = parser.parse_args(arguments)
    start = time.monotonic()
    counts, refused = write(options.folder, options.only)
    for line in refused:
        print(f"not lowered: {line}", file=sys.stderr)
    shown = ", ".join(f"{count} {form}" for form, count in sorted(counts.items()))
    print(f"{options.folder}: {shown}; {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
