"""Compare `parse` and `verify` with XLA's parser and HLO verifier, and check the round trip.

    python -m tools.parse_conformance [--corpus FOLDER] [--zoo FOLDER] [--every N] [--show N]

Prints a table of agreement for each group of texts, then each disagreement that no documented
exception covers, and ends with 1 where there is one. Needs the dependency group `oracle`.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.texts_invalid import invalid_texts
from tests.support.texts_valid import OLD_DIALECTS, valid_texts
from tests.support.xla_oracle import Oracle, Verdict
from tools.dialect import exceptions, round_trip
from tools.dialect.judge import ACCEPTED, Answer, Pair, ours, pairs

SAMPLES = Path(__file__).resolve().parents[1] / "hlo_samples"
ORACLE_SECONDS = 20.0
ACCEPTS = Answer(ACCEPTED)


@dataclass
class Report:
    """Counts for one group of texts, and what no exception explains."""

    group: str
    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    excepted: Counter[str] = field(default_factory=Counter)
    unexplained: list[tuple[str, str]] = field(default_factory=list)
    """(kind, what happened and on which text)."""
    round_trips: int = 0
    seconds: float = 0.0


def text_groups(corpus: Path, zoo: Path | None, every: int) -> Iterator[tuple[str, list[str]]]:
    """Yield (group name, texts)."""
    yield "written valid", valid_texts()
    yield "old dialects", OLD_DIALECTS
    yield "invalid", invalid_texts()[::every]
    for name, folder in (("samples", SAMPLES), ("zoo", zoo), ("corpus", corpus)):
        if folder is not None and folder.is_dir():
            texts = [f.read_text(encoding="utf-8") for f in sorted(folder.glob("*.hlo"))]
            yield name, texts[::every] if name == "corpus" else texts


def crashed_in_parser(oracle: Oracle, text: str, verdict: Verdict) -> bool:
    """Whether XLA's parser alone dies on the text on which parser and verifier died."""
    return verdict.status in ("crashed", "hung") and not oracle.parse(text).accepted


def compare(
    group: str,
    texts: Sequence[str],
    oracle: Oracle,
    table: Sequence[exceptions.DocumentedException],
) -> Report:
    """Judge every text of a group."""
    report, start = Report(group), time.monotonic()
    for text in texts:
        at_parse, at_verify, module = ours(text)
        verdict = oracle.verify(text)
        in_parser = crashed_in_parser(oracle, text, verdict)
        judged = pairs(at_parse, at_verify, verdict, crashed_in_parser=in_parser)
        for pair in judged:
            report.counts[pair.stage, pair.ours.outcome, pair.xla.outcome] += 1
            if not pair.agree:
                explain(report, pair, text, table)
        accepted = all(p.ours.outcome == p.xla.outcome == ACCEPTED for p in judged)
        if module is not None and at_verify is not None and at_verify.outcome == ACCEPTED:
            report.round_trips += 1
            for fault in round_trip_faults(text, module, oracle if accepted else None):
                explain(report, Pair("round trip", Answer(ACCEPTED, fault), ACCEPTS), text, table)
    report.seconds = time.monotonic() - start
    return report


def round_trip_faults(text: str, module: object, oracle: Oracle | None) -> list[str]:
    """Return the round trip's faults; our own failures are faults too."""
    try:
        return list(round_trip.faults(text, module, oracle))  # type: ignore[arg-type]
    except Exception as error:  # the point of the tool: our own failures are counted, not raised
        return [f"died: {type(error).__name__}: {error}"]


def explain(
    report: Report, pair: Pair, text: str, table: Sequence[exceptions.DocumentedException]
) -> None:
    """File a disagreement under its documented exception, or as unexplained."""
    for exception in table:
        if exception.covers(pair, text):
            report.excepted[exception.name] += 1
            return
    kind = f"{pair.stage}: ours {pair.ours.outcome}, XLA {pair.xla.outcome}"
    said = f"  ours: {pair.ours.said[:300]}\n  XLA:  {pair.xla.said[:500]}\n"
    report.unexplained.append((kind, said + text))


def show(reports: Sequence[Report], most: int) -> None:
    """Print the table and the unexplained disagreements."""
    print(
        f"{'group':<14}{'stage':<8}{'both accept':>12}{'both refuse':>12}{'differ':>8}"
        f"{'XLA dies':>9}"
    )
    for report in reports:
        for stage in ("parse", "verify"):
            cells = {(o, x): n for (s, o, x), n in report.counts.items() if s == stage}
            same = [cells.get((w, w), 0) for w in ("accepted", "refused")]
            died = sum(n for (_, x), n in cells.items() if x == "died")
            differ = sum(cells.values()) - sum(same) - died
            print(f"{report.group:<14}{stage:<8}{same[0]:>12}{same[1]:>12}{differ:>8}{died:>9}")
        print(f"{'':<14}{report.round_trips} round trips, {report.seconds:.0f} s")
    for name, count in sum((r.excepted for r in reports), Counter[str]()).most_common():
        print(f"documented exception: {name}: {count}")
    for report in reports:
        kinds = Counter(kind for kind, _ in report.unexplained)
        for kind, count in kinds.items():
            print(f"\nUNEXPLAINED in {report.group}: {kind}: {count}")
            for text in [t for k, t in report.unexplained if k == kind][:most]:
                print("---\n" + text[:1500].rstrip())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--corpus", type=Path, default=Path("out/corpus"))
    parser.add_argument("--zoo", type=Path)
    parser.add_argument(
        "--every", type=int, default=1, help="take every Nth text of the large groups"
    )
    parser.add_argument("--show", type=int, default=3, help="texts shown for each kind")
    parser.add_argument("--only", help="only this group")
    options = parser.parse_args(arguments)
    table = exceptions.read()
    reports = []
    with Oracle(timeout_seconds=ORACLE_SECONDS) as oracle:
        for group, texts in text_groups(options.corpus, options.zoo, options.every):
            if options.only in (None, group):
                reports.append(compare(group, texts, oracle, table))
    show(reports, options.show)
    return 1 if any(report.unexplained for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
