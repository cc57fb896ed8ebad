"""Convolution: any labels, groups and dilations, whole or with what is summed cut into pieces."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import gcd, prod
from typing import ClassVar, NamedTuple

import numpy as np

from hloipu_runtime.codelets.core.codelet import ALL, Codelet, Index, Indexing, codelet
from hloipu_runtime.codelets.core.grids import moved, pair, piece_runs, repeat, split
from hloipu_runtime.codelets.core.placing import first_start
from hloipu_runtime.codelets.core.tensors import Array, Block, Blocks, Bound, Sizes, Tensors
from hloipu_runtime.codelets.costs.convolution import (
    ConvolutionShape,
    convolution_table_bytes,
    convolution_work,
)
from hloipu_runtime.codelets.ops.reduce import Reduce
from hloipu_runtime.codelets.ops.windows import Window, part_window, window_label
from hloipu_runtime.kernels.contractions.convolution import (
    ConvolutionDimensions,
    ConvolutionWindow,
    convolution,
)
from hloipu_runtime.kernels.contractions.convolution_leading import Varies
from hloipu_runtime.kernels.windows_geometry import WindowDimension
from hloipu_runtime.machine.charges import Amount, over
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine


@codelet
class Convolution(Codelet):
    """Convolves an image with a kernel.

    Batch elements, output features and output positions may be split, and groups instead of output
    features where there are several. With `cuts` what is summed over is cut into pieces, and the
    result has leading dimensions that count them: input features, without feature groups, and the
    kernel along spatial dimensions, without reversal, where pieces begin at the image's elements.
    """

    name: ClassVar[str] = "convolution"
    lhs: tuple[int, ...]
    """Dimensions of the image: batch, feature, spatial ones in order."""
    rhs: tuple[int, ...]
    """Dimensions of the kernel: input feature, output feature, spatial ones in order."""
    out: tuple[int, ...]
    """Dimensions of the result, pieces left out: batch, feature, spatial ones in order."""
    window: Window
    """For each spatial dimension."""
    reversal: tuple[bool, ...]
    element_type: str
    feature_groups: int = 1
    batch_groups: int = 1
    cuts: tuple[tuple[int, int], ...] = ()
    """What is cut, and the elements of a piece: 0 the input features, 1 the kernel's first spatial
    dimension, and so on. The result has a leading dimension for each, in this order."""

    def indexing(self, operands: Tensors, results: Tensors) -> Indexing:
        """Return labels: pieces, batch, features or groups, and the positions of windows."""
        image, kernel = operands
        pieces = len(self.cuts)
        left, right = [ALL] * len(image.shape), [ALL] * len(kernel.shape)
        result = [ALL] * len(results[0].shape)
        shape = results[0].shape[pieces:]
        sizes: list[int] = list(results[0].shape[:pieces])
        for label, (along, part) in enumerate(self.cuts):
            right[self._cut_of_kernel(along)] = Index(label, part, 0, part)
            result[label] = Index(label)
            left[self.lhs[along + 1]] = self._cut_of_image(label, along, part, shape)
        groups = self.feature_groups * self.batch_groups
        features = Index(len(sizes))
        sizes.append(groups if groups > 1 else shape[self.out[1]])
        if groups > 1:
            each = shape[self.out[1]] // groups
            features = Index(len(sizes) - 1, each, 0, each)
            grouped = self.lhs[1] if self.feature_groups > 1 else self.lhs[0]
            each = image.shape[grouped] // groups
            left[grouped] = Index(len(sizes) - 1, each, 0, each)
        right[self.rhs[1]] = result[pieces + self.out[1]] = features
        if self.batch_groups == 1:
            left[self.lhs[0]] = result[pieces + self.out[0]] = Index(len(sizes))
            sizes.append(shape[self.out[0]])
        for number, w in enumerate(self._with_sizes(kernel.shape)):
            source, target = self.lhs[2 + number], self.out[2 + number]
            found = window_label(len(sizes), w, image.shape[source], shape[target])
            if any(along == number + 1 for along, _ in self.cuts):
                continue
            if found and w.size:
                left[source], result[pieces + target] = found.operand, found.result
                sizes.append(found.size)
        return Indexing(tuple(sizes), (tuple(left), tuple(right)), (tuple(result),))

    def run(self, operands: Blocks, results: Blocks) -> list[Array]:
        """Convolve; what tiles share is one convolution's image or kernel."""
        run = self.bound(operands, results)
        return list(run([block.data for block in operands], [block.array for block in results]))

    def bound(self, operands: Blocks, results: Blocks) -> Bound:
        """Return `run`, windows and groups of the parts worked out once."""
        image, kernel = operands
        result = results[0]
        pieces = len(self.cuts)
        window = [
            part_window(w, image, result, self.lhs[2 + number], pieces + self.out[2 + number])
            for number, w in enumerate(self._with_sizes(kernel.part))
        ]
        groups = self._whole_groups(image, kernel, result.part[pieces:])
        varies = pair(image, kernel).varies if result.grid else ()
        tiles = _Tiles(tuple(has for has in varies if any(has)), groups, window)
        windows = {
            along: self._piece_windows(along, part, (image, kernel, result), window[along - 1])
            for along, part in self.cuts
            if along
        }
        left, right = (tuple(slice(None) if has[n] else 0 for has in varies) for n in (0, 1))
        shape = (*result.grid, *result.part)

        def run(arrays: Sequence[Array], outs: Sequence[Array | None]) -> list[Array]:
            lhs, rhs = arrays[0][left], arrays[1][right]
            return [repeat(self._in_pieces(lhs, rhs, tiles, windows, self.cuts), varies, shape)]

        return run

    def _in_pieces(
        self,
        lhs: Array,
        rhs: Array,
        tiles: "_Tiles",
        windows: dict[int, list[WindowDimension]],
        cuts: tuple[tuple[int, int], ...],
    ) -> Array:
        """Convolve parts on a grid; a dimension for each cut comes right after the grid."""
        if not cuts:
            return self._convolved(lhs, rhs, tiles)
        (along, part), *others = cuts
        if along:
            return self._window_pieces(lhs, rhs, tiles, windows, cuts)
        left, right = (sum(has[side] for has in tiles.axes) for side in (0, 1))
        of_lhs, of_rhs = left + self.lhs[1], right + self.rhs[0]
        together = tiles._replace(axes=(*tiles.axes, (True, True)))
        # The short last piece is convolved apart.
        made = [
            self._in_pieces(
                moved(split(lhs, of_lhs, *run), of_lhs, left),
                moved(split(rhs, of_rhs, *run), of_rhs, right),
                together,
                windows,
                tuple(others),
            )
            for run in piece_runs(lhs.shape[of_lhs], part)
        ]
        return made[0] if len(made) == 1 else np.concatenate(made, axis=len(tiles.axes))

    def _convolved(self, lhs: Array, rhs: Array, tiles: "_Tiles") -> Array:
        window = ConvolutionWindow(
            tuple(w.stride for w in tiles.window),
            tuple((w.pad_low, w.pad_high) for w in tiles.window),
            tuple(w.base_dilation for w in tiles.window),
            tuple(w.window_dilation for w in tiles.window),
            self.reversal,
        )
        return convolution(
            lhs, rhs, self._dimensions, window, self.element_type, *tiles.groups, varies=tiles.axes
        )

    def _window_pieces(
        self,
        lhs: Array,
        rhs: Array,
        tiles: "_Tiles",
        windows: dict[int, list[WindowDimension]],
        cuts: tuple[tuple[int, int], ...],
    ) -> Array:
        """Convolve the same image with one piece of the kernel after the other."""
        along = cuts[0][0]
        of_rhs = sum(right for _, right in tiles.axes) + self._cut_of_kernel(along)
        made, start = [], 0
        for here in windows[along]:
            taps = rhs[(slice(None),) * of_rhs + (slice(start, start + here.size),)]
            window = [*tiles.window]
            window[along - 1] = here
            of_piece = tiles._replace(window=window)
            made.append(self._in_pieces(lhs, taps, of_piece, windows, cuts[1:]))
            start += here.size
        return np.stack(made, axis=len(tiles.axes))

    def _piece_windows(
        self, along: int, part: int, blocks: tuple[Block, Block, Block], w: WindowDimension
    ) -> list[WindowDimension]:
        image, kernel, result = blocks
        of_image, of_kernel = self.lhs[along + 1], self._cut_of_kernel(along)
        outputs = result.part[len(self.cuts) + self.out[along + 1]]
        pad_low = self.window[along - 1][2]
        found = []
        for start in range(0, kernel.part[of_kernel], part):
            size = min(part, kernel.part[of_kernel] - start)
            before = (first_start(kernel, of_kernel) + start) * w.window_dilation - pad_low
            low = first_start(image, of_image) * w.base_dilation - before
            needed = (outputs - 1) * w.stride + (size - 1) * w.window_dilation + 1
            dilated = (image.part[of_image] - 1) * w.base_dilation + 1
            high = needed - low - dilated
            found.append(replace(w, size=size, pad_low=low, pad_high=high))
        return found

    def zero_ends(self, operand: int) -> Sizes:
        """Let zeros stand for padding, and beyond the last of the input features, but of groups."""
        if self.feature_groups * self.batch_groups > 1:
            return self.lhs[2:] if operand == 0 else ()
        return self.lhs[1:] if operand == 0 else self.rhs[:1]

    def ignores(self, unused: Sequence[Sequence[bool]]) -> bool:
        """Let results be computed that nobody reads, but add no such terms, nor split groups."""
        needed = [self.lhs[1:], (self.rhs[0], *self.rhs[2:])]
        if self.feature_groups * self.batch_groups > 1:
            needed = [self.lhs, self.rhs]
        return not any(
            ends[d] for ends, dimensions in zip(unused, needed, strict=False) for d in dimensions
        )

    def combined_with(
        self, combine: Codelet, others: Sequence[Array | None]
    ) -> tuple[Codelet, int] | None:
        """Return the convolution without pieces, where they are added to a zero."""
        if not self.cuts or not isinstance(combine, Reduce) or len(others) != 1:
            return None
        pieces = tuple(range(len(self.cuts)))
        if combine.monoid != "add" or combine.dimensions != pieces or combine.parts:
            return None
        if others[0] is None or np.any(others[0]):
            return None
        if self.element_type == "f16":
            return None  # each piece is rounded; of wider sums only the order differs
        return replace(self, cuts=(), element_type=combine.element_types[0]), 0

    def work(self, machine: Machine, operands: Tensors, results: Tensors) -> TileWork:
        """Return the work of a tile's groups, each by the cheapest vertex."""
        image, kernel = operands
        shape = self.tile_shape(image.shape, kernel.shape, results[0].shape)
        types = (image.element_type, kernel.element_type)
        # Pieces of f16 are partial sums as the unit keeps them; a whole result is rounded to it.
        half = bool(self.cuts) and self.element_type == "f16"
        return convolution_work(machine, shape, types, results[0].element_type, half_partials=half)

    @property
    def code_kind(self) -> str:
        """That of a product, where the kernel has one position."""
        return "product" if all(w[0] == 1 for w in self.window) else "windows"

    def table_bytes(self, machine: Machine, operands: Tensors, results: Tensors) -> int:
        """Return the bytes of the tables of a convolution by the AMP unit, in the smaller form."""
        image, kernel = operands
        shape = self.tile_shape(image.shape, kernel.shape, results[0].shape)
        types = (image.element_type, kernel.element_type)
        return int(convolution_table_bytes(machine, shape, types))

    def tile_shape(
        self, image: Sequence[Amount], kernel: Sequence[Amount], result: Sequence[Amount]
    ) -> ConvolutionShape:
        """Return what a tile with such parts of operands and result convolves.

        Sizes may be arrays, each entry the parts of another tile.
        """
        pieces = len(self.cuts)
        made = result[pieces:]
        features, batches = self._groups(image, kernel, made)
        groups = features * batches
        taps: list[Amount] = [kernel[d] for d in self.rhs[2:]]
        in_features = kernel[self.rhs[0]]
        for along, part in self.cuts:
            if along:
                taps[along - 1] = _least(taps[along - 1], part)
            else:
                in_features = _least(in_features, part)
        # Of positions between which dilation puts zeros every so many meet an element.
        apart = [w[4] // gcd(w[4], w[1]) for w in self.window]
        positions = [over(made[d], n) for d, n in zip(self.out[2:], apart, strict=True)]
        return ConvolutionShape(
            groups * prod(result[:pieces]),
            made[self.out[0]] * prod(positions[:-1]),
            positions[-1] if positions else 1,
            in_features,
            kernel[self.rhs[1]] // _most(1, groups),
            tuple(taps),
            self.window[-1][1] if self.window else 1,
            made[self.out[0]],
            prod(apart),
        )

    @cached_property
    def _dimensions(self) -> ConvolutionDimensions:
        return ConvolutionDimensions(
            self.lhs[0], self.lhs[1], self.lhs[2:],
            self.rhs[0], self.rhs[1], self.rhs[2:],
            self.out[0], self.out[1], self.out[2:],
        )  # fmt: skip

    def _with_sizes(self, kernel: Sizes) -> list[WindowDimension]:
        sizes = [kernel[d] for d in self.rhs[2:]]
        return [
            WindowDimension(size, *fields[1:])
            for size, fields in zip(sizes, self.window, strict=True)
        ]

    def _whole_groups(self, image: Block, kernel: Block, made: Sizes) -> tuple[int, int]:
        features, batches = self._groups(image.part, kernel.part, made)
        return int(features), int(batches)

    def _groups(
        self, image: Sequence[Amount], kernel: Sequence[Amount], result: Sequence[Amount]
    ) -> tuple[Amount, Amount]:
        features: Amount = self.feature_groups
        batches: Amount = self.batch_groups
        if self.feature_groups > 1 and np.all(kernel[self.rhs[0]]):
            features = image[self.lhs[1]] // kernel[self.rhs[0]]
        if self.batch_groups > 1 and np.all(result[self.out[0]]):
            batches = image[self.lhs[0]] // result[self.out[0]]
        return features, batches

    def _cut_of_kernel(self, along: int) -> int:
        return self.rhs[along + 1] if along else self.rhs[0]

    def _cut_of_image(self, label: int, along: int, part: int, result: Sizes) -> Index:
        """Return what of the image's dimension that goes with it a piece needs."""
        if not along:
            return Index(label, part, 0, part)
        _, stride, pad_low, _, base, dilation = self.window[along - 1]
        outputs = result[self.out[along + 1]]
        reach = (part - 1) * dilation + (outputs - 1) * stride
        first, last = -(pad_low // base), (reach - pad_low) // base
        return Index(label, part * dilation // base, first, max(1, last - first + 1))


def _least(a: Amount, b: Amount) -> Amount:
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else np.minimum(a, b)


def _most(a: Amount, b: Amount) -> Amount:
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else np.maximum(a, b)


class _Tiles(NamedTuple):
    """What the tiles of a class have in common."""

    axes: Varies
    """Grid axes, and which operands vary along them."""
    groups: tuple[int, int]
    window: list[WindowDimension]
