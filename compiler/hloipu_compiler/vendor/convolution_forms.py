"""Window and labels of library convolutions and of their gradients."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hloipu_compiler.formulas.call import Call
from hloipu_compiler.formulas.text import Value

_LABELS = re.compile(r"([a-z0-9]+)_([a-z0-9]+)->([a-z0-9]+)")
_PARTS = re.compile(r"([a-z_]+)=([0-9x_\-]+)")


@dataclass(frozen=True, slots=True)
class Labels:
    """Dimension labels of input, filter and output: b, f, i, o, or a number."""

    input: str
    filter: str
    output: str

    @property
    def text(self) -> str:
        """The labels as HLO writes them."""
        return f"{self.input}_{self.filter}->{self.output}"

    @property
    def spatial(self) -> str:
        """Labels of places, in order."""
        return "".join(sorted(c for c in self.input if c.isdigit()))


@dataclass(frozen=True, slots=True)
class Window:
    """Size, stride, padding on both sides and filter dilation of each spatial dimension."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    dilation: tuple[int, ...]
    is_reversed: bool = False
    """Whether the filter is read backwards."""
    spread: tuple[int, ...] = ()
    """The input's dilation."""

    @property
    def text(self) -> str:
        """The window as HLO writes it."""
        numbers_by_key = {"size": self.size, "stride": self.stride}
        parts = [f"{key}={'x'.join(map(str, numbers))}" for key, numbers in numbers_by_key.items()]
        parts.append(
            "pad=" + "x".join(f"{a}_{b}" for a, b in zip(self.low, self.high, strict=True))
        )
        if self.spread:
            parts.append(f"lhs_dilate={'x'.join(map(str, self.spread))}")
        parts.append(f"rhs_dilate={'x'.join(map(str, self.dilation))}")
        return f"window={{{' '.join(parts)}}}"


@dataclass(frozen=True, slots=True)
class Forward:
    """The forward convolution that a call speaks of, whichever of its three it computes."""

    call: Call
    labels: Labels
    window: Window
    groups: int


def forward_of(call: Call) -> Forward:
    """Return the forward convolution of a call."""
    match = _LABELS.fullmatch(str(call.attributes.get("dim_labels", "")).strip())
    if match is None:
        raise call.wrong("its dim_labels are missing")
    labels = Labels(*match.groups())
    plain = sorted(labels.input) == sorted(labels.output) == sorted("bf" + labels.spatial)
    call.need(plain and sorted(labels.filter) == sorted("io" + labels.spatial),
              f"its dim_labels {labels.text} are those of no convolution")  # fmt: skip
    if call.integer("batch_group_count", 1) != 1:
        raise call.unsupported("its batch is in groups", "write the convolution out in HLO")
    window = _window(call, str(call.attributes.get("window", "")), len(labels.spatial))
    groups = call.integer("feature_group_count", 1)
    call.need(groups > 0, f"its feature_group_count is {groups}")
    return Forward(call, labels, window, groups)


def _window(call: Call, text: str, rank: int) -> Window:
    parts: Mapping[str, str] = dict(_PARTS.findall(text))

    def numbers(key: str, default: int) -> tuple[int, ...]:
        values = tuple(int(n) for n in parts[key].split("x")) if key in parts else (default,) * rank
        call.need(len(values) == rank, f"its window's {key} has no {rank} dimensions")
        return values

    call.need(rank == 0 or "size" in parts, "its window is missing")
    pads = (
        [pad.split("_") for pad in parts["pad"].split("x")]
        if "pad" in parts
        else [["0", "0"]] * rank
    )
    call.need(
        len(pads) == rank and all(len(pad) == 2 for pad in pads), "its window's pad does not fit"
    )
    turned = set(numbers("rhs_reversal", 0))
    if set(numbers("lhs_dilate", 1)) - {1} or len(turned) > 1:
        raise call.unsupported(
            "its input is dilated, or its filter turned in part", "write the convolution out in HLO"
        )
    low, high = (tuple(int(pad[side]) for pad in pads) for side in (0, 1))
    return Window(numbers("size", 1), numbers("stride", 1), low, high, numbers("rhs_dilate", 1),
                  turned == {1})  # fmt: skip


def sizes_at(x: Value, labels: str, wanted: str) -> tuple[int, ...]:
    """Return the sizes of some dimensions of an array, by their labels."""
    return tuple(x.dims[labels.index(c)] for c in wanted)


def turned_filter(forward: Forward, x: Value) -> Value:
    """Return a filter with its places in the other order."""
    labels = forward.labels
    dims = [labels.filter.index(c) for c in labels.spatial]
    attributes = f"dimensions={{{','.join(map(str, dims))}}}"
    return x.text.add("reverse", x.kind, x.dims, x.name, attributes) if dims else x


def convolved(forward: Forward, x: Value, kernel: Value, kind: str, dims: Sequence[int]) -> Value:
    """Return the forward convolution."""
    kernel = turned_filter(forward, kernel) if forward.window.is_reversed else kernel
    return _written(x, kernel, kind, dims, forward.window, forward.labels,
                    f"feature_group_count={forward.groups}")  # fmt: skip


def _written(
    x: Value, kernel: Value, kind: str, dims: Sequence[int], window: Window, labels: Labels,
    groups: str,
) -> Value:  # fmt: skip
    attributes = f"{window.text}, dim_labels={labels.text}, {groups}"
    if not labels.spatial:
        attributes = f"dim_labels={labels.text}, {groups}"
    return x.text.add("convolution", kind, dims, f"{x.name}, {kernel.name}", attributes)


def gradient_of_input(
    forward: Forward, gradient: Value, kernel: Value, kind: str, dims: Sequence[int]
) -> Value:
    """Return the gradient of a convolution's input: strides become dilations, filters turn."""
    call, labels, window, groups = forward.call, forward.labels, forward.window, forward.groups
    kernel = kernel if window.is_reversed else turned_filter(forward, kernel)
    i, o = labels.filter.index("i"), labels.filter.index("o")
    call.need(kernel.dims[o] % groups == 0, "its filter's outputs are not a multiple of its groups")
    if groups > 1:
        kernel = _outputs_to_inputs(kernel, i, o, groups)
    sizes = [dims[labels.input.index(c)] for c in labels.spatial]
    outs = sizes_at(gradient, labels.output, labels.spatial)
    reach = [d * (k - 1) for d, k in zip(window.dilation, window.size, strict=True)]
    low = [r - a for r, a in zip(reach, window.low, strict=True)]
    high = [
        n - (m - 1) * s - 1 - a + r
        for n, m, s, a, r in zip(sizes, outs, window.stride, low, reach, strict=True)
    ]
    ones = (1,) * len(sizes)
    back = Window(window.size, ones, tuple(low), tuple(high), window.dilation, spread=window.stride)
    swapped = labels.filter.translate(str.maketrans("io", "oi"))
    return _written(gradient, kernel, kind, dims, back,
                    Labels(labels.output, swapped, labels.input),
                    f"feature_group_count={groups}")  # fmt: skip


def _outputs_to_inputs(kernel: Value, i: int, o: int, groups: int) -> Value:
    """Return a filter of groups with each group's outputs where its inputs were."""
    dims = list(kernel.dims)
    split = [*dims[:o], groups, dims[o] // groups, *dims[o + 1 :]]
    split_kernel = kernel.reshaped(split)
    order = [d for d in range(len(split)) if d != o]
    at = i if i < o else i + 1
    order.insert(order.index(at), o)
    merged = dims.copy()
    merged[i], merged[o] = groups * dims[i], dims[o] // groups
    return split_kernel.transposed(order).reshaped(merged)


def gradient_of_filter(
    forward: Forward, x: Value, gradient: Value, kind: str, dims: Sequence[int]
) -> Value:
    """Return the gradient of a convolution's filter: samples are summed as features are."""
    labels, window = forward.labels, forward.window
    sizes = sizes_at(x, labels.input, labels.spatial)
    outs = sizes_at(gradient, labels.output, labels.spatial)
    high = [
        (k - 1) * d + (m - 1) * s + 1 - n - a
        for k, d, m, s, n, a in zip(
            window.size, window.dilation, outs, window.stride, sizes, window.low, strict=True
        )
    ]
    back = Window(outs, window.dilation, window.low, tuple(high), window.stride)
    swapped = Labels(
        labels.input.translate(str.maketrans("bf", "fb")),
        labels.output.translate(str.maketrans("bf", "io")),
        labels.filter.translate(str.maketrans("io", "bf")),
    )
    filter_gradient = _written(
        x, gradient, kind, dims, back, swapped, f"batch_group_count={forward.groups}"
    )
    return turned_filter(forward, filter_gradient) if window.is_reversed else filter_gradient
