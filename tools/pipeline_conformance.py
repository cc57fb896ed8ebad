"""Run training steps cut in many ways, and compare each with gradients and update taken apart.

    python -m tools.pipeline_conformance [--count N] [--seed S] [--exact N]

Six models under four optimizers, with one to four stages, all schedules and reductions, 1 to 8
micro-batches. Of every so many the exact mode runs too.
"""

import argparse
import sys
import time
from collections import Counter

import numpy as np

from hloipu_runtime.errors import HloipuError
from tests.support.pipeline_trials import Cut, assert_equal_to_jax, compiled, every_cut

_SHOWN = 20


def judged(cut: Cut, *, exact: bool) -> str:
    """Return `agrees`, or what is wrong."""
    try:
        program = compiled(cut)
        assert_equal_to_jax(cut, program)
        if exact:
            assert_equal_to_jax(cut, program, mode="exact")
    except AssertionError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return f"differs: {' '.join(lines[:4])}"
    except HloipuError as error:
        return f"refused: {error}"
    return "agrees"


def main() -> int:
    """Run as many configurations as asked; return 1 if any does not agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="which ones come first")
    parser.add_argument("--exact", type=int, default=5, help="every so many, on tiles as well")
    asked = parser.parse_args()
    cuts = every_cut()
    order = np.random.default_rng(asked.seed).permutation(len(cuts))[: asked.count]
    began, found, shown = time.monotonic(), Counter[str](), 0
    for number, place in enumerate(order):
        result = judged(cuts[place], exact=number % asked.exact == 0)
        found[result.partition(":")[0]] += 1
        if result != "agrees" and shown < _SHOWN:
            shown += 1
            print(f"{cuts[place]}: {result[:300]}", flush=True)
    seconds = time.monotonic() - began
    print(f"{len(order)} of {len(cuts)} configurations in {seconds:.0f} s: {dict(found)}")
    return 0 if set(found) <= {"agrees"} else 1


if __name__ == "__main__":
    sys.exit(main())
