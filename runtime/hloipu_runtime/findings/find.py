"""All findings on a program, the dearest first."""

from collections.abc import Callable, Iterable

from hloipu_runtime.findings import host_rules, memory_rules, step_rules, type_rules
from hloipu_runtime.findings.facts import Facts
from hloipu_runtime.report.finding import Finding

Rule = Callable[[Facts], Iterable[Finding]]

RULES: tuple[Rule, ...] = (
    *host_rules.RULES,
    *step_rules.RULES,
    *type_rules.RULES,
    *memory_rules.RULES,
)
"""Each takes time linear in the steps."""

MOST_OF_A_KIND = 3
"""The dearest of a kind stand for the others."""


def findings_of(facts: Facts) -> tuple[Finding, ...]:
    """Return the findings on a program, by what a cure saves; memory first where it lacks."""
    found: list[Finding] = []
    for rule in RULES:
        found += sorted(rule(facts), key=_rank(facts))[:MOST_OF_A_KIND]
    return tuple(sorted(found, key=_rank(facts)))


def _rank(facts: Facts) -> Callable[[Finding], tuple[float, str, str]]:
    """Return the key to sort by: the share of all cycles, or of a tile's memory, that is saved.

    Bytes count in full where the program does not fit, else a tenth: nobody waits for them.
    """
    cycles = max(1, facts.profile.lower_bound_cycles)
    weight = 1.0 if not facts.memory.fits else 0.1
    size = max(1, facts.memory.available_bytes)

    def key(finding: Finding) -> tuple[float, str, str]:
        share = finding.gain_cycles / cycles + weight * finding.gain_bytes / size
        return (-share, finding.kind, finding.name)

    return key
