"""How fast a queue hands over elements, as Graphcore's `ipu.dataset_benchmark` reports it.

Keys and units as in graphcore/tensorflow: python/ipu/dataset_benchmark.py.
"""

import time
from typing import NamedTuple

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
