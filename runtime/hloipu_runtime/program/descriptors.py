"""Memoised questions of the proof about descriptors."""

from functools import lru_cache

import numpy as np

from hloipu_runtime.codelets.core.codelet import Codelet
from hloipu_runtime.codelets.core.tensors import Tensor
from hloipu_runtime.codelets.element_rules import element_fault
from hloipu_runtime.program.law import required_spans
from hloipu_runtime.program.mapping import Mapping, Sizes, Spans, Tiles, contains, covers, extent_of


@lru_cache(1 << 14)
def variable_faults(mapping: Mapping, shape: Sizes, tiles_per_ipu: int) -> tuple[str, ...]:
    """Return what is wrong with a mapping by itself."""
    faults = []
    tiles = mapping.tiles
    if len(mapping.spans) != len(shape):
        return ("has a mapping of another rank",)
    if len(tiles.strides) != len(tiles.extents) or min(tiles.extents, default=2) < 2:
        return ("has a grid with an axis of one tile",)
    if tiles.first < 0 or tiles.last >= tiles_per_ipu or min(tiles.strides, default=1) < 1:
        faults.append(f"lies on tiles {tiles.first} to {tiles.last} of {tiles_per_ipu}")
    if not _are_distinct(tiles):
        faults.append("has two grid coordinates on one tile")
    axes = [span.axis for span in mapping.spans if span.axis >= 0]
    if len(set(axes)) != len(axes) or any(axis >= len(tiles.extents) for axis in axes):
        return (*faults, "splits two dimensions along one grid axis")
    return tuple(faults)


def _are_distinct(tiles: Tiles) -> bool:
    """Whether no two coordinates have one tile: at once where each axis strides over the finer."""
    reach = 0
    for stride, extent in sorted(zip(tiles.strides, tiles.extents, strict=True)):
        if stride <= reach:
            return int(np.unique(tiles.numbers).size) == tiles.count
        reach += (extent - 1) * stride
    return True


@lru_cache(1 << 14)
def is_complete(mapping: Mapping, shape: Sizes) -> bool:
    """Whether every element lies on some tile."""
    return all(
        covers(mapping.tiles, span, size) for span, size in zip(mapping.spans, shape, strict=True)
    )


@lru_cache(1 << 14)
def _span_resident(mapping: Mapping, shape: Sizes, spans: Spans) -> str:
    if len(spans) != len(mapping.spans):
        return "is read with another rank"
    for dimension, (held, read_span) in enumerate(zip(mapping.spans, spans, strict=True)):
        if read_span.axis >= len(mapping.tiles.extents):
            return f"dimension {dimension} follows a grid axis that is not there"
        extent = max(extent_of(mapping.tiles, held), extent_of(mapping.tiles, read_span))
        if not contains(held, read_span, extent, shape[dimension]):
            return f"dimension {dimension} is read beyond the part on the tile"
    return ""


def residency_fault(mapping: Mapping, shape: Sizes, tiles: Tiles, spans: Spans) -> str:
    """Return why vertices on a grid do not find these parts on their tiles, or nothing."""
    if mapping.tiles != tiles:
        return "lies on other tiles than the vertices"
    return _span_resident(mapping, shape, spans)


@lru_cache(1 << 14)
def law_fault(
    codelet: Codelet,
    operands: tuple[Tensor, ...],
    results: tuple[Tensor, ...],
    read_spans: tuple[Spans, ...],
    written_spans: tuple[Spans, ...],
) -> str:
    """Return how operand parts differ from what the codelet's law asks for, or nothing."""
    indexing = codelet.indexing(operands, results)
    if len(indexing.operands) != len(operands) or len(indexing.results) != len(results):
        return f"{codelet.name} takes other operands"
    type_fault = element_fault(
        codelet,
        [tensor.element_type for tensor in operands],
        [tensor.element_type for tensor in results],
    )
    if type_fault:
        return f"{codelet.name} {type_fault}"
    needed = required_spans(
        indexing,
        written_spans,
        [tensor.shape for tensor in results],
        [tensor.shape for tensor in operands],
    )
    if isinstance(needed, str):
        return f"{codelet.name}: {needed}"
    for number, (have, need) in enumerate(zip(read_spans, needed, strict=True)):
        if have != need:
            return f"{codelet.name}: operand {number} is read in parts {have}, needed are {need}"
    return ""
