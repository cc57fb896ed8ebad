"""Convolution, reduce-window and select-and-scatter: labels, groups, windows.

Sources: openxla/xla `xla/service/shape_inference.cc`, `xla/hlo/parser/hlo_parser.cc` (labels). The
verifier infers every `convolution_kind` as a forward convolution, and so does this rule.

Windows: `xla/window_util.cc`. Where a size would be
negative XLA's process ends; here it is a fault.
"""

import re
from typing import NamedTuple

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.dots import preferred_type
from hloipu_compiler.inference.faults import ShapeFault
from hloipu_compiler.inference.reducers import (
    check_exact_types,
    check_reducer,
    reduced_inputs,
    scalar_parameter,
)
from hloipu_compiler.inference.relations import (
    compatible_up_to_precision,
    dynamic_flags,
    make_array,
)
from hloipu_compiler.inference.site import RULES, Site, array_operand, is_array
from hloipu_compiler.ir.attributes import ConvolutionLabels, Window
from hloipu_compiler.ir.shapes import UNBOUNDED, ArrayShape, Shape, TupleShape, compatible
from hloipu_runtime.element_types import PRED
from hloipu_runtime.kernels.windows_geometry import WindowDimension

_SPARSE_RIGHT = re.compile(r"rhs\s*=\s*\{[^{}]*sparsity\s*=\s*(\d+)x(\d+)")


class Numbers(NamedTuple):
    """Positions of the two named dimensions and of the spatial ones."""

    first: int
    """Batch of input and result, input features of the kernel."""
    second: int
    """Features of input and result, output features of the kernel."""
    spatial: tuple[int, ...]


@RULES.register("convolution")
def convolution(site: Site) -> Shape:
    """Return the result's sizes, placed as `dim_labels` says."""
    left, right = array_operand(site, 0), _kernel(site)
    inputs, kernel, result = _label_numbers(site)
    rank = len(inputs.spatial) + 2
    for number, shape in ((0, left), (1, right)):
        if shape.rank != rank:
            raise faults.SIZE_MISMATCH(
                f"operand {number} of convolution is {shape}",
                expected=f"rank {rank}, as in dim_labels",
                operand=number,
            )
    batch = _check_groups(site, left, right, inputs, kernel)
    window = site.attributes.window()
    if len(window.dimensions) != rank - 2:
        raise window_fault(f"a window of {len(window.dimensions)} dimensions", f"{rank - 2}")
    if any(
        right.dimensions[d] != w.size
        for d, w in zip(kernel.spatial, window.dimensions, strict=True)
    ):
        shown = "x".join(str(right.dimensions[d]) for d in kernel.spatial)
        raise window_fault(f"a window that differs from the kernel {right}", f"size={shown}")
    sizes = [0] * rank
    sizes[result.first], sizes[result.second] = batch, right.dimensions[kernel.second]
    fits = window_sizes(tuple(left.dimensions[d] for d in inputs.spatial), window)
    for place, size in zip(result.spatial, fits, strict=True):
        sizes[place] = size
    flags = _flags(left, right, inputs, kernel, result)
    return make_array(preferred_type(site, left, right), sizes, flags)


def _kernel(site: Site) -> ArrayShape:
    shape = site.operands[1]
    if isinstance(shape, TupleShape) and len(shape.elements) == 2:
        values = shape.elements[0]
        if isinstance(values, ArrayShape) and is_array(values):
            return values
    return array_operand(site, 1)


def _label_numbers(site: Site) -> tuple[Numbers, Numbers, Numbers]:
    labels = site.attributes.get("dim_labels")
    if not isinstance(labels, ConvolutionLabels):
        labels = ConvolutionLabels("", "", "")
    return (
        _read_labels(labels.lhs, "bf"),
        _read_labels(labels.rhs, "io"),
        _read_labels(labels.out, "bf"),
    )


def _read_labels(text: str, named: str) -> Numbers:
    digits = [str(i) for i in range(len(text) - 2)]
    if sorted(text) != sorted([*named, *digits]):
        shown = "".join([named[0], *digits, named[1]])
        raise faults.DIMENSION_ORDER(
            f"convolution dimensions {text!r}",
            expected=f"{shown} in some order",
            attribute="dim_labels",
        )
    return Numbers(text.index(named[0]), text.index(named[1]), tuple(map(text.index, digits)))


def _check_groups(
    site: Site, left: ArrayShape, right: ArrayShape, inputs: Numbers, kernel: Numbers
) -> int:
    features = site.attributes.integer("feature_group_count", 1)
    batches = site.attributes.integer("batch_group_count", 1)
    if features < 1 or batches < 1 or (features > 1 and batches > 1):
        raise faults.ATTRIBUTE_VALUE(
            f"feature_group_count={features}, batch_group_count={batches}",
            expected="both at least 1, and one of them 1",
            attribute="feature_group_count",
        )
    batch, features_in = left.dimensions[inputs.first], left.dimensions[inputs.second]
    kernel_in, outputs = right.dimensions[kernel.first], right.dimensions[kernel.second]
    kernel_in *= _block_size(site)
    name = "batch_group_count" if batches > 1 else "feature_group_count"
    if outputs % features or outputs % batches or batch % batches:
        raise faults.ATTRIBUTE_VALUE(
            f"{name}={max(features, batches)} of batch size {batch} and {outputs} output features",
            expected="a number that divides them",
            attribute=name,
        )
    if features_in % features or features_in // features != kernel_in:
        raise faults.SIZE_MISMATCH(
            f"{features_in} input features of {left} in {features} groups, {kernel_in} in kernel "
            f"{right}",
            expected=f"{features_in / features:g} input features in the kernel",
            operand=1,
        )
    return batch // batches


def _block_size(site: Site) -> int:
    sparsity = _SPARSE_RIGHT.search(site.attributes.text("sparsity_config"))
    if sparsity is None:
        return 1
    if sparsity[1] != "1":
        raise faults.ATTRIBUTE_VALUE(
            f"sparsity {sparsity[1]}x{sparsity[2]} of the kernel",
            expected="1xN",
            attribute="sparsity_config",
        )
    return int(sparsity[2])


def _flags(
    left: ArrayShape, right: ArrayShape, inputs: Numbers, kernel: Numbers, result: Numbers
) -> list[bool]:
    flags = [False] * left.rank
    of_left, of_right = dynamic_flags(left), dynamic_flags(right)
    if of_right[kernel.second]:
        raise faults.DYNAMIC_SIZE(
            f"the output features of kernel {right} are dynamic",
            expected="a static size",
            operand=1,
        )
    flags[result.first] = of_left[inputs.first]
    spatial = zip(inputs.spatial, kernel.spatial, result.spatial, strict=True)
    for from_left, from_right, place in spatial:
        flags[place] = of_left[from_left] or of_right[from_right]
    return flags


def window_sizes(sizes: tuple[int, ...], window: Window) -> list[int]:
    """Return how often the window fits along each dimension.

    Per dimension: floor((low + dilated base + high - dilated window) / stride) + 1, or 0 where the
    window does not fit, with dilated n = (n - 1) * dilation + 1.
    """
    if len(window.dimensions) != len(sizes):
        raise window_fault(
            f"a window of {len(window.dimensions)} dimensions", f"{len(sizes)} dimensions"
        )
    return [
        _fits(size, dimension) for size, dimension in zip(sizes, window.dimensions, strict=True)
    ]


def _fits(size: int, dimension: WindowDimension) -> int:
    for name, value in (
        ("size", dimension.size),
        ("stride", dimension.stride),
        ("lhs_dilate", dimension.base_dilation),
        ("rhs_dilate", dimension.window_dilation),
    ):
        if value < 1:
            raise window_fault(f"a window with {name} {value}", "at least 1")
    if size == UNBOUNDED:
        return UNBOUNDED
    base = dimension.pad_low + _dilated(size, dimension.base_dilation) + dimension.pad_high
    if base < 0:
        raise window_fault(
            f"padding {dimension.pad_low}_{dimension.pad_high} of size {size}",
            "at least 0 elements to be left",
        )
    window = _dilated(dimension.size, dimension.window_dilation)
    return 0 if base == 0 or window > base else (base - window) // dimension.stride + 1


def _dilated(size: int, dilation: int) -> int:
    return (size - 1) * dilation + 1 if size else 0


def window_fault(problem: str, expected: str) -> ShapeFault:
    """Return a fault that points at the window."""
    return faults.WINDOW(problem, expected=expected, attribute="window")


@RULES.register("reduce-window")
def reduce_window(site: Site) -> Shape:
    """Return how often the window fits into the inputs, one result for each input."""
    count = len(site.operands) // 2
    if count > 1 and len(site.operands) == 2 * count and not site.verifying:
        raise faults.NOT_INFERABLE(
            f"the shape of a reduce-window of {count} inputs cannot be inferred",
            expected="a result shape before the opcode",
        )
    inputs, inits = reduced_inputs(site), site.operands[count:]
    program = site.callee("to_apply")
    types = [shape.element_type for shape in inputs]
    check_reducer("to_apply", program, types, inits)
    check_exact_types(site, program)
    window = site.attributes.window()
    results = tuple(
        make_array(init.element_type, window_sizes(shape.dimensions, window), dynamic_flags(shape))
        for shape, init in zip(inputs, inits, strict=True)
        if isinstance(init, ArrayShape)
    )
    if site.verifying and isinstance(program.result, TupleShape):
        return TupleShape(results)
    return results[0]


@RULES.register("select-and-scatter")
def select_and_scatter(site: Site) -> Shape:
    """Return the operand's shape; the source has one element for each place of the window."""
    operand, source = array_operand(site, 0), array_operand(site, 1)
    chooser, element_type = site.callee("select"), operand.element_type
    fits = len(chooser.parameters) == 2 and all(
        scalar_parameter(p, element_type) for p in chooser.parameters
    )
    if not fits or not compatible(chooser.result, ArrayShape(PRED)):
        name = element_type.name
        shown = ", ".join(map(str, chooser.parameters))
        raise faults.REDUCER(
            f"the computation in select is ({shown}) -> {chooser.result}",
            expected=f"({name}[], {name}[]) -> pred[]",
            attribute="select",
        )
    inits = site.operands[2:]
    check_reducer("scatter", site.callee("scatter"), [source.element_type], inits)
    sizes = window_sizes(operand.dimensions, site.attributes.window())
    places = make_array(element_type, sizes, dynamic_flags(operand))
    if not compatible_up_to_precision(source, places):
        raise faults.SIZE_MISMATCH(
            f"the source of select-and-scatter is {source}",
            expected=f"{places}, one element for each place of the window",
            operand=1,
        )
    return operand
