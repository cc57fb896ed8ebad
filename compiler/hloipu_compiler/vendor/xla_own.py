"""XLA's own calls: block-scaled numbers, 64-bit numbers in halves, shifted copies.

Blocks: openxla/xla: xla/service/gpu/transforms/block_scaling_rewriter.cc (BuildQuantize,
BuildDequantize, BuildBlockScaledDot), as `jax.nn.scaled_dot_general` is lowered for GPUs. Halves:
xla/service/sharding_propagation_test.cc (X64Combine). Rotated and wrapped, sliced, padded:
xla/service/spmd/custom_call_handler.cc, spmd_partitioner_test.cc (CustomCallMulti*), and
EnzymeAD/Enzyme-JAX: test/lit_tests/communication (multi_slice, multi_pad).
"""

import re
from collections.abc import Sequence

from ml_dtypes import finfo

from hloipu_compiler.formulas.call import Call, formula
from hloipu_compiler.formulas.text import Value
from hloipu_runtime.kernels.core.storage import user_dtype

_NUMBERS = re.compile(r"\b([a-z_]+)=([0-9]{1,18})\b")
_LISTS = re.compile(r"\b([a-z_]+)=\[((?:[0-9]{1,18}, *)*[0-9]{1,18})\]")


def _in_blocks(call: Call, scale: Value, dims: Sequence[int]) -> Value:
    """Return a scale as large as what it scales: a number for each block of each dimension."""
    fits = scale.rank == len(dims) and all(
        n % m == 0 for n, m in zip(dims, scale.dims, strict=True)
    )
    call.need(fits and 0 not in scale.dims, f"it scales {tuple(dims)} by {scale.dims}")
    apart = [size for n, m in zip(dims, scale.dims, strict=True) for size in (m, n // m)]
    return scale.broadcast(apart, range(0, 2 * scale.rank, 2)).reshaped(dims)


def _scaled(call: Call, x: Value, scale: Value, kind: str) -> Value:
    return x.converted(kind) * _in_blocks(call, scale.converted(kind), x.dims)


@formula("__op$dequantize")
def _dequantize(call: Call) -> Sequence[Value]:
    x, scale = call.takes(2)
    return [_scaled(call, x, scale, call.results[0][0])]


@formula("__op$quantize")
def _quantize(call: Call) -> Sequence[Value]:
    (x,) = call.takes(1)
    call.need(len(call.results) == 2, "it gives numbers and their scales")
    (kind, dims), (scale_kind, blocks) = call.results
    call.need(x.dims == dims and blocks[:-1] == dims[:-1] and x.rank > 0, f"it scales {x.dims}")
    count = blocks[-1] if blocks else 0
    call.need(count > 0 and dims[-1] % count == 0, f"its last dimension has {count} blocks")
    largest = (
        x.unary("abs").reshaped((*blocks, dims[-1] // count)).reduced("maximum", [len(blocks)])
    )
    exponent = int(finfo(user_dtype(kind)).maxexp) - 1  # type: ignore[no-untyped-call]
    scale = (largest / 2.0**exponent).converted(scale_kind)
    return [(x / _in_blocks(call, scale.converted(x.kind), dims)).converted(kind), scale]


@formula("__op$block_scaled_dot")
def _block_scaled_dot(call: Call) -> Sequence[Value]:
    """Rows of the one with rows of the other, both by their last dimension."""
    x, y, *scales = call.takes(3, 4)
    kind = call.results[0][0]
    call.need(x.rank == y.rank and x.rank in (2, 3), "it multiplies matrices, or batches of them")
    x = _scaled(call, x, scales[0], kind)
    y = _scaled(call, y, scales[1], kind) if len(scales) > 1 else y.converted(kind)
    last, batch = x.rank - 1, tuple(range(x.rank - 2))
    return [x.dot(y, ((last,), (last,)), (batch, batch))]


@formula("X64Combine")
def _combine(call: Call) -> Sequence[Value]:
    """Put a wide number together from its low and high half, a float from what it is a sum of."""
    low, high = call.takes(2)
    kind = call.results[0][0]
    call.need(kind in ("u64", "s64", "f64"), f"it makes {kind}")
    if kind == "f64":
        return [low.converted(kind) + high.converted(kind)]
    shifted = high.converted(kind).binary("shift-left", 32)
    return [shifted | low.converted("u32").converted(kind)]


@formula("X64SplitLow", "X64SplitHigh")
def _half(call: Call) -> Sequence[Value]:
    (x,) = call.takes(1)
    kind, is_high = call.results[0][0], call.target == "X64SplitHigh"
    call.need(x.kind in ("u64", "s64", "f64"), f"it takes {x.kind}")
    if x.kind != "f64":
        x = x.binary("shift-right-logical", 32) if is_high else x
        return [(x & x.like(2.0**32 - 1)).converted("u32").converted(kind)]
    high = x.converted(kind)
    if is_high:
        return [high]
    low = x - high.converted("f64")
    # Nothing is left of an infinity, or beyond the largest f32.
    return [high.unary("is-finite", "pred").select(low, 0.0, x).converted(kind)]


def _configured(call: Call, *names: str) -> list[int]:
    numbers = dict(_NUMBERS.findall(call.instruction.backend_config))
    call.need(numbers.keys() >= set(names), f"its configuration has no {' or no '.join(names)}")
    d, *more_numbers = (int(numbers[name]) for name in names)
    x = call.operands[0]
    call.need(d < x.rank and x.dims[d] > 0, f"its dimension is {d}, of {x.dims}")
    return [d, *more_numbers]


def _rotated_left(x: Value, d: int, amount: int) -> Value:
    first, n = amount % x.dims[d], x.dims[d]
    return x.sliced(d, first, n).concatenated([x.sliced(d, 0, first)], d) if first else x


@formula("_SPMDInternalOp_RotateRight")
def _rotate(call: Call) -> Sequence[Value]:
    (x,) = call.takes(1)
    d, amount = _configured(call, "dimension", "amount")
    return [_rotated_left(x, d, -amount)]


@formula("_SPMDInternalOp_MultiRotate")
def _rotate_each(call: Call) -> Sequence[Value]:
    """Rotate by each amount, from the most to the left to the most to the right."""
    (x,) = call.takes(1)
    d, left, right = _configured(call, "dimension", "left_amount", "right_amount")
    call.need(len(call.results) == left + right + 1, f"it has {len(call.results)} results")
    return [_rotated_left(x, d, amount) for amount in range(left, -right - 1, -1)]


@formula("_SPMDInternalOp_Wrap")
def _wrap(call: Call) -> Sequence[Value]:
    """Put the end before the beginning, and the beginning behind the end."""
    (x,) = call.takes(1)
    d, left, right = _configured(call, "dimension", "left_amount", "right_amount")
    n = x.dims[d]
    call.need(max(left, right) <= n, f"it wraps {left} and {right} of {n}")
    parts = [(n - left, n)] * (left > 0) + [(0, n)] + [(0, right)] * (right > 0)
    first, *later_parts = (x.sliced(d, *part) for part in parts)
    return [first.concatenated(later_parts, d) if later_parts else first]


@formula("_SPMDInternalOp_MultiSlice")
def _slices(call: Call) -> Sequence[Value]:
    """Take a slice, and those that begin and end one, two, ... elements later."""
    (x,) = call.takes(1)
    d, amount = _configured(call, "dimension", "amount")
    lists = dict(_LISTS.findall(call.instruction.backend_config))
    names = ("start_indices", "limit_indices", "strides")
    bounds_by_name = [[int(n) for n in re.findall("[0-9]+", lists.get(name, ""))] for name in names]
    call.need(
        all(len(bounds) == x.rank for bounds in bounds_by_name), f"it slices {x.dims} by {lists}"
    )
    call.need(len(call.results) == amount + 1, f"it has {len(call.results)} results")
    ranges = list(zip(*bounds_by_name, strict=True))
    for k, (n, (start, limit, stride)) in enumerate(zip(x.dims, ranges, strict=True)):
        last = limit + amount * (k == d)
        call.need(start <= limit and last <= n and stride > 0, f"it slices up to {last} of {n}")
    slices = []
    for shift in range(amount + 1):
        start, limit, stride = ranges[d]
        shifted = [*ranges[:d], (start + shift, limit + shift, stride), *ranges[d + 1 :]]
        dims = [-(-(b - a) // c) for a, b, c in shifted]
        words = ", ".join(f"[{a}:{b}:{c}]" for a, b, c in shifted)
        slices.append(call.text.add("slice", x.kind, dims, x.name, f"slice={{{words}}}"))
    return slices


@formula("_SPMDInternalOp_MultiPad")
def _pads(call: Call) -> Sequence[Value]:
    """Pad by one number of elements, all before, one less before and one behind, ... all behind."""
    x, value = call.takes(2)
    d, amount = _configured(call, "dimension", "amt")
    call.need(not value.rank and value.kind == x.kind, f"it pads {x.kind} with {value.kind}")
    call.need(len(call.results) == amount + 1, f"it has {len(call.results)} results")
    dims = [n + amount * (k == d) for k, n in enumerate(x.dims)]
    pads = []
    for low in range(amount, -1, -1):
        padding = "x".join(f"{low}_{amount - low}" if k == d else "0_0" for k in range(x.rank))
        operands = f"{x.name}, {value.name}"
        pads.append(call.text.add("pad", x.kind, dims, operands, f"padding={padding}"))
    return pads
