"""FLOPs of the ops that are not elementwise.

Sources: openxla/xla `xla/service/hlo_cost_analysis.cc` for dot, convolution, reduce, windows and
batch norm; n log2 n comparisons for sort; 5 n log2 n for a complex FFT (Cooley-Tukey).
"""

from collections.abc import Callable, Sequence
from math import ceil, log2, prod

from hloipu_compiler.ir.attributes import ConvolutionLabels, Window, WindowDimension
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.ops import ELEMENTWISE
from hloipu_compiler.ir.shapes import ArrayShape, Shape, leaves

Operands = Sequence[Shape]


def flops_rule(module: Module, instruction: Instruction, operands: Operands) -> int:
    """Return the FLOPs of one execution; 0 for ops that only move data, and for opaque ones."""
    rule = _RULES.get(instruction.opcode)
    return rule(module, instruction, operands) if rule else 0


def element_count(shape: Shape) -> int:
    """Return the number of elements of all array leaves together."""
    return sum(leaf.element_count for _, leaf in leaves(shape) if isinstance(leaf, ArrayShape))


def _sizes(shape: Shape) -> tuple[int, ...]:
    return shape.dimensions if isinstance(shape, ArrayShape) else ()


def _applied(module: Module, instruction: Instruction, key: str = "to_apply") -> int:
    """FLOPs of one application of a small computation: its elementwise instructions."""
    callee = module.computation.get(instruction.attributes.text(key))
    return _elementwise_count(callee) if callee is not None else 1


def _elementwise_count(callee: Computation) -> int:
    return sum(x.opcode in ELEMENTWISE for x in callee.instructions)


def _dot(module: Module, instruction: Instruction, operands: Operands) -> int:
    sizes = _sizes(operands[0])
    contracted = instruction.attributes.integers("lhs_contracting_dims")
    depth = prod(sizes[d] for d in contracted if d < len(sizes))
    return 2 * element_count(instruction.shape) * depth


def _ragged_dot(module: Module, instruction: Instruction, operands: Operands) -> int:
    return _dot(module, instruction, operands)


def _valid_taps(size: int, out_size: int, window: WindowDimension) -> int:
    """Pairs (output place, kernel place) of one dimension that meet an input element.

    A loop over the kernel's places only; places of the output are counted in closed form, unless
    base dilation leaves holes, where the residues have to be counted.
    """
    taps = 0
    for place in range(window.size):
        offset = place * window.window_dilation - window.pad_low
        # Valid x = out * stride + offset: 0 <= x < dilated size, and x a multiple of the dilation.
        last = (size - 1) * window.base_dilation
        first_out = max(0, ceil(-offset / window.stride))
        last_out = min(out_size - 1, (last - offset) // window.stride) if size > 0 else -1
        if last_out < first_out:
            continue
        if window.base_dilation == 1:
            taps += last_out - first_out + 1
        else:
            taps += _hits(first_out, last_out, window.stride, offset, window.base_dilation)
    return taps


def _hits(first: int, last: int, stride: int, offset: int, dilation: int) -> int:
    """How many n in first..last make n * stride + offset a multiple of `dilation`."""
    period = dilation
    whole, rest = divmod(last - first + 1, period)
    per_period = sum((n * stride + offset) % dilation == 0 for n in range(first, first + period))
    tail = range(first, first + rest)
    return whole * per_period + sum((n * stride + offset) % dilation == 0 for n in tail)


def _convolution(module: Module, instruction: Instruction, operands: Operands) -> int:
    labels = instruction.attributes.get("dim_labels")
    window: Window = instruction.attributes.window()
    lhs, rhs, out = _sizes(operands[0]), _sizes(operands[1]), _sizes(instruction.shape)
    if not isinstance(labels, ConvolutionLabels) or not len(lhs) == len(rhs) == len(out):
        return 0
    taps = 1
    for number, dimension in enumerate(window.dimensions):
        places = (labels.lhs.find(str(number)), labels.out.find(str(number)))
        if min(places) < 0:
            return 0
        taps *= _valid_taps(lhs[places[0]], out[places[1]], dimension)
    batch, features = out[labels.out.index("b")], out[labels.out.index("f")]
    inputs = rhs[labels.rhs.index("i")]
    groups = max(1, instruction.attributes.integer("batch_group_count", 1))
    return (
        2 * batch * features * inputs * taps
        if groups == 1
        else (
            2
            * batch
            * features
            * inputs
            * taps
            * lhs[labels.lhs.index("b")]
            // max(1, groups * batch)
        )
    )


def _reduce(module: Module, instruction: Instruction, operands: Operands) -> int:
    arrays = len(operands) // 2
    before = element_count(operands[0])
    after = element_count(instruction.shape) // max(1, arrays)
    return max(0, before - after) * _applied(module, instruction)


def _reduce_window(module: Module, instruction: Instruction, operands: Operands) -> int:
    arrays = max(1, len(operands) // 2)
    size = prod(d.size for d in instruction.attributes.window().dimensions)
    places = element_count(instruction.shape) // arrays
    return places * max(0, size - 1) * _applied(module, instruction)


def _select_and_scatter(module: Module, instruction: Instruction, operands: Operands) -> int:
    size = prod(d.size for d in instruction.attributes.window().dimensions)
    source = element_count(operands[1])
    select = _applied(module, instruction, "select")
    return source * (max(0, size - 1) * select + _applied(module, instruction, "scatter"))


def _scatter(module: Module, instruction: Instruction, operands: Operands) -> int:
    arrays = max(1, len(operands) // 2)
    return element_count(operands[-1]) * _applied(module, instruction) if arrays else 0


def _per_element(module: Module, instruction: Instruction, operands: Operands) -> int:
    return element_count(instruction.shape) * _applied(module, instruction)


def _sort(module: Module, instruction: Instruction, operands: Operands) -> int:
    sizes = _sizes(operands[0])
    axis = instruction.attributes.integers("dimensions") or (len(sizes) - 1,)
    length = sizes[axis[0]] if sizes else 1
    compares = element_count(operands[0]) * ceil(log2(max(2, length)))
    return compares * _applied(module, instruction)


def _topk(module: Module, instruction: Instruction, operands: Operands) -> int:
    return element_count(operands[0]) * ceil(log2(max(2, instruction.attributes.integer("k", 1))))


def _fft(module: Module, instruction: Instruction, operands: Operands) -> int:
    length = prod(instruction.attributes.integers("fft_length"))
    whole = max(element_count(operands[0]), element_count(instruction.shape))
    return ceil(5 * whole * log2(max(2, length)))


def _cholesky(module: Module, instruction: Instruction, operands: Operands) -> int:
    sizes = _sizes(operands[0])
    return element_count(operands[0]) * sizes[-1] // 3 if sizes else 0


def _triangular_solve(module: Module, instruction: Instruction, operands: Operands) -> int:
    sizes = _sizes(operands[0])
    return element_count(instruction.shape) * sizes[-1] if sizes else 0


def _batch_norm(module: Module, instruction: Instruction, operands: Operands) -> int:
    per_element = {"batch-norm-training": 8, "batch-norm-inference": 4, "batch-norm-grad": 11}
    return element_count(operands[0]) * per_element[instruction.opcode]


def _broadcast_elements(module: Module, instruction: Instruction, operands: Operands) -> int:
    return element_count(instruction.shape)


_Rule = Callable[[Module, Instruction, Operands], int]

_RULES: dict[str, _Rule] = {
    "dot": _dot,
    "scaled-dot": _dot,
    "ragged-dot": _ragged_dot,
    "convolution": _convolution,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "select-and-scatter": _select_and_scatter,
    "scatter": _scatter,
    "map": _per_element,
    "scan": _per_element,
    "sort": _sort,
    "topk": _topk,
    "fft": _fft,
    "cholesky": _cholesky,
    "triangular-solve": _triangular_solve,
    "batch-norm-training": _batch_norm,
    "batch-norm-inference": _batch_norm,
    "batch-norm-grad": _batch_norm,
    "rng": _broadcast_elements,
    "rng-bit-generator": _broadcast_elements,
    "all-reduce": _per_element,
    "all-reduce-start": _per_element,
    "reduce-scatter": _per_element,
}
