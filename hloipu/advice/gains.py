"""What the cures of findings gain, by compiling with them."""

from hloipu.advice.trials import NARROW, Candidate, Compile, Limit, Trials, narrowed
from hloipu.options.table import Options
from hloipu_compiler.ir.graph import Module
from hloipu_runtime.compiled import CompiledProgram
from hloipu_runtime.report.finding import Finding


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
