"""What queues are set up with, and which elements an outfeed keeps."""

import math

from hloipu_runtime.errors import StreamError
from hloipu_runtime.frozen import dataclass

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
            f"queue {queue!r}: a timeout of {timeout} s is not a timeout",
            queue=queue,
            expected="a positive number of seconds",
            found=str(timeout),
        )
    return timeout


KINDS = ("all", "last", "first", "every", "sum", "mean")


@dataclass(frozen=True, slots=True)
class Mode:
    """`all`, `last` or `first` of each run, `every-N`th, or `sum` or `mean` over each run.

    Sum and mean are made on the device: the program gives out one element a run.
    """

    kind: str
    every: int = 1

    def __str__(self) -> str:
        return f"every-{self.every}" if self.kind == "every" else self.kind

    @property
    def on_device(self) -> bool:
        """Whether the device combines the elements of a run to one."""
        return self.kind in ("sum", "mean")


def parse_mode(text: str | Mode) -> Mode:
    """Return the mode of a text such as `all` or `every-10`; StreamError E2031 for any other."""
    if isinstance(text, Mode):
        return text
    kind, _, number = text.lower().partition("-") if isinstance(text, str) else ("", "", "")
    if kind == "every" and number.isdecimal() and 0 < len(number) < 10 and int(number) > 0:
        return Mode(kind, int(number))
    if kind in KINDS and kind != "every" and not number and "-" not in text:
        return Mode(kind)
    raise StreamError(
        "E2031",
        f"there is no outfeed mode {text!r}",
        expected="all, last, first, every-N, sum or mean",
        found=str(text),
    )
