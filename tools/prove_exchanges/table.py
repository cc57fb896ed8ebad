"""The rates of a run: for each kind of mutant, who caught how many."""

from collections import Counter
from collections.abc import Sequence

from tools.prove_exchanges.trial import (
    CAUGHT,
    EQUIVALENT,
    MASKED,
    SAME_DATA,
    UNRUN,
    UNUSED,
    Verdict,
)

REMAINING = (EQUIVALENT, SAME_DATA, UNUSED, MASKED, UNRUN)


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the table as text; rates are over the mutants that are not proved equivalent."""
    head = f"{'kind':26}{'mutants':>8}{'static':>8}{'exact':>8} |"
    head += "".join(f"{name:>13}" for name in CAUGHT) + " |"
    head += "".join(f"{name:>11}" for name in REMAINING)
    rows = [head, "-" * len(head)]
    kinds = list(dict.fromkeys(v.kind for v in verdicts))
    rows += [_row(kind, [v for v in verdicts if v.kind == kind]) for kind in sorted(kinds)]
    rows += ["-" * len(head), _row("all", verdicts)]
    return "\n".join(rows)


def _row(name: str, verdicts: Sequence[Verdict]) -> str:
    live = [v for v in verdicts if v.exact != EQUIVALENT]
    static = _rate(sum(bool(v.static) for v in live), len(live))
    run = [v for v in live if v.exact != UNRUN]
    ran = _rate(sum(v.exact in CAUGHT for v in run), len(run))
    counts = Counter(v.exact for v in verdicts)
    row = f"{name:26}{len(verdicts):>8}{static:>8}{ran:>8} |"
    row += "".join(f"{counts[c] or '':>13}" for c in CAUGHT) + " |"
    return row + "".join(f"{counts[c] or '':>11}" for c in REMAINING)


def _rate(part: int, whole: int) -> str:
    """Return a share in percent, rounded down so that 100 means all."""
    return f"{int(1000 * part / whole) / 10}%" if whole else "-"


def rules(verdicts: Sequence[Verdict]) -> str:
    """Return how many mutants each rule of the static proof caught."""
    counts = Counter(rule for v in verdicts for rule in v.static.split(",") if rule)
    return ", ".join(f"{rule} {count}" for rule, count in counts.most_common())


def remaining(verdicts: Sequence[Verdict]) -> str:
    """Say how many mutants are not caught by running them, and how many of these by the proof."""
    left = [v for v in verdicts if v.exact not in CAUGHT]
    told = sum(bool(v.static) for v in left)
    return f"{len(left)} run as if they were right; the static proof refuses {told} of them"


def failures(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the mutants that the static proof lets pass though they are not proved equivalent."""
    return [v for v in verdicts if not v.static and v.exact != EQUIVALENT]
