"""Group norms, with their statistics and gradients.

A group's mean is at place (sample, group), flattened. With `strided_channel_grouping` channel c is
in group c mod G, else in group c div (C / G) (graphcore/poplibs: lib/popnn/GroupNorm.cpp).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hloipu_compiler.formulas.call import Call, formula
from hloipu_compiler.formulas.text import Value


@dataclass(frozen=True, slots=True)
class _Groups:
    """An array as samples x groups x channels of a group x places, in f32."""

    call: Call
    feature: int
    samples: int
    groups: int
    channels: int
    places: int
    strided: bool

    @property
    def dims(self) -> tuple[int, int, int, int]:
        return (self.samples, self.groups, self.channels, self.places)

    def grouped_array(self, x: Value) -> Value:
        order = [0, self.feature, *(d for d in range(1, x.rank) if d != self.feature)]
        flat = x.wide().transposed(order)
        if not self.strided:
            return flat.reshaped(self.dims)
        parts = (self.samples, self.channels, self.groups, self.places)
        return flat.reshaped(parts).transposed((0, 2, 1, 3))

    def ungrouped_array(self, x: Value, like: Value) -> Value:
        """Return an array in groups in its own shape and type."""
        order = [0, self.feature, *(d for d in range(1, like.rank) if d != self.feature)]
        if self.strided:
            x = x.transposed((0, 2, 1, 3))
        x = x.reshaped([like.dims[d] for d in order])
        return x.transposed([order.index(d) for d in range(like.rank)]).converted(like.kind)

    def of_groups(self, x: Value) -> Value:
        count = self.samples * self.groups
        self.call.need(x.dims == (count,), f"its statistics are to be {count} numbers")
        return x.wide().reshaped((self.samples, self.groups)).broadcast(self.dims, (0, 1))

    def of_channels(self, x: Value) -> Value:
        count = self.groups * self.channels
        self.call.need(x.dims == (count,), f"its scale and offset are to be {count} numbers")
        x = x.wide()
        if self.strided:
            x = x.reshaped((self.channels, self.groups)).transposed((1, 0))
            return x.broadcast(self.dims, (1, 2))
        return x.reshaped((self.groups, self.channels)).broadcast(self.dims, (1, 2))

    def summed(self, x: Value, like: Value) -> Value:
        total = x.reduced("add", [0, 3])
        total = total.transposed((1, 0)) if self.strided else total
        return total.reshaped(like.dims).converted(like.kind)

    def mean(self, x: Value) -> Value:
        """Return the mean over each group of each sample, spread."""
        return (self._sum(x) / (self.channels * self.places)).broadcast(self.dims, (0, 1))

    def _sum(self, x: Value) -> Value:
        return x.reduced("add", [2, 3])

    def statistics(self, x: Value, epsilon: float) -> tuple[Value, Value]:
        """Return means and inverse standard deviations, spread."""
        mean = self.mean(x)
        centred = x - mean
        return mean, (self.mean(centred * centred) + epsilon).unary("rsqrt")

    def listed(self, x: Value, kind: str) -> Value:
        one_of_each_group = x.sliced(2, 0, 1).sliced(3, 0, 1)
        return one_of_each_group.reshaped((self.samples * self.groups,)).converted(kind)


def _groups(call: Call, x: Value) -> _Groups:
    call.need(x.rank > 1, "its operand has no channels")
    feature = call.axis("feature_index", x.rank)
    call.need(feature > 0, "feature_index 0 is that of the samples")
    count = call.integer("num_groups")
    channels = x.dims[feature]
    call.need(count > 0 and channels % count == 0, f"{channels} channels are not {count} groups")
    places = 1
    for d, size in enumerate(x.dims):
        places *= size if d not in (0, feature) else 1
    strided = call.flag("strided_channel_grouping", default=False)
    return _Groups(call, feature, x.dims[0], count, channels // count, places, strided)


@formula("GroupNormTraining")
def _training(call: Call) -> Sequence[Value]:
    x, scale, offset = call.takes(3)
    groups = _groups(call, x)
    grouped = groups.grouped_array(x)
    mean, inverse = groups.statistics(grouped, call.number("epsilon"))
    normalised = (grouped - mean) * inverse * groups.of_channels(scale) + groups.of_channels(offset)
    kinds = [kind for kind, _ in call.results[1:]] or ["f32", "f32"]
    return [
        groups.ungrouped_array(normalised, x), groups.listed(mean, kinds[0]),
        groups.listed(inverse, kinds[-1]),
    ]  # fmt: skip


@formula("GroupNormInference")
def _inference(call: Call) -> Sequence[Value]:
    x, scale, offset, mean, inverse = call.takes(5)
    groups = _groups(call, x)
    normalised = (groups.grouped_array(x) - groups.of_groups(mean)) * groups.of_groups(inverse)
    normalised = normalised * groups.of_channels(scale) + groups.of_channels(offset)
    return [groups.ungrouped_array(normalised, x)]


@formula("GroupNormStatistics")
def _statistics(call: Call) -> Sequence[Value]:
    x = call.operands[0] if call.operands else call.takes(1)[0]
    groups = _groups(call, x)
    mean, inverse = groups.statistics(groups.grouped_array(x), call.number("epsilon"))
    kinds = [kind for kind, _ in call.results] or ["f32"]
    return [groups.listed(mean, kinds[0]), groups.listed(inverse, kinds[-1])]


@formula("GroupNormGrad")
def _gradient(call: Call) -> Sequence[Value]:
    """Dx = inverse (scale dy - mean(scale dy) - white mean(scale dy white)), and sums of dy."""
    x, scale, mean, inverse, gradient = call.takes(5)
    call.need(x.dims == gradient.dims, "its operands differ in shape")
    groups = _groups(call, x)
    inverse = groups.of_groups(inverse)
    white = (groups.grouped_array(x) - groups.of_groups(mean)) * inverse
    grouped = groups.grouped_array(gradient)
    scaled = grouped * groups.of_channels(scale)
    operand_gradient = inverse * (
        scaled - groups.mean(scaled) - white * groups.mean(scaled * white)
    )
    return [
        groups.ungrouped_array(operand_gradient, x), groups.summed(grouped * white, scale),
        groups.summed(grouped, scale),
    ]  # fmt: skip


@formula("BatchNormStatistics")
def _batch_statistics(call: Call) -> Sequence[Value]:
    """Mean and variance of each channel over all samples and places."""
    (x,) = call.takes(1)
    feature = call.axis("feature_index", x.rank)
    reduced_dims = [d for d in range(x.rank) if d != feature]
    count = 1
    for d in reduced_dims:
        count *= x.dims[d]
    wide = x.wide()
    mean = wide.reduced("add", reduced_dims) / count
    centred = wide - mean.broadcast(x.dims, [feature])
    variance = (centred * centred).reduced("add", reduced_dims) / count
    kinds = [kind for kind, _ in call.results] or ["f32"]
    return [mean.converted(kinds[0]), variance.converted(kinds[-1])]
