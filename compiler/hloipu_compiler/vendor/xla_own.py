"""XLA's own calls: numbers in blocks with a scale, wide numbers in halves, rotations.

Blocks: openxla/xla: xla/service/gpu/transforms/block_scaling_rewriter.cc (BuildQuantize,
BuildDequantize, BuildBlockScaledDot), as `jax.nn.scaled_dot_general` is lowered for GPUs. Halves:
xla/service/sharding_propagation_test.cc (X64Combine). Rotations:
xla/service/spmd/custom_call_handler.cc.
"""

import re
from collections.abc import Sequence

from ml_dtypes import finfo

from hloipu_compiler.formulas.call import Call, formula
from hloipu_compiler.formulas.text import Value
from hloipu_runtime.kernels.core.storage import user_dtype

_NUMBERS = re.compile(r"\b([a-z]+)=([0-9]{1,18})\b")


def _in_blocks(call: Call, scale: Value, dims: Sequence[int]) -> Value:
    """Return a scale as large as what it scales: a number for each block of each dimension."""
    fits = scale.rank == len(dims) and all(
        n % m == 0 for n, m in zip(dims, scale.dims, strict=True)
    )
    call.need(fits and 0 not in scale.dims, f"it scales {tuple(dims)} by {scale.dims}")
    apart = [size for n, m in zip(dims, scale.dims, strict=True) for size in (m, n // m)]
    return scale.spread(apart, range(0, 2 * scale.rank, 2)).shaped(dims)


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
    largest = x.unary("abs").shaped((*blocks, dims[-1] // count)).reduced("maximum", [len(blocks)])
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
    return [x.dotted(y, ((last,), (last,)), (batch, batch))]


@formula("X64Combine")
def _combine(call: Call) -> Sequence[Value]:
    """Put a wide number together from its low and high half, a float from what it is a sum of."""
    low, high = call.takes(2)
    kind = call.results[0][0]
    call.need(kind in ("u64", "s64", "f64"), f"it makes {kind}")
    if kind == "f64":
        return [low.converted(kind) + high.converted(kind)]
    shifted = high.converted(kind).combined("shift-left", 32)
    return [shifted | low.converted("u32").converted(kind)]


@formula("X64SplitLow", "X64SplitHigh")
def _half(call: Call) -> Sequence[Value]:
    (x,) = call.takes(1)
    kind, is_high = call.results[0][0], call.target == "X64SplitHigh"
    call.need(x.kind in ("u64", "s64", "f64"), f"it takes {x.kind}")
    if x.kind != "f64":
        x = x.combined("shift-right-logical", 32) if is_high else x
        return [(x & x.like(2.0**32 - 1)).converted("u32").converted(kind)]
    high = x.converted(kind)
    if is_high:
        return [high]
    rest = x - high.converted("f64")
    # Nothing is left of an infinity, or beyond the largest f32.
    return [high.unary("is-finite", "pred").chosen(rest, 0.0, x).converted(kind)]


@formula("_SPMDInternalOp_RotateRight")
def _rotate(call: Call) -> Sequence[Value]:
    (x,) = call.takes(1)
    said = dict(_NUMBERS.findall(call.instruction.backend_config))
    call.need({"dimension", "amount"} <= said.keys(), "its dimension and amount are missing")
    d, amount = int(said["dimension"]), int(said["amount"])
    call.need(d < x.rank and x.dims[d] > 0, f"it rotates dimension {d} of {x.dims}")
    n = x.dims[d]
    first = n - amount % n
    return [x] if first == n else [x.sliced(d, first, n).joined([x.sliced(d, 0, first)], d)]
