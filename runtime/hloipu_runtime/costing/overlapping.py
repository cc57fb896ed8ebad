"""What of a loop's turn goes on beside computing: host transfers to and from tiles set apart.

A turn first takes what the tiles set apart have, then computes while these exchange the next
element and the last one's results with the host, and hands over its own results at its end. So
one buffer for each stream does, and a turn takes what it hands over and the longer of the two
others. Before the first turn its element has to come in, after the last its results have to go out.
"""

from typing import NamedTuple

from hloipu_runtime.program.program import Program, Role
from hloipu_runtime.program.steps import Exchange, Sequence, StreamIn, StreamOut, Sync


class Turn(NamedTuple):
    """The places of a body's steps, by what they can go on beside."""

    transfers: frozenset[int]
    """Between the host and tiles set apart, with the barriers before them."""
    handing_over: frozenset[int]
    """Between these and all other tiles: beside nothing."""


def overlapped(program: Program, body: Sequence) -> Turn | None:
    """Return what of a body goes on beside the rest; None: nothing does."""
    buffers = {n for n, v in enumerate(program.variables) if v.role is Role.BUFFER}
    transfers: set[int] = set()
    handing: set[int] = set()
    for place, step in enumerate(body.steps):
        if isinstance(step, StreamIn | StreamOut) and step.variable in buffers:
            found = transfers
        elif isinstance(step, Exchange) and any(
            x.source in buffers or x.destination in buffers for x in step.transfers
        ):
            found = handing
        else:
            continue
        found.add(place)
        if place and isinstance(body.steps[place - 1], Sync):
            found.add(place - 1)
    return Turn(frozenset(transfers), frozenset(handing)) if transfers else None
