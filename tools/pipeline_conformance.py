"""Run training steps cut in many ways, and compare each with gradients and update taken apart.

    python -m tools.pipeline_conformance [--count N] [--seed S] [--exact N] [--only TEXT]

Networks of every kind under their optimizers, with one to four stages, all schedules, reductions,
types of accumulators and ways to recompute, on one replica and on two, with state offloaded, in
parts, in loops and without: a sample in which every two of these come together. Of every so many
the exact mode runs too.
"""

import argparse
import sys
import time
import traceback
from collections import Counter

from hloipu_runtime.errors import HloipuError
from tests.support.pipeline_trials import Cut, assert_equal_to_jax, compiled, sample

_SHOWN = 40


def judged(cut: Cut, *, exact: bool) -> str:
    """Return `agrees`, or what is wrong."""
    try:
        program = compiled(cut)
        assert_equal_to_jax(cut, program)
        if exact:
            assert_equal_to_jax(cut, program, mode="exact")
    except AssertionError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"differs: {' '.join(lines[:5])}"
    except HloipuError as error:
        return f"refused: {error}"
    except (TypeError, ValueError, LookupError, ArithmeticError):  # a defect: shown, not fatal
        return f"failed: {traceback.format_exc(limit=-2)}"
    return "agrees"


def main() -> int:
    """Run as many configurations as asked; return 1 if any does not agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="which sample")
    parser.add_argument("--exact", type=int, default=5, help="every so many, on tiles as well")
    parser.add_argument("--only", default="", help="run those whose name has this in it")
    asked = parser.parse_args()
    cuts = [cut for cut in sample(asked.count, asked.seed) if asked.only in str(cut)]
    began, found, shown, exact = time.monotonic(), Counter[str](), 0, 0
    for number, cut in enumerate(cuts):
        on_tiles = number % asked.exact == 0
        exact += on_tiles
        result = judged(cut, exact=on_tiles)
        found[result.partition(":")[0]] += 1
        if result != "agrees" and shown < _SHOWN:
            shown += 1
            print(f"{cut}: {result[:600]}", flush=True)
    seconds = time.monotonic() - began
    print(f"{len(cuts)} configurations, {exact} on tiles too, in {seconds:.0f} s: {dict(found)}")
    return 0 if set(found) <= {"agrees"} else 1


if __name__ == "__main__":
    sys.exit(main())
