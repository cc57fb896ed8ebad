"""Compile a module with one change, and record the result."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

from hloipu.options.table import OPTIONS, Options
from hloipu_compiler.ir.graph import Module
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.report.change import Change, Finding
from hloipu_runtime.watching import Search, doing

Compile = Callable[[Module, Options], CompiledProgram | None]
"""None: nothing that was looked at fits."""

NARROW = "narrow-floats"
"""The pass that tries half precision."""
SMALLER = "smaller-batch"
"""The pass that tries a smaller batch."""


class Limit(NamedTuple):
    """Budget of trials."""

    trials: int = 9
    """With the compilation before them: ten times as long as compiling."""
    seconds: float = 300.0
    """A trial that is under way then is given up."""
    clock: Callable[[], float] = perf_counter


class Candidate(NamedTuple):
    """A change that may be tried."""

    kind: str
    """As of `Change`."""
    settings: Mapping[str, Any]
    text: str = ""
    """What to do in words, where it is no flag."""
    runs: int = 1
    """How often the changed program runs for what the program does in one run."""


def narrowed(options: Options, settings: Mapping[str, Any]) -> Candidate:
    """Return the edit that makes floats of 32 bits ones of 16, beside other settings."""
    return _edited(options, settings, NARROW, "use float16 in the model in place of float32")


def with_smaller_batch(
    options: Options,
    settings: Mapping[str, Any],
    by: int,
    *,
    narrow: bool = False,
    trains: bool = False,
) -> Candidate:
    """Return the edit that divides the batch, and perhaps narrows floats, beside other settings.

    A step that trains gets as many micro-batches, whose gradients add up to those of the whole
    batch. Cycles are those of all parts.
    """
    words = f"make the batch of the model {by} times smaller"
    first = f"front,{SMALLER}{{by={by}}}"
    if narrow:
        words, first = f"{words} and use float16 in place of float32", f"{first},{NARROW}"
    if trains:
        more = {**settings, "micro_batches": by * options.micro_batches}
        return _edited(options, more, first, words)
    return _edited(options, settings, first, f"{words}, and run it {by} times")._replace(runs=by)


def _edited(options: Options, settings: Mapping[str, Any], first: str, words: str) -> Candidate:
    lean = settings.get("recompute", options.recompute) == "cheap"
    passes = options.passes or ("lean" if lean else "default")
    other_flags = flags(settings)
    return Candidate(
        "edit",
        {**settings, "passes": f"{first},{passes}"},
        f"{words}, with {other_flags}" if other_flags else words,
    )


def flags(settings: Mapping[str, Any]) -> str:
    """Return settings as the command line spells them."""
    words = []
    for name, value in settings.items():
        option = OPTIONS[name]
        if name == "set":
            words += [f"--set {key}={number}" for key, number in value]
        elif isinstance(value, bool):
            words.append(option.flag if value else option.flag.replace("--", "--no-", 1))
        else:
            words.append(f"{option.flag}={option.kind.write(value)}")
    return " ".join(words)


CUTTING = (
    "plan", "ipus", "stages", "micro_batches", "schedule", "recompute", "replicas", "offload",
    "shard_optimizer", "cut_at", "device_map", "offload_weights", "offload_activations",
    "offload_accumulators", "batch_serialization",
)  # fmt: skip


def _chosen(options: Options) -> dict[str, Any]:
    """Return the options of a cut that was looked for, which the user's own do not say."""
    if options.plan != "none":
        return {}
    usual = Options()
    cutting = {name: getattr(options, name) for name in CUTTING}
    return {k: v for k, v in cutting.items() if k in ("plan", "ipus") or v != getattr(usual, k)}


class Trials:
    """One module and its options; compiles with changes until time is up."""

    def __init__(
        self,
        module: Module,
        options: Options,
        program: CompiledProgram,
        compile_as_asked: Compile,
        limit: Limit,
    ) -> None:
        self.module = module
        self.options = options
        self.program = program
        self.before: int = cycles_of(program)
        self.device_before: int = device_cycles_of(program)
        self._compile = compile_as_asked
        self._chosen = _chosen(options)
        self._limit = limit
        self._search = Search(limit.seconds, limit.clock)
        self.spread: list[str] = []
        """Numbers of IPUs that were tried, as options."""
        self._known: dict[tuple[tuple[str, Any], ...], Change | None] = {}

    @property
    def has_time(self) -> bool:
        """Whether there may be another trial; numbers of IPUs are not counted: they are few."""
        return (
            not self._search.is_over() and len(self._known) - len(self.spread) < self._limit.trials
        )

    def outcome(self, candidate: Candidate) -> Change | None:
        """Return what comes of a change; None where it cannot be compiled with, or not in time."""
        key = tuple(sorted(candidate.settings.items()))
        if key not in self._known:
            if candidate.kind == "ipus":
                self.spread.append(candidate.text or flags(candidate.settings))
            with doing(f"trying {candidate.text or flags(candidate.settings)}"):
                self._known[key] = self._search.tried(lambda: self._tried(candidate))
        return self._known[key]

    def _tried(self, candidate: Candidate) -> Change | None:
        try:
            compiled = self._compile(self.module, replace(self.options, **candidate.settings))
            if compiled is None:
                return None
            cycles, memory = cycles_of(compiled), compiled.memory
            device_cycles = device_cycles_of(compiled)
        except HloipuError:  # this change is none that can be made; the next may be
            return None
        text = candidate.text or flags(candidate.settings)
        other_options = {} if "plan" in candidate.settings else self._chosen
        return Change(
            candidate.kind,
            f"{text}, beside {flags(other_options)}" if other_options else text,
            dict(candidate.settings),
            memory.fits,
            memory.peak.total_bytes,
            memory.available_bytes,
            memory.code_bytes,
            memory.executable_bytes,
            cycles * candidate.runs,
            self.before,
            device_cycles * candidate.runs,
            self.device_before,
            compiled.program.ipus * compiled.program.replicas,
        )


def cycles_of(program: CompiledProgram) -> int:
    """Return the cycles of one run, or of one step of a wrapped one; at least, where data decides.

    Loops that data ends turn as often as the options assume.
    """
    return program.estimate().lower_bound_cycles // max(1, program.program.steps_per_run)


def device_cycles_of(program: CompiledProgram) -> int:
    """Return the device's own cycles of the same."""
    return program.profile().device_cycles // max(1, program.program.steps_per_run)


def with_gains(
    findings: tuple[Finding, ...],
    module: Module,
    options: Options,
    program: CompiledProgram,
    compile_as_asked: Compile,
    limit: Limit = Limit(),  # noqa: B008 - a constant
) -> tuple[Finding, ...]:
    """Return the findings, those whose cure is an option with what came of compiling with it.

    Findings for which the limit leaves no trial stay as they are.
    """
    trials = Trials(module, options, program, compile_as_asked, limit)
    measured = []
    for finding in findings:
        if finding.settings and trials.has_time:
            finding = finding._replace(measured=trials.outcome(_candidate(finding, options)))
        measured.append(finding)
    return tuple(measured)


def _candidate(finding: Finding, options: Options) -> Candidate:
    settings = dict(finding.settings)
    if NARROW in settings.get("passes", ""):
        return narrowed(options, {})
    return Candidate("flag", settings)
