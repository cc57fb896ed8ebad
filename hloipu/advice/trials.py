"""Compiling a module anew with a change, and what came of it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from time import process_time
from typing import Any, NamedTuple

from hloipu.options.table import OPTIONS, Options
from hloipu_compiler.ir.graph import Module
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.errors import HloipuError
from hloipu_runtime.report.change import Change
from hloipu_runtime.report.finding import Finding

Compile = Callable[[Module, Options], CompiledProgram]

NARROW = "narrow-floats"
"""The pass that tries half precision."""
SMALLER = "smaller-batch"
"""The pass that tries a smaller batch."""


class Limit(NamedTuple):
    """How much trying is allowed."""

    trials: int = 9
    """With the compilation before them: ten times as long as compiling."""
    seconds: float = 300.0
    """Of processor time; a guard, for what is found is not to depend on how fast a machine is."""


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
    options: Options, settings: Mapping[str, Any], by: int, *, narrow: bool = False
) -> Candidate:
    """Return the edit that divides the batch, and perhaps narrows floats, beside other settings.

    Cycles are those of all parts.
    """
    words = f"use a batch {by} times smaller in the model, {by} times as often"
    first = f"front,{SMALLER}{{by={by}}}"
    if narrow:
        words, first = f"{words}, and float16 in place of float32", f"{first},{NARROW}"
    return _edited(options, settings, first, words)._replace(runs=by)


def _edited(options: Options, settings: Mapping[str, Any], first: str, words: str) -> Candidate:
    """Return an edit that passes before all others try out."""
    lean = settings.get("recompute", options.recompute) == "cheap"
    passes = options.passes or ("lean" if lean else "default")
    others = flags(settings)
    return Candidate(
        "edit",
        {**settings, "passes": f"{first},{passes}"},
        f"{words}, and {others}" if others else words,
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


class Trials:
    """One module and its options; compiles with changes until time is up."""

    def __init__(
        self,
        module: Module,
        options: Options,
        program: CompiledProgram,
        compile_once: Compile,
        limit: Limit,
    ) -> None:
        self.module = module
        self.options = options
        self.program = program
        self.before: int = cycles_of(program)
        self._compile = compile_once
        self._limit = limit
        self._end = process_time() + limit.seconds
        self._longest = 0.0
        self._known: dict[tuple[tuple[str, Any], ...], Change | None] = {}

    @property
    def has_time(self) -> bool:
        """Whether there may be another trial, which is likely to end in time."""
        in_time = process_time() + self._longest <= self._end
        return in_time and len(self._known) < self._limit.trials

    def outcome(self, candidate: Candidate) -> Change | None:
        """Return what comes of a change, or None where it cannot be compiled with."""
        key = tuple(sorted(candidate.settings.items()))
        if key not in self._known:
            start = process_time()
            self._known[key] = self._tried(candidate)
            self._longest = max(self._longest, process_time() - start)
        return self._known[key]

    def _tried(self, candidate: Candidate) -> Change | None:
        try:
            found = self._compile(self.module, replace(self.options, **candidate.settings))
            cycles, memory = cycles_of(found), found.memory
        except HloipuError:  # this change is none that can be made; the next may be
            return None
        return Change(
            candidate.kind,
            candidate.text or flags(candidate.settings),
            dict(candidate.settings),
            memory.fits,
            memory.peak.total_bytes,
            memory.available_bytes,
            memory.code_bytes,
            memory.executable_bytes,
            cycles * candidate.runs,
            self.before,
        )


def cycles_of(program: CompiledProgram) -> int:
    """Return the cycles of one run, or of one step of a wrapped one; at least, where data decides.

    Loops that data ends turn as often as the options assume.
    """
    return program.estimate().lower_bound_cycles // max(1, program.program.steps_per_run)


def with_gains(
    findings: tuple[Finding, ...],
    module: Module,
    options: Options,
    program: CompiledProgram,
    compile_once: Compile,
    limit: Limit = Limit(),  # noqa: B008 - a constant
) -> tuple[Finding, ...]:
    """Return the findings, those whose cure is an option with what came of compiling with it.

    Findings for which the limit leaves no trial stay as they are.
    """
    trials = Trials(module, options, program, compile_once, limit)
    found = []
    for finding in findings:
        if finding.settings and trials.has_time:
            finding = finding._replace(measured=trials.outcome(_candidate(finding, options)))
        found.append(finding)
    return tuple(found)


def _candidate(finding: Finding, options: Options) -> Candidate:
    settings = dict(finding.settings)
    if NARROW in settings.get("passes", ""):
        return narrowed(options, {})
    return Candidate("flag", settings)
