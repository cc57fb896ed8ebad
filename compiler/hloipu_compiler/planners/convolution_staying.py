"""Grids of a convolution on which its image lies already, but for what windows reach beyond."""

from collections.abc import Sequence

from hloipu_compiler.planners.convolution_prices import Spread
from hloipu_compiler.planners.placing import Placement
from hloipu_runtime.codelets.core.codelet import Tensor
from hloipu_runtime.machine.charges import over
from hloipu_runtime.program.mapping import Mapping, Span


def staying(
    spreads: Sequence[Spread], operands: tuple[Tensor, Tensor], lying: Mapping
) -> list[tuple[Spread, Placement]]:
    """Return the grids that cut images and positions where the image is cut already.

    A grid axis along which the image's features are cut cuts the result's features instead, or the
    sum along the features of the image, which then stay.
    """
    if lying.replicated_axes or not lying.is_partition:
        return []
    placements = []
    for spread in spreads:
        labels = _labels(spread, operands[0], lying)
        if labels is not None:
            placements.append((spread, Placement(lying.tiles, tuple(sorted(labels)))))
    return placements


def _labels(spread: Spread, image: Tensor, lying: Mapping) -> list[tuple[int, Span]] | None:
    """Return the part of each label that follows the image's parts; None where there is none."""
    indexing, codelet = spread.indexing, spread.codelet
    first = 1 if spread.cut.part else 0
    labels: dict[int, Span] = {}
    for d, span in enumerate(lying.spans):
        if span.axis < 0:
            continue
        extent = lying.tiles.extents[span.axis]
        label = indexing.operands[0][d].label
        if label < 0 and d == codelet.lhs[1] and codelet.feature_groups == 1:
            label = first
        if label < 0 or label in labels:
            return None
        size = indexing.sizes[label]
        block = over(size, extent)
        if over(size, max(1, block)) != extent:
            return None
        labels[label] = Span(span.axis, block, 0, block)
    if first and 0 not in labels:
        return None
    return list(labels.items())
