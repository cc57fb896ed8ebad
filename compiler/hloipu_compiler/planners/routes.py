"""Intermediate mappings through which a value moves to another mapping in fewer messages.

Where each tile of the one has something for many tiles of the other, blocks between those of both,
dimension by dimension, make two exchanges of about the square root of the messages each.
"""

from itertools import product
from math import isqrt, prod
from typing import NamedTuple

from hloipu_compiler.planners.placing import in_blocks
from hloipu_runtime.machine.charges import over
from hloipu_runtime.program.mapping import Mapping, Sizes

_MOST_ROUTES = 3
"""Routes that are worth pricing, those with the fewest messages. Assumed."""

_LEAST_SHARE = 4
"""A route has at least one part in so many of the tiles that the value lies on, and is wanted on:
on fewer tiles it would wait for bytes. Assumed."""


def routes(shape: Sizes, lying: Mapping, wanted: Mapping, tiles: int) -> list[Mapping]:
    """Return partitions that take few messages from `lying` to them and on to `wanted`."""
    if not shape:
        return []
    here, there = _blocks(shape, lying), _blocks(shape, wanted)
    least = min(lying.tiles.count, wanted.tiles.count) // _LEAST_SHARE
    direct = prod(map(_met, there, here)) + prod(map(_met, here, there))
    candidates: list[tuple[int, Sizes]] = []
    for along in product(*map(_along, shape, here, there)):
        blocks, counts, *met = zip(*along, strict=True)
        if least <= prod(counts) <= tiles:
            messages = sum(map(prod, met))
            if 2 * messages < direct:
                candidates.append((messages, blocks))
    return [in_blocks(shape, blocks, 0) for _, blocks in sorted(candidates)[:_MOST_ROUTES]]


class _Along(NamedTuple):
    """A block along a dimension, and how many blocks meet at most at both ends of both ways."""

    block: int
    parts: int
    met_here: int
    meets_here: int
    met_there: int
    meets_there: int


def _along(size: int, here: int, there: int) -> list[_Along]:
    """Return the blocks that one dimension may be cut into between two others."""
    return [
        _Along(
            block,
            over(size, block),
            _met(here, block),
            _met(block, here),
            _met(there, block),
            _met(block, there),
        )
        for block in _between(here, there)
    ]


def _blocks(shape: Sizes, mapping: Mapping) -> Sizes:
    """Return how far apart parts begin along each dimension."""
    return tuple(
        max(1, min(size, span.step if span.axis >= 0 and span.step > 0 else size))
        for size, span in zip(shape, mapping.spans, strict=True)
    )


def _between(here: int, there: int) -> list[int]:
    """Return block sizes from one to the other: both, and what lies about half-way.

    Multiples of the smaller one, so that its blocks go whole, and if possible parts of the larger.
    """
    small, large = sorted((here, there))
    if small == large:
        return [small]
    times = over(large, small)
    middle = isqrt(times)
    fair = [n for n in range(1, middle + 1) if large % (n * small) == 0]
    between = {n * small for n in (middle, times // max(1, middle), *fair[-1:])}
    return sorted({small, large, *between})


def _met(block: int, others: int) -> int:
    """Return how many blocks of one size a block of another meets at most."""
    if block % others == 0:
        return block // others
    return 1 if others % block == 0 else over(block - 1, others) + 1
