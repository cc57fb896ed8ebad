"""Lowering of FFT: one dimension after the other, long ones in two steps."""

from collections.abc import Sequence
from math import isqrt, prod

import numpy as np

from hloipu_compiler.lowering.core.builder import Builder
from hloipu_compiler.lowering.core.context import LoweringContext, lowers
from hloipu_compiler.lowering.core.values import TileTensor, Value
from hloipu_compiler.lowering.core.views import compute_spread, seen_as
from hloipu_runtime.codelets.core.constants import number_node
from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.dense.fft import Fft, Twiddle
from hloipu_runtime.codelets.ops.elementwise import Elementwise
from hloipu_runtime.codelets.ops.move import Transpose
from hloipu_runtime.kernels.core.storage import storage_dtype

LONG = 1024
"""From this length on a transform is cut in two, if tiles would be idle otherwise."""


@lowers("fft")
def _fft(context: LoweringContext) -> Sequence[Value]:
    kind, lengths = context.attributes.text("fft_type"), context.attributes.integers("fft_length")
    tensor, ((element_type, shape),) = context.tile_tensor(0), context.results
    if not lengths:
        return [tensor]
    if not prod(shape):
        return [
            context.builder.constant(np.empty(shape, storage_dtype(element_type)), element_type)
        ]
    dimensions = range(len(shape) - len(lengths), len(shape))
    order = list(zip(dimensions, lengths, strict=True))
    if kind != "IRFFT":
        order.reverse()
    plain = "IFFT" if kind in ("IFFT", "IRFFT") else "FFT"
    for dimension, length in order:
        is_last = dimension == len(shape) - 1
        step = kind if is_last else plain
        size = shape[dimension] if step != "IRFFT" or is_last else tensor.shape[dimension]
        result = (*tensor.shape[:dimension], size, *tensor.shape[dimension + 1 :])
        real = step == "IRFFT"
        complex_type = "c128" if tensor.element_type in ("f64", "c128") else "c64"
        tensor = _along(context.builder, tensor, step, dimension, length,
                   (element_type if real else complex_type, result))  # fmt: skip
    return [tensor]


def _along(
    builder: Builder,
    x: TileTensor,
    kind: str,
    dimension: int,
    length: int,
    result: tuple[str, tuple[int, ...]],
) -> TileTensor:
    rows = prod(x.shape) // max(1, x.shape[dimension])
    first = next((n for n in range(isqrt(max(1, length)), 0, -1) if length % n == 0), 1)
    if length < LONG or first == 1 or 2 * rows >= builder.tile_count:
        return compute_spread(builder, Fft(kind, dimension, length), [x], [result])[0]
    element_type, shape = result
    if kind == "RFFT":
        whole = _in_two(builder, _elementwise(builder, x, "complex", element_type), "FFT",
                        dimension, first)  # fmt: skip
        box = tuple((0, n) for n in shape)
        return seen_as(builder, [whole], shape, ((whole.shape, box, (0,) * len(shape)),))[0]
    if kind == "IRFFT":
        whole = _in_two(builder, _analytic(builder, x, dimension, length), "IFFT", dimension, first)
        return _elementwise(builder, whole, "real", element_type)
    return _in_two(builder, x, kind, dimension, first)


def _elementwise(builder: Builder, x: TileTensor, op: str, element_type: str) -> TileTensor:
    """Return x as a complex value, its real part, or x + x."""
    zero = number_node(0, x.element_type)
    nodes = {
        "complex": (zero, Node("complex", (0, 1), element_type)),
        "real": (Node("real", (0,), element_type),),
        "add": (Node("add", (0, 0), element_type),),
    }[op]
    expression = Expression((x.element_type,), nodes, (len(nodes),))
    rank = len(x.shape)
    codelet = Elementwise(expression, (tuple(range(rank)),), rank)
    return builder.compute(codelet, [x], [(element_type, x.shape)])[0]


def _analytic(builder: Builder, x: TileTensor, d: int, length: int) -> TileTensor:
    """Return frequencies, of the full length, whose values in time have the wanted real part.

    The positive ones stand for themselves and for their mirror images: they are doubled. The
    others are zeros.
    """
    shape, kind = (*x.shape[:d], length, *x.shape[d + 1 :]), x.element_type
    real = "f64" if kind == "c128" else "f32"
    nodes = (number_node(0, real), Node("complex", (0, 0), kind))
    zeros = Elementwise(Expression((), nodes, (1,)), (), len(shape))
    (base,) = builder.compute(zeros, [], [(kind, shape)])
    twice = _elementwise(builder, x, "add", kind)
    middle = (length + 1) // 2
    ranges = [(x, 0, 1), (twice, 1, middle), (x, middle, length // 2 + 1)]
    shift = (0,) * len(shape)
    pieces = [
        (
            leaf,
            x.shape,
            tuple((low, high) if k == d else (0, n) for k, n in enumerate(shape)),
            shift,
        )
        for leaf, low, high in ranges
        if low < high
    ]
    return builder.assembled(kind, shape, pieces, base)


def _in_two(builder: Builder, x: TileTensor, kind: str, d: int, first: int) -> TileTensor:
    """Transform along a dimension seen as [first, second], as codelets/dense/fft.py says."""
    length, element_type = x.shape[d], x.element_type
    second = length // first
    shape = (*x.shape[:d], first, second, *x.shape[d + 1 :])
    (split,) = seen_as(builder, [x], shape)
    results = [(element_type, shape)]
    (columns,) = compute_spread(builder, Fft(kind, d, first), [split], results)
    twiddle = Twiddle((d, d + 1), length, kind == "IFFT")
    turned = builder.compute(twiddle, [columns], results, last_uses=[True])
    (rows,) = compute_spread(builder, Fft(kind, d + 1, second), turned, results)
    order = (*range(d), d + 1, d, *range(d + 2, len(shape)))
    swapped = tuple(shape[k] for k in order)
    moved = builder.compute(Transpose(order), [rows], [(element_type, swapped)])
    return seen_as(builder, moved, x.shape)[0]
