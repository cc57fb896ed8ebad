"""Image preprocessing, and convolutions with rotated kernels."""

import re
from collections.abc import Sequence

from hloipu_compiler.formulas.call import Call, formula
from hloipu_compiler.formulas.text import Value


@formula("NormaliseImage")
def _normalised(call: Call) -> Sequence[Value]:
    """(x scale - offset[c]) scales[c], and a fourth channel of zeros beside three."""
    x, offsets, scales = call.takes(3)
    kind, dims = call.results[0]
    call.need(x.rank > 0 and offsets.dims == scales.dims == x.dims[-1:],
              "it takes images, and an offset and a factor for each channel")  # fmt: skip
    last = x.rank - 1
    wide = x.converted("f32") * call.number("scale")
    normalised = (wide - offsets.wide().broadcast(x.dims, [last])) * scales.wide().broadcast(
        x.dims, [last]
    )
    more = dims[-1] - x.dims[-1] if len(dims) == x.rank else 0
    if more > 0:
        normalised = normalised.padded([0] * x.rank, [*[0] * last, more], [0] * x.rank)
    return [normalised.converted(kind)]


_LABELS = re.compile(r"([0-9bf]+)_([0-9io]+)->([0-9bf]+)")


@formula("ConvWithReverse")
def _reversed_convolution(call: Call) -> Sequence[Value]:
    """Return a convolution with the kernel reversed in space; its labels are as they are."""
    x, kernel = call.takes(2)
    labels = _LABELS.fullmatch(str(call.attributes.get("dim_labels", "")))
    if labels is None:
        raise call.wrong("its attribute dim_labels is missing")
    places = labels.group(2)
    space = [d for d, label in enumerate(places) if label.isdecimal()]
    turned = call.text.add(
        "reverse", kernel.kind, kernel.dims, kernel.name,
        f"dimensions={{{','.join(map(str, space))}}}",
    )  # fmt: skip
    attributes = [f"dim_labels={labels.group()}"]
    for key in ("window", "feature_group_count", "batch_group_count"):
        if call.has(key):
            attributes.append(f"{key}={call.attributes[key]}")
    operands = f"{x.name}, {turned.name}"
    kind, dims = call.results[0]
    return [call.text.add("convolution", kind, dims, operands, ", ".join(attributes))]


@formula("WeightsTransposeChansFlipXY")
def _turned_weights(call: Call) -> Sequence[Value]:
    """Return a kernel reversed in space, its features turned round."""
    (kernel,) = call.takes(1)
    places = _LABELS.fullmatch(str(call.attributes.get("dim_labels", "")))
    if places is None:
        raise call.unsupported(
            "which dimensions of the kernel are features is not in the text",
            "print the module before this op is made: it is a reverse and a transpose",
        )
    labels = places.group(2)
    space = [d for d, label in enumerate(labels) if label.isdecimal()]
    attributes = f"dimensions={{{','.join(map(str, space))}}}"
    turned = call.text.add("reverse", kernel.kind, kernel.dims, kernel.name, attributes)
    order = list(range(kernel.rank))
    i, o = labels.index("i"), labels.index("o")
    order[i], order[o] = o, i
    return [turned.transposed(order)]
