"""Lowering of convolutions: a grid for each, pieces of the depth added where that is cheaper."""

from collections.abc import Sequence
from dataclasses import replace

from hloipu_compiler.codegen.contractions import combined
from hloipu_compiler.codegen.convolution_grids import convolution_grid
from hloipu_compiler.codegen.errors import CodegenError
from hloipu_compiler.codegen.leaves import Leaf
from hloipu_compiler.codegen.site import Site, lowers
from hloipu_compiler.ir.attributes import ConvolutionLabels
from hloipu_runtime.codelets.codelet import Tensor
from hloipu_runtime.codelets.convolution import Convolution


@lowers("convolution")
def _convolution(site: Site) -> Sequence[Leaf]:
    builder = site.builder
    codelet = _codelet(site)
    kind, shape = site.results[0]
    operands = [site.held(0), site.held(1)]
    image, kernel = (Tensor(x.element_type, x.shape) for x in operands)
    partial_kind = builder.tuning.partial_type(kind)
    room = builder.machine.memory.bytes_per_tile * builder.tuning_here.memory_percent // 100
    where = [builder.variables[x.variable].mapping for x in operands]
    plan = convolution_grid(
        builder.machine,
        codelet,
        (image, kernel),
        Tensor(kind, shape),
        partial_kind,
        room,
        (where[0], where[1]),
    )
    part, along = plan.cut.part, plan.cut.along
    if not part:
        return builder.compute(codelet, operands, [(kind, shape)], placement=plan.placement)
    cut = replace(codelet, part=part, along=along, element_type=partial_kind)
    (partials,) = builder.compute(
        cut, operands, [(partial_kind, (plan.cut.pieces, *shape))], placement=plan.placement
    )
    return [combined(site, partials, kind, shape)]


def _codelet(site: Site) -> Convolution:
    """Return the convolution that an instruction describes."""
    labels = site.attributes["dim_labels"]
    if not isinstance(labels, ConvolutionLabels):
        raise CodegenError("E0470", f"{site.instruction.name}: dim_labels is not read")
    window = site.attributes.window().dimensions
    spatial = [str(number) for number in range(len(window))]
    return Convolution(
        tuple(labels.lhs.index(x) for x in ("b", "f", *spatial)),
        tuple(labels.rhs.index(x) for x in ("i", "o", *spatial)),
        tuple(labels.out.index(x) for x in ("b", "f", *spatial)),
        tuple(
            (d.size, d.stride, d.pad_low, d.pad_high, d.base_dilation, d.window_dilation)
            for d in window
        ),
        tuple(d.reversal for d in window),
        site.shape.element_type.name,
        site.attributes.integer("feature_group_count", 1),
        site.attributes.integer("batch_group_count", 1),
    )
