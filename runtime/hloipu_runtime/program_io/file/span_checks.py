"""Checks of spans and ports of a program from a file, and how a fault is told."""

from collections.abc import Iterator
from math import prod
from typing import NoReturn, Protocol

from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.program.mapping import Sizes, Spans, Tiles
from hloipu_runtime.program.program import Port, Program

NONSENSE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What python and numpy raise where numbers do not fit together.

Codelets compute with their parameters and do not check them: a compiler's are right. Those of a
file may be anything, and whatever comes of them is the file's fault.
"""


class Refuse(Protocol):
    """Raises ArtefactError E4011 for a place in the program."""

    def __call__(self, place: str, fault: str) -> NoReturn:
        """Raise."""


MOST_TILES = 2**20
"""Of one grid; no IPU has so many."""
MOST_RANK = 64
MOST_ELEMENTS = 2**44
"""Of one tensor, and of the parts of one variable on all tiles."""
MOST_OFFSET = 2**45
"""Of a part, either way."""


def check_tiles(tiles: Tiles, place: str, refuse: Refuse) -> None:
    """Refuse a grid whose tiles cannot be counted."""
    if len(tiles.extents) != len(tiles.strides) or len(tiles.extents) > MOST_RANK:
        refuse(place, "its grid has not one stride for each axis")
    if min(tiles.extents, default=2) < 2 or min(tiles.strides, default=1) < 1:
        refuse(place, "its grid has an axis of one tile, or a stride below 1")
    if not 0 <= tiles.first <= tiles.last < MOST_TILES or tiles.count > MOST_TILES:
        refuse(place, f"its grid has more than {MOST_TILES} tiles, or some that there are not")


def check_spans(spans: Spans, tiles: Tiles, place: str, refuse: Refuse) -> None:
    """Refuse parts that count an axis which is not there, or reach out of all bounds."""
    for span in spans:
        if not -1 <= span.axis < len(tiles.extents):
            refuse(place, f"a part follows grid axis {span.axis}")
        in_bounds = 0 <= span.step <= MOST_OFFSET and abs(span.offset) <= MOST_OFFSET
        if not in_bounds or not 0 <= span.size <= MOST_ELEMENTS:
            refuse(place, f"a part of {span.size} elements at {span.offset} + {span.step} i")


def check_tensor(element_type: str, shape: Sizes, place: str, refuse: Refuse) -> None:
    """Refuse an element type that there is not, and a shape of more elements than anything has."""
    if element_type not in ELEMENT_TYPES or not ELEMENT_TYPES[element_type].is_array:
        refuse(place, f"there is no element type {element_type[:40]!r}")
    if len(shape) > MOST_RANK or min(shape, default=0) < 0:
        refuse(place, "it has a size below 0, or too many dimensions")
    if prod(max(size, 1) for size in shape) > MOST_ELEMENTS:
        refuse(place, f"it has more than {MOST_ELEMENTS} elements")


def streams(program: Program, *, to_device: bool) -> Iterator[Port]:
    """Yield the ports of all streams of one direction."""
    yield from program.parameters if to_device else program.results
    for queue in program.queues:
        if queue.to_device == to_device:
            yield from queue.streams


def check_ports(program: Program, refuse: Refuse) -> None:
    """Refuse streams of one name, and results that take over what they do not fit."""
    for to_device, kind in ((True, "parameter"), (False, "result")):
        ports = list(streams(program, to_device=to_device))
        if len({port.stream for port in ports}) != len(ports):
            refuse(f"the {kind}s", "two have one stream")
        for number, port in enumerate(ports):
            place = f"{kind} {number}"
            check_tensor(port.element_type, port.shape, place, refuse)
            if port.alias != -1:
                _check_alias(port, program, kind, place, refuse)


def _check_alias(port: Port, program: Program, kind: str, place: str, refuse: Refuse) -> None:
    if kind == "parameter" or not 0 <= port.alias < len(program.parameters):
        refuse(place, f"there is no parameter {port.alias} to take over")
    source = program.parameters[port.alias]
    if (source.element_type, source.shape) != (port.element_type, port.shape):
        refuse(place, f"it differs from parameter {port.alias} in type or shape")
