"""Pooling over windows, and its gradients.

An average counts no padding. The gradient of a maximum goes to every element of a window that is
as large (graphcore/poplibs: lib/popnn/codelets/MaxPoolingGradient.cpp).
"""

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hloipu_compiler.formulas.call import Call, formula
from hloipu_compiler.formulas.text import Value

_MOST_OFFSETS = 1024
"""Elements of a window whose gradient is written out element by element."""


@dataclass(frozen=True, slots=True)
class _Window:
    size: tuple[int, ...]
    stride: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]

    @property
    def text(self) -> str:
        pads = "x".join(f"{a}_{b}" for a, b in zip(self.low, self.high, strict=True))
        sizes, strides = ("x".join(map(str, numbers)) for numbers in (self.size, self.stride))
        return f"window={{size={sizes} stride={strides} pad={pads}}}"

    @property
    def count(self) -> int:
        return math.prod(self.size)


def _window(call: Call, rank: int) -> _Window:
    """Return the window that an attribute says: as JSON of XLA's message, or as HLO writes it."""
    attribute = call.attributes.get("window")
    parts: list[Mapping[str, object]] = []
    if isinstance(attribute, str) and "size=" in attribute:
        parts = _from_text(attribute)
    else:
        try:
            parsed = json.loads(attribute) if isinstance(attribute, str) else attribute
        except (json.JSONDecodeError, RecursionError):
            parsed = None
        if isinstance(parsed, dict) and isinstance(parsed.get("dimensions"), list):
            parts = [part for part in parsed["dimensions"] if isinstance(part, dict)]
    call.need(len(parts) == rank, f"its attribute window has no {rank} dimensions")
    numbers = [
        tuple(_integer(call, part, *keys) for part in parts)
        for keys in (("size",), ("stride",), ("paddingLow", "padding_low"),
                     ("paddingHigh", "padding_high"))
    ]  # fmt: skip
    window = _Window(*numbers)
    call.need(min((*window.size, *window.stride), default=1) > 0, "its window is empty")
    dilated = any(
        _integer(call, part, a, b, default=1) != 1
        for part in parts
        for a, b in (("windowDilation", "window_dilation"), ("baseDilation", "base_dilation"))
    )
    if dilated:
        raise call.unsupported("its window is dilated", "pool without dilation")
    return window


def _integer(call: Call, part: Mapping[str, object], *keys: str, default: int | None = None) -> int:
    for key in keys:
        if key in part:
            text = str(part[key])
            call.need(text.lstrip("-").isdecimal(), f"{key} of its window is {text[:20]!r}")
            return int(text)
    if default is not None:
        return default
    return 1 if keys[0] == "stride" else 0


def _from_text(text: str) -> list[Mapping[str, object]]:
    fields = dict(re.findall(r"(\w+)=(\S+?)(?=[\s}]|$)", text))
    sizes = fields["size"].split("x")
    strides = fields.get("stride", "x".join(["1"] * len(sizes))).split("x")
    pads = fields.get("pad", "x".join(["0_0"] * len(sizes))).split("x")
    return [
        {"size": a, "stride": b, "paddingLow": c.split("_")[0], "paddingHigh": c.split("_")[-1]}
        for a, b, c in zip(sizes, strides, pads, strict=False)
    ]


def _pooled(call: Call, x: Value, window: _Window, opcode: str, start: float) -> Value:
    dims = [
        (n + a + b - size) // step + 1
        for n, a, b, size, step in zip(
            x.dims, window.low, window.high, window.size, window.stride, strict=True
        )
    ]
    call.need(min(dims, default=1) > 0, "its window is larger than its operand")
    begin = call.text.number(x.kind, start)
    attributes = f"{window.text}, to_apply={call.text.reducer(opcode, x.kind)}"
    return call.text.add("reduce-window", x.kind, dims, f"{x.name}, {begin.name}", attributes)


@formula("MaxPool")
def _largest(call: Call) -> Sequence[Value]:
    (x,) = call.takes(1)
    return [_pooled(call, x, _window(call, x.rank), "maximum", -math.inf)]


@formula("AvgPool")
def _average(call: Call) -> Sequence[Value]:
    (x,) = call.takes(1)
    window = _window(call, x.rank)
    wide = x.wide()
    total = _pooled(call, wide, window, "add", 0)
    return [(total / _counted(call, x.dims, window)).converted(x.kind)]


def _counted(call: Call, dims: Sequence[int], window: _Window) -> Value:
    """Return how many elements each window has that are no padding."""
    return _pooled(call, call.text.full("f32", dims, 1), window, "add", 0)


@formula("MaxPoolGrad")
def _gradient_of_largest(call: Call) -> Sequence[Value]:
    x, largest, gradient = call.takes(3)
    window = _window(call, x.rank)
    call.alike(largest, gradient)
    operand_gradient = call.text.full("f32", x.dims, 0)
    for offset in _offsets(call, window):
        known = _laid(call, largest.wide(), x.dims, window, offset, math.nan)
        gradient_at_offset = _laid(call, gradient.wide(), x.dims, window, offset, 0)
        is_largest = known.compared("EQ", x.wide())
        operand_gradient = operand_gradient + is_largest.select(
            gradient_at_offset, 0.0, gradient_at_offset
        )
    return [operand_gradient.converted(x.kind)]


@formula("AvgPoolGrad")
def _gradient_of_average(call: Call) -> Sequence[Value]:
    gradient = call.operands[-1] if call.operands else call.takes(1)[0]
    kind, dims = call.results[0]
    window = _window(call, gradient.rank)
    share = gradient.wide() / _counted(call, dims, window)
    operand_gradient = call.text.full("f32", dims, 0)
    for offset in _offsets(call, window):
        operand_gradient = operand_gradient + _laid(call, share, dims, window, offset, 0)
    return [operand_gradient.converted(kind)]


def _offsets(call: Call, window: _Window) -> Sequence[tuple[int, ...]]:
    if window.count > _MOST_OFFSETS:
        raise call.unsupported(
            f"its window has {window.count} elements", "reduce over the whole dimensions instead"
        )
    return list(itertools.product(*(range(size) for size in window.size)))


def _laid(
    call: Call, x: Value, dims: Sequence[int], window: _Window, offset: Sequence[int],
    nothing: float,
) -> Value:  # fmt: skip
    """Return each window's number at the place of its element `offset` in the operand."""
    low = [at - pad for at, pad in zip(offset, window.low, strict=True)]
    spans = [(n - 1) * step + 1 for n, step in zip(x.dims, window.stride, strict=True)]
    high = [size - a - span for size, a, span in zip(dims, low, spans, strict=True)]
    return x.padded(low, high, [step - 1 for step in window.stride], nothing)
