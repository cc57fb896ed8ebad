"""All findings on a program, the dearest first."""

from collections.abc import Callable, Iterable

from hloipu_runtime.findings import host_rules, memory_rules, step_rules, type_rules
from hloipu_runtime.findings.facts import Facts
from hloipu_runtime.report.change import Finding

Rule = Callable[[Facts], Iterable[Finding]]

RULES: tuple[Rule, ...] = (
    *host_rules.RULES,
    *step_rules.RULES,
    *type_rules.RULES,
    *memory_rules.RULES,
)
"""Each takes time linear in the steps."""

MOST_NAMED = 8
"""Instructions of a kind that its evidence lists."""


def findings_of(facts: Facts) -> tuple[Finding, ...]:
    """Return the findings on a program, one of a kind, by what a cure saves.

    What the program does not fit for comes first. The host's come last where a plain program is
    run once: there a host does what sessions spare it.
    """
    rank = _rank(facts)
    kinds: dict[str, list[Finding]] = {}
    for rule in RULES:
        for finding in rule(facts):
            kinds.setdefault(finding.kind, []).append(finding)
    joined = [
        _at_most(_together(sorted(members, key=rank)), facts.device_cycles)
        for members in kinds.values()
    ]
    worth = [
        finding
        for finding in joined
        if finding.gain_bytes or finding.gain_cycles >= facts.least_cycles
    ]
    return tuple(sorted(worth, key=rank))


def _at_most(finding: Finding, device_cycles: int) -> Finding:
    """Return a finding whose cure saves no more than there is: loops within loops count twice."""
    if finding.is_of_host:
        return finding
    return finding._replace(gain_cycles=min(finding.gain_cycles, device_cycles))


def _together(members: list[Finding]) -> Finding:
    """Return one finding for all of a kind: the dearest, and what all of them save at most."""
    first = members[0]
    if len(members) == 1:
        return first
    cycles = sum(finding.gain_cycles for finding in members)
    size = max(finding.gain_bytes for finding in members)
    evidence = {
        "instructions": len(members),
        "of_the_dearest": dict(first.evidence),
        "dearest": [
            {"name": finding.name, "source": finding.source, "gain_cycles": finding.gain_cycles}
            for finding in members[:MOST_NAMED]
        ],
    }
    return first._replace(
        statement=f"{first.statement} (and {len(members) - 1} more like it)",
        gain_cycles=cycles,
        gain_bytes=size,
        evidence=evidence,
    )


def _rank(facts: Facts) -> Callable[[Finding], tuple[bool, float, str, str]]:
    """Return the key to sort by: the share of the cycles, or of a tile's memory, that is saved.

    Bytes count in full where the program does not fit, else a tenth: nobody waits for them.
    """
    device = max(1, facts.device_cycles)
    run_cycles = device + facts.profile.host.each_run_cycles
    weight = 1.0 if not facts.memory.fits else 0.1
    size = max(1, facts.memory.available_bytes)

    def key(finding: Finding) -> tuple[bool, float, str, str]:
        cycles = run_cycles if finding.is_of_host else device
        share = finding.gain_cycles / cycles + weight * finding.gain_bytes / size
        is_last = finding.is_of_host and not facts.program.is_resident
        return (is_last, -share, finding.kind, finding.name)

    return key
