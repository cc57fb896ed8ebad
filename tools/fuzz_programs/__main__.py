"""Run random programs on both sides, and report every difference.

    python -m tools.fuzz_programs [--tiles] [--count N] [--seed S] [--first N]
                                  [--workers N] [--scheduler ADDRESS]

Each program is evaluated by us and by XLA:CPU; with `--tiles` it is compiled and run on tiles, and
compared with the evaluator. Integers, predicates and what is exact in floats must be equal; other
floats within the error that the program's operations may make. Programs that differ are saved under
out/fuzz_programs with their inputs. Ends with 1 if there are any, or if XLA refuses more than one
program in fifty.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from hloipu.inputs import save_arrays
from tests.support.xla_oracle import available
from tools.fuzz_programs.judge import AGREED, FAILED, REFUSED, Outcome
from tools.fuzz_programs.program import generate
from tools.fuzz_programs.tiles import SECONDS, judged_number
from tools.mapping import add_where, mapped, where_of

OUT = Path("out/fuzz_programs")
MOST_REFUSED = 0.02


def save(seed: int, outcome: Outcome, folder: Path) -> Path:
    """Write a program and its inputs, as `hloipu eval --inputs` reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    program = generate(seed, outcome.number)
    path = folder / f"{outcome.kind}-{seed}-{outcome.number}.hlo"
    path.write_text(program.text, encoding="utf-8")
    save_arrays(str(path.with_suffix(".npz")), program.arguments(), "in")
    return path


def _outcomes(options: argparse.Namespace) -> Iterator[Outcome]:
    numbers = range(options.first, options.first + options.count)
    judge = partial(judged_number, seed=options.seed, tiles=options.tiles)
    return mapped(judge, numbers, _lost, where_of(options, seconds=SECONDS))


def _lost(number: int, said: str) -> Outcome:
    return Outcome(number, FAILED, said)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the programs and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    add_where(parser)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--tiles", action="store_true", help="compile, in place of asking XLA")
    options = parser.parse_args(arguments)
    if not (options.tiles or available()):
        print("jaxlib is not installed: there is nothing to compare with", file=sys.stderr)
        return 2
    start, kinds = time.monotonic(), Counter[str]()
    elements = exact = 0
    for outcome in _outcomes(options):
        kinds[outcome.kind] += 1
        elements, exact = elements + outcome.compared, exact + outcome.exact
        if outcome.kind != AGREED:
            path = save(options.seed, outcome, options.out)
            print(f"{outcome.kind} {outcome.number}: {outcome.detail}\n  {path}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
    if not options.tiles:
        print(f"{elements} elements compared, {exact} of them exact")
    print(f"{time.monotonic() - start:.0f} s")
    differing = set(kinds) - {AGREED, REFUSED}
    return 1 if differing or kinds[REFUSED] > MOST_REFUSED * options.count else 0


if __name__ == "__main__":
    sys.exit(main())
