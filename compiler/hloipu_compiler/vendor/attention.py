"""Attention and its gradient, for queries of several heads to a head of keys.

softmax(scale q k + bias) v, with statistics log(sum(exp)) of each query's scores, from which the
gradient computes the probabilities again (Dao et al. 2022, "FlashAttention", arXiv 2205.14135).
Scores, sums and statistics are f32; products take operands of the queries' own type.
"""

from dataclasses import dataclass

from hloipu_compiler.formulas.text import Value

_HIDDEN = -1e30
"""Score of a key that is not seen, where exp gives 0; finite, for queries that see none."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Some queries [batch, rows, heads, size] of keys and values [batch, keys, groups, size]."""

    q: Value
    k: Value
    v: Value
    scale: float
    visible: Value | None = None
    """Truth values [1 or batch, rows, keys]."""
    may_see_nothing: bool = False
    bias: Value | None = None
    """[1 or batch, 1 or heads, 1 or rows, 1 or keys]."""
    bias_is_scaled: bool = False
    sink: Value | None = None
    """f32[heads]: a score that takes part in the sum and has no value (arXiv 2309.17453)."""
    dropout_mask: Value | None = None
    """Truth values like scores: probabilities that dropout leaves."""
    share: float = 1.0
    """Of probabilities that dropout leaves."""

    @property
    def groups(self) -> int:
        """Heads of keys."""
        return self.k.dims[2]

    @property
    def heads_per_group(self) -> int:
        """Heads of queries to one of keys."""
        return self.q.dims[2] // self.groups

    @property
    def dims(self) -> tuple[int, ...]:
        """Sizes of scores: batch, groups, rows, heads of a group, keys."""
        return (self.q.dims[0], self.groups, self.q.dims[1], self.heads_per_group, self.k.dims[1])

    def grouped(self, x: Value) -> Value:
        """Return [batch, rows, heads, size] with its heads in groups."""
        return x.reshaped((*x.dims[:2], self.groups, self.heads_per_group, x.dims[3]))

    # -- scores ------------------------------------------------------------------------------------

    def scores(self) -> Value:
        """Return f32 scores; those that are not seen are very low."""
        scores = self.grouped(self.q).dot(self.k, ((4,), (3,)), ((0, 2), (0, 2)), self.wide)
        if self.bias is not None and self.bias_is_scaled:
            scores = (scores + self._spread_bias(self.bias)) * self.scale
        else:
            scores = scores if self.scale == 1 else scores * self.scale
            scores = scores if self.bias is None else scores + self._spread_bias(self.bias)
        visible = self.spread_mask()
        return scores if visible is None else visible.select(scores, _HIDDEN, scores)

    @property
    def wide(self) -> str:
        """Element type of scores."""
        return "f64" if self.q.kind == "f64" else "f32"

    def spread_mask(self) -> Value | None:
        """Return which scores are seen, as large as they are."""
        if self.visible is None:
            return None
        if self.visible.dims[0] == 1:
            return self.visible.reshaped(self.visible.dims[1:]).broadcast(self.dims, (2, 4))
        return self.visible.broadcast(self.dims, (0, 2, 4))

    def of_rows(self, x: Value) -> Value:
        """Return a number of each query [batch, groups, rows, heads of a group], spread."""
        return x.broadcast(self.dims, (0, 1, 2, 3))

    def without_unseen(self, x: Value) -> Value:
        """Return an array like scores with 0 where a query without keys would leave more."""
        visible = self.spread_mask()
        return x if visible is None or not self.may_see_nothing else visible.select(x, 0.0, x)

    def _spread_bias(self, bias: Value) -> Value:
        batch, heads, rows, keys = bias.dims
        split = (self.groups, self.heads_per_group) if heads > 1 else (1, 1)
        parts = bias.wide().reshaped((batch, *split, rows, keys)).transposed((0, 1, 3, 2, 4))
        along = [d for d, n in enumerate(parts.dims) if n > 1 or self.dims[d] == 1]
        return parts.reshaped([parts.dims[d] for d in along]).broadcast(self.dims, along)

    def _spread_sink(self, sink: Value) -> Value:
        return sink.reshaped((self.groups, self.heads_per_group)).broadcast(self.dims[:4], (1, 3))

    def dropped(self, x: Value) -> Value:
        """Return an array like scores with what dropout leaves, larger by what it takes."""
        return (
            x
            if self.dropout_mask is None
            else self.dropout_mask.select(x * (1 / self.share), 0.0, x)
        )

    # -- forward -----------------------------------------------------------------------------------

    def forward(self) -> tuple[Value, Value]:
        """Return the result [batch, rows, heads, size], and statistics f32[batch, heads, rows]."""
        scores = self.scores()
        most = scores.reduced("maximum", [4], float("-inf"))
        sink = None if self.sink is None else self._spread_sink(self.sink)
        if sink is not None:
            most = most.binary("maximum", sink)
        powers = self.without_unseen((scores - self.of_rows(most)).unary("exponential"))
        total = powers.reduced("add", [4])
        if sink is not None:
            total = total + (sink - most).unary("exponential")
        statistics = most + total.unary("log")
        if self.may_see_nothing and sink is None:
            sees = total.compared("GT", 0.0)
            total = sees.select(total, 1.0, total)
            statistics = sees.select(statistics, 0.0, statistics)
        narrow = self.dropped(powers).converted(self.v.kind)
        result = narrow.dot(self.v, ((4,), (1,)), ((0, 1), (0, 2)), self.wide)
        result = result / total.broadcast(result.dims, (0, 1, 2, 3))
        return self._ungrouped(result).converted(self.q.kind), self.as_statistics(statistics)

    def _ungrouped(self, x: Value) -> Value:
        """Return [batch, groups, rows, heads of a group, size] as [batch, rows, heads, size]."""
        batch, groups, rows, heads_per_group, size = x.dims
        return x.transposed((0, 2, 1, 3, 4)).reshaped((batch, rows, groups * heads_per_group, size))

    def as_statistics(self, x: Value) -> Value:
        """Return [batch, groups, rows, heads of a group] as [batch, heads, rows]."""
        batch, groups, rows, heads_per_group = x.dims
        return x.transposed((0, 1, 3, 2)).reshaped((batch, groups * heads_per_group, rows))

    def from_statistics(self, x: Value) -> Value:
        """Return [batch, heads, rows] as [batch, groups, rows, heads of a group]."""
        batch, groups, rows, heads_per_group, _ = self.dims
        return x.reshaped((batch, groups, heads_per_group, rows)).transposed((0, 1, 3, 2))

    def probabilities(self) -> Value:
        """Return the softmax, before dropout."""
        scores = self.scores()
        most = scores.reduced("maximum", [4], float("-inf"))
        powers = self.without_unseen((scores - self.of_rows(most)).unary("exponential"))
        total = powers.reduced("add", [4])
        if self.may_see_nothing:
            total = total.compared("GT", 0.0).select(total, 1.0, total)
        return powers / self.of_rows(total)

    def again(self, statistics: Value) -> Value:
        """Return the probabilities of statistics [batch, heads, rows]."""
        shifted = self.scores() - self.of_rows(self.from_statistics(statistics))
        return self.without_unseen(shifted.unary("exponential"))


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients of attention: of queries in their own type, of the others in the scores' type."""

    q: Value
    k: Value
    v: Value
    bias: Value | None
    sink: Value | None


def backward(
    attention: Attention, probabilities: Value, result: Value | None, gradient: Value,
    statistics: Value | None = None,
) -> Gradients:  # fmt: skip
    """Return the gradients of some queries' attention.

    `result`: what it gave; None: the mean gradient is computed from the probabilities.
    `statistics` [batch, heads, rows]: needed for a sink.
    """
    kind, wide = attention.q.kind, attention.wide
    outer = attention.grouped(gradient)
    dropped = attention.dropped(probabilities).converted(kind)
    dv = dropped.dot(outer, ((2, 3), (1, 3)), ((0, 1), (0, 2)), wide)
    arriving = attention.dropped(outer.dot(attention.v, ((4,), (3,)), ((0, 2), (0, 2)), wide))
    if result is None:
        mean = (probabilities * arriving).reduced("add", [4])
    else:
        both = attention.grouped(gradient.converted(wide) * result.converted(wide))
        mean = both.reduced("add", [4]).transposed((0, 2, 1, 3))
    ds = probabilities * (arriving - attention.of_rows(mean))
    narrow = (ds if attention.scale == 1 else ds * attention.scale).converted(kind)
    dq = narrow.dot(attention.k, ((4,), (1,)), ((0, 1), (0, 2)), wide)
    dk = narrow.dot(attention.grouped(attention.q), ((2, 3), (1, 3)), ((0, 1), (0, 2)), wide)
    return Gradients(
        attention._ungrouped(dq).converted(kind),
        dk.transposed((0, 2, 1, 3)), dv.transposed((0, 2, 1, 3)),
        _of_bias(attention, ds), _of_sink(attention, mean, statistics),
    )  # fmt: skip


def _of_bias(attention: Attention, ds: Value) -> Value | None:
    """Return the gradient of a bias: sums over what it was spread along."""
    if attention.bias is None:
        return None
    batch, heads, rows, keys = attention.bias.dims
    split = (attention.groups, attention.heads_per_group) if heads > 1 else (1, 1)
    sizes = (batch, split[0], rows, split[1], keys)
    over = [d for d, n in enumerate(sizes) if n == 1 and attention.dims[d] > 1]
    gradient = ds if not attention.bias_is_scaled else ds * attention.scale
    if over:
        gradient = gradient.reduced("add", over)
    return gradient.reshaped(sizes).transposed((0, 1, 3, 2, 4)).reshaped(attention.bias.dims)


def _of_sink(attention: Attention, mean: Value, statistics: Value | None) -> Value | None:
    """Return the gradient of a sink, whose value is 0: its probability times the mean."""
    if attention.sink is None or statistics is None:
        return None
    shift = attention._spread_sink(attention.sink) - attention.from_statistics(statistics)
    gradient = -(shift.unary("exponential") * mean).reduced("add", [0, 2])
    return gradient.reshaped(attention.sink.dims)
