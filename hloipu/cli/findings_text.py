"""Findings for people: all of them, with their evidence and what was measured."""

from collections.abc import Iterator

from hloipu.cli.table import counted
from hloipu_runtime.report.finding import Finding
from hloipu_runtime.report.profile import Profile
from hloipu_runtime.report.verdict import saved_text


def findings_text(profile: Profile) -> str:
    """Return every finding: what, where, the cure, what it saves at most and by measurement."""
    if not profile.findings:
        return "no findings"
    lines = [counted(len(profile.findings), "finding")]
    for number, finding in enumerate(profile.findings, 1):
        lines += _lines(number, finding, profile)
    return "\n".join(lines)


def _lines(number: int, finding: Finding, profile: Profile) -> Iterator[str]:
    yield f"{number}. {finding.kind}: {finding.placed_statement}"
    yield f"   cure: {finding.cure}"
    yield f"   saves at most {saved_text(finding, profile)}"
    if finding.measured is not None:
        yield f"   measured with {finding.measured.line()}"
