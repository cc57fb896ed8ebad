"""The document and the JSON of a comparison."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tools.fidelity.cases import TAKES_LONG, Judgement, Kind, Row, judged

FORMAT = 1

HEAD = """# Fidelity: predicted against measured

How close hloipu's predicted times come to published measured ones, class by class, and where the
model is blind. `make fidelity` writes this document; [fidelity-models.md](fidelity-models.md) has
all whole networks, of which a few are here. Measurements are published ones
(`tools/fidelity/measurements.json`, each with its source); predictions are what `hloipu estimate`
says of an HLO module of the same shapes, or what a hand-written program of one phase costs. No
constant of a machine was chosen to meet a measurement; constants come from the sources that
`docs/machine-model.md` and the machines' own files name.

*Ratio* is predicted over measured time: below 1 the model is faster than the hardware.

## What is compared

* **Matrix products**: cycles of the product's own steps: operands moved from their initial layouts
  to where they are multiplied, the products, partial sums exchanged and added, and the barriers in
  between. Host streams and the barriers before them are left out, as the measurement leaves them
  out. The initial layout of a parameter is the one that the product wants, as poplibs's
  createMatMulInput does it;
  results stay where they are made. Products of f16 add up in f16 between tiles
  (`partials_type="f16"`). The published figure does not say which type it used, and f32, the
  measuring program's default, is shown below: with it large products of f16 come out up to 25 % too
  slow, so that their agreement rests on that choice.
  The measuring script adds up compute and exchange intervals; whether barriers are in the figure is
  not said. They are 252 cycles a slice here: 6 % of the smallest product, less than 1 % of those
  that take 30,000 cycles and more.
* **Convolutions**: a loop of 200 convolutions and the copy of each result to the layout of the
  image; the first copy into the loop is counted too.
* **Exchange phases, barriers**: one exchange or barrier alone, without what tiles rearrange.
* **Stream**: b + s * c of arrays that fill a third of the memory, over the bytes of three arrays.

## Choices made with the measurements in sight

Nothing was fitted, but these choices were made by someone who had seen the numbers:

* f16 partial sums, see above.
* Our compiler gives the left operand of a product of few columns the very parts that tiles multiply
  as its initial layout, so that it is not moved at all, and such products come out at 0.4 of the
  measured time.
  The measured programs evidently moved both operands; so, for comparison, parameters that a product
  would read in place begin in the same parts on other tiles (`tools/fidelity/elsewhere.py`).
* The halo of an image is eight messages, on a grid of 32 x 38 tiles, because what tiles rearrange
  before and after is timed apart. Sent piece by piece from where it is, as our compiler would do
  it, it costs 866 cycles: 1.36 of the measured ones, outside of the bound.
* x + s * y is priced by popops's formula for scaled addition; before, as any fused expression, it
  came out at 1.36 of the measured time.
"""

BLIND_SPOTS = """## Blind spots

* **Small products** (n < 256) come out 6 to 25 % too fast. Every exchange and compute set has costs
  that no source states: control code between steps, pointers set up, tiles late at a barrier.
* **Large f32 products in slices** (8192 x 8192) come out 11 to 15 % too fast. poplibs rearranges
  weights before it slices them, and copies every slice and result; here slices are exchanged from
  where they are. Its estimates of those copies explain a part of the difference only.
* **Partial sums** of 16 pieces and more are added in two stages by poplibs, because of the code of
  exchanges; here in one.
* **C++ codelets** of users: 2 to 8 times slower than the vertices whose formulas the model has.
* **Planners' memory cliffs**: a plan that poplibs cuts finer to save memory may be 30 times slower.
* **Rearrangement** before and after exchanges: which copies Poplar makes is not published.
* **Congestion** of exchanges, and of links between IPUs: the model has none of the former.
* **Host and remote memory**: their rates are assumed numbers.
* **Data**: transcendental functions cost what they cost on average.
"""


def document(rows: Sequence[Row], full_partials: Sequence[Row]) -> str:
    """Return the document; `full_partials` are products of f16 that add up in f32."""
    return "\n".join(_lines(rows, full_partials)) + "\n"


def _lines(rows: Sequence[Row], full_partials: Sequence[Row]) -> Iterator[str]:
    yield HEAD
    yield from summary(judged(rows))
    yield "\n## Judged\n"
    yield from table(row for row in rows if row.case.kind is Kind.JUDGED)
    held_out = [row for row in rows if row.measurement.held_out]
    yield "\n## Held out\n"
    if held_out:
        yield from table(held_out)
    else:
        yield "None of the measurements in the file is marked as held out."
    yield "\n## Products of f16 that add up in f32\n"
    yield from table(full_partials)
    yield "\n## Beside: no bound, and what the model lacks\n"
    yield from table((row for row in rows if row.case.kind is Kind.BESIDE), why=True)
    yield "\n## Given, or left out\n"
    yield "| measurement | | why |\n|---|---|---|"
    elsewhere = [row for row in rows if row.case.why == TAKES_LONG]
    for row in rows:
        if row.case.kind in (Kind.GIVEN, Kind.LEFT_OUT) and row not in elsewhere:
            yield f"| {row.measurement.id} | {row.case.kind} | {row.case.why} |"
    if elsewhere:
        yield f"| {len(elsewhere)} of whole networks | {Kind.LEFT_OUT} | {TAKES_LONG} |"
    yield f"\n{BLIND_SPOTS}"


def summary(found: Sequence[Judgement]) -> Iterator[str]:
    """Yield the lines of what came out for each class."""
    yield "## By class\n"
    yield "| class | count | mean | bound | outside | bound | worst | ratio | holds |"
    yield "|---|---:|---:|---|---:|---|---|---:|---|"
    for x in found:
        worst = x.worst.measurement.id
        yield (
            f"| {x.of.name} | {x.count} | {x.mean_ratio:.3f} | {_range(x.of.mean)} | "
            f"{x.outside} | {_range(x.of.each)} | {worst} | {x.worst.ratio:.3f} | "
            f"{'yes' if x.holds else 'no'} |"
        )


def _range(bound: tuple[float, float]) -> str:
    low, high = bound
    return f"{low:.2f} to {high:.2f}"


def table(rows: Iterable[Row], *, why: bool = False) -> Iterator[str]:
    """Yield the lines of rows, with their cycles, or `why` no bound is set to them."""
    last = "missing effect" if why else "cycles"
    yield f"| measurement | measured | predicted | ratio | {last} |"
    yield "|---|---:|---:|---:|---|"
    for row in rows:
        x, prediction = row.measurement, row.prediction
        said = f"{prediction.value:.5g}" if prediction else ""
        told = row.case.why if why else prediction.parts if prediction else ""
        yield f"| {x.id} | {x.value:.5g} {x.unit} | {said} | {row.ratio:.3f} | {told} |"


def as_json(rows: Sequence[Row], full_partials: Sequence[Row]) -> dict[str, Any]:
    """Return the comparison as plain data."""
    return {
        "format": FORMAT,
        "classes": [
            {
                "name": x.of.name,
                "count": x.count,
                "mean_ratio": round(x.mean_ratio, 4),
                "mean_bound": x.of.mean,
                "outside": x.outside,
                "each_bound": x.of.each,
                "worst": x.worst.measurement.id,
                "worst_ratio": round(x.worst.ratio, 4),
                "holds": x.holds,
            }
            for x in judged(rows)
        ],
        "rows": [_plain(row) for row in rows],
        "full_partials": [_plain(row) for row in full_partials],
    }


def _plain(row: Row) -> dict[str, Any]:
    x = row.measurement
    return {
        "id": x.id,
        "kind": str(row.case.kind),
        "class": row.case.of.name if row.case.of else None,
        "measured": x.value,
        "predicted": row.prediction.value if row.prediction else None,
        "unit": x.unit,
        "ratio": round(row.ratio, 4) if row.prediction else None,
        "parts": row.prediction.parts if row.prediction else "",
        "why": row.case.why,
        "held_out": x.held_out,
        "source": x.source,
    }
