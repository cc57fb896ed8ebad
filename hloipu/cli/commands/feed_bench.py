"""`hloipu feed-bench FILE`: how fast a file's arrays can be fed, and how fast they must be."""

import json
from typing import Any

import click
import numpy as np

from hloipu.cli.saying import say
from hloipu.cli.table import readable_bytes, table
from hloipu.training.datasets import batched
from hloipu_runtime.compiled import CompiledProgram, load
from hloipu_runtime.errors import StreamError, UsageError
from hloipu_runtime.program.program import Program
from hloipu_runtime.program.seen import seen_by_users
from hloipu_runtime.program.steps import Parallel, Repeat, RepeatWhile, Sequence, StreamIn
from hloipu_runtime.session.queues import spec_of_queue
from hloipu_runtime.streams.arrays import from_file
from hloipu_runtime.streams.element import ElementSpec, Intake, spec_of
from hloipu_runtime.streams.files import FREELY_UNPACKED_BYTES, unreadable
from hloipu_runtime.streams.infeed import InfeedQueue
from hloipu_runtime.streams.rate import EpochRate, measure
from hloipu_runtime.streams.source import Source
from hloipu_runtime.streams.structure import flatten

MOST_ELEMENTS = 100_000
MOST_BYTES = 1 << 30
"""That are timed unless another number of elements is asked for. Assumed: a second's work."""


@click.command("feed-bench")
@click.argument("file", type=click.Path())
@click.option("--epochs", type=click.IntRange(1), default=1, help="Passes that are timed (1).")
@click.option("--elements", type=click.IntRange(1),
              help="Elements of each; default: all of FILE, "
              f"of more than {MOST_ELEMENTS:,} or {MOST_BYTES >> 20:,} MiB the first.")  # fmt: skip
@click.option("--arrays", help="Arrays of FILE to feed, separated by commas; default: all.")
@click.option(
    "--batch",
    type=click.IntRange(1),
    help="Rows of one element; default: one, or as many as the executable takes.",
)
@click.option("--shuffle", "seed", type=click.IntRange(0), help="Shuffle with this seed.")
@click.option("--copy/--no-copy", default=True, help="Copy elements as a transfer does (default).")
@click.option("--thread/--no-thread", default=True, help="Prefetch on a thread (default).")
@click.option("--executable", type=click.Path(), help="Print the rate that this .ipux file needs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    file: str,
    epochs: int,
    elements: int | None,
    arrays: str | None,
    batch: int | None,
    seed: int | None,
    copy: bool,
    thread: bool,
    executable: str | None,
    as_json: bool,
) -> None:
    """Measure how many elements a second the rows of FILE (.npy or .npz) can be fed."""
    program = None if executable is None else load(executable)
    feeds = [] if program is None else feeds_of(program)
    source: Source = from_file(file, tuple(arrays.split(",")) if arrays else ())
    if seed is not None:
        source = source.shuffle(seed)
    source = batched_for(source, feeds) if batch is None else source.batch(batch)
    element = next(source.elements(), ())
    if not feeds and copy:
        require_element(element, file)
    spec = matching(element, feeds)
    fill = min(MOST_ELEMENTS, MOST_BYTES // max(1, spec.size_bytes)) or 1
    elements = elements or min(source.count or 1, fill)
    with InfeedQueue("feed", spec, source.wrap(), inline=not thread) as queue:
        rates = measure(queue, epochs, elements, copy=copy)
    need = None if program is None else required(program, spec.size_bytes, rates)
    if as_json:
        say(json.dumps(record(rates, need)))
        return
    say(text(rates))
    if need is not None:
        say(need_text(need))


def require_element(element: Any, path: str) -> None:
    """Raise StreamError E2032 for an element of too many bytes that no program is said to take."""
    size_bytes = sum(np.asarray(leaf).nbytes for leaf in flatten(element)[0])
    if size_bytes > FREELY_UNPACKED_BYTES:
        raise unreadable(
            path, f"an element of it has {size_bytes:,} bytes, and copies are made of it; "
            "--batch takes fewer rows, --executable shows that a program takes as many",
        )  # fmt: skip


def feeds_of(program: CompiledProgram) -> list[ElementSpec]:
    """Return what the elements of an executable's infeeds are; none: it has no queues."""
    queues = seen_by_users(program.program).queues
    return [spec_of_queue(queue) for queue in queues if queue.to_device]


def batched_for(source: Source, feeds: list[ElementSpec]) -> Source:
    """Return rows put together to batches where an infeed takes such batches."""
    for spec in feeds:
        batches = batched(source, spec)
        if batches is not source:
            return batches
    return source


def matching(element: Any, feeds: list[ElementSpec]) -> ElementSpec:
    """Return what an element is; UsageError E2064 where no infeed of the executable takes it."""
    for spec in feeds:
        try:
            Intake(spec, "feed").to_storage(element, 0)
        except StreamError:
            continue
        return spec
    of_file = spec_of(element)
    if feeds:
        accepted = " or ".join(map(str, feeds))
        raise UsageError(
            "E2064",
            f"the executable takes {accepted}; elements of the file are {of_file}",
            hint="choose --arrays and --batch, or convert the file's arrays",
        )
    return of_file


def record(rates: list[EpochRate], need: dict[str, Any] | None) -> dict[str, Any]:
    """Return the report as JSON data; the epochs have the keys of `ipu.dataset_benchmark`."""
    report: dict[str, Any] = {
        "schema": "hloipu.feed_bench/1",
        "epochs": [rate._asdict() for rate in rates],
    }
    return report if need is None else report | {"required": need}


def required(
    program: CompiledProgram, element_bytes: int, rates: list[EpochRate]
) -> dict[str, Any]:
    """Return the rate at which the modelled device takes elements when it never waits."""
    estimate = program.estimate()
    seconds = estimate.lower_bound_cycles / program.machine.chip.clock_hz
    takes = most_takes(program.program)
    rate = takes / seconds if seconds else 0.0
    best = max(epoch.elements_per_second for epoch in rates)
    return {
        "elements_per_run": takes,
        "cycles_per_run": estimate.lower_bound_cycles,
        "elements_per_second": rate,
        "bandwidth": rate * element_bytes / 1e9,
        "sufficient": best >= rate,
    }


def most_takes(program: Program) -> int:
    """Return how often one run takes from the stream that it takes from most often, at least."""
    most = 0
    pending: list[tuple[Any, int]] = [(program.body, 1)]
    while pending:
        step, times = pending.pop()
        match step:
            case StreamIn():
                most = max(most, times)
            case Sequence():
                pending += [(inner, times) for inner in step.steps]
            case Parallel():
                pending += [(inner, times) for inner in step.branches]
            case Repeat():
                pending.append((step.body, times * step.count))
            case RepeatWhile():
                # Only data knows how often it turns; cycles, too, count it as little as possible.
                pending.append((step.condition, times))
            case _:
                # Nothing else takes, and which branch of a choice is run only data knows.
                pass
    return most


def text(rates: list[EpochRate]) -> str:
    """Return the epochs as a table."""
    rows = [
        (
            str(number),
            str(rate.elements_processed),
            readable_bytes(rate.total_bytes_processed),
            f"{rate.time_elapsed:.4g} s",
            f"{rate.elements_per_second:.4g}",
            f"{rate.bandwidth:.4g} GB/s",
        )
        for number, rate in enumerate(rates)
    ]
    return table(("epoch", "elements", "bytes", "time", "elements/s", "bandwidth"), rows)


def need_text(need: dict[str, Any]) -> str:
    """Return what the executable needs in words."""
    verdict = "the feed suffices" if need["sufficient"] else "the device would starve"
    return (
        f"the executable takes {need['elements_per_second']:.4g} elements/s "
        f"({need['bandwidth']:.4g} GB/s): {verdict}"
    )
