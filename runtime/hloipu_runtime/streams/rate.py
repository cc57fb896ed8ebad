"""How fast a queue hands over elements; measured as Graphcore's `ipu.dataset_benchmark` reports it.

Keys and units as in graphcore/tensorflow: python/ipu/dataset_benchmark.py.
"""

import time
from fractions import Fraction
from typing import NamedTuple

from hloipu_runtime.errors import StreamError
from hloipu_runtime.streams.infeed import InfeedQueue
from hloipu_runtime.streams.source import positive


class EpochRate(NamedTuple):
    """What one epoch took."""

    elements_processed: int
    total_bytes_processed: int
    time_elapsed: float
    """In seconds."""
    elements_per_second: float
    bandwidth: float
    """In 10^9 bytes per second."""


def measure(queue: InfeedQueue, epochs: int, elements: int, *, copy: bool) -> list[EpochRate]:
    """Take `elements` elements in each epoch; `copy` copies each as a transfer would.

    Raises StreamError E2031 for counts below 1, and what the queue raises.
    """
    positive(epochs, "epochs")
    positive(elements, "elements")
    return [_epoch(queue, elements, copy) for _ in range(epochs)]


def _epoch(queue: InfeedQueue, elements: int, copy: bool) -> EpochRate:
    began = time.perf_counter()
    for _ in range(elements):
        leaves = queue.take()
        if copy:
            for leaf in leaves:
                leaf.copy()
    seconds = max(time.perf_counter() - began, 1e-9)
    size_bytes = elements * queue.spec.size_bytes
    return EpochRate(elements, size_bytes, seconds, elements / seconds, size_bytes / seconds / 1e9)


def interval_cycles(clock_hz: int, elements_per_second: float | None) -> Fraction:
    """Return the cycles between two elements; StreamError E2031 for a rate that is no rate."""
    if elements_per_second is None or elements_per_second == float("inf"):
        return Fraction(0)
    if not elements_per_second > 0:
        raise StreamError(
            "E2031",
            f"a producer of {elements_per_second} elements per second never makes one",
            expected="a positive rate",
            found=str(elements_per_second),
        )
    return Fraction(clock_hz) / Fraction(elements_per_second)
