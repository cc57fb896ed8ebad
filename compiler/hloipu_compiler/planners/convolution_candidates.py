"""Candidate splits of a convolution into blocks, balanced over tiles."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, product
from math import gcd, log2, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hloipu_runtime.codelets.core.codelet import Index
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.dense.convolution import Convolution
from hloipu_runtime.kernels.windows_geometry import WindowDimension
from hloipu_runtime.machine.charges import over
from hloipu_runtime.program.mapping import Sizes

Amounts = NDArray[np.int64]

FEATURE_GRAIN = 16
"""Features that the AMP makes at once (graphcore/poplibs: lib/poplin/PerformanceEstimation.hpp)."""

_DEPTH_GRAIN = 8
"""Input features that the AMP takes in at once, in f32."""

_LEAST_DEPTH = 16
"""Fewest products of a piece for each result: one group of input channels of the AMP in f16."""

_LEAST_TAPS = 8
"""Shortest kernel dimension that is cut: those of weight gradients are images."""

_STEPS_AN_OCTAVE = 6
"""Numbers of blocks that are tried between one and its double, above the first ones."""

_OCTAVE_CUTS = 3
"""Numbers of pieces between one and its double for which cuts along several dimensions are tried.
Assumed."""

_LEAST_OVERLAPS = 2
"""Cuts that are tried for each of these. Assumed."""

_LEAST_EVEN = 4
"""Fewest sizes of equal blocks with which others are not looked at."""


class Cut(NamedTuple):
    """What the sum is cut into."""

    parts: tuple[tuple[int, int], ...] = ()
    """As `Convolution.cuts`; empty: it is not cut."""
    counts: tuple[int, ...] = ()
    """Pieces along each."""

    @property
    def pieces(self) -> int:
        """Return into how many pieces the sum is cut."""
        return prod(self.counts)


def cuts_of(tiles: int, codelet: Convolution, image: Tensor, kernel: Tensor) -> Iterator[Cut]:
    """Yield ways to cut the sum, the whole first."""
    yield Cut()
    taps = prod(kernel.shape[d] for d in codelet.rhs[2:])
    depth = kernel.shape[codelet.rhs[0]] * taps
    most = min(tiles, depth // _LEAST_DEPTH)
    dimensions: list[tuple[int, int, Sequence[int]]] = []
    if codelet.feature_groups == 1:
        length = image.shape[codelet.lhs[1]]
        grain = _DEPTH_GRAIN if length >= 2 * _DEPTH_GRAIN else 1
        dimensions.append((0, length, even_blocks_of(length, grain)))
    for number, (window, back) in enumerate(zip(codelet.window, codelet.reversal, strict=True)):
        length = kernel.shape[codelet.rhs[2 + number]]
        if not back and length >= _LEAST_TAPS:
            grain = window[4] // gcd(window[4], window[5])
            parts = [part for part in even_blocks_of(length, grain) if part % grain == 0]
            dimensions.append((1 + number, length, parts))
    lists = [_pieces(*dimension, most) for dimension in dimensions]
    for cuts in lists:
        yield from cuts
    if len(lists) > 1 and any(cut.parts[0][0] for cuts in lists for cut in cuts):
        yield from _together(codelet, image, lists, most)


def _pieces(along: int, length: int, blocks: Sequence[int], most: int) -> list[Cut]:
    counts = [(part, over(length, part)) for part in blocks]
    return [Cut(((along, part),), (n,)) for part, n in counts if 1 < n <= most]


def _together(
    codelet: Convolution, image: Tensor, lists: Sequence[Sequence[Cut]], most: int
) -> Iterator[Cut]:
    """Yield cuts along several dimensions, for each number of pieces those that overlap least."""
    best: dict[int, list[tuple[float, Cut]]] = {}
    for chosen in product(*((Cut(), *cuts) for cuts in lists)):
        cut = Cut(*(tuple(chain.from_iterable(x)) for x in zip(*chosen, strict=True)))
        if len(cut.parts) < 2 or cut.pieces > most:
            continue
        overlap = prod(_overlap(codelet, image, *part) for part in cut.parts)
        best.setdefault(round(_OCTAVE_CUTS * log2(cut.pieces)), []).append((overlap, cut))
    for found in best.values():
        yield from (cut for _, cut in sorted(found)[:_LEAST_OVERLAPS])


def _overlap(codelet: Convolution, image: Tensor, along: int, part: int) -> float:
    """Return how much more of the image pieces along a dimension take than their own share."""
    if not along:
        return over(part, FEATURE_GRAIN) * FEATURE_GRAIN / part
    window = WindowDimension(*codelet.window[along - 1])
    reach = (window.output_size(image.shape[codelet.lhs[1 + along]]) - 1) * window.stride
    return ((part - 1) * window.window_dilation + reach + 1) / (part * window.window_dilation)


@lru_cache(1 << 12)
def blocks_of(size: int, grain: int) -> tuple[int, ...]:
    """Return block sizes, the largest first; multiples of the grain, and halves of it.

    Counts of blocks all differ.
    """
    blocks: list[int] = []
    count, units = 1, over(max(1, size), grain)
    while True:
        block = over(units, min(count, units)) * grain
        if not blocks or block != blocks[-1]:
            blocks.append(block)
        if count >= units:
            break
        count = max(count + 1, count + count // _STEPS_AN_OCTAVE)
    while blocks[-1] > 1:
        blocks.append(blocks[-1] // 2)
    return tuple(blocks)


@lru_cache(1 << 12)
def even_blocks_of(size: int, grain: int) -> tuple[int, ...]:
    """Return those of the block sizes that all blocks have, where there are some to choose from.

    Blocks of features alike: what is normalised in groups, or concatenated, keeps to its tiles.
    """
    every = blocks_of(size, grain)
    even = tuple(block for block in every if block and size % block == 0)
    return even if len(even) >= min(len(every), _LEAST_EVEN) else every


def blocks_of_labels(
    tiles: int, codelet: Convolution, sizes: Sizes, pieces: int
) -> tuple[Amounts, ...]:
    """Return block sizes for each label; array entries are candidates, on at most the tiles.

    `pieces`: into how many the sum is cut, counted by the first label, each on its own tiles.
    """
    label_blocks: list[Amounts] = []
    used = np.full(1, pieces)
    first = len(codelet.cuts)
    grouped = codelet.feature_groups * codelet.batch_groups > 1
    for label, size in enumerate(sizes):
        if label < first:
            choices = np.ones(1, np.int64)
            counts = choices
        else:
            grain = FEATURE_GRAIN if label == first and not grouped else 1
            listed = even_blocks_of(size, grain) if label == first else blocks_of(size, 1)
            if pieces * over(size, max(listed)) > tiles:
                # Even blocks of all features there may be none, and no tiles for more than one.
                listed = blocks_of(size, grain)
            choices = np.array(listed, np.int64)
            counts = -(-max(1, size) // choices)
        both = used[:, None] * counts[None, :]
        rows, columns = np.nonzero(both <= tiles)
        label_blocks = [x[rows] for x in label_blocks]
        label_blocks.append(np.minimum(choices, max(1, size))[columns])
        used = both[rows, columns]
    return tuple(label_blocks)


def part_sizes(
    indices: Sequence[Index], shape: Sizes, blocks: Sequence[Amounts]
) -> tuple[Amounts, ...]:
    """Return the sizes of the largest part of a tensor whose dimensions follow labels' blocks."""
    ones = np.ones_like(blocks[0]) if blocks else np.ones(1, np.int64)
    sizes = []
    for index, size in zip(indices, shape, strict=True):
        if index.label < 0:
            sizes.append(ones * size)
        else:
            reach = (blocks[index.label] - 1) * index.stride + index.window
            sizes.append(np.minimum(reach, size))
    return tuple(sizes)
