"""Operations that slide a window: reduce-window and select-and-scatter.

Sources: openxla/xla `xla/service/shape_inference.cc`, `xla/window_util.cc`. Where a size would be
negative XLA's process ends; here it is a fault.
"""

from hloipu_compiler.inference import faults
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
from hloipu_compiler.inference.site import RULES, Site, array_operand
from hloipu_compiler.ir.attributes import Window
from hloipu_compiler.ir.shapes import UNBOUNDED, ArrayShape, Shape, TupleShape, compatible
from hloipu_runtime.element_types import PRED
from hloipu_runtime.kernels.windows_geometry import WindowDimension


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
    return ShapeFault(faults.WINDOW, problem, expected=expected, attribute="window")


def reduce_window(site: Site) -> Shape:
    """Return how often the window fits into the inputs, one result for each input."""
    count = len(site.operands) // 2
    if count > 1 and len(site.operands) == 2 * count and not site.verifying:
        raise ShapeFault(
            faults.NOT_INFERABLE,
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
        raise ShapeFault(
            faults.REDUCER,
            f"the computation in select is ({shown}) -> {chooser.result}",
            expected=f"({name}[], {name}[]) -> pred[]",
            attribute="select",
        )
    inits = site.operands[2:]
    check_reducer("scatter", site.callee("scatter"), [source.element_type], inits)
    sizes = window_sizes(operand.dimensions, site.attributes.window())
    places = make_array(element_type, sizes, dynamic_flags(operand))
    if not compatible_up_to_precision(source, places):
        raise ShapeFault(
            faults.SIZE_MISMATCH,
            f"the source of select-and-scatter is {source}",
            expected=f"{places}, one element for each place of the window",
            operand=1,
        )
    return operand


RULES.add({"reduce-window": reduce_window, "select-and-scatter": select_and_scatter})
