"""Runs a pass pipeline: verifies, times and counts each pass, stops where asked."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

from hloipu_compiler.errors import PassError, VerifyError
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes.framework.pass_base import Pass
from hloipu_compiler.passes.pipeline import Group, Pipeline
from hloipu_compiler.passes.pipeline_text import read_pipeline
from hloipu_compiler.passes.pipelines import PIPELINES
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import UsageError
from hloipu_runtime.frozen import dataclass
from hloipu_runtime.watching import telling


@dataclass(frozen=True, slots=True)
class PassRun:
    """What one run of one pass did."""

    name: str
    round: int
    """Round of its group, from 1; 0 outside of groups."""
    seconds: float
    verify_seconds: float
    before: Module
    after: Module

    @property
    def changed(self) -> bool:
        """Whether the module is another one afterwards."""
        return self.after is not self.before


Watcher = Callable[[PassRun], None]
"""Sees each run of a pass right after it."""


def run_passes(
    module: Module,
    plan: Plan | None = None,
    pipeline: Pipeline | str = "front",
    *,
    verify_each: bool = True,
    stop_after: str = "",
    watch: Watcher | None = None,
) -> tuple[Module, Plan]:
    """Run a pipeline, or the text of one, on a verified module.

    Raises PassError where a pass leaves the module invalid (with `verify_each`), UsageError where
    the text is no pipeline or `stop_after` is not in it, and what the passes raise.
    """
    if isinstance(pipeline, str):
        pipeline = read_pipeline(pipeline, PIPELINES)
    if stop_after and stop_after not in {x.name for x in pipeline.passes()}:
        raise UsageError(
            "E3135",
            f"the pipeline has no pass {stop_after!r} to stop after",
            hint=f"it has {', '.join(dict.fromkeys(x.name for x in pipeline.passes()))}",
        )
    return _Run(verify_each, stop_after, watch).all(module, plan or Plan(), pipeline)


class _StoppedError(Exception):
    """The pass to stop after has run."""


class _Run:
    """The options of one run, and the module and plan as they stand."""

    def __init__(self, verify_each: bool, stop_after: str, watch: Watcher | None) -> None:
        self.verify_each = verify_each
        self.stop_after = stop_after
        self.watch = watch

    def all(self, module: Module, plan: Plan, pipeline: Pipeline) -> tuple[Module, Plan]:
        """Run every step, or those up to the one to stop after."""
        self.module, self.plan = module, plan
        try:
            for step in pipeline.steps:
                if isinstance(step, Group):
                    self._group(step)
                else:
                    self._run_pass(step, 0)
        except _StoppedError:
            pass
        return self.module, self.plan

    def _group(self, group: Group) -> None:
        settled: dict[Pass, Module] = {}
        for number in range(1, group.most_rounds + 1):
            before = self.module
            for one in group.passes:
                if settled.get(one) is self.module:
                    continue  # it saw this very module last time, and left it so
                seen = self.module
                self._run_pass(one, number)
                if self.module is seen:
                    settled[one] = seen
            if self.module is before:
                break

    def _run_pass(self, one: Pass, number: int) -> None:
        telling(f"pass {one.name}")
        before, start = self.module, perf_counter()
        try:
            self.module, self.plan = one.run(before, self.plan)
        except Exception as error:
            from hloipu_compiler.passes.framework.plugins import plugin_fault

            fault = plugin_fault(one, error)
            if fault is None:
                raise
            raise fault from error
        end = perf_counter()
        if self.verify_each and self.module is not before:
            try:
                verify(self.module)
            except VerifyError as error:
                raise PassError(one.name, error) from error
        if self.watch is not None:
            spent = (end - start, perf_counter() - end)
            self.watch(PassRun(one.name, number, *spent, before, self.module))
        if one.name == self.stop_after:
            raise _StoppedError


def pass_rows(module: Module, pipeline: Pipeline | str) -> list[dict[str, Any]]:
    """Return a row for each run of a pass over the module as it was read, as JSON data.

    `flops` and `bytes` are those of one run of the module, loops multiplied through; `live_bytes`
    the most that is live at once if ops run in the order of the text. Each has `_before`, too.
    Steps that are cut or wrapped have passes of their own besides, which are not among these.
    """
    from hloipu_compiler.analysis.live_bytes import peak_bytes
    from hloipu_compiler.analysis.tally import tally

    def measured(module: Module) -> dict[str, float]:
        work = tally(module).total
        return {
            "instructions": module.instruction_count,
            "flops": float(work.flops + work.transcendentals),
            "bytes": float(work.bytes_read + work.bytes_written),
            "live_bytes": float(peak_bytes(module)),
        }

    rows: list[dict[str, Any]] = []
    known: dict[str, float] = measured(module)

    def watch(run: PassRun) -> None:
        nonlocal known
        before, known = known, measured(run.after) if run.changed else known
        rows.append(
            {"name": run.name, "round": run.round, "seconds": run.seconds, **known}
            | {f"{key}_before": value for key, value in before.items()}
        )

    run_passes(module, Plan(), pipeline, verify_each=False, watch=watch)
    return rows
