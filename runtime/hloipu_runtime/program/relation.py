"""Relation of a transfer's two ends, one dimension at a time.

A transfer sees its source in another shape. Where dimensions are merged or split by that, they are
taken together as one linear dimension, if parts at both ends are ranges of it.
"""

from functools import lru_cache
from math import prod
from typing import NamedTuple

from hloipu_runtime.program.mapping import Box, Sizes, Span, Spans, whole


class Along(NamedTuple):
    """One dimension of a transfer, counted in the source's elements."""

    size: int
    receiver: Span
    own_low: int
    own_high: int
    """All of the receivers' dimension; their parts are cut off there."""
    low: int
    high: int
    """What is transferred of it."""
    sender: Span | None
    """None: the senders' parts are no ranges of this dimension."""


class MixedPart(NamedTuple):
    """A sender's part of reshaped dimensions that is no range of them."""

    elements: int
    step: int
    """Elements from one sender's part to the next one's, in row-major order."""
    row: int
    """Elements after which that begins anew."""
    innermost: int
    """Place in `Relation.along` of the last of the dimensions at the receiver."""

    def pieces(self, run: int) -> int:
        """Return from how many parts a run of elements is put together at most."""
        return min(run, 1 - (-(run - 1) // self.step) - (-(run - 1) // self.row))


class Relation(NamedTuple):
    """All dimensions of a transfer, outermost first."""

    along: tuple[Along, ...]
    mixed: tuple[MixedPart, ...]
    """Of the dimensions without `sender`."""


@lru_cache(1 << 14)
def relate(
    shape: Sizes,
    spans: Spans,
    box: Box,
    shift: Sizes,
    view: Sizes,
    source_shape: Sizes,
    source_spans: Spans,
) -> Relation:
    """Return the relation of a destination's parts to a source's; no dimension is empty."""
    same = view == source_shape
    every = [
        Along(
            view[d],
            Span(axis, step, offset + shift[d], size) if shift[d] else span,
            shift[d],
            shape[d] + shift[d],
            box[d][0] + shift[d],
            box[d][1] + shift[d],
            source_spans[d] if same else whole(view[d]),
        )
        for d, span in enumerate(spans)
        for axis, step, offset, size in (span,)
    ]
    if same:
        return Relation(tuple(every), ())
    along: list[Along] = []
    mixed: list[MixedPart] = []
    place = 0
    for targets, sources in dimension_groups(view, source_shape):
        along += every[place : targets[0]]
        place = targets[-1] + 1
        group = every[targets[0] : place]
        sent = [(source_spans[d], source_shape[d]) for d in sources]
        if not any(has_parts(span, size) for span, size in sent):
            along += group
            continue
        sender, merged = _linear_span(sent), _merged(group)
        if sender is not None and merged is not None:
            along.append(merged._replace(sender=sender))
            continue
        along += [a._replace(sender=None) for a in group]
        part = _mixed_part(sent, len(along) - 1)
        inside = prod(a.high - a.low for a in group)
        mixed.append(part._replace(elements=min(part.elements, inside)))
    along += every[place:]
    return Relation(tuple(along), tuple(mixed))


Held = list[tuple[Span, int]]
"""A sender's parts of some dimensions, and the dimensions' sizes."""


def has_parts(span: Span, size: int) -> bool:
    """Whether a tile may have less than the whole dimension."""
    return span.axis >= 0 or span.offset > 0 or span.offset + span.size < size


def dimension_groups(view: Sizes, shape: Sizes) -> list[tuple[list[int], list[int]]]:
    """Return the smallest runs of dimensions of two shapes that have equally many elements.

    Dimensions of one element are left out.
    """
    left = [d for d, left_size in enumerate(view) if left_size != 1]
    right = [d for d, left_size in enumerate(shape) if left_size != 1]
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        left_dims, right_dims = [left[i]], [right[j]]
        left_size, right_size = view[left[i]], shape[right[j]]
        while left_size != right_size:
            if left_size < right_size:
                i += 1
                left_dims.append(left[i])
                left_size *= view[left[i]]
            else:
                j += 1
                right_dims.append(right[j])
                right_size *= shape[right[j]]
        groups.append((left_dims, right_dims))
        i, j = i + 1, j + 1
    return groups


def _linear_span(spans_and_sizes: Held) -> Span | None:
    """Return parts of dimensions as ranges of their row-major order; None where they are none."""
    if any(has_parts(span, size) for span, size in spans_and_sizes[1:]):
        return None
    inner = prod(size for _, size in spans_and_sizes[1:])
    axis, step, offset, size = spans_and_sizes[0][0]
    return Span(axis, step * inner, offset * inner, size * inner)


def _merged(group: list[Along]) -> Along | None:
    """Return a receiver's dimensions as one; None where its parts are not ranges of it."""
    first, inner_dims = group[0], group[1:]
    for a in inner_dims:
        if (a.own_low, a.own_high, a.low, a.high) != (0, a.size, 0, a.size):
            return None
        if has_parts(a.receiver, a.size):
            return None
    inner = prod(a.size for a in inner_dims)
    axis, step, offset, size = first.receiver
    return Along(
        first.size * inner,
        Span(axis, step * inner, offset * inner, size * inner),
        first.own_low * inner,
        first.own_high * inner,
        first.low * inner,
        first.high * inner,
        None,
    )


def _mixed_part(spans_and_sizes: Held, innermost: int) -> MixedPart:
    """Return what a sender has of dimensions of which at least one is cut."""
    elements = prod(min(span.size, size) for span, size in spans_and_sizes)
    inner = 1
    for span, size in reversed(spans_and_sizes):
        if has_parts(span, size):
            break
        inner *= size
    step = span.step if span.axis >= 0 and span.step > 0 else size
    return MixedPart(elements, step * inner, size * inner, innermost)
