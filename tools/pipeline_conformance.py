"""Run training steps cut in many ways, and compare each with gradients and update taken apart.

    python -m tools.pipeline_conformance [--count N] [--concurrent N] [--sharded N] [--seed S]
                                         [--exact N] [--only TEXT] [--workers N]
                                         [--scheduler ADDRESS]

Networks of every kind under their optimizers, with one to four stages, all schedules, reductions,
types of accumulators and ways to recompute, on one replica and on two, with state, weights and
activations offloaded, in parts, in loops and without: a sample in which every two of these come
together. Then networks with towers, whose stages run on several IPUs at once, and steps whose ops
are annotated with IPUs at random, of which each replica takes a group. Of every so many the exact
mode runs too.
"""

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from typing import NamedTuple

from hloipu_runtime.compiled import CompiledProgram, Mode
from hloipu_runtime.errors import HloipuError
from tests.support import concurrent_trials, pipeline_trials
from tools.mapping import add_where, mapped, where_of

_SHOWN = 40
_AWAY: tuple[dict[str, bool], ...] = (
    {},
    {"offload_weights": True},
    {"offload_activations": True},
    {"offload_accumulators": True},
    {"offload_weights": True, "offload_activations": True, "offload_accumulators": True},
)


class Trial(NamedTuple):
    """A configuration, how it is compiled, and what compares a run of it."""

    name: str
    compiled: Callable[[], CompiledProgram]
    compare: Callable[[CompiledProgram, Mode], None]


def trials(count: int, concurrent: int, sharded: int, seed: int) -> Iterator[Trial]:
    """Yield the configurations of all samples."""
    cuts = pipeline_trials.sample(count, seed) if count else []
    cuts += pipeline_trials.sharded_sample(sharded, seed) if sharded else []
    for cut in cuts:
        compare = partial(pipeline_trials.assert_equal_to_jax, cut)
        yield Trial(str(cut), partial(pipeline_trials.compiled, cut), compare)
    sample = concurrent_trials.sample(concurrent, seed)
    for towers, away in zip(sample, cycle(_AWAY), strict=False):
        made = partial(concurrent_trials.compiled, towers, **away)
        compare = partial(concurrent_trials.assert_equal_to_jax, towers)
        yield Trial("-".join([f"towers-{towers}", *away]), made, compare)


def judged(trial: Trial, *, exact: bool) -> str:
    """Return `agrees`, or what is wrong."""
    try:
        program = trial.compiled()
        trial.compare(program, "functional")
        if exact:
            trial.compare(program, "exact")
    except AssertionError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"differs: {' '.join(lines[:5])}"
    except HloipuError as error:
        return f"refused: {error}"
    except (TypeError, ValueError, LookupError, ArithmeticError):  # a defect: shown, not fatal
        return f"failed: {traceback.format_exc(limit=-2)}"
    return "agrees"


def _judged(case: tuple[Trial, bool]) -> tuple[str, str]:
    trial, on_tiles = case
    return trial.name, judged(trial, exact=on_tiles)


def _lost(case: tuple[Trial, bool], said: str) -> tuple[str, str]:
    return case[0].name, f"failed: {said}"


def main() -> int:
    """Run as many configurations as asked; return 1 if any does not agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--concurrent", type=int, default=60, help="so many with towers")
    parser.add_argument("--sharded", type=int, default=80, help="so many with ops on IPUs by name")
    parser.add_argument("--seed", type=int, default=0, help="which sample")
    parser.add_argument(
        "--exact", type=int, default=5, help="every so many, on tiles as well; 0: none"
    )
    parser.add_argument("--only", default="", help="run those whose name has this in it")
    add_where(parser)
    asked = parser.parse_args()
    every = trials(asked.count, asked.concurrent, asked.sharded, asked.seed)
    chosen = [trial for trial in every if asked.only in trial.name]
    began, found, shown = time.monotonic(), Counter[str](), 0
    nth = asked.exact
    cases = [(trial, nth > 0 and number % nth == 0) for number, trial in enumerate(chosen)]
    exact = sum(on_tiles for _, on_tiles in cases)
    for name, result in mapped(_judged, cases, _lost, where_of(asked)):
        found[result.partition(":")[0]] += 1
        if result != "agrees" and shown < _SHOWN:
            shown += 1
            print(f"{name}: {result[:600]}", flush=True)
    seconds = time.monotonic() - began
    print(f"{len(chosen)} configurations, {exact} on tiles too, in {seconds:.0f} s: {dict(found)}")
    return 0 if set(found) <= {"agrees"} else 1


if __name__ == "__main__":
    sys.exit(main())
