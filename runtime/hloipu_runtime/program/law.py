"""The law of a codelet: the parts of operands that a part of the results needs."""

from collections.abc import Sequence

from hloipu_runtime.codelets.core.codelet import Index, Indexing
from hloipu_runtime.program.mapping import Sizes, Span, Spans, whole


def span_of(index: Index, label_spans: dict[int, Span], size: int) -> Span:
    """Return the part of a dimension that follows an index, from the label's own part."""
    along = label_spans.get(index.label) if index.label >= 0 else None
    if along is None or along.axis < 0:
        return whole(size)
    _, stride, shift, window = index
    if stride == window == 1 and not shift:
        return along
    axis, step, offset, count = along
    return Span(axis, step * stride, offset * stride + shift, (count - 1) * stride + window)


def label_span(index: Index, span: Span) -> Span | None:
    """Return the label's part behind a dimension's part; None where there is no such part."""
    axis, step, offset, size = span
    if step % index.stride or (offset - index.offset) % index.stride:
        return None
    if size < index.window or (size - index.window) % index.stride:
        return None
    count = (size - index.window) // index.stride + 1
    return Span(axis, step // index.stride, (offset - index.offset) // index.stride, count)


def required_spans(
    indexing: Indexing,
    results: Sequence[Spans],
    result_shapes: Sequence[Sizes],
    operand_shapes: Sequence[Sizes],
) -> list[Spans] | str:
    """Return what a vertex needs of each operand for its parts of the results, or what is wrong."""
    label_spans: dict[int, Span] = {}
    for number, (indices, spans) in enumerate(zip(indexing.results, results, strict=True)):
        for dimension, (index, span) in enumerate(zip(indices, spans, strict=True)):
            place = f"dimension {dimension} of result {number}"
            if span.axis < 0:
                if span != whole(result_shapes[number][dimension]):
                    return f"{place} is cut to {span.size} elements on every tile"
                continue
            if index.label < 0:
                return f"{place} is split over tiles, which this codelet cannot do"
            along = label_span(index, span)
            if along is None or label_spans.setdefault(index.label, along) != along:
                return f"{place} is split differently from what it is computed with"
    for indices, spans in zip(indexing.results, results, strict=True):
        for index, span in zip(indices, spans, strict=True):
            if span.axis < 0 and index.label in label_spans:
                return f"index {index.label} is split in one result and whole in another"
    return [
        tuple(span_of(index, label_spans, size) for index, size in zip(indices, shape, strict=True))
        for indices, shape in zip(indexing.operands, operand_shapes, strict=True)
    ]
