"""Convolution: any labels, groups and dilations, whole or with input features cut into pieces."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import ClassVar

import numpy as np

from hloipu_runtime.codelets.codelet import (
    ALL,
    Array,
    Block,
    Codelet,
    Index,
    Indexing,
    Sizes,
    Tensor,
    codelet,
)
from hloipu_runtime.codelets.convolution_costs import ConvolutionShape, convolution_work
from hloipu_runtime.codelets.grids import pair, piece_runs, repeat, split
from hloipu_runtime.codelets.windows import Window, part_window, window_label
from hloipu_runtime.kernels.convolution import (
    ConvolutionDimensions,
    ConvolutionWindow,
    convolution,
)
from hloipu_runtime.kernels.windows_geometry import WindowDimension
from hloipu_runtime.machine.costs import TileWork
from hloipu_runtime.machine.model import Machine


@codelet
@dataclass(frozen=True)
class Convolution(Codelet):
    """Convolves an image with a kernel.

    Batch elements, output features and output positions may be split, and groups instead of output
    features where there are several. With `part` the input features, of one group, are cut into
    pieces of that many, and the result has a leading dimension that counts the pieces.
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
    part: int = 0

    def indexing(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Indexing:
        """Return labels: pieces, batch, features or groups, and the positions of windows."""
        image, kernel = operands
        pieces = 1 if self.part else 0
        left, right = [ALL] * len(image.shape), [ALL] * len(kernel.shape)
        result = [ALL] * len(results[0].shape)
        shape = results[0].shape[pieces:]
        sizes: list[int] = list(results[0].shape[:pieces])
        if self.part:
            left[self.lhs[1]] = right[self.rhs[0]] = Index(0, self.part, 0, self.part)
            result[0] = Index(0)
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
            if found and w.size:
                left[source], result[pieces + target] = found.operand, found.result
                sizes.append(found.size)
        return Indexing(tuple(sizes), (tuple(left), tuple(right)), (tuple(result),))

    def run(self, operands: Sequence[Block], results: Sequence[Block]) -> list[Array]:
        """Convolve; what tiles share is one convolution's image or kernel."""
        image, kernel = operands
        result = results[0]
        window = self._part_window(image, kernel, result)
        lhs, rhs, varies = pair(image, kernel)
        axes = tuple(has for has in varies if any(has))
        if self.part:
            made = self._pieces(lhs, rhs, axes, window)
        else:
            made = convolution(
                lhs,
                rhs,
                self._dimensions,
                window,
                self.element_type,
                *self._groups(image.part, kernel.part, result.part),
                varies=axes,
            )
        return [repeat(made, varies, (*result.grid, *result.part))]

    def _pieces(
        self, lhs: Array, rhs: Array, axes: tuple[tuple[bool, bool], ...], window: ConvolutionWindow
    ) -> Array:
        """Convolve piece by piece, the short last one apart; pieces come right after the grid."""
        left, right = (sum(has[side] for has in axes) for side in (0, 1))
        of_lhs, of_rhs = left + self.lhs[1], right + self.rhs[0]
        made = [
            convolution(
                np.moveaxis(split(lhs, of_lhs, *run), of_lhs, left),
                np.moveaxis(split(rhs, of_rhs, *run), of_rhs, right),
                self._dimensions,
                window,
                self.element_type,
                varies=(*axes, (True, True)),
            )
            for run in piece_runs(lhs.shape[of_lhs], self.part)
        ]
        return made[0] if len(made) == 1 else np.concatenate(made, axis=len(axes))

    def work(
        self, machine: Machine, operands: Sequence[Tensor], results: Sequence[Tensor]
    ) -> TileWork:
        """Return the work of a tile's groups, each by the cheapest vertex."""
        image, kernel = operands
        pieces = 1 if self.part else 0
        made = results[0].shape[pieces:]
        groups = prod(self._groups(image.shape, kernel.shape, made))
        in_features = kernel.shape[self.rhs[0]]
        rows = made[self.out[0]] * prod(made[d] for d in self.out[2:-1])
        row = made[self.out[-1]] if len(self.out) > 2 else 1
        taps = [-(-w.size // w.base_dilation) for w in self._with_sizes(kernel.shape)]
        shape = ConvolutionShape(
            groups * (results[0].shape[0] if self.part else 1),
            rows,
            row,
            min(in_features, self.part or in_features),
            kernel.shape[self.rhs[1]] // max(1, groups),
            tuple(taps),
            self.window[-1][1] if self.window else 1,
        )
        types = (image.element_type, kernel.element_type)
        return convolution_work(machine, shape, types, results[0].element_type)

    @cached_property
    def _dimensions(self) -> ConvolutionDimensions:
        return ConvolutionDimensions(
            self.lhs[0], self.lhs[1], self.lhs[2:],
            self.rhs[0], self.rhs[1], self.rhs[2:],
            self.out[0], self.out[1], self.out[2:],
        )  # fmt: skip

    def _with_sizes(self, kernel: Sizes) -> list[WindowDimension]:
        """Return the window with the kernel's sizes."""
        sizes = [kernel[d] for d in self.rhs[2:]]
        return [
            WindowDimension(size, *fields[1:])
            for size, fields in zip(sizes, self.window, strict=True)
        ]

    def _groups(self, image: Sizes, kernel: Sizes, result: Sizes) -> tuple[int, int]:
        """Return how many feature groups and batch groups a tile has."""
        features, batches = self.feature_groups, self.batch_groups
        if features > 1 and kernel[self.rhs[0]]:
            features = image[self.lhs[1]] // kernel[self.rhs[0]]
        if batches > 1 and result[self.out[0]]:
            batches = image[self.lhs[0]] // result[self.out[0]]
        return features, batches

    def _part_window(self, image: Block, kernel: Block, result: Block) -> ConvolutionWindow:
        """Return the window that makes a tile's results from its part of the image."""
        pieces = 1 if self.part else 0
        parts = [
            part_window(w, image, result, self.lhs[2 + number], pieces + self.out[2 + number])
            for number, w in enumerate(self._with_sizes(kernel.part))
        ]
        return ConvolutionWindow(
            tuple(w.stride for w in parts),
            tuple((w.pad_low, w.pad_high) for w in parts),
            tuple(w.base_dilation for w in parts),
            tuple(w.window_dilation for w in parts),
            self.reversal,
        )
