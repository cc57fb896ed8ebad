"""The document on whole networks: whether they fit, what fills their tiles, how long they take."""

from collections.abc import Iterator, Sequence

from tools.fidelity.cases import CAPACITY, RATE, Row, judged
from tools.fidelity.document import summary, table
from tools.fidelity.kept_outcomes import Outcome
from tools.fidelity.runs import HOISTED, outcome, read_runs

HEAD = """# Fidelity: whole networks

Whether hloipu finds room for networks that are known to fit, and how its times compare with
published ones. `make fidelity-models` writes this document, in an hour or more, and goes on where
it was interrupted; [fidelity.md](fidelity.md) compares single operations. Nothing is fitted: what
is wrong is shown as wrong.

Networks are those of `tools/models` (`python -m tools.models --list`), in the types, sizes and cuts
of configurations that Graphcore published (`tools/fidelity/runs.toml`, each with its source). They
ran on real machines, so they fit. Rates are from Graphcore's page of results and from MLPerf's logs
(`tools/fidelity/measurements.json`). Programs are compiled for a Bow, whose tiles have as much
memory as those of a GC200.

* Products and convolutions of f16 add up in f16 (`partials_type="f16"`), as "half partials" in all
  of these configurations.
* Programs that do not fit are timed all the same.
* Times are the device's: the host takes none. Published rates include what hosts do, most of which
  they do while the device computes.
* Batch norms compute in f16, with sums in f32. Dropout draws from `rng-bit-generator`, which leaves
  the generator to the machine.
* Where Graphcore's frameworks compute blocks again, `jax.checkpoint` marks these, or stages are
  computed again (`recompute="full"`).
* Of BERT cheap values are made again (`recompute="cheap"`): Graphcore's gelu is one op, and so is
  its gradient, which reads the input alone.
* Images are f16, where real ones come in as bytes. Rows of packed sequences are computed as others;
  only their masks would differ.
* `available_memory_proportion` is left at 0.6; the configurations set it to 0.1 to 0.3, differently
  for each stage. Where a program lacks memory, its products are planned in what is left, which may
  be less; ResNet-50 (`resnet50_mlperf_pod16_bs20`) with its 0.15 lacks more, as slices take code.
"""

_PARTS = {
    "temporaries": ("temporaries",),
    "exchange buffers": ("exchange buffers",),
    HOISTED: (HOISTED,),
    "state, constants": ("state", "constants", "parameters"),
    "exchange code": ("exchange code",),
    "control code": ("control code",),
    "vertex code": ("vertex code",),
    "vertex state": ("vertex state",),
    "gaps": ("gaps", "alignment", "stacks"),
}


def runs_document(rows: Sequence[Row]) -> str:
    """Return the document of rows of the two classes of networks."""
    return "\n".join(_lines(rows)) + "\n"


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    yield HEAD
    yield from summary(judged(rows))
    yield "\n## Do they fit\n"
    yield "Published: yes. Bytes in units of 1,000, on the fullest tile at its fullest;"
    yield f"*{HOISTED}* are a part of the exchange buffers.\n"
    yield f"| run | fits | of a tile | {' | '.join(_PARTS)} |"
    yield f"|---|---|---:|{'---:|' * len(_PARTS)}"
    for row in rows:
        if row.case.of is CAPACITY:
            yield _capacity(row, outcome(row.measurement))
    yield "\n## How long they take\n"
    yield from table(row for row in rows if row.case.of is RATE)
    yield "\n## Which commits\n"
    yield from _commits(rows)
    yield "\n## What was run\n"
    yield "| run | network | source, of graphcore/examples | leaves out |\n|---|---|---|---|"
    for run in read_runs().values():
        yield f"| {run.name} | `{run.network}` | {run.source} | {run.differs} |"


def _commits(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what is of which commit: all of one, or those of each."""
    of: dict[str, list[str]] = {}
    for row in rows:
        if row.case.of in (CAPACITY, RATE):
            of.setdefault(outcome(row.measurement).commit, []).append(row.measurement.id)
    for commit, names in of.items():
        yield f"* {commit}: {'all rows' if len(of) == 1 else ', '.join(names)}"


def _capacity(row: Row, said: Outcome) -> str:
    sizes = (sum(said.parts[name] for name in names) for names in _PARTS.values())
    cells = " | ".join(f"{size / 1000:,.0f}" for size in sizes)
    fits = "yes" if said.fits else "no"
    return f"| {row.measurement.run} | {fits} | {row.ratio:.2f} | {cells} |"
