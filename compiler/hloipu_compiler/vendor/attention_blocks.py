"""Attention in blocks of queries, so that long sequences never have all scores at once.

A block has all keys, so that its softmax is whole; gradients of keys and values add up from block
to block. Short sequences are one block, without a loop.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hloipu_compiler.formulas.random_numbers import fraction, numbered_bits
from hloipu_compiler.formulas.text import Loop, Step, Value
from hloipu_compiler.vendor.attention import Attention, Gradients, backward
from hloipu_compiler.vendor.attention_masks import Mask, taken_rows

MOST_SCORES = 2**24
"""Scores of one block: 64 MB of f32, a part of the 900 MB that one IPU has."""
_STREAM = 2**32
"""Places of a seed's stream from one block to the next; a block takes fewer."""


@dataclass(frozen=True, slots=True)
class BlockedAttention:
    """Attention of all queries [batch, queries, heads, size]; see `Attention` for the others."""

    q: Value
    k: Value
    v: Value
    mask: Mask
    scale: float
    bias: Value | None = None
    bias_is_scaled: bool = False
    sink: Value | None = None
    seed: Value | None = None
    """u32[2], for dropout."""
    share: float = 1.0
    """Of probabilities that dropout leaves."""

    @property
    def arrays(self) -> tuple[Value, ...]:
        """Data that it depends on."""
        optional_arrays = tuple(
            array for array in (self.bias, self.sink, self.seed) if array is not None
        )
        return (self.q, self.k, self.v, *optional_arrays, *self.mask.arrays())

    def of(self, arrays: Sequence[Value]) -> "BlockedAttention":
        """Return the same attention of data in other places."""
        remaining = iter(arrays)
        q, k, v = next(remaining), next(remaining), next(remaining)
        bias, sink, seed = (
            None if optional is None else next(remaining)
            for optional in (self.bias, self.sink, self.seed)
        )
        mask = self.mask.of(tuple(remaining))
        return replace(self, q=q, k=k, v=v, bias=bias, sink=sink, seed=seed, mask=mask)

    @property
    def cut(self) -> tuple[int, int]:
        """Number of full blocks, and queries in each."""
        batch, queries, heads, _ = self.q.dims
        most = max(1, MOST_SCORES // (batch * heads * self.mask.keys))
        if queries <= most:
            return 1, queries
        rows = math.ceil(queries / math.ceil(queries / most))
        return queries // rows, rows

    def rows(self, number: Value, first: Value, count: int) -> Attention:
        """Return the attention of so many queries from one on, in the block of a number."""
        rows = first.text.iota("s32", (count,), 0)
        if count != self.q.dims[1]:
            rows = rows + first
        bias = self.bias
        if bias is not None and bias.dims[2] > 1:
            bias = taken_rows(bias, rows, 2)
        attention = Attention(
            taken_rows(self.q, rows, 1), self.k, self.v, self.scale, self.mask.visible(rows),
            self.mask.is_empty_for_some, bias, self.bias_is_scaled, self.sink, share=self.share,
        )  # fmt: skip
        if self.seed is None:
            return attention
        place = number.converted("u64").reshaped((1,)) * float(_STREAM)
        bits = numbered_bits(self.seed, math.prod(attention.dims), place)
        return replace(
            attention,
            dropout_mask=fraction(bits).compared("LT", self.share).reshaped(attention.dims),
        )


class _Forward(Step):
    """Carries what the attention depends on, its result and its statistics."""

    def __init__(self, attention: BlockedAttention, count: int, size: int) -> None:
        self.attention, self.count, self.size = attention, count, size
        """Queries of a block, and of each before it."""

    def __call__(self, iteration: Value, carried: Sequence[Value]) -> Sequence[Value]:
        *arrays, results, statistics = carried
        first = iteration * float(self.size)
        part, numbers = self.attention.of(arrays).rows(iteration, first, self.count).forward()
        return [
            *arrays,
            with_rows(results, part, first, 1),
            with_rows(statistics, numbers, first, 2),
        ]


def forward_in_blocks(attention: BlockedAttention) -> tuple[Value, Value]:
    """Return the result, and statistics f32[batch, heads, queries]."""
    text = attention.q.text
    batch, queries, heads, _ = attention.q.dims
    iterations, size = attention.cut
    if size == queries:
        zero = text.number("s32", 0)
        return attention.rows(zero, zero, queries).forward()
    results = text.full(attention.q.kind, (batch, queries, heads, attention.v.dims[3]), 0)
    wide = "f64" if attention.q.kind == "f64" else "f32"
    carried = [*attention.arrays, results, text.full(wide, (batch, heads, queries), 0)]
    carried = Loop(text, iterations).run(carried, _Forward(attention, size, size))
    if queries % size:
        last = _Forward(attention, queries % size, size)
        carried = list(last(text.number("s32", iterations), carried))
    return carried[-2], carried[-1]


@dataclass(frozen=True, slots=True)
class GradientInputs:
    """Inputs of a gradient besides the attention's own operands."""

    gradient: Value
    """Of the result, and like it."""
    result: Value | None = None
    statistics: Value | None = None
    """[batch, heads, queries]."""
    probabilities: Value | None = None
    """[batch, heads, queries, keys]; where there are no statistics."""

    @property
    def arrays(self) -> tuple[Value, ...]:
        """The values."""
        optional = (self.gradient, self.result, self.statistics, self.probabilities)
        return tuple(array for array in optional if array is not None)

    def of(self, arrays: Sequence[Value]) -> "GradientInputs":
        """Return the same in other places."""
        remaining = iter(arrays)
        gradient = next(remaining)
        parts = (self.result, self.statistics, self.probabilities)
        return GradientInputs(
            gradient, *(None if part is None else next(remaining) for part in parts)
        )

    def rows(self, first: Value, count: int) -> "GradientInputs":
        """Return the part of so many queries."""
        rows = first.text.iota("s32", (count,), 0)
        if count != self.gradient.dims[1]:
            rows = rows + first
        places = zip((self.result, self.statistics, self.probabilities), (1, 2, 2), strict=True)
        parts = (None if part is None else taken_rows(part, rows, d) for part, d in places)
        return GradientInputs(taken_rows(self.gradient, rows, 1), *parts)

    def gradients(self, part: Attention) -> Gradients:
        """Return the gradients of a part with these rows."""
        if self.statistics is not None:
            probabilities = part.again(self.statistics)
        elif self.probabilities is not None:
            batch, groups, rows, heads_per_group, keys = part.dims
            probabilities = self.probabilities.wide().reshaped(
                (batch, groups, heads_per_group, rows, keys)
            )
            probabilities = probabilities.transposed((0, 1, 3, 2, 4))
        else:
            probabilities = part.probabilities()
        return backward(part, probabilities, self.result, self.gradient, self.statistics)


class _Backward(Step):
    """Carries operands and sums: of queries and biases by rows, of keys and values attention."""

    def __init__(
        self, attention: BlockedAttention, inputs: GradientInputs, count: int, size: int
    ) -> None:
        self.attention, self.inputs, self.count, self.size = attention, inputs, count, size

    def __call__(self, iteration: Value, carried: Sequence[Value]) -> Sequence[Value]:
        middle = len(self.attention.arrays)
        end = middle + len(self.inputs.arrays)
        first = iteration * float(self.size)
        part = self.attention.of(carried[:middle]).rows(iteration, first, self.count)
        block = self.inputs.of(carried[middle:end]).rows(first, self.count).gradients(part)
        dq, dk, dv, *later_sums = carried[end:]
        sums = [with_rows(dq, block.q, first, 1), dk + block.k, dv + block.v]
        if block.bias is not None:
            bias_sum = later_sums.pop(0)
            by_rows = bias_sum.dims[2] > 1
            sums.append(
                with_rows(bias_sum, block.bias, first, 2) if by_rows else bias_sum + block.bias
            )
        if block.sink is not None:
            sums.append(later_sums.pop(0) + block.sink)
        return [*carried[:end], *sums]


def backward_in_blocks(attention: BlockedAttention, inputs: GradientInputs) -> Gradients:
    """Return the gradients of attention."""
    text = attention.q.text
    queries = attention.q.dims[1]
    iterations, size = attention.cut
    zero = text.number("s32", 0)
    if size == queries:
        return inputs.gradients(attention.rows(zero, zero, queries))
    wide = "f64" if attention.q.kind == "f64" else "f32"
    sums = [text.full(attention.q.kind, attention.q.dims, 0)]
    sums += [text.full(wide, optional.dims, 0) for optional in (attention.k, attention.v)]
    has_sink = attention.sink is not None and inputs.statistics is not None
    optionals = (attention.bias, attention.sink if has_sink else None)
    sums += [text.full(wide, optional.dims, 0) for optional in optionals if optional is not None]
    carried = [*attention.arrays, *inputs.arrays, *sums]
    carried = Loop(text, iterations).run(carried, _Backward(attention, inputs, size, size))
    if queries % size:
        last = _Backward(attention, inputs, queries % size, size)
        carried = list(last(text.number("s32", iterations), carried))
    dq, dk, dv, *more = carried[len(attention.arrays) + len(inputs.arrays) :]
    bias, sink = (None if optional is None else more.pop(0) for optional in optionals)
    return Gradients(dq, dk, dv, bias, sink)


def with_rows(array: Value, part: Value, first: Value, dimension: int) -> Value:
    """Return an array with consecutive rows replaced."""
    zero = array.text.number("s32", 0)
    starts = ", ".join(first.name if d == dimension else zero.name for d in range(array.rank))
    operands = f"{array.name}, {part.name}, {starts}"
    return array.text.add("dynamic-update-slice", array.kind, array.dims, operands)
