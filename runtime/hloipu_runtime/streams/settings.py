"""What queues of both directions are set up with, checked."""

import math

from hloipu_runtime.errors import StreamError

MAX_LEAD = 4096
"""Elements that one replica may be ahead of another; they are kept for the other meanwhile."""


def streams_of(name: str, leaves: int, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the stream of each leaf: as given, or the queue's name, numbered if they are many."""
    if not given:
        return (name,) if leaves == 1 else tuple(f"{name}.{number}" for number in range(leaves))
    if len(given) != leaves:
        raise StreamError(
            "E2031",
            f"queue {name!r} has {leaves} leaves and is given {len(given)} streams",
            queue=name,
            expected=f"{leaves} streams",
            found=str(len(given)),
        )
    return given


def positive_seconds(timeout: float, queue: str) -> float:
    """Return a timeout that ends; StreamError E2031 for any other."""
    if not (timeout > 0 and math.isfinite(timeout)):
        raise StreamError(
            "E2031",
            f"queue {queue!r}: a timeout of {timeout} s is no timeout",
            queue=queue,
            expected="a positive number of seconds",
            found=str(timeout),
        )
    return timeout
