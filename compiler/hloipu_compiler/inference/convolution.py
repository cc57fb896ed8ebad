"""Convolution: labels, groups and the window over the spatial dimensions.

Sources: openxla/xla `xla/service/shape_inference.cc`, `xla/hlo/parser/hlo_parser.cc` (labels). The
verifier infers every `convolution_kind` as a forward convolution, and so does this rule.
"""

import re
from typing import NamedTuple

from hloipu_compiler.inference import faults
from hloipu_compiler.inference.dots import preferred_type
from hloipu_compiler.inference.faults import ShapeFault
from hloipu_compiler.inference.relations import dynamic_flags, make_array
from hloipu_compiler.inference.site import RULES, Site, array_operand, is_array
from hloipu_compiler.inference.windows import window_fault, window_sizes
from hloipu_compiler.ir.attributes import ConvolutionLabels
from hloipu_compiler.ir.shapes import ArrayShape, Shape, TupleShape

_SPARSE_RIGHT = re.compile(r"rhs\s*=\s*\{[^{}]*sparsity\s*=\s*(\d+)x(\d+)")


class Numbers(NamedTuple):
    """Positions of the two named dimensions and of the spatial ones."""

    first: int
    """Batch of input and result, input features of the kernel."""
    second: int
    """Features of input and result, output features of the kernel."""
    spatial: tuple[int, ...]


def convolution(site: Site) -> Shape:
    """Return the result's sizes, placed as `dim_labels` says."""
    left, right = array_operand(site, 0), _kernel(site)
    inputs, kernel, result = _label_numbers(site)
    rank = len(inputs.spatial) + 2
    for number, shape in ((0, left), (1, right)):
        if shape.rank != rank:
            raise ShapeFault(
                faults.SIZE_MISMATCH,
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
        raise ShapeFault(
            faults.DIMENSION_ORDER,
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
        raise ShapeFault(
            faults.ATTRIBUTE_VALUE,
            f"feature_group_count={features}, batch_group_count={batches}",
            expected="both at least 1, and one of them 1",
            attribute="feature_group_count",
        )
    batch, features_in = left.dimensions[inputs.first], left.dimensions[inputs.second]
    kernel_in, outputs = right.dimensions[kernel.first], right.dimensions[kernel.second]
    kernel_in *= _block_size(site)
    name = "batch_group_count" if batches > 1 else "feature_group_count"
    if outputs % features or outputs % batches or batch % batches:
        raise ShapeFault(
            faults.ATTRIBUTE_VALUE,
            f"{name}={max(features, batches)} of batch size {batch} and {outputs} output features",
            expected="a number that divides them",
            attribute=name,
        )
    if features_in % features or features_in // features != kernel_in:
        raise ShapeFault(
            faults.SIZE_MISMATCH,
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
        raise ShapeFault(
            faults.ATTRIBUTE_VALUE,
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
        raise ShapeFault(
            faults.DYNAMIC_SIZE,
            f"the output features of kernel {right} are dynamic",
            expected="a static size",
            operand=1,
        )
    flags[result.first] = of_left[inputs.first]
    spatial = zip(inputs.spatial, kernel.spatial, result.spatial, strict=True)
    for from_left, from_right, place in spatial:
        flags[place] = of_left[from_left] or of_right[from_right]
    return flags


RULES.add({"convolution": convolution})
