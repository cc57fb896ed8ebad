"""Rewrites gathers whose constant places are equally far apart as slices.

    g = f32[2,98,400] gather(x, places)      places[i,j] = 160 i + j

Frames of a signal, one each `step` elements, are put together from as many pieces as steps that a
frame is long: `step` elements of each frame are one slice of the signal in another shape. The last
piece of the last frame may end behind the signal; what is there is not in the frame.
"""

from math import prod
from typing import Any, NamedTuple

import numpy as np

from hloipu_compiler.ir.attributes import Attributes, SliceRange
from hloipu_compiler.ir.graph import Instruction
from hloipu_compiler.ir.shapes import ArrayShape
from hloipu_compiler.passes.algebra.expand_bitcasts import plain, transposed
from hloipu_compiler.passes.algebra.movement import became, static
from hloipu_compiler.passes.framework.constant_values import constant_array
from hloipu_compiler.passes.framework.rewriting import Draft
from hloipu_runtime.program.mapping import Sizes

_MOST_PIECES = 16
"""Of a frame: each is an op. Assumed."""
_LEAST_RUN_BYTES = 32
"""Of a frame, in a piece: exchanges move shorter ones one by one. Assumed."""


class _Frames(NamedTuple):
    """`number` frames of `length` elements that follow each other, `step` apart."""

    first: int
    number: int
    step: int
    length: int
    dimensions: tuple[int, ...]
    """Of the places: those of frames and of elements, unless there is one of either."""


def framed(draft: Draft, op: Instruction) -> Instruction | None:
    """Return a gather along one dimension, of frames at constant places, as slices."""
    read = op.attributes.integers
    source, shape = static(draft.shape(op.operands[0])), static(op.shape)
    along, sizes = read("start_index_map"), read("slice_sizes")
    if source is None or shape is None or len(along) != 1 or "sharding" in op.attributes:
        return None
    (d,) = along
    wanted = tuple(1 if e == d else n for e, n in enumerate(source.dimensions))
    if read("operand_batching_dims") or read("collapsed_slice_dims") != along or sizes != wanted:
        return None
    vector = op.attributes.integer("index_vector_dim")
    frames = _frames(draft.made[op.operands[1]], vector, source.dimensions[d])
    if frames is None:
        return None
    pieces = -(-frames.length // frames.step)
    run_bytes = frames.step * prod(sizes[d + 1 :]) * source.element_type.bits // 8
    if pieces > 1 and (pieces > _MOST_PIECES or run_bytes < _LEAST_RUN_BYTES):
        return None
    return _in_order(draft, op, _cut(draft, op, source, d, frames), d, frames)


def _frames(places: Instruction, vector: int, size: int) -> _Frames | None:
    """Return the frames that constant places are, inside a dimension of some size."""
    values = constant_array(places) if places.opcode == "constant" else None
    if values is None or values.size < 2:
        return None
    if vector < values.ndim:
        values = values.squeeze(vector)
    values = values.astype(np.int64)
    moving = [d for d, n in enumerate(values.shape) if n > 1]
    steps = [int(np.take(values, 1, d).flat[0] - values.flat[0]) for d in moving]
    counted: Any = np.full(values.shape, values.flat[0])
    for d, step in zip(moving, steps, strict=True):
        along = [-1 if e == d else 1 for e in range(values.ndim)]
        counted = counted + (step * np.arange(values.shape[d])).reshape(along)
    if len(moving) > 2 or min(steps) < 1 or not np.array_equal(counted, values):
        return None
    if values.min() < 0 or values.max() >= size:
        return None
    first, lengths = int(values.flat[0]), [values.shape[d] for d in moving]
    if len(moving) == 1:
        if steps[0] == 1:
            return _Frames(first, 1, lengths[0], lengths[0], tuple(moving))
        return _Frames(first, lengths[0], steps[0], 1, tuple(moving))
    if 1 not in steps:
        return None
    inner = min((n for n in (0, 1) if steps[n] == 1), key=lengths.__getitem__)
    outer = 1 - inner
    return _Frames(first, lengths[outer], steps[outer], lengths[inner],
                   (moving[outer], moving[inner]))  # fmt: skip


def _cut(draft: Draft, op: Instruction, source: ArrayShape, d: int, frames: _Frames) -> int:
    """Append frames: two dimensions in the place of the one along which they are cut."""
    first, count, step, length, _ = frames
    kind, sizes = source.element_type, source.dimensions

    def sized(*new: int) -> Sizes:
        return (*sizes[:d], *new, *sizes[d + 1 :])

    if length == 1:
        every = [SliceRange(0, n) for n in sizes]
        every[d] = SliceRange(first, first + (count - 1) * step + 1, step)
        how = Attributes({"slice": tuple(every)})
        taken = draft.add(op, "slice", plain(kind, sized(count)), op.operands[:1], how)
        return draft.add(op, "reshape", plain(kind, sized(count, 1)), (taken,))
    pieces = -(-length // step)
    needed, there = (count + pieces - 1) * step, sizes[d] - first

    def cut(at: int, low: int, high: int, dimension: int = d) -> int:
        before = static(draft.shape(at))
        assert before is not None
        if (low, high) == (0, before.dimensions[dimension]):
            return at
        ranges = [SliceRange(0, n) for n in before.dimensions]
        ranges[dimension] = SliceRange(low, high)
        shape = tuple(x.limit - x.start for x in ranges)
        return draft.add(op, "slice", plain(kind, shape), (at,),
                         Attributes({"slice": tuple(ranges)}))  # fmt: skip

    signal = cut(op.operands[0], first, first + min(needed, there))
    if needed > there:
        both = (signal, cut(op.operands[0], 0, needed - there))
        along = Attributes({"dimensions": (d,)})
        signal = draft.add(op, "concatenate", plain(kind, sized(needed)), both, along)
    parts = []
    for k in range(pieces):
        line = cut(signal, k * step, (k + count) * step)
        rows = draft.add(op, "reshape", plain(kind, sized(count, step)), (line,))
        parts.append(cut(rows, 0, min(step, length - k * step), d + 1))
    if pieces == 1:
        return parts[0]
    along = Attributes({"dimensions": (d + 1,)})
    return draft.add(op, "concatenate", plain(kind, sized(count, length)), tuple(parts), along)


def _in_order(draft: Draft, op: Instruction, framed: int, d: int, frames: _Frames) -> Instruction:
    """Return frames with dimensions in the order that the gather has them in."""
    shape, before = static(op.shape), static(draft.shape(framed))
    assert shape is not None
    assert before is not None
    offsets = op.attributes.integers("offset_dims")
    rest = iter([e for e in range(before.rank) if e not in (d, d + 1)])
    both = {frames.dimensions[0]: d, frames.dimensions[-1]: d + 1}
    if len(frames.dimensions) == 1:
        both = {frames.dimensions[0]: d if frames.number > 1 else d + 1}
    batch = iter([both.get(n) for n in range(shape.rank - len(offsets))])
    order = [next(rest) if e in offsets else next(batch) for e in range(shape.rank)]
    kept = [e for e in order if e is not None]
    kept += [e for e in (d, d + 1) if e not in kept]  # of one element
    at = transposed(draft, op, framed, before, tuple(kept))
    return became(op, "reshape", (at,))
