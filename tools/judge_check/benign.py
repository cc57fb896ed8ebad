"""Right implementations of real models: what `hloipu check` says of each."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hloipu.api import compile_verified
from hloipu.check.outputs import Truth, compare_outputs, nested
from hloipu.check.tiles import Tiles
from hloipu.options.resolve import resolve
from hloipu_compiler.interpret.participants import evaluate_everywhere
from hloipu_compiler.interpret.planning.plan import Array
from hloipu_runtime.errors import HloipuError
from tools.judge_check.measure import time_limit
from tools.judge_check.models import LIMITS, MOST_ITERATIONS, Model

SECONDS_FOR_A_RUN = 60
TARGETS = ("tiny", "gc200")


@dataclass(frozen=True, slots=True)
class Row:
    """What an implementation of a model is said to be."""

    model: str
    kind: str
    implementation: str
    """`evaluator`, or the machine that it is compiled for; programs run in functional mode."""
    state: str
    """`agrees`, `none` where results have nothing finite, `DIFFERS`, `late`, or `refused`."""
    seconds: float
    said: str = ""


def benign(model: Model, theirs: list[Array], truth: Truth) -> Iterator[Row]:
    """Judge the evaluator and the compiled programs of a model."""
    yield _row(model, "evaluator", lambda: _evaluated(model), theirs, truth)
    for target in TARGETS:
        yield _row(model, target, lambda target=target: _on_tiles(model, target), theirs, truth)  # type: ignore[misc]


def _evaluated(model: Model) -> list[Array]:
    arguments = nested(model.module, model.arguments)
    return evaluate_everywhere(model.module, *arguments, limits=LIMITS)


def _on_tiles(model: Model, target: str) -> list[Array]:
    options = resolve("compile", {"target": target, "over_memory": "allow"}).options
    program = compile_verified(model.module, options)
    return Tiles(program, "functional", False, MOST_ITERATIONS).outputs(
        model.module, model.arguments
    )


def _row(
    model: Model,
    implementation: str,
    compute: Callable[[], list[Array]],
    theirs: list[Array],
    truth: Truth,
) -> Row:
    began = time.monotonic()

    def row(state: str, said: str = "") -> Row:
        seconds = time.monotonic() - began
        return Row(model.name, model.kind, implementation, state, seconds, said)

    try:
        with time_limit(SECONDS_FOR_A_RUN):
            ours = compute()
    except TimeoutError:
        return row("late")
    except HloipuError as error:
        return row("refused", f"{error.code}: {error.message}")
    reports = compare_outputs(model.module, ours, theirs, truth)
    bad = [report for report in reports if not report.agrees]
    if bad:
        return row("DIFFERS", f"out_{bad[0].number} {bad[0].shape}: {bad[0].said}")
    none = sum(not report.is_judged for report in reports)
    return row("none", f"{none} of {len(reports)} results") if none else row("agrees")
