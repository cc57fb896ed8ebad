"""Tells a late program from a machine that stood still: a thread that looks at the clock."""

import threading
import time
from collections import deque

BEAT_SECONDS = 0.01
STALL_SECONDS = 0.05
"""Beats that are later than this are stalls."""


class Heartbeat:
    """Wakes a hundred times a second and notes by how much it was late."""

    def __init__(self) -> None:
        self._stalls: deque[tuple[float, float]] = deque(maxlen=10_000)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def stalled_since(self, began: float) -> float:
        """Return the seconds since a time of `time.monotonic` in which this process hardly ran."""
        return sum(seconds for at, seconds in list(self._stalls) if at >= began)

    def __str__(self) -> str:
        """Return how often and for how long at most this process hardly ran."""
        stalls = [seconds for _, seconds in list(self._stalls)]
        return (
            f"the machine stood still {len(stalls)} times, {max(stalls, default=0):.2f} s at most"
        )

    def _beat(self) -> None:
        while not self._ended.is_set():
            before = time.monotonic()
            time.sleep(BEAT_SECONDS)
            after = time.monotonic()
            late = after - before - BEAT_SECONDS
            if late > STALL_SECONDS:
                self._stalls.append((after, late))
