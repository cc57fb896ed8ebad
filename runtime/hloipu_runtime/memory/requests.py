"""What is to be placed: so many bytes, on these tiles, at these points of time."""

from typing import NamedTuple

from hloipu_runtime.memory.liveness import Ranges
from hloipu_runtime.program.mapping import Tiles


class Request(NamedTuple):
    """Memory that one variable asks for on every tile of its grid."""

    size: int
    """In bytes, a multiple of the allocation grain."""
    grid: Tiles
    ranges: Ranges
