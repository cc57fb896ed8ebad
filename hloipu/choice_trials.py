"""The cut that was chosen, and trials of it and of others: compiled until one fits."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

from hloipu.options.table import Options
from hloipu.sharding import is_long, with_sharding
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.search.best import LIKELY, choice_of, may_fit, most_promising
from hloipu_compiler.partition.search.candidate import Candidate, Estimate
from hloipu_compiler.partition.search.rounds import system_of
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.costs.step_times import step_times
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.machine.model import Machine
from hloipu_runtime.memory.plan import available_bytes
from hloipu_runtime.program.faults import ProgramError
from hloipu_runtime.watching import current_search, doing

_TRIALS = 4
"""Programs that are made to find one that fits."""
_HOPES = 3
"""Of these, with what only may fit. Assumed."""
SLOWER = 1.1
"""Times the cycles of an estimate: where a program takes more, others are tried beside it."""


@dataclass(frozen=True)
class Choice:
    """Candidates that were estimated, and the one to compile."""

    module: Module = field(repr=False)
    """Verified, as it was given."""
    rows: list[Estimate]
    """Those that no other beats, or all that were asked for."""
    best: Estimate
    looked_at: int
    is_tried: bool = False
    """Whether the best one was compiled, and fits."""
    program: CompiledProgram | None = field(default=None, repr=False)
    """Of the best one, if it was compiled."""
    per_second: float = 0.0
    """Micro-batches of it, by that program."""
    notes: tuple[str, ...] = ()
    """What was not looked at, for people."""

    def divided(self) -> Module:
        """Return the module, annotated where the best way divides its arrays."""
        return with_sharding(self.module, self.best.candidate.sharding)

    def options(self, options: Options) -> Options:
        """Return options that ask for the best way."""
        asked = self.best.candidate.options()
        if asked["recompute"] == "none":
            asked["recompute"] = options.recompute
        return replace(options, plan="none", ipus=1, **asked)


def with_trials(
    choice: Choice,
    estimates: list[Estimate],
    options: Options,
    tried: Callable[[Module, Options], CompiledProgram],
    machine: Machine,
) -> Choice:
    """Return a choice that was compiled, and fits, if one is found soon; else what lacked least.

    One that is slower than was thought is kept until a faster one is found. Trials of a long module
    have all that makes programs fit: what only may fit goes first there, if it is worth it.
    """
    budget_bytes = machine.chip.tiles_per_ipu * available_bytes(machine)
    is_fitted = is_long(choice.module)
    left = estimates
    best = most_promising(left, SLOWER) if is_fitted else choice.best
    chosen, rate, least = choice, 0.0, inf
    search = current_search()

    def compiled() -> CompiledProgram:
        trial = replace(choice, best=best)
        return tried(trial.divided(), trial.options(options))

    for number in range(_TRIALS):
        if not may_fit(best):
            break
        left = [estimate for estimate in left if estimate is not best]
        try:
            # The first would have to be compiled in any case; only a limit ends the others.
            with doing(f"compiling the best of {len(estimates)} cuts"), search.unhurried():
                program = search.tried(compiled) if number else compiled()
        except HloipuError as error:  # what estimates do not know of; another way may do
            if isinstance(error, ProgramError):
                note = f"passed over, with a fault of hloipu: {best.candidate.flags()}: {error}"
                choice, chosen = (replace(x, notes=(*x.notes, note)) for x in (choice, chosen))
            left = [
                estimate
                for estimate in left
                if estimate.candidate.shard_optimizer != best.candidate.shard_optimizer
            ]
        else:
            if program is None:
                break
            if program.memory.fits:
                slower = _times_slower(program, best)
                if best.per_second > rate * slower:
                    rate = best.per_second / slower
                    chosen = replace(
                        choice, best=best, is_tried=True, program=program, per_second=rate
                    )
                if slower < SLOWER:
                    break
                left = _as_slow(left, best, slower)
            else:
                if not rate and _share_needed(program) < least:
                    least, chosen = _share_needed(program), replace(choice, best=best)
                left = _as_large(left, best, program, budget_bytes, is_fitted=is_fitted)
                if program.memory.code_bytes > program.memory.executable_bytes:
                    left = _over_more_ipus(left, best)
        if rate:
            left = [
                estimate
                for estimate in left
                if estimate.fits and estimate.per_second > rate * SLOWER
            ]
        if not left:
            break
        may_hope = is_fitted and not rate and number + 1 < _HOPES
        best = most_promising(left, SLOWER) if may_hope else choice_of(left)
    return chosen


def _share_needed(program: CompiledProgram) -> float:
    """Return what a program needs of a tile's memory, or of the part that code can lie in."""
    memory = program.memory
    return max(
        memory.peak.total_bytes / memory.available_bytes,
        memory.code_bytes / memory.executable_bytes,
    )


def _over_more_ipus(left: list[Estimate], tried: Estimate) -> list[Estimate]:
    """Return those that fit by estimate and part the step over more IPUs; all if there are none.

    What else takes less memory has hardly less code than the one tried, which lacks room for it.
    """
    over_more = [x for x in left if x.candidate.ipus > tried.candidate.ipus]
    return over_more if any(x.fits for x in over_more) else left


def _times_slower(program: CompiledProgram, thought: Estimate) -> float:
    """Return how many times the cycles of an estimate an update takes; 1 where data decides."""
    times = step_times(program.costs)
    return times.iteration_cycles / max(thought.update_cycles, 1) if times.is_exact else 1.0


def _as_slow(left: list[Estimate], tried: Estimate, slower: float) -> list[Estimate]:
    """Return candidates, those of the same kind as slow as one that was tried."""
    return [
        replace(
            estimate,
            per_second=estimate.per_second / slower,
            update_cycles=round(estimate.update_cycles * slower),
        )
        if _kind(estimate.candidate) == _kind(tried.candidate)
        else estimate
        for estimate in left
    ]


def _kind(x: Candidate) -> tuple[object, ...]:
    """Return what estimates are off alike for: how a step is cut, and its arrays divided.

    Stages that one IPU does in turn are of one kind, however many.
    """
    return 0 if x.ipus == 1 < x.stages else x.stages, x.sharding


def _as_large(
    left: list[Estimate],
    tried: Estimate,
    program: CompiledProgram,
    budget_bytes: int,
    *,
    is_fitted: bool,
) -> list[Estimate]:
    """Return candidates, the estimates of what is cut alike off as much as that of one tried.

    A trial that was fitted had all that spares memory: what is cut alike has to fit by that, and
    other cuts of its kind are hoped for no more unless they nearly do, or nothing else is left. One
    that was not says the same of all others.
    """
    off = _share_needed(program) * budget_bytes / max(tried.needed_bytes, 1)
    if not is_fitted:
        return [
            replace(x, fits=x.needed_bytes * max(1.0, off) <= budget_bytes)
            for x in left
            if x.needed_bytes < tried.needed_bytes
        ]
    cut = _cut_of(tried)
    others = [x for x in left if _cut_of(x) != cut]
    kind = _kind(tried.candidate)
    hopeful = [
        x
        for x in others
        if x.fits or _kind(x.candidate) != kind or x.needed_bytes * off <= LIKELY * budget_bytes
    ]
    alike = [
        replace(x, needed_bytes=round(x.needed_bytes * off), fits=True)
        for x in left
        if _cut_of(x) == cut and x.needed_bytes * off <= budget_bytes
    ]
    return hopeful + alike or others


def _cut_of(x: Estimate) -> tuple[object, ...]:
    return system_of(x.candidate), x.candidate.cut_at
