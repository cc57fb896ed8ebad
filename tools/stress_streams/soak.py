"""A long run through bounded queues, whose memory must not grow."""

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hloipu_runtime.streams.element import Array, ElementSpec, LeafSpec
from hloipu_runtime.streams.host import StreamHost
from hloipu_runtime.streams.infeed import InfeedQueue
from hloipu_runtime.streams.outfeed import OutfeedQueue

GROWTH_LIMIT_BYTES = 20 << 20
ROWS = ElementSpec((LeafSpec("f32", (32, 784)), LeafSpec("s32", (32,))))
LOSS = ElementSpec((LeafSpec("f32", ()),))


def fresh() -> Iterator[tuple[Array, Array]]:
    """Give elements that were made for the purpose, as preprocessing would."""
    number = 0
    while True:
        yield np.full((32, 784), number % 251, np.float32), np.full(32, number % 251, np.int32)
        number += 1


def soak(elements: int) -> int:
    """Pass elements in and out, checking each; return the bytes that memory grew after warm-up."""
    infeed = InfeedQueue("data", ROWS, fresh(), capacity=32)
    outfeed = OutfeedQueue("loss", spec=LOSS, capacity=64)
    seen = [0]

    def read() -> None:
        for arrived in outfeed.follow():
            if arrived.element != arrived.number % 251:
                raise ValueError(f"element {arrived.number} is {arrived.element}")
            seen[0] += 1

    reader = threading.Thread(target=read)
    reader.start()
    warm = min(2000, elements // 2)
    before = 0
    with StreamHost([infeed], [outfeed]) as host:
        with host.running():
            for number in range(elements):
                if number == warm:
                    before = resident_bytes()
                x, label = host.take("data.0"), host.take("data.1")
                host.give("loss", x[0, 0] + 0 * label[0].astype(np.float32))
        grown = resident_bytes() - before
    reader.join()
    if seen[0] != elements:
        raise ValueError(f"{elements} elements were given and {seen[0]} arrived")
    return grown


def resident_bytes() -> int:
    """Return the memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096
